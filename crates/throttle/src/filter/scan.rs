//! Operations of the throttle's thread that read all positions.

use std::{ops::Range, sync::atomic::Ordering::Relaxed};

use super::{MergeCounts, atomics::AtomicWord};

/// The bits of one slot, eight positions per byte.
pub(super) fn export(words: &[impl AtomicWord], slot: u32) -> Vec<u8> {
    let (blocks, rest) = words.as_chunks::<8>();
    let mut bits = Vec::with_capacity(words.len().div_ceil(8));
    bits.extend(blocks.iter().map(|block| byte(block, slot)));
    if !rest.is_empty() {
        bits.push(byte(rest, slot));
    }
    bits
}

/// Adds `bits` to one slot.
pub(super) fn merge(words: &[impl AtomicWord], slot: u32, bits: &[u8]) -> MergeCounts {
    let (blocks, rest) = words.as_chunks::<8>();
    let mut merged = MergeCounts::default();
    for (block, theirs) in blocks.iter().zip(bits) {
        merge_byte(block, slot, *theirs, &mut merged);
    }
    if let Some(theirs) = bits.get(blocks.len()) {
        merge_byte(rest, slot, *theirs, &mut merged);
    }
    merged
}

#[inline]
fn merge_byte(block: &[impl AtomicWord], slot: u32, theirs: u8, merged: &mut MergeCounts) {
    let ours = byte(block, slot);
    let (remote_missing, mut missing) = (ours & !theirs, theirs & !ours);
    // Usually nothing differs, and counting is the expensive part.
    if remote_missing != 0 {
        merged.remote_missing += u64::from(remote_missing.count_ones());
    }
    while missing != 0 {
        if let Some(word) = block.get(missing.trailing_zeros() as usize) {
            word.fetch_or(1 << slot, Relaxed);
            merged.added += 1;
        }
        missing &= missing - 1;
    }
}

/// Number of positions with a bit of `mask`, among the first `surveyed` ones of a filter folded to
/// `positions`.
pub(super) fn occupied(
    words: &[impl AtomicWord],
    positions: usize,
    surveyed: usize,
    mask: u32,
) -> usize {
    if positions == words.len() {
        return words.iter().filter(|word| word.load(Relaxed) & mask != 0).count();
    }
    (0..surveyed).filter(|at| folded(words, positions, *at) & mask != 0).count()
}

/// Samples evenly spread positions of a filter folded to `positions`. Returns the number of set
/// bits in each slot of `mask` at these positions, and the number of sampled positions: at least
/// `samples`, if the filter has that many.
pub(super) fn ones(
    words: &[impl AtomicWord],
    positions: usize,
    samples: usize,
    mask: u32,
) -> ([u32; 32], usize) {
    let (mut ones, mut read) = ([0; 32], 0);
    for at in (0..positions).step_by((positions / samples).max(1)) {
        let mut word = folded(words, positions, at) & mask;
        while word != 0 {
            ones[word.trailing_zeros() as usize] += 1;
            word &= word - 1;
        }
        read += 1;
    }
    (ones, read)
}

/// The word at the position `at` of a filter folded to `positions`.
#[inline]
fn folded(words: &[impl AtomicWord], positions: usize, at: usize) -> u32 {
    words[at..].iter().step_by(positions).fold(0, |all, word| all | word.load(Relaxed))
}

/// Adds the bits of `mask` in `theirs` to `ours`, at the positions `part` of the larger of the two.
pub(super) fn absorb<W: AtomicWord>(ours: &[W], theirs: &[W], part: Range<usize>, mask: u32) {
    let (mut to, mut from) = (part.start % ours.len(), part.start % theirs.len());
    for _ in part {
        let (word, bits) = (&ours[to], theirs[from].load(Relaxed) & mask);
        if bits & !word.load(Relaxed) != 0 {
            word.fetch_or(bits, Relaxed);
        }
        // Without a division for each position.
        to = if to + 1 == ours.len() { 0 } else { to + 1 };
        from = if from + 1 == theirs.len() { 0 } else { from + 1 };
    }
}

/// The slot's bits of at most eight words.
#[inline]
fn byte(block: &[impl AtomicWord], slot: u32) -> u8 {
    block
        .iter()
        .enumerate()
        .fold(0, |byte, (at, word)| byte | ((word.load(Relaxed) >> slot & 1) << at) as u8)
}
