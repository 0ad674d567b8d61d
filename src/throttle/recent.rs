//! The tokens that one worker recorded last, so that a busy token is not looked up in the filters with
//! each of its requests.

use std::cell::Cell;

/// How many tokens are kept; a power of two. 32 KiB a worker.
const PLACES: usize = 1 << 12;

/// Tokens recorded in the current generation. A token has one place; whoever comes later takes it.
pub(super) struct Recent {
    generation: Cell<u64>,
    tokens: Box<[Cell<u64>]>,
}

impl Recent {
    pub(super) fn new() -> Self {
        Self { generation: Cell::new(0), tokens: vec![Cell::new(0); PLACES].into() }
    }

    /// Whether `token` is known to be recorded in `generation`. False says nothing.
    pub(super) fn contains(&self, token: u64, generation: u64) -> bool {
        token != 0 && self.generation.get() == generation && self.place(token).get() == token
    }

    /// Notes that `token` is recorded in `generation`.
    pub(super) fn insert(&self, token: u64, generation: u64) {
        if self.generation.replace(generation) != generation {
            self.tokens.iter().for_each(|place| place.set(0));
        }
        self.place(token).set(token);
    }

    fn place(&self, token: u64) -> &Cell<u64> {
        // The highest bits: the lowest are those of the other tables.
        &self.tokens[(token >> (64 - PLACES.ilog2())) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_recent_in_its_own_generation_only() {
        let recent = Recent::new();
        for token in [1, u64::MAX, 1 << 60] {
            assert!(!recent.contains(token, 5));
            recent.insert(token, 5);
            assert!(recent.contains(token, 5) && !recent.contains(token, 6));
        }
        assert!(recent.contains(1, 5));
        recent.insert(2, 5);
        assert!(!recent.contains(1, 5), "2 took the place");
        recent.insert(u64::MAX, 6);
        assert!(!recent.contains(2, 5) && !recent.contains(2, 6));
        recent.insert(u64::MAX, 5);
        assert!(!recent.contains(2, 5), "what was wiped does not come back");
    }
}
