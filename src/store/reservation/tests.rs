//! The parts of a reservation together: one entry, its line and its fetch.

mod every_interleaving;
mod keeping;
mod line;

use std::sync::Arc;

use parking_lot::Mutex;

use super::{atomics::Native, *};
use crate::limit::{Algorithm, Key, Limit, OnFailure, Quota, Reserve};

/// The store's clock at tick 0, on a whole second.
const START: Millis = 1_700_000_000_000;

/// The key of most callers.
const KEY: Key = Key(7);

/// 100 in 6 s, in sub-windows of a second.
fn limit(reserve: Reserve) -> Limit {
    Limit {
        name: "test".into(),
        fingerprint: 1,
        algorithm: Algorithm::SlidingWindow,
        quota: Quota::new(100, 6_000, 6),
        cost: 1,
        on_failure: OnFailure::Local,
        reserve,
        enforce: true,
        index: 0,
    }
}

/// Who waits, and hears, unless it has gone.
#[derive(Clone, Default)]
struct Caller {
    cost: u32,
    gone: bool,
    heard: Arc<Mutex<Vec<Outcome>>>,
}

impl Caller {
    fn of(cost: u32) -> Self {
        Self { cost, ..Self::default() }
    }

    fn gone(cost: u32) -> Self {
        Self { cost, gone: true, ..Self::default() }
    }

    /// What it was told: at most one thing.
    fn heard(&self) -> Option<Outcome> {
        let heard = self.heard.lock();
        assert!(heard.len() <= 1, "{heard:?}");
        heard.first().copied()
    }

    fn is_granted(&self) -> bool {
        matches!(self.heard(), Some(Outcome::Granted(_)))
    }
}

impl Waiter for Caller {
    fn cost(&self) -> u32 {
        self.cost
    }

    fn serve(self, outcome: Outcome) -> bool {
        if !self.gone {
            self.heard.lock().push(outcome);
        }
        !self.gone
    }
}

/// The store's reply, by a store whose clock ticks with ours: decided at `ticks`, with no delay.
fn reply(tokens: u32, remaining: u64, ticks: u64) -> Reply {
    let now = START + ticks;
    let decision = Decision {
        admitted: tokens > 0,
        limit: 100,
        remaining,
        used: 100 - remaining,
        reset_at: START + 7_000,
        retry_at: (tokens == 0).then_some(START + 6_000),
        wait: 0,
    };
    let end = if tokens > 0 { (now / 1_000 + 1) * 1_000 } else { 0 };
    Reply { grant: Grant { tokens, end, decision }, now, sent: ticks, received: ticks }
}

/// The fetch that joining began.
fn fetch<A: atomics::Atomics>(joined: Joined<Caller, A>) -> Fetching<Caller, A> {
    match joined {
        Joined::Fetch(fetching) => fetching,
        Joined::Served => panic!("served"),
        Joined::Waiting => panic!("waiting"),
        Joined::Gone(_) => panic!("gone"),
    }
}

fn book() -> Book<Caller> {
    Book::<Caller, Native>::default()
}

/// A client that knows what keys are hashed under chooses keys that agree in the bits of their shard.
#[test]
fn chosen_keys_take_nobody_s_room() {
    let (book, limit) = (book(), limit(Reserve::Auto));
    assert!((0..2_000).all(|n| book.entry(&limit, Key(n)).is_some()));
}
