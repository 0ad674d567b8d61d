//! Byte buffers, pooled per worker thread. Sockets are read into one scratch area per worker, so an idle
//! connection owns no buffer.

use std::{
    cell::RefCell,
    io,
    ops::{Deref, DerefMut},
    task::{Context, Poll, ready},
};

use tokio::io::ReadBuf;

use super::socket::SharedSocket;

/// The size of the scratch area, in bytes: the most that one read returns.
pub const READ_SIZE: usize = 32 * 1024;
/// The maximum number of free vectors in one pool.
const MAX_FREE: usize = 512;

thread_local! {
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_SIZE].into_boxed_slice());
}

/// An element type that has a pool of vectors in each worker.
pub trait Pooled: Copy + 'static {
    /// The largest capacity that is pooled, in elements. A larger vector is freed.
    const MAX_POOLED: usize;

    /// Calls `work` with the worker's free vectors. `None`: the thread is ending and its pools are gone.
    fn with_free<R>(work: impl FnOnce(&mut Vec<Vec<Self>>) -> R) -> Option<R>;
}

impl Pooled for u8 {
    const MAX_POOLED: usize = 4 * 1024;

    fn with_free<R>(work: impl FnOnce(&mut Vec<Vec<Self>>) -> R) -> Option<R> {
        FREE.try_with(|free| work(&mut free.borrow_mut())).ok()
    }
}

/// A vector from one of the worker's pools. Dropping it returns it to the pool.
#[derive(Debug)]
pub struct PooledVec<T: Pooled>(Vec<T>);

/// A byte vector from the worker's pool.
pub type Buffer = PooledVec<u8>;

impl<T: Pooled> PooledVec<T> {
    /// An empty vector with space for at least `capacity` elements.
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

/// Bytes that were read from a peer and are not yet parsed. Owns no memory while it is empty.
#[derive(Debug, Default)]
pub struct ReadBuffer {
    bytes: Buffer,
    start: usize,
}

impl ReadBuffer {
    /// The unparsed bytes, oldest first.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Whether no bytes are buffered.
    pub fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    /// Appends `bytes` and reuses the space of consumed bytes.
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

    /// Reads once from `socket`, up to [`READ_SIZE`] bytes. Ready with the number of bytes; 0 at the end
    /// of the stream.
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

/// Reads once from `socket` into the worker's scratch area and calls `take` with the bytes; with none at
/// the end of the stream.
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
        // Half of the bytes are always left over, so `consume` never empties the buffer.
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

    #[test]
    fn small_buffers_are_pooled_and_large_ones_freed() {
        let address = {
            let buffer = Buffer::copy_of(b"abc");
            buffer.as_ptr()
        };
        let again = Buffer::with_capacity(2);
        assert_eq!((again.as_ptr(), again.len()), (address, 0));
        drop(Buffer::with_capacity(u8::MAX_POOLED + 1));
        FREE.with_borrow(|free| assert!(free.iter().all(|free| free.capacity() <= u8::MAX_POOLED)));
    }
}
