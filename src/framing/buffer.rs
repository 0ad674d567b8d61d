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
/// A pool keeps so many vectors a worker.
const MAX_FREE: usize = 512;

thread_local! {
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_SIZE].into_boxed_slice());
}

/// What vectors of the worker's pools are made of.
pub trait Pooled: Copy + 'static {
    /// A vector with space for more goes back to the allocator instead of the pool.
    const MAX_POOLED: usize;

    /// Gives `work` the free vectors. `None`: the thread ends, and its pools are gone.
    fn with_free<R>(work: impl FnOnce(&mut Vec<Vec<Self>>) -> R) -> Option<R>;
}

impl Pooled for u8 {
    const MAX_POOLED: usize = 4 * 1024;

    fn with_free<R>(work: impl FnOnce(&mut Vec<Vec<Self>>) -> R) -> Option<R> {
        FREE.try_with(|free| work(&mut free.borrow_mut())).ok()
    }
}

/// A vector from one of the worker's pools; goes back there when it is dropped.
#[derive(Debug)]
pub struct PooledVec<T: Pooled>(Vec<T>);

/// A byte vector from the worker's pool.
pub type Buffer = PooledVec<u8>;

impl<T: Pooled> PooledVec<T> {
    /// An empty vector with space for `capacity` elements at least.
    pub fn with_capacity(capacity: usize) -> Self {
        let mut elements = T::with_free(Vec::pop).flatten().unwrap_or_default();
        elements.reserve(capacity);
        Self(elements)
    }

    /// A copy of `elements`.
    pub fn copy_of(elements: &[T]) -> Self {
        let mut copy = Self::with_capacity(elements.len());
        copy.extend_from_slice(elements);
        copy
    }
}

impl<T: Pooled> Default for PooledVec<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Pooled> Clone for PooledVec<T> {
    fn clone(&self) -> Self {
        Self::copy_of(&self.0)
    }
}

impl<T: Pooled> Deref for PooledVec<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.0
    }
}

impl<T: Pooled> DerefMut for PooledVec<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.0
    }
}

impl<T: Pooled> Drop for PooledVec<T> {
    fn drop(&mut self) {
        if (1..=T::MAX_POOLED).contains(&self.0.capacity()) {
            let mut elements = std::mem::take(&mut self.0);
            elements.clear();
            T::with_free(|free| {
                if free.len() < MAX_FREE {
                    free.push(elements);
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
        drop(Buffer::with_capacity(u8::MAX_POOLED + 1));
        FREE.with_borrow(|free| assert!(free.iter().all(|free| free.capacity() <= u8::MAX_POOLED)));
    }
}
