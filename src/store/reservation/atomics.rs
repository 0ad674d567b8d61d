//! The parts that reservations are made of, so that a model checker can put its own in.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// A family of parts.
pub trait Atomics: 'static {
    /// An atomic word.
    type Cell: Cell;
    /// A lock around a value.
    type Lock<T: Send>: Lock<T>;
    /// How often a reader of several cells looks before it asks for the lock: a writer may have been put
    /// to sleep.
    const LOOKS: usize;
}

/// An atomic of 64 bits.
pub trait Cell: Send + Sync {
    /// One that holds `value`.
    fn new(value: u64) -> Self;
    /// What it holds.
    fn load(&self, order: Ordering) -> u64;
    /// Replaces it.
    fn store(&self, value: u64, order: Ordering);
    /// Replaces it; returns what was.
    fn swap(&self, value: u64, order: Ordering) -> u64;
    /// Replaces it where it holds `current`, with the order `success`, and may fail without a reason;
    /// where it fails, returns what it holds, read relaxed.
    fn exchange(&self, current: u64, value: u64, success: Ordering) -> Result<u64, u64>;
}

/// A value that one thread at a time sees.
pub trait Lock<T>: Send + Sync {
    /// Around `value`.
    fn new(value: T) -> Self;
    /// Does something with it, alone.
    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R;
}

/// The machine's own.
#[derive(Clone, Copy, Debug)]
pub struct Native;

impl Atomics for Native {
    type Cell = AtomicU64;
    type Lock<T: Send> = Mutex<T>;
    const LOOKS: usize = 4;
}

impl Cell for AtomicU64 {
    fn new(value: u64) -> Self {
        Self::new(value)
    }

    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.swap(value, order)
    }

    #[inline]
    fn exchange(&self, current: u64, value: u64, success: Ordering) -> Result<u64, u64> {
        self.compare_exchange_weak(current, value, success, Ordering::Relaxed)
    }
}

impl<T: Send> Lock<T> for Mutex<T> {
    fn new(value: T) -> Self {
        Self::new(value)
    }

    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        work(&mut self.lock())
    }
}
