//! The two kinds of atomics that filters are made of, so that a model checker can put its own in.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A family of atomics.
pub trait Atomics {
    /// A position's word, or a mask of slots.
    type Word: Word;
    /// The epoch.
    type Epoch: Stamp;
}

/// An atomic of 32 bits that are set and cleared.
pub trait Word: Send + Sync {
    /// One that holds nothing.
    fn zero() -> Self;
    /// All bits.
    fn load(&self, order: Ordering) -> u32;
    /// Sets bits; returns what was.
    fn fetch_or(&self, bits: u32, order: Ordering) -> u32;
    /// Clears what is not in `mask`; returns what was.
    fn fetch_and(&self, mask: u32, order: Ordering) -> u32;
}

/// An atomic of 64 bits that is replaced whole.
pub trait Stamp: Send + Sync {
    /// One that holds `value`.
    fn new(value: u64) -> Self;
    /// What it holds.
    fn load(&self, order: Ordering) -> u64;
    /// Replaces it.
    fn store(&self, value: u64, order: Ordering);
}

/// The machine's own.
#[derive(Clone, Copy, Debug)]
pub struct Native;

impl Atomics for Native {
    type Word = AtomicU32;
    type Epoch = AtomicU64;
}

impl Word for AtomicU32 {
    fn zero() -> Self {
        Self::new(0)
    }

    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }

    #[inline]
    fn fetch_or(&self, bits: u32, order: Ordering) -> u32 {
        self.fetch_or(bits, order)
    }

    #[inline]
    fn fetch_and(&self, mask: u32, order: Ordering) -> u32 {
        self.fetch_and(mask, order)
    }
}

impl Stamp for AtomicU64 {
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
}
