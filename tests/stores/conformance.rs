use std::sync::Arc;

use testkit::{
    redis_server::RedisServer,
    verdict::{OutcomesExt as _, VerdictExt as _},
};
use tidegate::clock::ms;
use tidegate::{
    charge::{Adjustment, Charge, DecisionSource, Key, Limit, LimitIdentity},
    clock::{Clock, StoreTime},
    limit::{Algorithm, Change, Decision, MAX_UNITS, Millis, Quota},
    store::{CounterStore, StoreHandle},
};

use crate::support::{NOW, counter_store, limit};

/// For each algorithm a limit of ten a minute; for the sliding window also a strict one.
fn limits() -> Vec<Arc<Limit>> {
    let shapes = [
        ("lax", Algorithm::SlidingWindow { resolution: 6, strict: false }),
        ("strict", Algorithm::SlidingWindow { resolution: 6, strict: true }),
        ("log", Algorithm::SlidingLog),
        ("fixed", Algorithm::FixedWindow),
        ("token", Algorithm::TokenBucket),
        // Ten slots, six seconds apart, are within 54 s.
        ("leaky", Algorithm::LeakyBucket { max_wait: Millis::from_secs(54) }),
        ("concurrency", Algorithm::Concurrency),
    ];
    let shaped = |(name, algorithm)| {
        Arc::new(Limit {
            quota: Quota::new(10, Millis::from_secs(60), algorithm),
            ..Limit::clone(&limit(name, 1))
        })
    };
    shapes.map(shaped).into()
}

/// The place of the counters.
#[derive(Clone, Copy, Debug)]
enum Place {
    Memory,
    Redis,
}

/// One store on a manual clock, and the limit under test.
struct Fixture {
    counter_store: Arc<CounterStore>,
    handle: StoreHandle,
    clock: Clock,
    limit: Arc<Limit>,
    /// True if the limit delays requests; the others count them in a window.
    delays: bool,
    /// The limit and the store, for assertion messages.
    label: String,
}

impl Fixture {
    fn charge(&self, cost: u64) -> Charge<'_> {
        Charge { limit: &self.limit, key: Key(1), cost }
    }

    async fn decide(&self, cost: u64) -> Decision {
        let verdict = self.handle.charge(&[self.charge(cost)], self.clock.store_time()).await;
        let verdict = verdict.expect("a local policy");
        assert!(!verdict.is_fallback(), "{}", self.label);
        verdict.decision(0)
    }

    async fn peek(&self) -> Decision {
        let peeked = self.handle.peek(&[self.charge(1)], self.clock.store_time()).await;
        peeked.expect("Redis").decision(0)
    }

    async fn adjust(&self, change: Change) -> Decision {
        let adjustment = [Adjustment { limit: &self.limit, key: Key(1), change }];
        let adjusted =
            self.handle.adjust(&adjustment, DecisionSource::Store, self.clock.store_time()).await;
        adjusted.decision(0)
    }

    /// Changes the quota, as a reload does.
    fn reloaded(mut self, quota: u64) -> Self {
        Arc::make_mut(&mut self.limit).quota.limit = quota;
        self
    }

    fn advance(&self, count: u64) {
        self.clock.set(self.clock.store_time() + ms(count));
    }
}

/// Runs `check` for each algorithm, in memory and in Redis, each with a clock at [`NOW`].
async fn for_every_store(check: impl AsyncFn(Fixture)) {
    let redis = RedisServer::start();
    for limit in limits() {
        for place in [Place::Memory, Place::Redis] {
            let clock = Clock::manual(NOW);
            let counter_store = match place {
                Place::Memory => {
                    CounterStore::memory(clock.clone(), 1_000).expect("random numbers")
                }
                Place::Redis => counter_store(&redis, clock.clone()),
            };
            let label = format!("{} in {place:?}", limit.name());
            let handle = counter_store.worker();
            let limit = limit.clone();
            let delays = limit.algorithm().takes_slot();
            check(Fixture { counter_store, handle, clock, limit, delays, label }).await;
        }
        let _: String = redis.command(&["FLUSHALL"]);
    }
}

#[tokio::test]
async fn exactly_the_quota_is_admitted() {
    for_every_store(async |fixture| {
        let label = &fixture.label;
        for used in 1..=10 {
            let decision = fixture.decide(1).await;
            assert!(decision.admitted, "{label}: {used}");
            assert_eq!(decision.used, used, "{label}");
            assert_eq!(decision.remaining, 10 - used, "{label}");
            let wait = if fixture.delays { (used - 1) * 6_000 } else { 0 };
            assert_eq!(decision.wait.as_ms(), wait, "{label}");
        }
        let refused = fixture.decide(1).await;
        assert!(!refused.admitted && refused.remaining == 0 && refused.wait.is_zero(), "{label}");
        let retry_at = refused.retry_at.expect("a time to retry");
        fixture.advance((retry_at - ms(1) - NOW).as_ms());
        assert!(!fixture.decide(1).await.admitted, "{label}: 1 ms before `retry_at`");
        fixture.advance(1);
        assert!(fixture.decide(1).await.admitted, "{label}: at `retry_at`");
        assert_eq!(fixture.counter_store.stats().failures, [0; 5]);
    })
    .await;
}

#[tokio::test]
async fn refused_requests_are_not_charged() {
    for_every_store(async |fixture| {
        fixture.decide(8).await;
        let before = fixture.peek().await;
        for _ in 0..20 {
            assert!(!fixture.decide(3).await.admitted, "{}", fixture.label);
        }
        assert!(fixture.decide(11).await.retry_at.is_none(), "{}: above the quota", fixture.label);
        assert_eq!(fixture.peek().await, before, "{}", fixture.label);
        assert!(fixture.decide(2).await.admitted, "{}", fixture.label);
    })
    .await;
}

#[tokio::test]
async fn a_refusal_by_the_narrow_limit_does_not_charge_the_broad_one() {
    for_every_store(async |fixture| {
        let broad = Arc::new(Limit {
            quota: Quota { limit: 5_000, ..fixture.limit.quota },
            ..Limit {
                identity: LimitIdentity::new("broad", 0xfeed),
                ..Limit::clone(&fixture.limit)
            }
        });
        let both = [Charge { limit: &broad, key: Key(2), cost: 1 }, fixture.charge(1)];
        for _ in 0..10 {
            assert!(fixture.handle.charge(&both, NOW).await.unwrap().admitted, "{}", fixture.label);
        }
        let peek_broad = async || fixture.handle.peek(&both[..1], NOW).await.unwrap().decision(0);
        let before = peek_broad().await;
        for _ in 0..1_000 {
            let verdict = fixture.handle.charge(&both, NOW).await.unwrap();
            assert!(
                !verdict.admitted && verdict.outcomes[0].refused().is_none(),
                "{}",
                fixture.label
            );
        }
        assert_eq!(peek_broad().await, before, "{}", fixture.label);
    })
    .await;
}

#[tokio::test]
async fn a_reload_keeps_the_usage() {
    for_every_store(async |fixture| {
        fixture.decide(8).await;
        fixture.advance(2_500);
        let used = fixture.peek().await.used;
        for quota in [20, 5, 10] {
            // The same counters under the quota after a reload.
            let limit = Arc::new(Limit {
                quota: Quota { limit: quota, ..fixture.limit.quota },
                ..Limit::clone(&fixture.limit)
            });
            let charges = [Charge { limit: &limit, ..fixture.charge(1) }];
            let after = fixture
                .handle
                .peek(&charges, fixture.clock.store_time())
                .await
                .unwrap()
                .decision(0);
            if fixture.delays {
                // A leaky bucket counts time: 2.5 s later, 45.5 of the 48 s in use are left.
                let room = (54_000 - 45_500) * quota / 60_000 + 1;
                assert_eq!(after.remaining, room, "{} {quota}", fixture.label);
            } else {
                assert_eq!(after.used, used, "{} {quota}", fixture.label);
                let left = quota.saturating_sub(used);
                assert_eq!(after.remaining, left, "{} {quota}", fixture.label);
            }
        }
        let raised = fixture.reloaded(40);
        assert!(raised.decide(3).await.admitted, "{}", raised.label);
    })
    .await;
}

#[tokio::test]
async fn a_refund_restores_remaining_and_keeps_the_reset() {
    for_every_store(async |fixture| {
        fixture.decide(4).await;
        fixture.advance(70);
        let before = fixture.peek().await;
        let charged = fixture.decide(3).await;
        // The slot's time identifies a charge of a leaky bucket.
        let charged_at = fixture.clock.store_time() + charged.wait;
        let refunded = fixture.adjust(Change::Refund { charged_at, cost: 3 }).await;
        assert_eq!(refunded.remaining, before.remaining, "{}", fixture.label);
        assert_eq!(refunded.used, before.used, "{}", fixture.label);
        assert_eq!(refunded.reset_at, charged.reset_at, "{}", fixture.label);
        let peeked = fixture.peek().await;
        assert_eq!(Decision { wait: Millis::ZERO, ..peeked }, refunded, "{}", fixture.label);
        let again = fixture
            .adjust(Change::Refund { charged_at: StoreTime::from_unix_ms(5), cost: 3 })
            .await;
        if !fixture.delays {
            assert_eq!(again.used, before.used, "{}: an expired charge", fixture.label);
        }
    })
    .await;
}

#[tokio::test]
async fn an_adjustment_may_overdraw_the_quota() {
    for_every_store(async |fixture| {
        fixture.decide(9).await;
        let overdrawn = fixture.adjust(Change::Overdraw { cost: 7 }).await;
        assert_eq!(overdrawn.used, 16, "{}", fixture.label);
        assert_eq!(overdrawn.remaining, 0, "{}", fixture.label);
        assert_eq!(overdrawn.limit, 10, "{}", fixture.label);
        let refused = fixture.decide(1).await;
        let retry_at = refused.retry_at.expect("a time to retry");
        assert!(!refused.admitted && refused.reset_at >= retry_at, "{}", fixture.label);
        fixture.advance((retry_at - NOW).as_ms());
        assert!(fixture.decide(1).await.admitted, "{}", fixture.label);
    })
    .await;
}

#[tokio::test]
async fn a_debt_is_at_most_ten_quotas() {
    for_every_store(async |fixture| {
        if fixture.limit.algorithm().holds_permit() {
            return;
        }
        fixture.decide(3).await;
        for _ in 0..2 {
            let overdrawn = fixture.adjust(Change::Overdraw { cost: MAX_UNITS }).await;
            assert_eq!(overdrawn.used, 110, "{}", fixture.label);
        }
        // Ten windows for the debt, one for a unit of the quota.
        fixture.advance(11 * 60_000);
        assert!(fixture.decide(1).await.admitted, "{}", fixture.label);
    })
    .await;
}

#[tokio::test]
async fn an_expired_record_equals_a_new_one() {
    for_every_store(async |fixture| {
        let new = fixture.peek().await;
        fixture.decide(10).await;
        // The record still exists: its expiry has not run.
        fixture.advance(130_000);
        let peeked = fixture.peek().await;
        let moved = peeked.reset_at - new.reset_at;
        assert_eq!(Decision { reset_at: new.reset_at, ..peeked }, new);
        assert_eq!(moved, ms(130_000), "{}", fixture.label);
    })
    .await;
}

#[tokio::test]
async fn two_charges_in_one_ms_are_two() {
    for_every_store(async |fixture| {
        for _ in 0..3 {
            fixture.decide(1).await;
        }
        assert_eq!(fixture.peek().await.used, 3, "{}", fixture.label);
    })
    .await;
}
