//! Bytes that were read and not yet handed on.

use std::{
    cell::RefCell,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, ReadBuf};

/// One read takes so many bytes at the most.
const SCRATCH: usize = 16 * 1024;

thread_local! {
    /// Where reads land first, so that idle connections hold no buffer.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into_boxed_slice());
}

/// Bytes that were read and not yet handed on. Gives its memory back when it runs empty.
#[derive(Debug, Default)]
pub(crate) struct Held {
    bytes: Vec<u8>,
    start: usize,
}

impl Held {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn skip(&mut self, count: usize) {
        self.start += count;
        if self.start >= self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
        }
    }

    /// Moves up to `limit` bytes to a reader; says how many.
    pub(crate) fn hand_over(&mut self, limit: usize, to: &mut ReadBuf<'_>) -> usize {
        let count = limit.min(to.remaining()).min(self.bytes().len());
        to.put_slice(&self.bytes()[..count]);
        self.skip(count);
        count
    }

    /// Reads once from `io`. Returns the bytes that came, as a slice of all held; none at the end.
    pub(crate) fn fill<R: AsyncRead + Unpin>(
        &mut self,
        io: &mut R,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        BUFFER.with_borrow_mut(|scratch| {
            let mut buffer = ReadBuf::new(scratch);
            let read = Pin::new(io).poll_read(cx, &mut buffer);
            if read.is_pending() && self.bytes.is_empty() && self.bytes.capacity() > 1024 {
                self.clear();
            }
            ready!(read)?;
            self.push(buffer.filled());
            Poll::Ready(Ok(buffer.filled().len()))
        })
    }
}
