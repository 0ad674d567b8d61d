//! Blocks: memory against Redis, two gateways, the sums of refusals, lifts and outages.

use std::{sync::Arc, time::Duration};

use proptest::{prelude::*, test_runner::TestCaseResult};
use testkit::redis_server::RedisServer;
use tidegate::clock::ms;
use tidegate::{
    charge::{Adjustment, BlockEffect, Charge, DecisionSource, Key, Limit, LimitIdentity, Verdict},
    clock::{Clock, StoreTime},
    limit::{Algorithm, Change, Decision, Millis, Quota},
    store::{CounterStore, StoreHandle, charge_in_memory, memory::MemoryStore},
};
use tokio::runtime::Runtime;

use crate::support::{NOW, charge, clock, counter_store, eventually, gateway, now};

/// A limit of 2 requests an hour, which blocks for a minute after 4 refusals within 10 s.
fn blocking(name: &str) -> Arc<Limit> {
    let quota = Quota::new(2, Millis::from_secs(3_600), Algorithm::FixedWindow);
    let limit = Limit::new(LimitIdentity::new(name, 0xfeed), quota);
    Arc::new(limit.with_block(4, Millis::from_secs(10), Millis::from_secs(60)))
}

async fn ask(handle: &StoreHandle, limit: &Arc<Limit>) -> Verdict {
    handle.charge(&[charge(limit, 1)], now()).await.expect("a decision")
}

/// The effect of the block of the only limit.
fn effect(verdict: &Verdict) -> BlockEffect {
    verdict.decided(0).expect("a decision").block
}

/// The record of a block after one step, in Rust and in Lua.
#[derive(Clone, Copy, Debug)]
enum Step {
    Count {
        refusals: u64,
    },
    Decide,
    /// In ms.
    Pass(u64),
    SetBack(u64),
    /// A reload changes the block.
    Reload {
        after: u64,
        duration: u32,
    },
}

fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1_u64..4).prop_map(|refusals| Step::Count { refusals }),
        4 => Just(Step::Decide),
        4 => prop_oneof![0_u64..50, 0_u64..20_000, Just(9_999), Just(10_000)].prop_map(Step::Pass),
        1 => prop_oneof![1_u64..6_000, 1_u64..200_000].prop_map(Step::SetBack),
        1 => (1_u64..8, 1_000_u32..90_000)
            .prop_map(|(after, duration)| Step::Reload { after, duration }),
    ];
    prop::collection::vec(step, 1..60)
}

/// The records of one caller in both stores.
struct Both<'a> {
    clock: &'a Clock,
    memory: MemoryStore,
    redis: &'a StoreHandle,
    runtime: &'a Runtime,
}

impl Both<'_> {
    fn run(&self, steps: &[Step], caller: u128) -> TestCaseResult {
        let shaped = |after, duration: u32| {
            let duration = Millis::from_ms(duration.into());
            let quota = Quota::new(after, Millis::from_secs(10), Algorithm::Block { duration });
            // Not enforced, so that no denial is cached.
            let limit = Limit::new(LimitIdentity::new("differential~block", 7), quota);
            Arc::new(Limit { enforce: false, ..limit })
        };
        let (mut limit, mut at) = (shaped(3, 60_000), NOW);
        for step in steps {
            match *step {
                Step::Pass(count) => at += ms(count),
                Step::SetBack(count) => at = at.before(ms(count)),
                Step::Reload { after, duration } => limit = shaped(after, duration),
                Step::Count { .. } | Step::Decide => {}
            }
            self.clock.set(at);
            let (rust, lua) = match *step {
                Step::Count { refusals } => self.count(&limit, caller, refusals, at),
                _ => self.decide(&limit, caller, at),
            };
            prop_assert_eq!(rust, lua, "{:?} at {:?}", step, at);
        }
        Ok(())
    }

    fn count(
        &self,
        limit: &Arc<Limit>,
        caller: u128,
        refusals: u64,
        at: StoreTime,
    ) -> (Decision, Decision) {
        let change = Change::Overdraw { cost: refusals };
        let adjustment = Adjustment { limit, key: Key(caller), change };
        let adjustments = [adjustment];
        let adjusted = self.redis.adjust(&adjustments, DecisionSource::Store, at);
        let lua = self.runtime.block_on(adjusted)[0].decided().expect("Redis counts").decision;
        (self.memory.adjust(&adjustment, at, 1), lua)
    }

    fn decide(&self, limit: &Arc<Limit>, caller: u128, at: StoreTime) -> (Decision, Decision) {
        let charges = [Charge { limit, key: Key(caller), cost: 1 }];
        let lua = self.runtime.block_on(self.redis.charge(&charges, at)).expect("Redis decides");
        let rust = self.memory.charge(&charges, at);
        let decision = |verdict: &Verdict| verdict.decided(0).expect("a decision").decision;
        (decision(&rust), decision(&lua))
    }
}

#[test]
fn rust_and_lua_block_alike() {
    let (redis, runtime) = (RedisServer::start(), Runtime::new().expect("a runtime"));
    let clock = Clock::manual(NOW);
    let store = counter_store(&redis, clock.clone());
    let handle = runtime.block_on(async { store.worker() });
    let callers = std::cell::Cell::new(0);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(100));
    let ran = runner.run(&any_steps(), |steps| {
        callers.set(callers.get() + 1);
        let memory = MemoryStore::new(100);
        Both { clock: &clock, memory, redis: &handle, runtime: &runtime }.run(&steps, callers.get())
    });
    ran.unwrap_or_else(|error| panic!("{error}"));
}

#[tokio::test]
async fn a_block_begins_with_the_last_refusal_and_ends_exactly() {
    let redis = RedisServer::start();
    let (_store, shared) = gateway(&redis);
    let memory = CounterStore::memory(clock(), 100).expect("a store");
    let local = memory.worker();
    for handle in [&shared, &local] {
        let limit = blocking("exact");
        let began = now();
        for _ in 0..2 {
            assert!(ask(handle, &limit).await.admitted);
        }
        for refusal in 1..=3 {
            let refused = ask(handle, &limit).await;
            assert_eq!(effect(&refused), BlockEffect::None, "{refusal}");
            let retry_at = refused.decided(0).unwrap().decision.retry_at;
            assert_eq!(retry_at, Some(began + ms(3_600_000)), "that of the limit");
        }
        let fourth = ask(handle, &limit).await;
        assert_eq!(effect(&fourth), BlockEffect::Begun { until: began + ms(60_000) });
        let blocked = ask(handle, &limit).await;
        assert_eq!(effect(&blocked), BlockEffect::Refused { until: began + ms(60_000) });
        clock().advance(Duration::from_millis(59_999));
        assert!(matches!(effect(&ask(handle, &limit).await), BlockEffect::Refused { .. }));
        clock().advance(Duration::from_millis(1));
        let after = ask(handle, &limit).await;
        assert_eq!(effect(&after), BlockEffect::None, "the limit alone refuses");
        assert!(!after.admitted);
    }
}

#[tokio::test]
async fn refusals_of_the_deny_cache_are_counted_without_a_call_for_each() {
    let redis = RedisServer::start();
    let (store, handle) = gateway(&redis);
    let quota = Quota::new(1, Millis::from_secs(3_600), Algorithm::FixedWindow);
    let limit = Limit::new(LimitIdentity::new("cached", 1), quota).with_block(
        2_000,
        Millis::from_secs(60),
        Millis::from_secs(60),
    );
    let limit = Arc::new(limit);
    assert!(ask(&handle, &limit).await.admitted);
    assert!(!ask(&handle, &limit).await.admitted);
    let calls = store.stats().store_calls;
    for _ in 0..1_998 {
        assert_eq!(effect(&ask(&handle, &limit).await), BlockEffect::None);
    }
    assert!(matches!(effect(&ask(&handle, &limit).await), BlockEffect::Begun { .. }));
    assert_eq!(store.stats().store_calls, calls, "no charge called Redis");
    assert_eq!(store.blocks().len(), 1);
}

#[tokio::test]
async fn gateways_share_a_block_and_its_count() {
    let redis = RedisServer::start();
    let ((_one, first), (other, second)) = (gateway(&redis), gateway(&redis));
    let limit = blocking("shared");
    for _ in 0..2 {
        assert!(ask(&first, &limit).await.admitted);
    }
    for handle in [&first, &second, &first] {
        assert_eq!(effect(&ask(handle, &limit).await), BlockEffect::None);
    }
    // Both have sent their sums when the fourth refusal is in Redis.
    eventually("the block is known to the other gateway", async || {
        matches!(effect(&ask(&second, &limit).await), BlockEffect::Refused { .. })
    })
    .await;
    assert_eq!(other.blocks()[0].block.blocked_name(), "shared");
    // A new gateway, as after a restart.
    let (_third, third) = gateway(&redis);
    assert!(matches!(effect(&ask(&third, &limit).await), BlockEffect::Refused { .. }));
}

#[tokio::test]
async fn a_block_is_lifted_alone_or_with_the_counter() {
    let redis = RedisServer::start();
    let (shared_store, shared) = gateway(&redis);
    let memory = CounterStore::memory(clock(), 100).expect("a store");
    for (store, handle) in [(&shared_store, &shared), (&memory, &memory.worker())] {
        let limit = blocking("lifted");
        let begin = async || {
            for _ in 0..8 {
                ask(handle, &limit).await;
            }
            assert!(matches!(effect(&ask(handle, &limit).await), BlockEffect::Refused { .. }));
            assert_eq!(store.blocks().len(), 1);
        };
        begin().await;
        let block = limit.block.as_deref().expect("a block");
        store.reset(&[block], Key(1)).await.expect("it is lifted");
        assert!(store.blocks().is_empty());
        let refused = ask(handle, &limit).await;
        assert_eq!((refused.admitted, effect(&refused)), (false, BlockEffect::None));
        // A reply of the ms of the lift is not cached.
        clock().advance(Duration::from_millis(1));
        begin().await;
        store.reset(&[&limit], Key(1)).await.expect("it is reset");
        assert!(ask(handle, &limit).await.admitted);
    }
}

#[test]
fn a_block_that_is_not_enforced_admits_and_uncounts() {
    let limit = Limit { enforce: false, ..Limit::clone(&blocking("dry")) };
    let limit =
        Limit { block: None, ..limit }.with_block(2, Millis::from_secs(10), Millis::from_secs(60));
    let (limit, memory) = (Arc::new(limit), MemoryStore::new(100));
    let ask = |at: u64| charge_in_memory(&memory, &[charge(&limit, 1)], NOW + ms(at));
    let effects: Vec<BlockEffect> = (0..5).map(|at| effect(&ask(at))).collect();
    assert_eq!(effects[..3], [BlockEffect::None; 3]);
    assert_eq!(effects[3], BlockEffect::Begun { until: NOW + ms(60_003) });
    assert_eq!(effects[4], BlockEffect::Refused { until: NOW + ms(60_003) });
    assert!(ask(5).admitted, "it only reports");
    // The block outlasts this window: what the limit would admit is not counted while blocked.
    memory.reset(&limit, Key(1));
    ask(6);
    let used = memory.peek(&[charge(&limit, 1)], NOW + ms(7)).decided(0).unwrap().decision.used;
    assert_eq!(used, 0);
}

#[test]
fn a_block_of_permits_names_its_end() {
    let quota = Quota::new(1, Millis::from_secs(10), Algorithm::Concurrency);
    let limit = Limit::new(LimitIdentity::new("permits", 0xfeed), quota);
    let limit = Arc::new(limit.with_block(2, Millis::from_secs(5), Millis::from_secs(4)));
    let memory = MemoryStore::new(100);
    let ask = || charge_in_memory(&memory, &[Charge { limit: &limit, key: Key(1), cost: 1 }], NOW);
    assert!(ask().admitted);
    ask();
    for _ in 0..2 {
        let verdict = ask();
        let decision = verdict.decided(0).expect("a decision").decision;
        assert_eq!((decision.admitted, decision.retry_at), (false, Some(NOW + ms(4_000))));
    }
}

#[test]
fn admitted_requests_make_no_record_of_a_block() {
    let (limit, memory) = (blocking("records"), MemoryStore::new(100));
    charge_in_memory(&memory, &[charge(&limit, 1)], NOW);
    assert_eq!(memory.len(), 1, "that of the limit");
}
