//! Tokens and the time at which they end, in one atomic word.
//!
//! `[deadline: high 40 bits | tokens: low 24 bits]`. One exchange looks at both and changes both, so no
//! thread sees the tokens of one sub-window under the deadline of another. In Rockset's version they
//! were two numbers under a lock, and the comparison of one of them was the wrong way round.
//!
//! Orderings. Whoever publishes has told the board before ([`super::told`]); `publish` releases and
//! `take` acquires, so who takes tokens sees what was told of them, or newer. Nothing else travels with
//! the word: `give` and `claim` are relaxed, and as read-modify-writes they keep what was released
//! before them. Who claims and publishes holds the entry's lock.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::atomics::{Atomics, Cell, Native};

/// The width of the tokens in the word.
const TOKEN_BITS: u32 = 24;

/// The most tokens that a word holds.
pub const MAX_TOKENS: u32 = (1 << TOKEN_BITS) - 1;

/// The last tick that can be a deadline: 34 years after the process began.
pub const MAX_TICKS: u64 = (1 << (u64::BITS - TOKEN_BITS)) - 1;

/// What a word holds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Tokens {
    /// The first tick (ms of this process's monotonic clock) at which none may be spent any more.
    pub deadline: u64,
    /// How many.
    pub count: u32,
}

impl Tokens {
    fn pack(self) -> u64 {
        self.deadline.min(MAX_TICKS) << TOKEN_BITS | u64::from(self.count.min(MAX_TOKENS))
    }

    fn unpack(word: u64) -> Self {
        Self { deadline: word >> TOKEN_BITS, count: word as u32 & MAX_TOKENS }
    }
}

/// Tokens that may be spent here until their deadline. Empty, it holds none and has none.
pub struct Word<A: Atomics = Native>(A::Cell);

impl<A: Atomics> Default for Word<A> {
    fn default() -> Self {
        Self(A::Cell::new(0))
    }
}

impl<A: Atomics> Word<A> {
    /// Spends `cost` tokens if they are there and it is before their deadline; what holds after it.
    #[inline]
    pub fn take(&self, cost: u32, ticks: u64) -> Option<Tokens> {
        self.change(Acquire, |held| {
            let count = held.count.checked_sub(cost)?;
            (ticks < held.deadline).then_some(Tokens { count, ..held })
        })
    }

    /// Puts `count` tokens back that ended at `deadline`, if the word's still do and there is room.
    pub fn give(&self, deadline: u64, count: u32) -> bool {
        let given = self.change(Relaxed, |held| {
            let count = held.count.checked_add(count).filter(|&count| count <= MAX_TOKENS)?;
            (held.deadline == deadline && deadline > 0).then_some(Tokens { count, ..held })
        });
        given.is_some()
    }

    /// Takes everything: the word is empty until something is published. Only under the entry's lock.
    pub fn claim(&self) -> Tokens {
        Tokens::unpack(self.0.swap(0, Relaxed))
    }

    /// Fills the empty word. Only under the entry's lock: nobody else writes to an empty word.
    pub fn publish(&self, tokens: Tokens) {
        self.0.store(tokens.pack(), Release);
    }

    /// What it holds now.
    pub fn peek(&self) -> Tokens {
        Tokens::unpack(self.0.load(Relaxed))
    }

    #[inline]
    fn change(
        &self,
        order: std::sync::atomic::Ordering,
        next: impl Fn(Tokens) -> Option<Tokens>,
    ) -> Option<Tokens> {
        let mut word = self.0.load(Relaxed);
        loop {
            let tokens = next(Tokens::unpack(word))?;
            match self.0.exchange(word, tokens.pack(), order) {
                Ok(_) => return Some(tokens),
                Err(newer) => word = newer,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(deadline: u64, count: u32) -> Word {
        let word = Word::<Native>::default();
        word.publish(Tokens { deadline, count });
        word
    }

    #[test]
    fn tokens_are_spent_before_their_deadline_and_not_at_it() {
        let word = filled(100, 3);
        assert_eq!(word.take(1, 99), Some(Tokens { deadline: 100, count: 2 }));
        assert_eq!(word.take(1, 100), None);
        assert_eq!(word.take(1, MAX_TICKS), None);
        assert_eq!(word.take(3, 99), None, "more than there is");
        assert_eq!(word.peek(), Tokens { deadline: 100, count: 2 });
        assert_eq!(word.take(2, 0).map(|held| held.count), Some(0));
        assert_eq!(word.take(1, 0), None);
    }

    #[test]
    fn tokens_go_back_to_their_own_deadline() {
        let word = filled(100, 0);
        assert!(word.give(100, 2));
        assert!(!word.give(101, 1) && !word.give(99, 1) && !word.give(0, 1));
        assert_eq!(word.claim(), Tokens { deadline: 100, count: 2 });
        assert!(!word.give(100, 1), "an empty word takes nothing back");
        assert!(!word.give(0, 1), "nor does it have a deadline");
    }

    #[test]
    fn the_word_holds_its_largest_numbers() {
        let word = filled(MAX_TICKS, MAX_TOKENS);
        assert!(!word.give(MAX_TICKS, 1), "no token becomes a tick");
        assert_eq!(word.claim(), Tokens { deadline: MAX_TICKS, count: MAX_TOKENS });
        let word = filled(u64::MAX, u32::MAX);
        assert_eq!(word.claim(), Tokens { deadline: MAX_TICKS, count: MAX_TOKENS });
        assert_eq!(word.claim(), Tokens::default());
    }
}
