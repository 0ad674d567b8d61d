//! [`FrameCounter`]: counts the frames in the bytes of an HTTP/2 connection (RFC 9113, 4.1). Pure.

use std::ops::Add;

/// The length of a frame's header, in bytes.
const HEADER: usize = 9;
/// The length of the bytes before a client's first frame (RFC 9113, 3.4).
const PREFACE: usize = 24;
/// A frame type (RFC 9113, 6.1).
const DATA: u8 = 0;
/// A frame type (RFC 9113, 6.2).
const HEADERS: u8 = 1;
/// The flag of the last frame that an endpoint sends on a stream.
const END_STREAM: u8 = 1;
/// The flag of a frame with padding, whose length is the first byte of the payload.
const PADDED: u8 = 8;

/// Number of empty DATA frames after which a connection should take no further streams. The library
/// ends a connection, with all of its streams, at the 101st, however long it has been open.
pub const MAX_EMPTY_FRAMES: u64 = 50;

/// Numbers of frames.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct FrameCounts {
    /// Frames of heads and bodies: HEADERS and DATA.
    pub content: u64,
    /// Other frames, such as PING and SETTINGS.
    pub control: u64,
    /// DATA frames without data that do not end their stream; they are content as well.
    pub empty: u64,
}

impl Add for FrameCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            content: self.content + other.content,
            control: self.control + other.control,
            empty: self.empty + other.empty,
        }
    }
}

/// Finds the frames in a stream of bytes.
#[derive(Debug)]
pub struct FrameCounter {
    /// Number of bytes to skip: the preface, or the rest of a payload.
    skipped: usize,
    /// The arrived bytes of the next header.
    header: [u8; HEADER],
    length: usize,
}

impl FrameCounter {
    /// A counter of the bytes of a client.
    pub fn of_client() -> Self {
        Self { skipped: PREFACE, ..Self::of_server() }
    }

    /// A counter of the bytes of a server.
    pub fn of_server() -> Self {
        Self { skipped: 0, header: [0; HEADER], length: 0 }
    }

    /// The frames whose headers end in the next `bytes`.
    pub fn count(&mut self, mut bytes: &[u8]) -> FrameCounts {
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
                let [high, middle, low, kind, flags, ..] = self.header;
                self.skipped = u32::from_be_bytes([0, high, middle, low]) as usize;
                self.length = 0;
                let is_content = matches!(kind, DATA | HEADERS);
                // If the length of the padding has not arrived with the header, the frame does not
                // count as empty.
                let padding = bytes.first().filter(|_| flags & PADDED != 0);
                let padding = padding.map_or(0, |length| 1 + usize::from(*length));
                let is_empty = kind == DATA && flags & END_STREAM == 0 && self.skipped == padding;
                counts.content += u64::from(is_content);
                counts.control += u64::from(!is_content);
                counts.empty += u64::from(is_empty);
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn data_frames_without_data_are_empty_unless_they_end_their_stream() {
        let count = |frame: &[u8]| FrameCounter::of_server().count(frame).empty;
        assert_eq!(count(&[0, 0, 0, DATA, 0, 0, 0, 0, 1]), 1);
        assert_eq!(count(&[0, 0, 3, DATA, PADDED, 0, 0, 0, 1, 2, 0, 0]), 1, "padding alone");
        assert_eq!(count(&[0, 0, 3, DATA, PADDED, 0, 0, 0, 1, 1, b'a', 0]), 0);
        assert_eq!(count(&[0, 0, 1, DATA, 0, 0, 0, 0, 1, b'a']), 0);
        assert_eq!(count(&[0, 0, 0, DATA, END_STREAM, 0, 0, 0, 1]), 0);
        assert_eq!(count(&[0, 0, 0, HEADERS, 0, 0, 0, 0, 1]), 0);
    }

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
            let empty = frames.iter().filter(|frame| **frame == (0, 0)).count() as u64;
            let expected = FrameCounts { content, control: frames.len() as u64 - content, empty };
            prop_assert_eq!(FrameCounter::of_client().count(&bytes), expected);
            let (mut counter, mut counts) = (FrameCounter::of_client(), FrameCounts::default());
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
