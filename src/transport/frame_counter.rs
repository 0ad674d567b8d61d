//! Counts an HTTP/2 client's frames as their bytes arrive (RFC 9113, 4.1).

use std::ops::Add;

/// The length of a frame's header, in bytes.
const HEADER: usize = 9;
/// The length of the bytes before the first frame (RFC 9113, 3.4).
const PREFACE: usize = 24;
/// The types of the frames that carry content: DATA and HEADERS.
const CONTENT: [u8; 2] = [0, 1];

/// Numbers of frames.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct FrameCounts {
    /// Frames of heads and bodies: HEADERS and DATA.
    pub content: u64,
    /// Other frames, such as PING and SETTINGS.
    pub control: u64,
}

impl Add for FrameCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let (content, control) = (self.content + other.content, self.control + other.control);
        Self { content, control }
    }
}

/// Finds the frames in a stream of bytes.
#[derive(Debug)]
pub(super) struct FrameCounter {
    /// Number of bytes to skip: the preface, or the rest of a payload.
    skipped: usize,
    /// The arrived bytes of the next header.
    header: [u8; HEADER],
    length: usize,
}

impl Default for FrameCounter {
    fn default() -> Self {
        Self { skipped: PREFACE, header: [0; HEADER], length: 0 }
    }
}

impl FrameCounter {
    /// The frames whose headers end in the next `bytes`.
    pub(super) fn count(&mut self, mut bytes: &[u8]) -> FrameCounts {
        let mut counts = FrameCounts::default();
        while !bytes.is_empty() {
            let skipped = self.skipped.min(bytes.len());
            self.skipped -= skipped;
            bytes = &bytes[skipped..];
            let taken = (HEADER - self.length).min(bytes.len());
            self.header[self.length..self.length + taken].copy_from_slice(&bytes[..taken]);
            self.length += taken;
            bytes = &bytes[taken..];
            if self.length == HEADER {
                let [high, middle, low, kind, ..] = self.header;
                self.skipped = u32::from_be_bytes([0, high, middle, low]) as usize;
                self.length = 0;
                let is_content = CONTENT.contains(&kind);
                counts.content += u64::from(is_content);
                counts.control += u64::from(!is_content);
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn frames_are_counted_however_their_bytes_arrive(
            frames in prop::collection::vec((0_u8..12, 0_usize..40), 0..20),
            sizes in prop::collection::vec(1_usize..30, 1..20),
        ) {
            let mut bytes = vec![0xff; PREFACE];
            for (kind, length) in &frames {
                bytes.extend([0, 0, *length as u8, *kind, 0, 0, 0, 0, 1]);
                bytes.resize(bytes.len() + length, 0xff);
            }
            let content = frames.iter().filter(|(kind, _)| *kind < 2).count() as u64;
            let expected = FrameCounts { content, control: frames.len() as u64 - content };
            prop_assert_eq!(FrameCounter::default().count(&bytes), expected);
            let (mut counter, mut counts) = (FrameCounter::default(), FrameCounts::default());
            let mut rest = &bytes[..];
            for size in sizes.iter().cycle() {
                let (piece, after) = rest.split_at((*size).min(rest.len()));
                counts = counts + counter.count(piece);
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(counts, expected);
        }
    }
}
