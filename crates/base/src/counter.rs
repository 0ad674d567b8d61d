//! A counter that one thread writes and any thread reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter with a single writer: an increment is a load and a store instead of a locked
/// instruction. Other threads may read it at any time.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`. Only the owning thread may call this: concurrent writers lose updates.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.store(self.get() + count, Ordering::Relaxed);
    }

    /// Subtracts 1, not below 0. Only the owning thread may call this.
    pub fn decrement(&self) {
        self.0.store(self.get().saturating_sub(1), Ordering::Relaxed);
    }

    /// The current value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
