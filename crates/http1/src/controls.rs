//! [`Controls`]: the control characters of a head, found 64 bytes at a time. Pure.

use wide::u8x16;

use super::{blocks::filled, characters::controls};

/// The number of bytes that are searched at once.
const WINDOW: usize = 64;

/// The offsets of the control characters in `bytes`, in their order. Tabs are left out.
pub(super) struct Controls<'b> {
    bytes: &'b [u8],
    /// The offset of the bytes that were searched last.
    window: usize,
    /// The offset of the bytes to search next.
    next: usize,
    /// The control characters in the window that were not returned yet: a bit for each byte, the
    /// first one lowest.
    found: u64,
}

impl<'b> Controls<'b> {
    /// Those in `bytes` from the offset `from` on.
    pub(super) fn new(bytes: &'b [u8], from: usize) -> Self {
        Self { bytes, window: from, next: from, found: 0 }
    }
}

impl Iterator for Controls<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        while self.found == 0 {
            let rest = self.bytes.get(self.next..).filter(|rest| !rest.is_empty())?;
            let window = rest.first_chunk().copied().unwrap_or_else(|| filled(rest, b' '));
            self.found = controls_in(&window);
            self.window = self.next;
            self.next += WINDOW;
        }
        let offset = self.window + self.found.trailing_zeros() as usize;
        // Clears the lowest bit.
        self.found &= self.found - 1;
        Some(offset)
    }
}

fn controls_in(window: &[u8; WINDOW]) -> u64 {
    let (blocks, _) = window.as_chunks::<16>();
    blocks
        .iter()
        .rev()
        .fold(0, |found, block| found << 16 | u64::from(controls(u8x16::new(*block)).to_bitmask()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn all_control_characters_are_found(
            mut bytes in prop::collection::vec(0x20..=0xff_u8, 1..300),
            controls in prop::collection::vec((any::<prop::sample::Index>(), 0..=0x7f_u8), 0..12),
            from: prop::sample::Index,
        ) {
            for (at, byte) in controls {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let from = from.index(bytes.len() + 1);
            let is_control = |at: &usize| bytes[*at].is_ascii_control() && bytes[*at] != b'\t';
            let wanted: Vec<usize> = (from..bytes.len()).filter(is_control).collect();
            prop_assert_eq!(Controls::new(&bytes, from).collect::<Vec<_>>(), wanted);
        }
    }
}
