//! [`PrefixedStream`]: an HTTP/2 client's bytes. The bytes that were read before the protocol was
//! known come first. Each poll of the connection's task (a turn) reads a bounded number of bytes,
//! and counts the frames in them.

use std::{
    cell::Cell,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use tidegate_transport::{
    FrameCounter, FrameCounts, ReadBuffer, SharedSocket, Transport, socket::yield_turn,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Number of bytes after which a task yields to others.
const MAX_TURN_BYTES: usize = 32 * 1024;
/// The same for the first turn, and after a turn of small frames, which cost more per byte.
const MAX_SMALL_FRAME_TURN_BYTES: usize = 4 * 1024;
/// Average size, in bytes, below which frames are small.
const SMALL_FRAME: usize = 256;

/// A client's stream, preceded by bytes that were already read. After too many bytes in one turn,
/// the next read yields, so that a flood of small frames does not delay other connections.
#[derive(Debug)]
pub(super) struct PrefixedStream {
    already_read: ReadBuffer,
    socket: Rc<SharedSocket>,
    counter: FrameCounter,
    budget: Rc<ReadBudget>,
}

/// A task's budget of bytes to read in one poll, and the state of its writes.
#[derive(Debug)]
pub(super) struct ReadBudget {
    frames: Cell<FrameCounts>,
    /// Maximum number of bytes in this turn.
    max: Cell<usize>,
    /// Number of bytes that may still be read.
    left: Cell<usize>,
    /// True if the socket did not accept everything at the last write or flush.
    is_write_blocked: Cell<bool>,
}

impl Default for ReadBudget {
    fn default() -> Self {
        let max = MAX_SMALL_FRAME_TURN_BYTES;
        Self {
            frames: Cell::default(),
            max: Cell::new(max),
            left: Cell::new(max),
            is_write_blocked: Cell::new(false),
        }
    }
}

impl ReadBudget {
    /// Begins a turn. Returns the frames of the last one.
    pub(super) fn begin(&self) -> FrameCounts {
        let frames = self.frames.take();
        let read = self.max.get() - self.left.get();
        if read > 0 {
            let is_small = read < (frames.content + frames.control) as usize * SMALL_FRAME;
            self.max.set(if is_small { MAX_SMALL_FRAME_TURN_BYTES } else { MAX_TURN_BYTES });
        }
        self.left.set(self.max.get());
        frames
    }

    /// True if the socket did not accept everything at the last write or flush.
    pub(super) fn is_write_blocked(&self) -> bool {
        self.is_write_blocked.get()
    }
}

impl PrefixedStream {
    /// A stream that returns `already_read` first.
    pub(super) fn new(already_read: ReadBuffer, transport: Transport) -> Self {
        let socket = Rc::new(SharedSocket::new(transport));
        Self { already_read, socket, counter: FrameCounter::of_client(), budget: Rc::default() }
    }

    /// The read budget. The reading task has to begin a turn at each poll.
    pub(super) fn read_budget(&self) -> Rc<ReadBudget> {
        Rc::clone(&self.budget)
    }

    /// The underlying stream, for use after this value was dropped.
    pub(super) fn socket(&self) -> Rc<SharedSocket> {
        Rc::clone(&self.socket)
    }
}

impl AsyncRead for PrefixedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let filled = buf.filled().len();
        if this.already_read.is_empty() {
            let left = this.budget.left.get();
            if left == 0 {
                yield_turn(cx);
                return Poll::Pending;
            }
            ready!(this.socket.poll_read(cx, buf))?;
            this.budget.left.set(left.saturating_sub(buf.filled().len() - filled));
        } else {
            let count = this.already_read.bytes().len().min(buf.remaining());
            buf.put_slice(&this.already_read.bytes()[..count]);
            this.already_read.consume(count);
        }
        let frames = this.counter.count(&buf.filled()[filled..]);
        this.budget.frames.set(this.budget.frames.get() + frames);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PrefixedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.socket.poll_write(cx, bytes);
        self.budget.is_write_blocked.set(written.is_pending());
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.socket.poll_write_vectored(cx, slices);
        self.budget.is_write_blocked.set(written.is_pending());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.socket.poll_flush(cx);
        self.budget.is_write_blocked.set(flushed.is_pending());
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_short_at_first_and_after_small_frames() {
        let turn = ReadBudget::default();
        let read = |bytes: usize, content| {
            turn.left.set(turn.left.get().saturating_sub(bytes));
            turn.frames.set(FrameCounts { content, ..FrameCounts::default() });
            turn.begin();
            turn.left.get()
        };
        assert_eq!(turn.left.get(), MAX_SMALL_FRAME_TURN_BYTES, "first");
        assert_eq!(read(4_000, 1), MAX_TURN_BYTES, "large frames");
        assert_eq!(read(0, 0), MAX_TURN_BYTES, "nothing was read");
        assert_eq!(read(16_000, 0), MAX_TURN_BYTES, "within a frame");
        assert_eq!(read(1_000, 10), MAX_SMALL_FRAME_TURN_BYTES, "small frames");
        assert_eq!(read(0, 0), MAX_SMALL_FRAME_TURN_BYTES, "nothing was read");
    }
}
