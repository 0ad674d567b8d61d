use proptest::{prelude::*, test_runner::TestCaseResult};
use testkit::{redis_server::RedisServer, verdict::OutcomesExt as _};
use tidegate::{
    clock::{Clock, StoreTime},
    limit::{
        Adjustment, Algorithm, Change, Charge, DecisionSource, Key, Limit, MAX_QUOTA_MILLIS, Quota,
    },
    store::{CounterStore, StoreHandle, memory::MemoryStore},
};
use tokio::runtime::Runtime;

use crate::support::{NOW, counter_store, limit};

/// One step of a sequence. Delays are in ms.
#[derive(Clone, Debug)]
enum Step {
    /// After a delay, a request charges some limits.
    Request { delay: u64, charges: Vec<ChargeStep> },
    /// After a delay, charges are adjusted.
    Adjust { delay: u64, adjustments: Vec<AdjustStep> },
    /// The clock is set back.
    SetBack { by: u64 },
    /// A reload changes one limit.
    Reload { limit: usize, quota: u32, max_wait: u32, strict: bool },
}

/// A charge of the limit with an index.
#[derive(Clone, Copy, Debug)]
struct ChargeStep {
    limit: usize,
    caller: u128,
    cost: u32,
}

/// An adjustment of the limit with an index.
#[derive(Clone, Copy, Debug)]
struct AdjustStep {
    limit: usize,
    caller: u128,
    kind: AdjustKind,
}

/// The adjustment of a charge.
#[derive(Clone, Copy, Debug)]
enum AdjustKind {
    /// A partial refund of the charge of an earlier request.
    Refund { requests_ago: usize, cost: u32 },
    /// A full refund of an admitted charge, of any limit and caller.
    RefundAdmitted { nth: usize },
    /// A refund of a charge that was never made.
    RefundUnmade { ms_ago: u64, cost: u32 },
    /// An additional charge.
    Overdraw { cost: u32 },
}

/// An admitted charge, at its own time or its slot's.
struct AdmittedCharge {
    limit: usize,
    caller: u128,
    charged_at: StoreTime,
    cost: u32,
}

fn any_limits() -> impl Strategy<Value = Vec<Limit>> {
    let resolutions = prop::sample::select(vec![1_u32, 2, 3, 6, 7, 12, 60]);
    let sub_windows = prop::sample::select(vec![1_u64, 7, 333, 1_000, 10_000, 3_600_000]);
    let algorithms = prop::sample::select(Algorithm::ALL.to_vec());
    let quota = prop_oneof![8 => 1_u32..30, 1 => 1_000_000_u32..=u32::MAX / 4];
    let waits = prop_oneof![Just(0_u32), 1_u32..100, 1_u32..100_000];
    let enforced = prop::bool::weighted(0.7);
    let one = (algorithms, quota, sub_windows, resolutions, waits, any::<bool>(), enforced);
    prop::collection::vec(one, 1..5).prop_map(|all| {
        type One = (Algorithm, u32, u64, u32, u32, bool, bool);
        let compile = |(index, one): (usize, One)| {
            let (algorithm, quota, sub_window, resolution, max_wait, strict, enforce) = one;
            let window = sub_window * u64::from(resolution);
            let resolution = if algorithm == Algorithm::SlidingWindow { resolution } else { 1 };
            let most = MAX_QUOTA_MILLIS / u64::max(window / u64::from(resolution), max_wait.into());
            let quota = u32::try_from(most).unwrap_or(u32::MAX).min(quota);
            let max_wait = if algorithm == Algorithm::LeakyBucket { max_wait } else { 0 };
            let quota = Quota { limit: quota, window, resolution, max_wait, strict };
            Limit { algorithm, quota, enforce, ..limit(&format!("limit-{index}"), 1) }
        };
        all.into_iter().enumerate().map(compile).collect()
    })
}

fn any_steps(limits: &[Limit]) -> impl Strategy<Value = Vec<Step>> + use<> {
    let count = limits.len();
    let scale = limits.iter().map(|limit| limit.quota.window / 7 + 1).max().unwrap_or(1);
    let largest = limits.iter().map(|limit| limit.quota.limit).max().unwrap_or(1);
    let cost = prop_oneof![
        6 => Just(1_u32),
        3 => 1_u32..6,
        2 => 1..=largest.saturating_add(1),
        1 => Just(0_u32),
    ];
    let overdraw = prop_oneof![4 => 1_u32..6, 1 => any::<u32>()];
    let adjust_kinds = prop_oneof![
        4 => (0_usize..4, 1_u32..6)
            .prop_map(|(requests_ago, cost)| AdjustKind::Refund { requests_ago, cost }),
        6 => any::<usize>().prop_map(|nth| AdjustKind::RefundAdmitted { nth }),
        2 => (0..scale * 8, 1_u32..6)
            .prop_map(|(ms_ago, cost)| AdjustKind::RefundUnmade { ms_ago, cost }),
        1 => overdraw.prop_map(|cost| AdjustKind::Overdraw { cost }),
    ];
    let charge = (0..count, 0_u128..2, cost).prop_map(|(limit, caller, cost)| ChargeStep {
        limit,
        caller,
        cost,
    });
    let adjustment = (0..count, 0_u128..2, adjust_kinds)
        .prop_map(|(limit, caller, kind)| AdjustStep { limit, caller, kind });
    let charges = prop::collection::vec(charge, 1..4);
    let adjustments = prop::collection::vec(adjustment, 1..3);
    let delay = || prop_oneof![3 => 0..=scale / 3, 2 => 0..=scale * 2, 1 => 0..=scale * 20];
    let reload = (0..count, 1_u32..40, 0_u32..5_000, any::<bool>());
    prop::collection::vec(
        prop_oneof![
            20 => (delay(), charges)
                .prop_map(|(delay, charges)| Step::Request { delay, charges }),
            4 => (delay(), adjustments)
                .prop_map(|(delay, adjustments)| Step::Adjust { delay, adjustments }),
            1 => (1_u64..12_000).prop_map(|by| Step::SetBack { by }),
            1 => (1_u64..100_000_000).prop_map(|by| Step::SetBack { by }),
            2 => reload.prop_map(|(limit, quota, max_wait, strict)| {
                Step::Reload { limit, quota, max_wait, strict }
            }),
        ],
        1..60,
    )
}

fn any_sequence() -> impl Strategy<Value = (Vec<Limit>, Vec<Step>)> {
    any_limits().prop_flat_map(|limits| {
        let steps = any_steps(&limits);
        (Just(limits), steps)
    })
}

/// The two stores under comparison, with the same clock.
struct StorePair<'a> {
    runtime: &'a Runtime,
    clock: &'a Clock,
    memory: MemoryStore,
    handle: &'a StoreHandle,
    counter_store: &'a CounterStore,
    /// The first caller of this sequence: other sequences in the same Redis have others.
    first_caller: u128,
    now: StoreTime,
    /// The times of the requests.
    times: Vec<StoreTime>,
    admitted: Vec<AdmittedCharge>,
}

impl StorePair<'_> {
    fn request(&mut self, limits: &[Limit], requested: &[ChargeStep]) -> TestCaseResult {
        let charge = |step: &ChargeStep| {
            let limit: &Limit = &limits[step.limit];
            Charge { limit, key: Key(self.first_caller + step.caller), cost: step.cost }
        };
        let charges: Vec<Charge<'_>> = requested.iter().map(charge).collect();
        // Only Redis decisions are compared.
        self.counter_store.clear_deny_cache();
        let in_memory = self.memory.charge(&charges, self.now);
        let in_redis =
            self.runtime.block_on(self.handle.charge(&charges, self.now)).expect("local limits");
        prop_assert_eq!(&in_memory, &in_redis);
        if in_memory.admitted {
            for (&ChargeStep { limit, caller, cost }, outcome) in
                requested.iter().zip(&in_memory.outcomes)
            {
                if let Some(decided) = outcome.admitted() {
                    let charged_at = decided.charged_at();
                    self.admitted.push(AdmittedCharge { limit, caller, charged_at, cost });
                }
            }
        }
        let in_memory = self.memory.peek(&charges, self.now);
        let in_redis = self.runtime.block_on(self.handle.peek(&charges, self.now)).expect("Redis");
        prop_assert_eq!(in_memory, in_redis);
        self.times.push(self.now);
        Ok(())
    }

    fn adjust(&mut self, limits: &[Limit], requested: &[AdjustStep]) -> TestCaseResult {
        let mut requested = requested.to_vec();
        let change = |step: &mut AdjustStep| match step.kind {
            AdjustKind::RefundAdmitted { nth } if self.admitted.is_empty() => {
                Change::Refund { charged_at: self.now, cost: nth as u32 % 5 }
            }
            AdjustKind::RefundAdmitted { nth } => {
                let charge = self.admitted.swap_remove(nth % self.admitted.len());
                step.limit = charge.limit;
                step.caller = charge.caller;
                Change::Refund { charged_at: charge.charged_at, cost: charge.cost }
            }
            AdjustKind::Refund { requests_ago, cost } => {
                let charged_at = self.times.iter().rev().nth(requests_ago).copied();
                Change::Refund { charged_at: charged_at.unwrap_or(self.now), cost }
            }
            AdjustKind::RefundUnmade { ms_ago, cost } => {
                // A leaky bucket's slots are in the future.
                let max_wait = limits.iter().map(|limit| u64::from(limit.quota.max_wait)).max();
                let latest = self.now + max_wait.unwrap_or(0) / 2;
                Change::Refund { charged_at: latest.minus_ms(ms_ago), cost }
            }
            AdjustKind::Overdraw { cost } => Change::Overdraw { cost },
        };
        let changes: Vec<Change> = requested.iter_mut().map(change).collect();
        let adjustment = |(step, &change): (&AdjustStep, &Change)| {
            let limit: &Limit = &limits[step.limit];
            Adjustment { limit, key: Key(self.first_caller + step.caller), change }
        };
        let adjustments: Vec<Adjustment<'_>> =
            requested.iter().zip(&changes).map(adjustment).collect();
        let in_memory =
            adjustments.iter().map(|adjustment| self.memory.adjust(adjustment, self.now, 1));
        let in_memory: Vec<_> = in_memory.collect();
        let adjusting = self.handle.adjust(&adjustments, DecisionSource::Store, self.now);
        let in_redis = self.runtime.block_on(adjusting);
        prop_assert_eq!(in_memory, in_redis.decisions());
        Ok(())
    }

    fn run(&mut self, limits: &mut [Limit], steps: &[Step]) -> TestCaseResult {
        for step in steps {
            match step {
                Step::SetBack { by } => self.now -= *by,
                Step::Request { delay, .. } | Step::Adjust { delay, .. } => self.now += *delay,
                &Step::Reload { limit, quota, max_wait, strict } => {
                    let limit = &mut limits[limit];
                    let delays = limit.algorithm == Algorithm::LeakyBucket;
                    let max_wait = if delays { max_wait } else { 0 };
                    limit.quota = Quota { limit: quota, max_wait, strict, ..limit.quota };
                }
            }
            self.clock.set(self.now);
            match step {
                Step::Request { charges, .. } => self.request(limits, charges)?,
                Step::Adjust { adjustments, .. } => self.adjust(limits, adjustments)?,
                Step::SetBack { .. } | Step::Reload { .. } => {}
            }
        }
        Ok(())
    }
}

#[test]
fn rust_and_lua_decide_alike() {
    let redis = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let clock = Clock::manual(NOW);
    let (counter_store, handle) = runtime.block_on(async {
        let counter_store = counter_store(&redis, clock.clone());
        let handle = counter_store.worker();
        (counter_store, handle)
    });
    let caller = std::cell::Cell::new(0_u128);
    let config = ProptestConfig { cases: 600, ..ProptestConfig::default() };
    proptest!(config, |((mut limits, steps) in any_sequence())| {
        // Each sequence has its own callers, so that all share one Redis.
        caller.set(caller.get() + 2);
        let mut pair = StorePair {
            runtime: &runtime,
            clock: &clock,
            memory: MemoryStore::new(1_000),
            handle: &handle,
            counter_store: &counter_store,
            first_caller: caller.get(),
            now: NOW + 1_000_000_000_000,
            times: Vec::new(),
            admitted: Vec::new(),
        };
        pair.run(&mut limits, &steps)?;
    });
    assert_eq!(counter_store.stats().failures, [0; 5], "every sequence was decided by Redis");
}

#[test]
fn the_largest_quotas_are_exact_in_lua() {
    let redis = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let clock = Clock::manual(NOW);
        let counter_store = counter_store(&redis, clock.clone());
        let handle = counter_store.worker();
        let memory = MemoryStore::new(1_000);
        for algorithm in Algorithm::ALL {
            for max_wait in [0, 7, (1 << 20) - 1] {
                // Just below MAX_QUOTA_MILLIS: 2^32 - 1 times 2^20 - 1 ms.
                let quota = Quota { max_wait, ..Quota::new(u32::MAX, (1 << 20) - 1, 1) };
                let name = format!("{}-{max_wait}", algorithm.tag());
                let limit = Limit { algorithm, quota, ..limit(&name, 1) };
                for (step, cost) in
                    [(0, u32::MAX), (0, 1), (1_048_575, 1), (1, 4_097), (7, 9), (524_287, 3)]
                {
                    clock.set(clock.store_time() + step);
                    let charges = [Charge { limit: &limit, key: Key(1), cost }];
                    let in_redis = handle.charge(&charges, StoreTime::ZERO).await.unwrap();
                    assert_eq!(memory.charge(&charges, clock.store_time()), in_redis);
                    let change = Change::Overdraw { cost: u32::MAX };
                    let adjustments = [Adjustment { limit: &limit, key: Key(2), change }];
                    let in_redis =
                        handle.adjust(&adjustments, DecisionSource::Store, StoreTime::ZERO).await;
                    let in_memory = memory.adjust(&adjustments[0], clock.store_time(), 1);
                    assert_eq!(in_memory, in_redis.decision(0));
                }
            }
        }
        assert_eq!(counter_store.stats().failures, [0; 5]);
    });
}

/// A step for a long record, with its amount.
#[derive(Clone, Copy, Debug)]
enum LongStep {
    /// A refund of some of an earlier charge.
    Refund,
    /// A refund of one unit of a recent charge.
    RefundOne,
    Overdraw,
    /// One request charges the same limit twice: a large cost and one unit.
    TwoCharges,
    RefundAdmitted,
    Charge,
}

/// Steps for a long record: (delay in ms, step, amount).
fn any_long_steps() -> impl Strategy<Value = Vec<(u64, LongStep, u32)>> {
    use LongStep::{Charge, Overdraw, Refund, RefundAdmitted, RefundOne, TwoCharges};
    let step = prop_oneof![
        1 => Just(Refund),
        1 => Just(RefundOne),
        1 => Just(Overdraw),
        1 => Just(TwoCharges),
        5 => Just(RefundAdmitted),
        11 => Just(Charge),
    ];
    let delay = prop_oneof![30 => 0_u64..3, 1 => 0_u64..1_500, 1 => 2_900_u64..3_100];
    prop::collection::vec((delay, step, 1_u32..4), 1_500..2_500)
}

#[test]
fn long_records_decide_alike() {
    let redis = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let clock = Clock::manual(NOW);
    let counter_store = runtime.block_on(async { counter_store(&redis, clock.clone()) });
    let handle = runtime.block_on(async { counter_store.worker() });
    let caller = std::cell::Cell::new(0_u128);
    let config = ProptestConfig { cases: 8, max_shrink_iters: 200, ..ProptestConfig::default() };
    let long = vec![Algorithm::SlidingLog, Algorithm::Concurrency, Algorithm::LeakyBucket];
    let long = prop::sample::select(long);
    proptest!(config, |(steps in any_long_steps(), quota in 200_u32..4_000, algorithm in long)| {
        caller.set(caller.get() + 1);
        let max_wait = if algorithm == Algorithm::LeakyBucket { 2_000 } else { 0 };
        let quota = Quota { max_wait, ..Quota::new(quota, 3_000, 1) };
        let limits = [Limit { algorithm, quota, ..limit(algorithm.tag(), 1) }];
        let mut pair = StorePair {
            runtime: &runtime,
            clock: &clock,
            memory: MemoryStore::new(1_000),
            handle: &handle,
            counter_store: &counter_store,
            first_caller: caller.get(),
            now: NOW + 1_000_000_000_000,
            times: Vec::new(),
            admitted: Vec::new(),
        };
        for (delay, step, amount) in steps {
            pair.now += delay;
            clock.set(pair.now);
            let ago = (delay as usize + 1) * 97 * amount as usize;
            let charge = |cost| ChargeStep { limit: 0, caller: 0, cost };
            let kind = match step {
                LongStep::TwoCharges => {
                    pair.request(&limits, &[charge(amount * 100), charge(1)])?;
                    continue;
                }
                LongStep::Charge => {
                    pair.request(&limits, &[charge(amount)])?;
                    continue;
                }
                LongStep::Refund => AdjustKind::Refund { requests_ago: ago, cost: amount },
                LongStep::RefundOne => AdjustKind::Refund { requests_ago: amount as usize, cost: 1 },
                LongStep::Overdraw => AdjustKind::Overdraw { cost: amount },
                LongStep::RefundAdmitted => AdjustKind::RefundAdmitted { nth: ago },
            };
            pair.adjust(&limits, &[AdjustStep { limit: 0, caller: 0, kind }])?;
        }
    });
}
