//! A response's body that is compressed while it is read.

use std::{
    io,
    task::{Context, Poll},
};

use tidegate_transport::compress::{CompressionPermit, Compressor};
use tidegate_transport::{read_buffer::READ_SIZE, socket::yield_turn};

/// Number of bytes to compress before the task yields to others.
const BYTES_PER_TURN: usize = 4 * READ_SIZE;

/// The state of a body that is compressed while it is read.
pub(super) struct Compressed {
    compressor: Compressor,
    /// The bytes of the current read, which are compressed before the next one.
    read: Vec<u8>,
    /// The number of bytes that were compressed in this turn.
    turn: usize,
    _permit: CompressionPermit,
}

impl Compressed {
    pub(super) fn new(compressor: Compressor, permit: CompressionPermit) -> Self {
        Self { compressor, read: Vec::new(), turn: 0, _permit: permit }
    }

    /// True once the end of the compressed body was written.
    pub(super) fn is_finished(&self) -> bool {
        self.compressor.is_finished()
    }

    /// Reads once, and appends the compressor's ready output to `out`, or all of its output if the
    /// upstream pauses. Ready with the number of bytes appended. `read` appends arrived bytes to
    /// its buffer, and returns true if the body is complete; only then is the end written.
    pub(super) fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut Vec<u8>,
        read: impl FnOnce(&mut Context<'_>, &mut Vec<u8>) -> Poll<io::Result<bool>>,
    ) -> Poll<io::Result<usize>> {
        if self.turn >= BYTES_PER_TURN {
            self.turn = 0;
            yield_turn(cx);
            return Poll::Pending;
        }
        let before = out.len();
        self.read.clear();
        match read(cx, &mut self.read) {
            Poll::Ready(Ok(is_complete)) => {
                self.turn += self.read.len();
                self.compressor.write(&self.read, out)?;
                if is_complete {
                    self.compressor.finish(out)?;
                }
            }
            Poll::Ready(Err(error)) => {
                // Bytes before the failure are sent, as without compression.
                self.compressor.flush(out)?;
                return Poll::Ready(Err(error));
            }
            Poll::Pending => {
                self.turn = 0;
                self.compressor.flush(out)?;
                if out.len() == before {
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(out.len() - before))
    }
}
