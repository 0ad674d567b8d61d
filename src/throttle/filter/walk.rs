//! What reads all positions: the control thread, about once a second.

use std::sync::atomic::Ordering::Relaxed;

use super::{Merged, atomics::Word};

/// One slot's bits, eight positions a byte.
pub(super) fn cut(words: &[impl Word], slot: u32) -> Vec<u8> {
    let (blocks, rest) = words.as_chunks::<8>();
    let mut bits = Vec::with_capacity(words.len().div_ceil(8));
    bits.extend(blocks.iter().map(|block| byte(block, slot)));
    if !rest.is_empty() {
        bits.push(byte(rest, slot));
    }
    bits
}

/// Sets in one slot the bits of `bits`.
pub(super) fn merge(words: &[impl Word], slot: u32, bits: &[u8]) -> Merged {
    let (blocks, rest) = words.as_chunks::<8>();
    let mut merged = Merged::default();
    for (block, theirs) in blocks.iter().zip(bits) {
        merge_byte(block, slot, *theirs, &mut merged);
    }
    if let Some(theirs) = bits.get(blocks.len()) {
        merge_byte(rest, slot, *theirs, &mut merged);
    }
    merged
}

#[inline]
fn merge_byte(block: &[impl Word], slot: u32, theirs: u8, merged: &mut Merged) {
    let ours = byte(block, slot);
    let (lacked, mut missing) = (ours & !theirs, theirs & !ours);
    // Most often nothing differs, and counting is what costs.
    if lacked != 0 {
        merged.lacked += u64::from(lacked.count_ones());
    }
    while missing != 0 {
        if let Some(word) = block.get(missing.trailing_zeros() as usize) {
            word.fetch_or(1 << slot, Relaxed);
            merged.gained += 1;
        }
        missing &= missing - 1;
    }
}

/// Words with any bit of `mask`.
pub(super) fn occupied(words: &[impl Word], mask: u32) -> usize {
    words.iter().filter(|word| word.load(Relaxed) & mask != 0).count()
}

/// The bits of at most eight words.
#[inline]
fn byte(block: &[impl Word], slot: u32) -> u8 {
    block
        .iter()
        .enumerate()
        .fold(0, |byte, (at, word)| byte | ((word.load(Relaxed) >> slot & 1) << at) as u8)
}
