//! Tests of 16 bytes at once, with the vector instructions of x86-64 and ARM. Pure.

use wide::u8x16;

/// For each byte of a block: 0xff if it is in a class, or else 0.
pub(super) type Matches = u8x16;

/// The bytes that are `byte`.
#[inline]
pub(super) fn equal(block: u8x16, byte: u8) -> Matches {
    block.simd_eq(u8x16::splat(byte))
}

/// The bytes from 0 to `last`.
#[inline]
pub(super) fn at_most(block: u8x16, last: u8) -> Matches {
    block.min(u8x16::splat(last)).simd_eq(block)
}

/// The bytes from `first` to `last`.
#[inline]
pub(super) fn in_range(block: u8x16, first: u8, last: u8) -> Matches {
    at_most(block - u8x16::splat(first), last - first)
}

/// The bytes of a block, with ASCII letters in lower case.
#[inline]
pub(super) fn lower_case(block: u8x16) -> u8x16 {
    block | (in_range(block, b'A', b'Z') & u8x16::splat(0x20))
}

/// The offset of the first byte of `bytes` that is in `class`. The byte `filler` must not be in it.
#[inline]
pub(super) fn find(bytes: &[u8], filler: u8, class: impl Fn(u8x16) -> Matches) -> Option<usize> {
    let (blocks, rest) = bytes.as_chunks::<16>();
    for (index, block) in blocks.iter().enumerate() {
        let found = class(u8x16::new(*block)).to_bitmask();
        if found != 0 {
            return Some(16 * index + found.trailing_zeros() as usize);
        }
    }
    if rest.is_empty() {
        return None;
    }
    let found = class(u8x16::new(filled(rest, filler))).to_bitmask();
    (found != 0).then(|| 16 * blocks.len() + found.trailing_zeros() as usize)
}

/// `bytes`, at most `N` of them, with `filler` after them.
#[inline]
pub(super) fn filled<const N: usize>(bytes: &[u8], filler: u8) -> [u8; N] {
    let mut block = [filler; N];
    block[..bytes.len()].copy_from_slice(bytes);
    block
}
