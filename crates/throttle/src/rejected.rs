//! Tokens that an upstream answered with 401 recently: a table of fixed size, so made-up tokens
//! cannot grow it.
//!
//! Tokens are indexed by their process-local ids ([`tidegate_base::mix`]), so that a client cannot
//! choose a token that evicts a specific other one.

use std::sync::atomic::{AtomicU64, Ordering};

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

    /// Adds `token`, rejected in `minute` (counted from any epoch).
    pub(super) fn insert(&self, token: u64, minute: u64) {
        self.slot(token).store(token & !INDEX_MASK | minute & INDEX_MASK, Ordering::Relaxed);
    }

    /// Removes `token`, after a good response.
    pub(super) fn remove(&self, token: u64) {
        let slot = self.slot(token);
        let entry = slot.load(Ordering::Relaxed);
        if entry != 0 && entry & !INDEX_MASK == token & !INDEX_MASK {
            slot.store(0, Ordering::Relaxed);
        }
    }

    /// True if `token` was rejected in `minute` or in the `minutes_before` minutes before it.
    pub(super) fn contains(&self, token: u64, minute: u64, minutes_before: u64) -> bool {
        let entry = self.slot(token).load(Ordering::Relaxed);
        let age = minute.wrapping_sub(entry) & INDEX_MASK;
        entry != 0 && entry & !INDEX_MASK == token & !INDEX_MASK && age <= minutes_before
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
        let (token, minute) = (0xdead_beef_0123_4567, 28_333_333);
        assert!(!rejected.contains(token, minute, 30));
        rejected.insert(token, minute);
        for (later, is_rejected) in [(0, true), (30, true), (31, false)] {
            assert_eq!(rejected.contains(token, minute + later, 30), is_rejected, "{later}");
        }
        assert!(!rejected.contains(token ^ 1 << 63, minute, 30), "another token in the same slot");
        rejected.remove(token ^ 1 << 63);
        assert!(rejected.contains(token, minute, 30), "another token does not remove it");
        rejected.remove(token);
        assert!(!rejected.contains(token, minute, 30));
    }

    #[test]
    fn the_table_does_not_grow() {
        let rejected = RejectedTokens::new();
        for token in 0..10 * SLOTS as u64 {
            rejected.insert(token << 20 | token & INDEX_MASK, 7);
        }
        assert_eq!(rejected.0.len(), SLOTS);
    }
}
