//! [`PrefixedStream`]: an HTTP/2 client's bytes. The bytes that were read before the protocol was known come first.
//! Each poll of the connection's task (a turn) reads a bounded number of bytes, and counts the frames in them (RFC
//! 9113, 4.1).

use std::{
    cell::Cell,
    io,
    ops::Add,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::transport::{ReadBuffer, SharedSocket, Transport, socket::yield_turn};

/// Number of bytes after which a task yields to others.
const MAX_TURN_BYTES: usize = 32 * 1024;
/// The same for the first turn, and after a turn of small frames, which cost more per byte.
const MAX_SMALL_FRAME_TURN_BYTES: usize = 4 * 1024;
/// Average size, in bytes, below which frames are small.
const SMALL_FRAME: usize = 256;
/// The length of a frame's header, in bytes.
const HEADER: usize = 9;
/// The length of the bytes before the first frame (RFC 9113, 3.4).
const PREFACE: usize = 24;
/// The types of the frames that carry content: DATA and HEADERS.
const CONTENT: [u8; 2] = [0, 1];

/// A client's stream, preceded by bytes that were already read. After too many bytes in one turn, the next
/// read yields, so that a flood of small frames does not delay other connections.
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
        Self { already_read, socket, counter: FrameCounter::default(), budget: Rc::default() }
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

/// Numbers of frames.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct FrameCounts {
    /// Frames of heads and bodies: HEADERS and DATA.
    pub(super) content: u64,
    /// Other frames, such as PING and SETTINGS.
    pub(super) control: u64,
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
struct FrameCounter {
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
    fn count(&mut self, mut bytes: &[u8]) -> FrameCounts {
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

    #[test]
    fn a_turn_is_short_at_first_and_after_small_frames() {
        let turn = ReadBudget::default();
        let read = |bytes: usize, content| {
            turn.left.set(turn.left.get().saturating_sub(bytes));
            turn.frames.set(FrameCounts { content, control: 0 });
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
