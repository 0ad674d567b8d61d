use proptest::prelude::*;
use tidegate::{
    clock::Clock,
    limit::{Charge, Key, Limit, Quota},
    store::memory::Memory,
};

use crate::{
    redis_server::RedisServer,
    support::{NOW, limit, stores},
};

/// One thing that happens in a sequence.
#[derive(Clone, Debug)]
enum Step {
    /// A request comes, so many ms later, and charges some limits: (which limit, which caller, cost).
    Request(u64, Vec<(usize, u128, u32)>),
    /// The clock is set back by so many ms.
    Back(u64),
    /// A reload gives one limit another quota.
    Requota(usize, u32),
}

fn limits() -> impl Strategy<Value = Vec<Limit>> {
    let resolutions = prop::sample::select(vec![1_u32, 2, 3, 6, 7, 12, 60]);
    let sub_windows = prop::sample::select(vec![1_u64, 7, 333, 1_000, 10_000, 3_600_000]);
    let quota = prop_oneof![8 => 1_u32..30, 1 => 1_000_000_u32..=u32::MAX / 4];
    prop::collection::vec((quota, sub_windows, resolutions), 1..4).prop_map(|quotas| {
        let compile = |(at, (quota, s, resolution)): (usize, (u32, u64, u32))| Limit {
            quota: Quota { limit: quota, window: s * u64::from(resolution), resolution },
            ..limit(&format!("limit-{at}"), quota)
        };
        quotas.into_iter().enumerate().map(compile).collect()
    })
}

fn steps(limits: &[Limit]) -> impl Strategy<Value = Vec<Step>> + use<> {
    let count = limits.len();
    let s = limits.iter().map(|limit| limit.quota.sub_window()).max().unwrap_or(1);
    let largest = limits.iter().map(|limit| limit.quota.limit).max().unwrap_or(1);
    let cost = prop_oneof![
        6 => Just(1_u32),
        3 => 1_u32..6,
        2 => 1..=largest.saturating_add(1),
        1 => Just(0_u32),
    ];
    let charges = prop::collection::vec((0..count, 0_u128..2, cost), 1..4);
    let later = prop_oneof![3 => 0..=s / 3, 2 => 0..=s * 2, 1 => 0..=s * 130];
    prop::collection::vec(
        prop_oneof![
            20 => (later, charges).prop_map(|(later, charges)| Step::Request(later, charges)),
            1 => (1_u64..12_000).prop_map(Step::Back),
            1 => (1_u64..100_000_000).prop_map(Step::Back),
            2 => (0..count, 1_u32..40).prop_map(|(at, quota)| Step::Requota(at, quota)),
        ],
        1..60,
    )
}

fn sequences() -> impl Strategy<Value = (Vec<Limit>, Vec<Step>)> {
    limits().prop_flat_map(|limits| {
        let steps = steps(&limits);
        (Just(limits), steps)
    })
}

#[test]
fn rust_and_lua_decide_alike() {
    let redis = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let clock = Clock::manual(NOW);
    let (stores, store) = runtime.block_on(async {
        let stores = stores(&redis, clock.clone());
        let store = stores.worker();
        (stores, store)
    });
    let caller = std::cell::Cell::new(0_u128);
    let config = ProptestConfig { cases: 400, ..ProptestConfig::default() };
    proptest!(config, |((mut limits, steps) in sequences())| {
        // Each sequence has callers of its own, so that one Redis serves them all.
        caller.set(caller.get() + 2);
        let memory = Memory::new(1_000);
        let mut now = NOW + 86_400_000;
        for step in steps {
            match step {
                Step::Back(by) => now -= by,
                Step::Requota(at, quota) => limits[at].quota.limit = quota,
                Step::Request(later, wanted) => {
                    now += later;
                    clock.set(now);
                    let charges: Vec<Charge<'_>> = wanted
                        .iter()
                        .map(|&(at, who, cost)| {
                            Charge { limit: &limits[at], key: Key(caller.get() + who), cost }
                        })
                        .collect();
                    let ours = memory.charge(&charges, now);
                    let theirs = runtime.block_on(store.charge(&charges, now)).unwrap();
                    prop_assert_eq!(ours, theirs);
                }
            }
        }
    });
    assert_eq!(stores.stats().failures, [0; 5], "every sequence was decided by Redis");
}

#[test]
fn the_largest_quotas_are_exact_in_lua() {
    let redis = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let clock = Clock::manual(NOW);
        let stores = stores(&redis, clock.clone());
        let store = stores.worker();
        let memory = Memory::new(1_000);
        // Just below MAX_QUOTA_MILLIS: 2^32 - 1 times 2^20 - 1 ms.
        let quota = Quota { limit: u32::MAX, window: (1 << 20) - 1, resolution: 1 };
        let limit = Limit { quota, ..limit("large", 1) };
        for (step, cost) in
            [(0, u32::MAX), (0, 1), (1_048_575, 1), (1, 4_097), (7, 9), (524_287, 3)]
        {
            clock.set(clock.now() + step);
            let charges = [Charge { limit: &limit, key: Key(1), cost }];
            let theirs = store.charge(&charges, 0).await.unwrap();
            assert_eq!(memory.charge(&charges, clock.now()), theirs);
        }
        assert_eq!(stores.stats().failures, [0; 5]);
    });
}
