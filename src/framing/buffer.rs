//! Byte buffers of a worker: reused while they are small, and read into through one scratch area, so
//! that a connection that waits holds no buffer at all.

use std::{
    cell::RefCell,
    io,
    ops::{Deref, DerefMut},
    task::{Context, Poll, ready},
};

use tokio::io::ReadBuf;

use super::socket::Socket;

/// One read takes so many bytes at the most.
pub const READ_SIZE: usize = 32 * 1024;
/// A larger buffer goes back to the allocator instead of the pool.
const MAX_POOLED: usize = 4 * 1024;
/// The pool keeps so many buffers a worker.
const MAX_FREE: usize = 512;

thread_local! {
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_SIZE].into_boxed_slice());
}

/// A byte vector from the worker's pool; goes back there when it is dropped.
#[derive(Debug, Default)]
pub struct Buffer(Vec<u8>);

impl Buffer {
    /// An empty buffer with space for `capacity` bytes at least.
    pub fn with_capacity(capacity: usize) -> Self {
        let mut bytes = FREE.with_borrow_mut(Vec::pop).unwrap_or_default();
        bytes.reserve(capacity);
        Self(bytes)
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buffer = Self::with_capacity(bytes.len());
        buffer.extend_from_slice(bytes);
        buffer
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        Self::copy_of(&self.0)
    }
}

impl Deref for Buffer {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if (1..=MAX_POOLED).contains(&self.0.capacity()) {
            let mut bytes = std::mem::take(&mut self.0);
            bytes.clear();
            // The thread's pool is gone before the last buffers of a thread that ends.
            let _ = FREE.try_with(|free| {
                let mut free = free.borrow_mut();
                if free.len() < MAX_FREE {
                    free.push(bytes);
                }
            });
        }
    }
}

/// What was read from a peer and not yet used. Holds no memory while it is empty.
#[derive(Debug, Default)]
pub struct ReadBuffer {
    bytes: Buffer,
    start: usize,
}

impl ReadBuffer {
    /// The bytes, oldest first.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    /// Adds `bytes` behind what is held; the space of what was used before is used again.
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

    /// Drops the first `count` bytes.
    pub fn consume(&mut self, count: usize) {
        self.start += count;
        if self.start >= self.bytes.len() {
            *self = Self::default();
        }
    }

    /// Reads once from `socket`, up to [`READ_SIZE`] bytes. Ready with how many came; 0 at the end.
    pub fn poll_fill(&mut self, socket: &Socket, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        poll_read(socket, cx, |bytes| {
            self.push(bytes);
            bytes.len()
        })
    }
}

/// Reads once from `socket` into the worker's scratch area and gives `take` what came: nothing at the
/// end of the stream.
pub fn poll_read<T>(
    socket: &Socket,
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
    fn a_read_buffer_is_compacted_and_gives_its_memory_back() {
        let mut held = ReadBuffer::default();
        let half = [b'x'; 100];
        held.push(&half);
        // Always half of a head left over: what was used before does not stay.
        for _ in 0..10_000 {
            held.push(&half);
            held.consume(100);
            assert_eq!(held.bytes().len(), 100);
        }
        assert!(held.bytes.capacity() < 1024, "{}", held.bytes.capacity());
        held.consume(100);
        assert!(held.is_empty());
        assert_eq!(held.bytes.capacity(), 0);
    }

    #[test]
    fn buffers_are_used_again_while_they_are_small() {
        let place = {
            let buffer = Buffer::copy_of(b"abc");
            buffer.as_ptr()
        };
        let again = Buffer::with_capacity(2);
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
        drop(Buffer::with_capacity(MAX_POOLED + 1));
        FREE.with_borrow(|free| assert!(free.iter().all(|free| free.capacity() <= MAX_POOLED)));
    }
}
