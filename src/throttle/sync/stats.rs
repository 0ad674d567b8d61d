//! What the exchange with Redis counts of itself.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{counter::Counter, store::Failure, throttle::payload::Refusal};

/// Counts since the process began. One thread writes, any may read.
#[derive(Debug, Default)]
pub struct Stats {
    /// Ticks and loads that were begun.
    pub ticks: Counter,
    /// Commands that were sent to Redis.
    pub calls: Counter,
    /// Bytes of payloads that came from Redis.
    pub bytes_read: Counter,
    /// Bytes of payloads that were sent to Redis.
    pub bytes_written: Counter,
    /// Minutes that were written.
    pub commits: Counter,
    /// Minutes that were not, because another gateway was first.
    pub conflicts: Counter,
    failures: [Counter; Failure::ALL.len()],
    refused: [Counter; REFUSALS.len()],
    last_success: AtomicU64,
}

/// All refusals, in the order in which they are counted.
pub const REFUSALS: [Refusal; 6] = [
    Refusal::Malformed,
    Refusal::TooLong,
    Refusal::Geometry,
    Refusal::Seed,
    Refusal::Saturated,
    Refusal::Type,
];

/// The name that metrics and logs call it by.
pub fn label(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Malformed => "malformed",
        Refusal::TooLong => "too_long",
        Refusal::Geometry => "geometry",
        Refusal::Seed => "seed",
        Refusal::Saturated => "saturated",
        Refusal::Type => "type",
    }
}

impl Stats {
    /// Failed calls of this kind.
    pub fn failures(&self, failure: Failure) -> u64 {
        self.failures[failure.index()].get()
    }

    /// Values from Redis that were not used, for this reason.
    pub fn refused(&self, refusal: Refusal) -> u64 {
        self.refused[refusal as usize].get()
    }

    /// When a tick last did all it had to do, in ms since the Unix epoch by Redis' clock; 0: never.
    pub fn last_success(&self) -> u64 {
        self.last_success.load(Ordering::Relaxed)
    }

    pub(super) fn failed(&self, failure: Failure) {
        self.failures[failure.index()].add(1);
    }

    pub(super) fn refuse(&self, refusal: Refusal) {
        self.refused[refusal as usize].add(1);
        tracing::debug!(refusal = label(refusal), "a value of the throttle in Redis is not used");
    }

    pub(super) fn succeeded(&self, now: u64) {
        self.last_success.store(now, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_its_own_count() {
        let stats = Stats::default();
        for (at, refusal) in REFUSALS.into_iter().enumerate() {
            for _ in 0..=at {
                stats.refuse(refusal);
            }
        }
        for (at, refusal) in REFUSALS.into_iter().enumerate() {
            assert_eq!(stats.refused(refusal), at as u64 + 1, "{}", label(refusal));
        }
    }
}
