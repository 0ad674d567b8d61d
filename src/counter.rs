//! A number that one thread writes and any thread reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread alone writes: an increment is a load and a store, never a locked
/// instruction on a line that other cores want. Readers on other threads see it grow.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`. Only the thread that owns it may call it.
    pub fn add(&self, count: u64) {
        self.0.store(self.get() + count, Ordering::Relaxed);
    }

    /// Takes 1 off. Only the thread that owns it may call it.
    pub fn take(&self) {
        self.0.store(self.get().saturating_sub(1), Ordering::Relaxed);
    }

    /// The number now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
