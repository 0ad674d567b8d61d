//! The parts of a lease together: its tokens, its queue and its fetch.

#[cfg(feature = "loom")]
mod every_interleaving;
mod keeping;
mod queue;

use std::sync::Arc;

use parking_lot::Mutex;

use super::*;
use crate::{
    limit::{Algorithm, Decision, Grant, Key, Limit, Millis, OnFailure, Quota, Reserve},
    store::Failure,
};

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

/// A request that waits, unless it is gone, and notes its outcome.
#[derive(Clone, Default)]
struct Caller {
    cost: u32,
    gone: bool,
    heard: Arc<Mutex<Vec<WaiterOutcome>>>,
}

impl Caller {
    fn of(cost: u32) -> Self {
        Self { cost, ..Self::default() }
    }

    fn gone(cost: u32) -> Self {
        Self { cost, gone: true, ..Self::default() }
    }

    /// Its outcome: one at most.
    fn heard(&self) -> Option<WaiterOutcome> {
        let heard = self.heard.lock();
        assert!(heard.len() <= 1, "{heard:?}");
        heard.first().copied()
    }

    fn is_granted(&self) -> bool {
        matches!(self.heard(), Some(WaiterOutcome::Granted(_)))
    }
}

impl Waiter for Caller {
    fn cost(&self) -> u32 {
        self.cost
    }

    fn serve(self, outcome: WaiterOutcome) -> bool {
        if !self.gone {
            self.heard.lock().push(outcome);
        }
        !self.gone
    }
}

type Registry = Arc<LeaseRegistry<Caller>>;

/// One caller under one limit.
#[derive(Clone)]
struct Handle {
    registry: Registry,
    limit: Limit,
    key: Key,
}

impl Handle {
    fn take(&self, cost: u32, ticks: u64) -> Option<Taken> {
        self.registry.take(&self.limit, self.key, cost, ticks)
    }

    fn join(&self, caller: Caller, ticks: u64) -> Joined<Caller> {
        self.registry.join(&self.limit, self.key, caller, ticks)
    }

    fn give_back(&self, now: Millis, cost: u32, ticks: u64) -> bool {
        self.registry.give_back(&self.limit, self.key, now, cost, ticks).is_some()
    }

    /// A fetch for a caller of cost 1 at tick 100, answered with `tokens` more.
    fn stock(self, tokens: u32) -> Self {
        let fetch = fetch(self.join(Caller::of(1), 100));
        assert!(fetch.complete(&reply(1 + tokens, 50, 100)).is_none());
        self
    }
}

fn lease(registry: &Registry, limit: &Limit, key: Key) -> Handle {
    Handle { registry: Arc::clone(registry), limit: limit.clone(), key }
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
fn fetch(joined: Joined<Caller>) -> Fetch<Caller> {
    match joined {
        Joined::Fetch(fetch) => fetch,
        Joined::Served => panic!("served"),
        Joined::Waiting => panic!("waiting"),
        Joined::Unavailable(_) => panic!("unavailable"),
    }
}

fn registry() -> Registry {
    Registry::default()
}

/// A client that knows what keys are hashed under chooses keys that agree in the bits of their shard.
#[test]
fn chosen_keys_take_no_room_of_others() {
    let (registry, limit) = (registry(), limit(Reserve::Auto));
    let joined = (0..2_000).map(|n| registry.join(&limit, Key(n), Caller::of(1), 1));
    assert!(joined.into_iter().all(|joined| !matches!(joined, Joined::Unavailable(_))));
}
