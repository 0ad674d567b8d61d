//! Byte buffers, pooled per thread.

use std::{
    cell::RefCell,
    ops::{Deref, DerefMut},
};

/// The maximum number of free vectors in a pool.
pub(super) const MAX_FREE: usize = 512;
/// The largest capacity that is pooled, in bytes. A larger vector is freed.
pub(super) const MAX_POOLED: usize = 4 * 1024;

thread_local! {
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A byte vector from the worker's pool. Dropping it returns it to the pool.
#[derive(Debug, Default)]
pub struct Buffer(Vec<u8>);

impl Buffer {
    /// An empty vector with space for at least `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        // Fails only while the thread ends.
        let free = FREE.try_with(|free| free.borrow_mut().pop());
        let mut bytes = free.ok().flatten().unwrap_or_default();
        if bytes.capacity() < capacity {
            bytes.reserve(capacity);
        }
        Self(bytes)
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut copy = Self::with_capacity(bytes.len());
        copy.extend_from_slice(bytes);
        copy
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
        if !(1..=MAX_POOLED).contains(&self.0.capacity()) {
            return;
        }
        let mut bytes = std::mem::take(&mut self.0);
        bytes.clear();
        // Fails only while the thread ends.
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < MAX_FREE {
                free.push(bytes);
            }
        });
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
        drop(Buffer::with_capacity(MAX_POOLED + 1));
        FREE.with_borrow(|free| assert!(free.iter().all(|free| free.capacity() <= MAX_POOLED)));
    }
}
