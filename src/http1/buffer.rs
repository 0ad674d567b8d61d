//! Byte buffers, pooled per worker thread.

use std::{
    cell::RefCell,
    ops::{Deref, DerefMut},
};

/// The maximum number of free vectors in one pool.
const MAX_FREE: usize = 512;

thread_local! {
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
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
        if elements.capacity() < capacity {
            elements.reserve(capacity);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

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
