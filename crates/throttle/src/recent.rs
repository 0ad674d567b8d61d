//! Caches the tokens that a worker recorded recently, so that most requests of a busy token need no
//! lookup in the filters.

use std::cell::Cell;

/// Number of slots; a power of two. 32 KiB per worker.
const SLOTS: usize = 1 << 12;

/// Tokens that were recorded in the current generation: a direct-mapped cache, in which a later
/// token replaces the one in its slot.
pub(super) struct RecentTokens {
    generation: Cell<u64>,
    tokens: Box<[Cell<u64>]>,
}

impl RecentTokens {
    pub(super) fn new() -> Self {
        Self { generation: Cell::new(0), tokens: vec![Cell::new(0); SLOTS].into() }
    }

    /// True if `token` is cached as recorded in `generation`. A recorded token may be missing from
    /// the cache.
    pub(super) fn contains(&self, token: u64, generation: u64) -> bool {
        token != 0 && self.generation.get() == generation && self.slot(token).get() == token
    }

    /// Caches `token` as recorded in `generation`; drops the tokens of other generations.
    pub(super) fn insert(&self, token: u64, generation: u64) {
        if self.generation.replace(generation) != generation {
            self.tokens.iter().for_each(|slot| slot.set(0));
        }
        self.slot(token).set(token);
    }

    fn slot(&self, token: u64) -> &Cell<u64> {
        // The highest bits, because `RejectedTokens` uses the lowest.
        &self.tokens[(token >> (64 - SLOTS.ilog2())) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_cached_for_its_own_generation_only() {
        let recent = RecentTokens::new();
        for token in [1, u64::MAX, 1 << 60] {
            assert!(!recent.contains(token, 5));
            recent.insert(token, 5);
            assert!(recent.contains(token, 5) && !recent.contains(token, 6));
        }
        assert!(recent.contains(1, 5));
        recent.insert(2, 5);
        assert!(!recent.contains(1, 5), "replaced by 2");
        recent.insert(u64::MAX, 6);
        assert!(!recent.contains(2, 5) && !recent.contains(2, 6));
        recent.insert(u64::MAX, 5);
        assert!(!recent.contains(2, 5), "a dropped token does not return");
    }
}
