//! Tokens that an upstream turned away lately: a small table that made-up tokens cannot grow.
//!
//! Tokens are named as this process names them ([`crate::mix`]): nobody can choose one that takes a certain
//! other one's place.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many tokens are remembered at the most; a power of two.
const PLACES: usize = 1 << 14;

/// A token's place is its lowest bits; what stands there is the rest of it, and these bits of the
/// minute.
const LOW: u64 = PLACES as u64 - 1;

/// Tokens that were answered with 401, each for as long as its minute is recent. A token has one place;
/// whoever comes later takes it. Relaxed throughout: an entry is one word and stands for itself.
pub(super) struct Rejected(Box<[AtomicU64]>);

impl Rejected {
    pub(super) fn new() -> Self {
        Self((0..PLACES).map(|_| AtomicU64::new(0)).collect())
    }

    /// Notes that `token` was turned away in `minute` (counted from anywhere).
    pub(super) fn insert(&self, token: u64, minute: u64) {
        self.place(token).store(token & !LOW | minute & LOW, Ordering::Relaxed);
    }

    /// Forgets `token`: it was answered well.
    pub(super) fn remove(&self, token: u64) {
        let place = self.place(token);
        let entry = place.load(Ordering::Relaxed);
        if entry != 0 && entry & !LOW == token & !LOW {
            place.store(0, Ordering::Relaxed);
        }
    }

    /// Whether `token` was turned away in `minute` or the `before` minutes before it.
    pub(super) fn contains(&self, token: u64, minute: u64, before: u64) -> bool {
        let entry = self.place(token).load(Ordering::Relaxed);
        let age = minute.wrapping_sub(entry) & LOW;
        entry != 0 && entry & !LOW == token & !LOW && age <= before
    }

    fn place(&self, token: u64) -> &AtomicU64 {
        &self.0[(token & LOW) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_remembered_for_a_while_and_forgiven_when_it_is_good() {
        let rejected = Rejected::new();
        let (token, minute) = (0xdead_beef_0123_4567, 28_333_333);
        assert!(!rejected.contains(token, minute, 30));
        rejected.insert(token, minute);
        for (later, held) in [(0, true), (30, true), (31, false)] {
            assert_eq!(rejected.contains(token, minute + later, 30), held, "{later}");
        }
        assert!(!rejected.contains(token ^ 1 << 63, minute, 30), "another token's place");
        rejected.remove(token ^ 1 << 63);
        assert!(rejected.contains(token, minute, 30), "no other token takes it off");
        rejected.remove(token);
        assert!(!rejected.contains(token, minute, 30));
    }

    #[test]
    fn the_table_does_not_grow() {
        let rejected = Rejected::new();
        for token in 0..10 * PLACES as u64 {
            rejected.insert(token << 20 | token & LOW, 7);
        }
        assert_eq!(rejected.0.len(), PLACES);
    }
}
