//! The tokens that were recorded and are not known from the generations before: other gateways must
//! learn them soon, see [`crate::sync`].

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crossbeam_utils::CachePadded;

/// The newcomers of the current and the previous generation, in a table of fixed size. If there are
/// more between two calls of [`Self::take`], the oldest are dropped.
///
/// Workers push without a lock or a loop. A token is one word, so that nothing depends on the order
/// of stores.
pub(super) struct Newcomers {
    /// By generation modulo 2.
    rings: [TokenRing; 2],
}

struct TokenRing {
    next: CachePadded<AtomicUsize>,
    /// 0: empty.
    tokens: Box<[AtomicU64]>,
}

impl Newcomers {
    /// A table for at least `capacity` tokens of each generation.
    pub(super) fn new(capacity: usize) -> Self {
        let ring = || TokenRing {
            next: CachePadded::default(),
            tokens: (0..capacity.next_power_of_two()).map(|_| AtomicU64::new(0)).collect(),
        };
        Self { rings: [ring(), ring()] }
    }

    /// Adds a token that was recorded in `generation`. The token 0 is not kept.
    pub(super) fn push(&self, generation: u64, token: u64) {
        let ring = self.ring(generation);
        let at = ring.next.fetch_add(1, Relaxed) & (ring.tokens.len() - 1);
        ring.tokens[at].store(token, Relaxed);
    }

    /// Takes the tokens of `generation`, which is the current or the previous one.
    pub(super) fn take(&self, generation: u64) -> Vec<u64> {
        // Most slots are empty, and a read is cheaper than a write.
        let filled = self.ring(generation).tokens.iter().filter(|slot| slot.load(Relaxed) != 0);
        filled.map(|slot| slot.swap(0, Relaxed)).filter(|token| *token != 0).collect()
    }

    /// Drops the tokens of the generation that used the place of `generation` before.
    pub(super) fn clear(&self, generation: u64) {
        self.take(generation);
    }

    fn ring(&self, generation: u64) -> &TokenRing {
        &self.rings[(generation % 2) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tokens_of_two_generations_are_apart() {
        let newcomers = Newcomers::new(3);
        (1..=4).for_each(|token| newcomers.push(7, token));
        newcomers.push(8, 5);
        assert_eq!((newcomers.take(7), newcomers.take(8)), (vec![1, 2, 3, 4], vec![5]));
        assert_eq!((newcomers.take(7).len(), newcomers.take(8).len()), (0, 0));
        newcomers.push(8, 6);
        newcomers.clear(10);
        assert_eq!(newcomers.take(8).len(), 0);
    }

    #[test]
    fn the_oldest_of_too_many_tokens_are_dropped() {
        let newcomers = Newcomers::new(4);
        (1..=6).for_each(|token| newcomers.push(7, token));
        assert_eq!(newcomers.take(7), vec![5, 6, 3, 4]);
    }
}
