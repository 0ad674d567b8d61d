//! The atomics of the filters, abstracted so that tests can use those of a model checker.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A family of atomics.
pub trait Atomics {
    /// The word of a position, or a mask of slots.
    type Word: AtomicWord;
    /// The epoch.
    type Epoch: AtomicEpoch;
}

/// An atomic 32-bit word whose bits are set and cleared.
pub trait AtomicWord: Send + Sync {
    /// A word without set bits.
    fn zero() -> Self;
    /// Reads all bits.
    fn load(&self, order: Ordering) -> u32;
    /// Sets bits; returns the previous word.
    fn fetch_or(&self, bits: u32, order: Ordering) -> u32;
    /// Clears the bits that are not in `mask`; returns the previous word.
    fn fetch_and(&self, mask: u32, order: Ordering) -> u32;
}

/// An atomic 64-bit epoch that is replaced as a whole.
pub trait AtomicEpoch: Send + Sync {
    /// An epoch with this value.
    fn new(value: u64) -> Self;
    /// Reads the value.
    fn load(&self, order: Ordering) -> u64;
    /// Replaces the value.
    fn store(&self, value: u64, order: Ordering);
}

/// The standard library's atomics.
#[derive(Clone, Copy, Debug)]
pub struct Native;

impl Atomics for Native {
    type Word = AtomicU32;
    type Epoch = AtomicU64;
}

impl AtomicWord for AtomicU32 {
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

impl AtomicEpoch for AtomicU64 {
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
