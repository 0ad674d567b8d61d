//! Tokens that an upstream answered with 401 recently: a table of fixed size, so made-up tokens
//! cannot grow it.
//!
//! Tokens are indexed by their process-local ids ([`tidegate_base::mix`]), so that a client cannot
//! choose a token that evicts a specific other one.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_base::time::Millis;

use super::geometry::{MINUTE, UnixMinute};

/// Number of slots; a power of two.
const SLOTS: usize = 1 << 14;

/// The lowest bits of a token, which are the index of its slot. An entry stores the lowest bits of
/// the minute in their place.
const INDEX_MASK: u64 = SLOTS as u64 - 1;

/// Tokens that were answered with 401, with the minute of the answer. A direct-mapped table: a
/// later token replaces the one in its slot. All accesses are relaxed, because each entry is one
/// independent word.
pub(super) struct RejectedTokens(Box<[AtomicU64]>);

impl RejectedTokens {
    pub(super) fn new() -> Self {
        Self((0..SLOTS).map(|_| AtomicU64::new(0)).collect())
    }

    /// Adds `token`, rejected in `minute`.
    pub(super) fn insert(&self, token: u64, minute: UnixMinute) {
        let entry = token & !INDEX_MASK | minute.as_minutes() & INDEX_MASK;
        self.slot(token).store(entry, Ordering::Relaxed);
    }

    /// Removes `token`, after a good response.
    pub(super) fn remove(&self, token: u64) {
        let slot = self.slot(token);
        let entry = slot.load(Ordering::Relaxed);
        if entry != 0 && entry & !INDEX_MASK == token & !INDEX_MASK {
            slot.store(0, Ordering::Relaxed);
        }
    }

    /// True if `token` was rejected in `minute` or in the minutes before it that began at most
    /// `before` earlier.
    #[inline]
    pub(super) fn contains(&self, token: u64, minute: UnixMinute, before: Millis) -> bool {
        let entry = self.slot(token).load(Ordering::Relaxed);
        let age = minute.as_minutes().wrapping_sub(entry) & INDEX_MASK;
        entry != 0 && entry & !INDEX_MASK == token & !INDEX_MASK && age <= before / MINUTE
    }

    fn slot(&self, token: u64) -> &AtomicU64 {
        &self.0[(token & INDEX_MASK) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_stays_rejected_until_it_expires_or_is_removed() {
        let rejected = RejectedTokens::new();
        let token = 0xdead_beef_0123_4567_u64;
        let minute = |later: u64| UnixMinute::from_minutes(28_333_333 + later);
        let is_rejected =
            |token: u64, later| rejected.contains(token, minute(later), Millis::from_mins(30));
        assert!(!is_rejected(token, 0));
        rejected.insert(token, minute(0));
        for (later, expected) in [(0, true), (30, true), (31, false)] {
            assert_eq!(is_rejected(token, later), expected, "{later}");
        }
        assert!(!is_rejected(token ^ 1 << 63, 0), "another token in the same slot");
        rejected.remove(token ^ 1 << 63);
        assert!(is_rejected(token, 0), "another token does not remove it");
        rejected.remove(token);
        assert!(!is_rejected(token, 0));
    }

    #[test]
    fn the_table_does_not_grow() {
        let rejected = RejectedTokens::new();
        for token in 0..10 * SLOTS as u64 {
            rejected.insert(token << 20 | token & INDEX_MASK, UnixMinute::from_minutes(7));
        }
        assert_eq!(rejected.0.len(), SLOTS);
    }
}
