use std::sync::Arc;

use testkit::{
    redis_server::RedisServer,
    verdict::{OutcomesExt as _, VerdictExt as _},
};
use tidegate::{
    clock::Clock,
    limit::{Adjustment, Algorithm, Change, Charge, Decision, DecisionSource, Key, Limit, Quota},
    store::{CounterStore, StoreHandle},
};

use crate::support::{NOW, limit, stores};

/// A limit of every algorithm, also strict: a burst of ten and ten a minute.
fn every_limit() -> Vec<Limit> {
    let ten = Quota::new(10, 60_000, 1);
    let strict = Quota { resolution: 6, strict: true, ..ten };
    // Ten slots, six seconds apart, are within 54 s.
    let leaky = Quota { max_wait: 54_000, ..ten };
    let lax = Quota { resolution: 6, ..ten };
    let shapes = [
        ("lax", Algorithm::SlidingWindow, lax),
        ("strict", Algorithm::SlidingWindow, strict),
        ("log", Algorithm::SlidingLog, ten),
        ("fixed", Algorithm::FixedWindow, ten),
        ("token", Algorithm::TokenBucket, ten),
        ("leaky", Algorithm::LeakyBucket, leaky),
        ("flying", Algorithm::Concurrency, ten),
    ];
    let compile = |(name, algorithm, quota)| Limit { algorithm, quota, ..limit(name, 1) };
    shapes.map(compile).into()
}

/// One store on a manual clock, and the limit under test.
struct Bench {
    stores: Arc<CounterStore>,
    store: StoreHandle,
    clock: Clock,
    limit: Limit,
    what: String,
}

impl Bench {
    fn charge(&self, cost: u32) -> Charge<'_> {
        Charge { limit: &self.limit, key: Key(1), cost }
    }

    async fn ask(&self, cost: u32) -> Decision {
        let verdict = self.store.charge(&[self.charge(cost)], self.clock.now()).await;
        let verdict = verdict.expect("a limit that is local without Redis");
        assert!(!verdict.is_fallback(), "{}", self.what);
        verdict.decision(0)
    }

    async fn look(&self) -> Decision {
        let looked = self.store.peek(&[self.charge(1)], self.clock.now()).await;
        looked.expect("a store that answers").decision(0)
    }

    async fn settle(&self, change: Change) -> Decision {
        let adjustment = [Adjustment { limit: &self.limit, key: Key(1), change }];
        let settled = self.store.adjust(&adjustment, DecisionSource::Store, self.clock.now()).await;
        settled.decision(0)
    }

    /// The same with another quota, as after a reload.
    fn reloaded(mut self, quota: u32) -> Self {
        self.limit.quota.limit = quota;
        self
    }

    fn pass(&self, ms: u64) {
        self.clock.set(self.clock.now() + ms);
    }
}

/// Runs `promise` for each algorithm, in memory and in Redis, each with a clock at [`NOW`].
async fn everywhere(promise: impl AsyncFn(Bench)) {
    let redis = RedisServer::start();
    for limit in every_limit() {
        for shared in [false, true] {
            let clock = Clock::manual(NOW);
            let stores = if shared {
                stores(&redis, clock.clone())
            } else {
                CounterStore::memory(clock.clone(), 1_000).expect("random numbers")
            };
            let what = format!("{} {}", limit.name, if shared { "in Redis" } else { "in memory" });
            let store = stores.worker();
            promise(Bench { stores, store, clock, limit: limit.clone(), what }).await;
        }
        let _: String = redis.command(&["FLUSHALL"]);
    }
}

#[tokio::test]
async fn exactly_the_quota_is_admitted() {
    everywhere(async |bench| {
        let what = &bench.what;
        for used in 1..=10 {
            let decision = bench.ask(1).await;
            assert!(decision.admitted, "{what}: {used}");
            assert_eq!((decision.used, decision.remaining), (used, 10 - used), "{what}");
            let wait = if &*bench.limit.name == "leaky" { (used - 1) * 6_000 } else { 0 };
            assert_eq!(decision.wait, wait, "{what}");
        }
        let refused = bench.ask(1).await;
        assert!(!refused.admitted && refused.remaining == 0 && refused.wait == 0, "{what}");
        let retry_at = refused.retry_at.expect("a time to retry");
        bench.pass(retry_at - 1 - NOW);
        assert!(!bench.ask(1).await.admitted, "{what}: 1 ms before its time");
        bench.pass(1);
        assert!(bench.ask(1).await.admitted, "{what}: at its time");
        assert_eq!(bench.stores.stats().failures, [0; 5]);
    })
    .await;
}

#[tokio::test]
async fn refused_requests_are_not_charged() {
    everywhere(async |bench| {
        bench.ask(8).await;
        let before = bench.look().await;
        for _ in 0..20 {
            assert!(!bench.ask(3).await.admitted, "{}", bench.what);
        }
        assert!(bench.ask(11).await.retry_at.is_none(), "{}: never", bench.what);
        assert_eq!(bench.look().await, before, "{}", bench.what);
        assert!(bench.ask(2).await.admitted, "{}", bench.what);
    })
    .await;
}

#[tokio::test]
async fn an_exhausted_narrow_limit_does_not_drain_the_broad_one() {
    everywhere(async |bench| {
        let broad = Limit {
            quota: Quota { limit: 5_000, ..bench.limit.quota },
            ..Limit { name: "broad".into(), ..bench.limit.clone() }
        };
        let both = [Charge { limit: &broad, key: Key(2), cost: 1 }, bench.charge(1)];
        for _ in 0..10 {
            assert!(bench.store.charge(&both, NOW).await.unwrap().admitted, "{}", bench.what);
        }
        let look = async || bench.store.peek(&both[..1], NOW).await.unwrap().decision(0);
        let before = look().await;
        for _ in 0..1_000 {
            let verdict = bench.store.charge(&both, NOW).await.unwrap();
            assert!(!verdict.admitted && verdict.outcomes[0].refused().is_none(), "{}", bench.what);
        }
        assert_eq!(look().await, before, "{}", bench.what);
    })
    .await;
}

#[tokio::test]
async fn a_reload_keeps_the_usage() {
    everywhere(async |bench| {
        bench.ask(8).await;
        bench.pass(2_500);
        let used = bench.look().await.used;
        let wait = |used: u64, quota: u64| (quota + 1).saturating_sub(used);
        for quota in [20, 5, 10] {
            // A second bench on the same counters: the limit after a reload.
            let limit =
                Limit { quota: Quota { limit: quota, ..bench.limit.quota }, ..bench.limit.clone() };
            let looks = [Charge { limit: &limit, ..bench.charge(1) }];
            let after = bench.store.peek(&looks, bench.clock.now()).await.unwrap().decision(0);
            if &*bench.limit.name == "leaky" {
                // Slots are times: 45.5 of the 48 s in use are left.
                let (left, rate) = (45_500_u64, u64::from(quota));
                let room = (54_000 - left) * rate / 60_000 + 1;
                assert_eq!(after.remaining, room, "{} {quota}", bench.what);
            } else {
                assert_eq!(after.used, used, "{} {quota}", bench.what);
                let left = wait(used, u64::from(quota)).saturating_sub(1);
                assert_eq!(after.remaining, left, "{} {quota}", bench.what);
            }
        }
        let raised = bench.reloaded(40);
        assert!(raised.ask(3).await.admitted, "{}", raised.what);
    })
    .await;
}

#[tokio::test]
async fn a_refund_restores_remaining_and_keeps_the_reset() {
    everywhere(async |bench| {
        bench.ask(4).await;
        bench.pass(70);
        let before = bench.look().await;
        let charged = bench.ask(3).await;
        // A leaky bucket's charge is identified by its slot; nothing else waits for it.
        let charged_at = bench.clock.now() + charged.wait;
        let refunded = bench.settle(Change::Refund { charged_at, cost: 3 }).await;
        assert_eq!(refunded.remaining, before.remaining, "{}", bench.what);
        assert_eq!(refunded.used, before.used, "{}", bench.what);
        assert_eq!(refunded.reset_at, charged.reset_at, "{}", bench.what);
        let looked = bench.look().await;
        assert_eq!(Decision { wait: 0, ..looked }, refunded, "{}", bench.what);
        let again = bench.settle(Change::Refund { charged_at: 5, cost: 3 }).await;
        if &*bench.limit.name != "leaky" {
            assert_eq!(again.used, before.used, "{}: of long ago", bench.what);
        }
    })
    .await;
}

#[tokio::test]
async fn an_adjustment_may_overdraw_the_quota() {
    everywhere(async |bench| {
        bench.ask(9).await;
        let owed = bench.settle(Change::Overdraw { cost: 7 }).await;
        assert_eq!((owed.used, owed.remaining, owed.limit), (16, 0, 10), "{}", bench.what);
        let refused = bench.ask(1).await;
        let retry_at = refused.retry_at.expect("a time to retry");
        assert!(!refused.admitted && refused.reset_at >= retry_at, "{}", bench.what);
        bench.pass(retry_at - NOW);
        assert!(bench.ask(1).await.admitted, "{}", bench.what);
    })
    .await;
}

#[tokio::test]
async fn an_expired_record_equals_a_new_one() {
    everywhere(async |bench| {
        let never_seen = bench.look().await;
        bench.ask(10).await;
        // The record still exists: nothing has expired it.
        bench.pass(130_000);
        let looked = bench.look().await;
        let moved = looked.reset_at - never_seen.reset_at;
        assert_eq!(Decision { reset_at: never_seen.reset_at, ..looked }, never_seen);
        assert_eq!(moved, 130_000, "{}", bench.what);
    })
    .await;
}

#[tokio::test]
async fn two_charges_in_one_ms_are_two() {
    everywhere(async |bench| {
        for _ in 0..3 {
            bench.ask(1).await;
        }
        assert_eq!(bench.look().await.used, 3, "{}", bench.what);
    })
    .await;
}
