//! Sockets are read into one scratch area per worker, so an idle connection owns no buffer.

use std::{
    cell::RefCell,
    io,
    task::{Context, Poll, ready},
};

use tidegate_http1::Buffer;
use tokio::io::ReadBuf;

use super::socket::SharedSocket;

/// The size of the scratch area, in bytes: the maximum of one read.
pub const READ_SIZE: usize = 32 * 1024;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_SIZE].into_boxed_slice());
}

/// Bytes that were read from a peer and are not yet parsed. Owns no memory while it is empty.
#[derive(Debug, Default)]
pub struct ReadBuffer {
    bytes: Buffer,
    start: usize,
}

impl ReadBuffer {
    /// The unparsed bytes, oldest first.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// True if no bytes are buffered.
    pub fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    /// Appends `bytes` and reuses the space of consumed bytes.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        if self.bytes.capacity() == 0 {
            self.bytes = Buffer::with_capacity(bytes.len());
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Removes the first `count` bytes.
    pub fn consume(&mut self, count: usize) {
        self.start += count;
        if self.start >= self.bytes.len() {
            *self = Self::default();
        }
    }

    /// Reads once from `socket`, up to [`READ_SIZE`] bytes. Ready with the number of bytes; 0 at
    /// the end of the stream.
    ///
    /// # Errors
    /// The read failed.
    pub fn poll_fill(
        &mut self,
        socket: &SharedSocket,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        poll_read(socket, cx, |bytes| {
            self.push(bytes);
            bytes.len()
        })
    }
}

/// Reads once from `socket` into the worker's scratch area and calls `take` with the bytes; with an
/// empty slice at the end of the stream.
///
/// # Errors
/// The read failed.
///
/// # Panics
/// If `take` calls this function: the scratch area is borrowed.
pub fn poll_read<T>(
    socket: &SharedSocket,
    cx: &mut Context<'_>,
    take: impl FnOnce(&[u8]) -> T,
) -> Poll<io::Result<T>> {
    SCRATCH.with_borrow_mut(|scratch| {
        let mut buffer = ReadBuf::new(scratch);
        ready!(socket.poll_read(cx, &mut buffer))?;
        Poll::Ready(Ok(take(buffer.filled())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_buffer_is_compacted_and_freed_when_empty() {
        let mut buffer = ReadBuffer::default();
        let half = [b'x'; 100];
        buffer.push(&half);
        // Half of the bytes always remain, so `consume` never empties the buffer.
        for _ in 0..10_000 {
            buffer.push(&half);
            buffer.consume(100);
            assert_eq!(buffer.bytes().len(), 100);
        }
        assert!(buffer.bytes.capacity() < 1024, "{}", buffer.bytes.capacity());
        buffer.consume(100);
        assert!(buffer.is_empty());
        assert_eq!(buffer.bytes.capacity(), 0);
    }
}
