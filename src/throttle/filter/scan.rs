//! Operations of the throttle's thread that read all positions.

use std::sync::atomic::Ordering::Relaxed;

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

/// Number of words with any bit of `mask`.
pub(super) fn occupied(words: &[impl AtomicWord], mask: u32) -> usize {
    words.iter().filter(|word| word.load(Relaxed) & mask != 0).count()
}

/// The slot's bits of at most eight words.
#[inline]
fn byte(block: &[impl AtomicWord], slot: u32) -> u8 {
    block
        .iter()
        .enumerate()
        .fold(0, |byte, (at, word)| byte | ((word.load(Relaxed) >> slot & 1) << at) as u8)
}
