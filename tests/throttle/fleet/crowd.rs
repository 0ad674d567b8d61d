//! The users of a simulated fleet: each request goes to any gateway.

use std::{cmp::Reverse, collections::BinaryHeap};

use testkit::random::SplitMix64;
use tidegate::clock::{StoreTime, ms};

use super::TOKENS_A_MINUTE;

/// The users' habits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Crowd {
    /// Users who stay: a request every ten seconds, for ten minutes on average. A tenth of each
    /// minute's tokens is new.
    Regulars,
    /// Users who come once: three requests within a few seconds. All tokens of a minute are new.
    Strangers,
}

/// A request of a user.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Request {
    pub(super) at: StoreTime,
    pub(super) token: u64,
    /// True for the user's first request.
    pub(super) is_first: bool,
    /// Number of requests that follow.
    remaining: u64,
}

/// The next request of each user.
pub(super) struct Users {
    crowd: Crowd,
    next: BinaryHeap<Reverse<Request>>,
}

impl Users {
    pub(super) fn new(crowd: Crowd, start: StoreTime, rng: &mut SplitMix64) -> Self {
        let mut users = Self { crowd, next: BinaryHeap::new() };
        let first = if crowd == Crowd::Regulars { TOKENS_A_MINUTE } else { 1 };
        for _ in 0..first {
            users.arrive(start + ms(rng.below(10_000)), rng);
        }
        users
    }

    /// The next request of any user.
    pub(super) fn next(&mut self, rng: &mut SplitMix64) -> Option<Request> {
        let Reverse(request) = self.next.pop()?;
        let (gap, arrival) = match self.crowd {
            Crowd::Regulars => (10_000, None),
            Crowd::Strangers => (2_000, Some(rng.below(2 * 60_000 / TOKENS_A_MINUTE))),
        };
        if let Some(arrival) = arrival.filter(|_| request.is_first) {
            self.arrive(request.at + ms(arrival), rng);
        }
        if request.remaining > 0 {
            let (at, remaining) = (request.at + ms(rng.below(2 * gap)), request.remaining - 1);
            self.next.push(Reverse(Request { at, remaining, is_first: false, ..request }));
        } else if self.crowd == Crowd::Regulars {
            self.arrive(request.at + ms(rng.below(2 * gap)), rng);
        }
        Some(request)
    }

    fn arrive(&mut self, at: StoreTime, rng: &mut SplitMix64) {
        let remaining = match self.crowd {
            Crowd::Regulars => rng.below(120),
            Crowd::Strangers => 2,
        };
        let token = rng.next_u64();
        self.next.push(Reverse(Request { at, token, is_first: true, remaining }));
    }
}
