//! Reads frames of HTTP/2 only as far as it takes to find a GOAWAY.

use testkit::http2_frames::kind;

/// Finds the code of the last GOAWAY in what a connection receives.
#[derive(Default)]
pub(super) struct GoawayReader {
    /// The start of a frame that is not complete.
    partial: Vec<u8>,
    pub(super) code: Option<u32>,
}

impl GoawayReader {
    pub(super) fn read(&mut self, bytes: &[u8]) {
        self.partial.extend_from_slice(bytes);
        let mut rest = &self.partial[..];
        while rest.len() >= 9 {
            let length = u32::from_be_bytes([0, rest[0], rest[1], rest[2]]) as usize;
            let Some(payload) = rest.get(9..9 + length) else { break };
            if rest[3] == kind::GOAWAY
                && let Some(code) = payload.get(4..8).and_then(|code| code.try_into().ok())
            {
                self.code = Some(u32::from_be_bytes(code));
            }
            rest = &rest[9 + length..];
        }
        self.partial = rest.to_vec();
    }
}

/// The code of the last GOAWAY in everything that a connection received.
pub(super) fn goaway_code(received: &[u8]) -> Option<u32> {
    let mut reader = GoawayReader::default();
    reader.read(received);
    reader.code
}
