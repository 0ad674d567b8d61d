//! Tests of a lease as a whole: its units, its queue and its fetch.

#[cfg(feature = "loom")]
mod every_interleaving;
mod queue;
mod returns;

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_base::time::{Millis, MonotonicTime, StoreTime, ms};
use tidegate_charge::{Key, LeaseSize, Limit, LimitIdentity};
use tidegate_limit::{Algorithm, Decision, Grant, Quota};
use tidegate_redis::RedisFailure;

use super::*;

/// The store's clock at the monotonic time 0, on a whole second.
const START: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

/// The key of most tests.
const KEY: Key = Key(7);

/// 100 units in 6 s, in sub-windows of 1 s.
fn limit(lease_size: LeaseSize) -> Arc<Limit> {
    Arc::new(Limit {
        lease_size,
        ..Limit::new(LimitIdentity::new("test", 1), Quota::sliding(100, Millis::from_secs(6), 6))
    })
}

/// A request that records its outcome, unless it is cancelled.
#[derive(Clone, Default)]
struct TestWaiter {
    cost: u64,
    is_cancelled: bool,
    outcomes: Arc<Mutex<Vec<WaiterOutcome>>>,
}

impl TestWaiter {
    fn of(cost: u64) -> Self {
        Self { cost, ..Self::default() }
    }

    fn cancelled(cost: u64) -> Self {
        Self { cost, is_cancelled: true, ..Self::default() }
    }

    /// The outcome, if there is one yet. Panics if there are two.
    fn outcome(&self) -> Option<WaiterOutcome> {
        let outcomes = self.outcomes.lock();
        assert!(outcomes.len() <= 1, "{outcomes:?}");
        outcomes.first().copied()
    }

    fn is_granted(&self) -> bool {
        matches!(self.outcome(), Some(WaiterOutcome::Granted(_)))
    }
}

impl LeaseWaiter for TestWaiter {
    fn cost(&self) -> u64 {
        self.cost
    }

    fn serve(self, outcome: WaiterOutcome) -> bool {
        if !self.is_cancelled {
            self.outcomes.lock().push(outcome);
        }
        !self.is_cancelled
    }
}

type Registry = Arc<LeaseRegistry<TestWaiter>>;

/// The lease of one key under one limit.
#[derive(Clone)]
struct TestLease {
    registry: Registry,
    limit: Arc<Limit>,
    key: Key,
}

impl TestLease {
    fn take(&self, cost: u64, now_ms: u64) -> Option<LeaseCharge> {
        self.registry.take(&self.limit, self.key, cost, at_ms(now_ms))
    }

    fn join(&self, waiter: TestWaiter, now_ms: u64) -> JoinOutcome<TestWaiter> {
        self.registry.join(&self.limit, self.key, waiter, at_ms(now_ms))
    }

    fn refund(&self, now: StoreTime, cost: u64, now_ms: u64) -> bool {
        self.registry.refund(&self.limit, self.key, now, cost, at_ms(now_ms)).is_some()
    }

    /// Puts `units` into the lease at 100 ms, by a fetch for a request of cost 1.
    fn stock(self, units: u64) -> Self {
        let fetch = expect_fetch(self.join(TestWaiter::of(1), 100));
        assert!(fetch.complete(&reply(1 + units, 50, 100)).is_none());
        self
    }
}

fn at_ms(ms: u64) -> MonotonicTime {
    MonotonicTime::from_ms(ms)
}

fn lease(registry: &Registry, limit: &Arc<Limit>, key: Key) -> TestLease {
    TestLease { registry: Arc::clone(registry), limit: Arc::clone(limit), key }
}

/// The reply of a store whose clock is [`START`] plus the monotonic time: decided at `now_ms`,
/// without delay.
fn reply(units: u64, remaining: u64, now_ms: u64) -> FetchReply {
    let decided_at = START + ms(now_ms);
    let decision = Decision {
        admitted: units > 0,
        limit: 100,
        remaining,
        used: 100 - remaining,
        reset_at: START + ms(7_000),
        retry_at: (units == 0).then_some(START + ms(6_000)),
        wait: Millis::ZERO,
    };
    let end = if units > 0 {
        (decided_at + Millis::MILLISECOND).round_up_to(Millis::from_secs(1))
    } else {
        StoreTime::ZERO
    };
    FetchReply {
        grant: Grant { units, spendable_until: end, decision },
        decided_at,
        sent: at_ms(now_ms),
        received: at_ms(now_ms),
    }
}

/// The fetch that joining must have begun.
fn expect_fetch(outcome: JoinOutcome<TestWaiter>) -> LeaseFetch<TestWaiter> {
    match outcome {
        JoinOutcome::Fetch(fetch) => fetch,
        JoinOutcome::Served => panic!("expected a fetch, the waiter was served"),
        JoinOutcome::Waiting => panic!("expected a fetch, the waiter waits for another"),
        JoinOutcome::Unavailable(_) => panic!("expected a fetch, the registry is full or closed"),
    }
}

fn registry() -> Registry {
    Registry::default()
}

/// A client that knows the hash secret can choose keys with equal bits.
#[test]
fn chosen_keys_do_not_fill_one_stripe() {
    let (registry, limit) = (registry(), limit(LeaseSize::Auto));
    let joined = (0..2_000).map(|n| registry.join(&limit, Key(n), TestWaiter::of(1), at_ms(1)));
    assert!(joined.into_iter().all(|joined| !matches!(joined, JoinOutcome::Unavailable(_))));
}
