//! What the store's last reply told, for the headers of requests that do not ask the store.
//!
//! What remains and when it resets must be of one reply, and to read them takes no lock: a sequence
//! lock. The version is odd while somebody writes. Its parts are stored with release and loaded with
//! acquire, so who sees a part of a newer reply sees the newer version afterwards; no fence is needed.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::atomics::{Atomics, Cell, Native};
use crate::limit::{Decision, Millis, Quota};

/// The parts of [`Told`].
const PARTS: usize = 6;

/// One reply, as far as it holds for tokens that are spent here.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Told {
    /// The end of the sub-window that the tokens were charged to (ms, by the store's clock).
    pub end: Millis,
    /// The same by this process's clock (ticks), or earlier: the word's deadline.
    pub deadline: u64,
    /// What was left at the store after the grant.
    pub remaining: u64,
    /// The reset-at that clients were told.
    pub reset_at: Millis,
    /// The store's time when it decided.
    pub charged_at: Millis,
    /// What has to be added to ticks for the store's time, or less (modulo 2^64): the reply was late.
    pub offset: u64,
}

impl Told {
    /// The store's time at `ticks`, or a little earlier: never before the charge, and inside the
    /// sub-window.
    pub fn now(&self, ticks: u64) -> Millis {
        let now = ticks.wrapping_add(self.offset);
        now.max(self.charged_at).min(self.end.saturating_sub(1))
    }

    /// What a caller is told whose tokens were taken at `ticks`, while `left` are still here.
    pub fn taken(&self, ticks: u64, left: u32) -> Taken {
        Taken {
            now: self.now(ticks),
            remaining: self.remaining + u64::from(left),
            reset_at: self.reset_at,
        }
    }
}

/// A charge that was made here, with tokens of the store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Taken {
    /// When, by the store's clock or a little earlier, inside the sub-window of the tokens: what a
    /// refund has to name.
    pub now: Millis,
    /// What is left at the store as it last told, and here, in units of cost.
    pub remaining: u64,
    /// The reset-at that the store last told.
    pub reset_at: Millis,
}

impl Taken {
    /// The decision that it is.
    pub fn decision(&self, quota: &Quota) -> Decision {
        let limit = u64::from(quota.limit);
        let remaining = self.remaining.min(limit);
        Decision {
            admitted: true,
            limit,
            remaining,
            used: limit - remaining,
            reset_at: self.reset_at,
            retry_at: None,
            wait: 0,
        }
    }
}

/// Where the last reply is written, under the entry's lock, and read without it.
pub struct Board<A: Atomics = Native> {
    version: A::Cell,
    parts: [A::Cell; PARTS],
}

impl<A: Atomics> Default for Board<A> {
    fn default() -> Self {
        let cell = || A::Cell::new(0);
        Self { version: cell(), parts: std::array::from_fn(|_| cell()) }
    }
}

impl<A: Atomics> Board<A> {
    /// What was told, and its version; `None` where somebody keeps writing.
    #[inline]
    pub fn read(&self) -> Option<(u64, Told)> {
        (0..A::LOOKS).find_map(|_| {
            let version = self.version.load(Acquire);
            let told = self.parts(Acquire);
            (version.is_multiple_of(2) && self.is_current(version)).then_some((version, told))
        })
    }

    /// Whether nothing was told since this version. Asked after tokens were taken, it says whether they
    /// were published with what was read before: only who told more can have published others.
    #[inline]
    pub fn is_current(&self, version: u64) -> bool {
        self.version.load(Relaxed) == version
    }

    /// The same as it stands; only under the entry's lock.
    pub fn read_locked(&self) -> Told {
        self.parts(Relaxed)
    }

    /// Tells anew; only under the entry's lock, and while the word is empty.
    pub fn write(&self, told: &Told) {
        let version = self.version.load(Relaxed);
        self.version.store(version + 1, Relaxed);
        let Told { end, deadline, remaining, reset_at, charged_at, offset } = *told;
        let parts = [end, deadline, remaining, reset_at, charged_at, offset];
        for (cell, part) in self.parts.iter().zip(parts) {
            cell.store(part, Release);
        }
        self.version.store(version + 2, Release);
    }

    fn parts(&self, order: std::sync::atomic::Ordering) -> Told {
        let [end, deadline, remaining, reset_at, charged_at, offset] =
            std::array::from_fn(|at| self.parts[at].load(order));
        Told { end, deadline, remaining, reset_at, charged_at, offset }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLD: Told = Told {
        end: 1_000_500,
        deadline: 700,
        remaining: 40,
        reset_at: 1_003_000,
        charged_at: 1_000_100,
        offset: 999_800,
    };

    #[test]
    fn the_stores_time_stays_in_the_sub_window_and_after_the_charge() {
        assert_eq!(TOLD.now(310), 1_000_110);
        assert_eq!(TOLD.now(0), 1_000_100);
        assert_eq!(TOLD.now(900), 1_000_499);
        let ahead = Told { offset: 5_u64.wrapping_neg(), charged_at: 0, end: 100, ..TOLD };
        assert_eq!(ahead.now(50), 45, "a store whose clock is behind the ticks");
    }

    #[test]
    fn a_caller_is_told_what_is_left_in_both_places() {
        let decision = TOLD.taken(310, 7).decision(&Quota::new(100, 3_000, 6));
        assert_eq!((decision.remaining, decision.used, decision.limit), (47, 53, 100));
        assert_eq!((decision.admitted, decision.reset_at), (true, 1_003_000));
        let lowered = TOLD.taken(310, 7).decision(&Quota::new(30, 3_000, 6));
        assert_eq!((lowered.remaining, lowered.used), (30, 0));
    }

    #[test]
    fn what_is_told_is_read_whole() {
        let board = Board::<Native>::default();
        assert_eq!(board.read(), Some((0, Told::default())));
        board.write(&TOLD);
        assert_eq!(board.read(), Some((2, TOLD)));
        assert!(board.is_current(2) && !board.is_current(0));
        assert_eq!(board.read_locked(), TOLD);
    }
}
