//! Counters of the synchronization with Redis.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_base::counter::Counter;
use tidegate_base::time::StoreTime;
use tidegate_redis::RedisFailure;

use crate::payload::PayloadError;

/// Counts since the process started. One thread writes them, any thread may read them.
#[derive(Debug, Default)]
pub struct SyncStats {
    /// Ticks and loads that were started.
    pub ticks: Counter,
    /// Commands sent to Redis.
    pub calls: Counter,
    /// Bytes of payloads read from Redis.
    pub bytes_read: Counter,
    /// Bytes of payloads sent to Redis.
    pub bytes_written: Counter,
    /// Payloads written.
    pub commits: Counter,
    /// Payloads not written, because another gateway wrote first.
    pub conflicts: Counter,
    failures: [Counter; RedisFailure::ALL.len()],
    unusable: [Counter; PayloadError::ALL.len()],
    /// In ms since the Unix epoch; 0: none so far.
    last_success: AtomicU64,
}

impl SyncStats {
    /// Number of ticks and loads that failed with this kind of failure.
    pub fn failures(&self, failure: RedisFailure) -> u64 {
        self.failures[failure.index()].get()
    }

    /// Number of payloads from Redis that were unusable for this reason.
    pub fn unusable(&self, error: PayloadError) -> u64 {
        self.unusable[error as usize].get()
    }

    /// The time of the last complete tick or load, by Redis' clock.
    pub fn last_success(&self) -> Option<StoreTime> {
        let at = self.last_success.load(Ordering::Relaxed);
        (at > 0).then_some(StoreTime::from_unix_ms(at))
    }

    pub(super) fn count_failure(&self, failure: RedisFailure) {
        self.failures[failure.index()].add(1);
    }

    pub(super) fn count_unusable(&self, error: PayloadError) {
        self.unusable[error as usize].add(1);
        tracing::debug!(reason = error.label(), "throttle payload in Redis ignored");
    }

    pub(super) fn set_last_success(&self, now: StoreTime) {
        self.last_success.store(now.as_unix_ms(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_payload_error_has_its_own_counter() {
        let stats = SyncStats::default();
        for (index, error) in PayloadError::ALL.into_iter().enumerate() {
            for _ in 0..=index {
                stats.count_unusable(error);
            }
        }
        for (index, error) in PayloadError::ALL.into_iter().enumerate() {
            assert_eq!(stats.unusable(error), index as u64 + 1, "{}", error.label());
        }
    }
}
