//! [`BlockedAddresses`]: client addresses that sent too many wrong credentials.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_base::{
    mix::local_id,
    time::{Millis, MonotonicTime},
};

/// Number of slots; a power of two.
const SLOTS: usize = 1 << 12;
/// The bits of an entry that are the end of its block, in seconds since the process started.
const END_MASK: u64 = u32::MAX as u64;

/// The client addresses that get a 429 before their credentials are verified, each under one limit
/// of failures, with the end of the block. The limits themselves count in the store; this table
/// spares a call to it for each request of a blocked address. It is direct-mapped and of a fixed
/// size: a later entry replaces the one in its slot, whose address is then blocked again at its
/// next failure. All accesses are relaxed, because each entry is one word.
pub struct BlockedAddresses {
    entries: Box<[AtomicU64]>,
    /// The latest end of a block: after it, no entry is read.
    latest_end: AtomicU64,
}

impl Default for BlockedAddresses {
    fn default() -> Self {
        let entries = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        Self { entries, latest_end: AtomicU64::new(0) }
    }
}

/// An address under one limit of failures.
#[derive(Clone, Copy)]
pub(super) struct BlockedKey(u64);

impl BlockedKey {
    /// The `address`, a key of the store, under the limit with this hash.
    pub(super) fn new(limit: u128, address: u128) -> Self {
        Self(local_id(limit ^ address) as u64)
    }
}

impl BlockedAddresses {
    /// True if no address is blocked at `now`.
    pub(super) fn is_empty(&self, now: MonotonicTime) -> bool {
        self.latest_end.load(Ordering::Relaxed) <= seconds(now)
    }

    /// Blocks `key` from `now` for `duration`; at least a second.
    pub(super) fn block(&self, key: BlockedKey, now: MonotonicTime, duration: Millis) {
        let end = (seconds(now) + duration.as_secs_rounded_up().max(1)).min(END_MASK);
        self.slot(key).store(key.0 & !END_MASK | end, Ordering::Relaxed);
        self.latest_end.fetch_max(end, Ordering::Relaxed);
    }

    /// The time until `key` is free, in whole seconds, if it is blocked at `now`.
    pub(super) fn blocked_for(&self, key: BlockedKey, now: MonotonicTime) -> Option<Millis> {
        let entry = self.slot(key).load(Ordering::Relaxed);
        let left = (entry & END_MASK).saturating_sub(seconds(now));
        let is_blocked = entry & !END_MASK == key.0 & !END_MASK && left > 0;
        is_blocked.then(|| Millis::from_secs(left))
    }

    fn slot(&self, key: BlockedKey) -> &AtomicU64 {
        &self.entries[(key.0 as usize) & (SLOTS - 1)]
    }
}

/// The whole seconds since the process started, for an entry.
fn seconds(time: MonotonicTime) -> u64 {
    time.since(MonotonicTime::ZERO).as_whole_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_blocked_until_the_end() {
        let blocked = BlockedAddresses::default();
        let at = MonotonicTime::from_ms;
        let key = BlockedKey::new(1, 2);
        assert!(blocked.is_empty(at(0)) && blocked.blocked_for(key, at(0)).is_none());
        let seconds = |seconds| Some(Millis::from_secs(seconds));
        blocked.block(key, at(5_000), Millis::from_ms(1_500));
        assert_eq!(blocked.blocked_for(key, at(5_000)), seconds(2));
        assert_eq!(blocked.blocked_for(key, at(6_999)), seconds(1));
        assert_eq!(blocked.blocked_for(key, at(7_000)), None);
        assert!(!blocked.is_empty(at(6_999)) && blocked.is_empty(at(7_000)));
        for other in [BlockedKey::new(1, 3), BlockedKey::new(3, 2)] {
            assert_eq!(blocked.blocked_for(other, at(5_000)), None);
        }
        blocked.block(key, at(0), Millis::MAX);
        assert!(blocked.blocked_for(key, at(0)).is_some(), "a long block has an end");
    }
}
