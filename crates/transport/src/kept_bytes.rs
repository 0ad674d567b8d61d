//! [`KeptBytes`]: the first bytes of a request's body, which were read before they could be
//! forwarded.

use tidegate_http1::BodyEncoder;

use super::read_buffer::READ_SIZE;

/// Bytes of a body that are forwarded later, in pieces.
#[derive(Debug, Default)]
pub struct KeptBytes {
    /// All of them, also the ones that were forwarded.
    pub bytes: Vec<u8>,
    /// Number of `bytes` that were already forwarded.
    start: usize,
}

impl KeptBytes {
    /// Appends the next piece to `out`, encoded by `encoder`, and returns its length; `None` once
    /// all are forwarded. The memory is freed with the last piece.
    pub fn forward(&mut self, encoder: BodyEncoder, out: &mut Vec<u8>) -> Option<usize> {
        let left = &self.bytes[self.start..];
        let piece = &left[..left.len().min(READ_SIZE)];
        if piece.is_empty() {
            return None;
        }
        encoder.write(out, |out| out.extend_from_slice(piece));
        let count = piece.len();
        self.start += count;
        if self.is_forwarded() {
            *self = Self::default();
        }
        Some(count)
    }

    /// True if no byte is left.
    pub fn is_forwarded(&self) -> bool {
        self.start == self.bytes.len()
    }
}
