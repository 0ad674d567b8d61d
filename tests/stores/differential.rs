//! [`rust_and_lua_decide_alike`]: random steps through the store in memory and a real Redis, for every
//! algorithm.

use std::sync::Arc;

use jiff::civil::Weekday;
use proptest::{prelude::*, test_runner::TestCaseResult};
use testkit::{redis_server::RedisServer, verdict::OutcomesExt as _};
use tidegate::clock::ms;
use tidegate::{
    charge::{Adjustment, Charge, DecisionSource, Key, Limit},
    clock::{Clock, StoreTime},
    limit::{
        Algorithm, Calendar, CalendarPeriod, Change, MAX_QUOTA_MILLIS, MAX_UNITS, Millis, Quota,
        sliding_log,
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
    Reload { limit: usize, quota: u64, max_wait: u32, strict: bool },
}

/// A charge of the limit with an index.
#[derive(Clone, Copy, Debug)]
struct ChargeStep {
    limit: usize,
    caller: u128,
    cost: u64,
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
    Refund { requests_ago: usize, cost: u64 },
    /// A full refund of an admitted charge, of any limit and caller.
    RefundAdmitted { nth: usize },
    /// A refund of a charge that was never made.
    RefundUnmade { ms_ago: u64, cost: u64 },
    /// A refund of charges whose times are not known.
    Release { cost: u64 },
    /// An additional charge.
    Overdraw { cost: u64 },
}

/// An admitted charge, at its own time or its slot's.
struct AdmittedCharge {
    limit: usize,
    caller: u128,
    charged_at: StoreTime,
    cost: u64,
}

/// The algorithm, strict or not if it is a sliding window.
fn with_strictness(algorithm: Algorithm, strict: bool) -> Algorithm {
    match algorithm {
        Algorithm::SlidingWindow { resolution, .. } => {
            Algorithm::SlidingWindow { resolution, strict }
        }
        other => other,
    }
}

/// Units of a quota: few, many, around 2^32, where records become wider, and up to the largest.
fn any_quota() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => 1_u64..30,
        1 => 1_000_000..=1_u64 << 30,
        1 => (1_u64 << 32) - 5..(1 << 32) + 30,
        2 => MAX_UNITS / 2..=MAX_UNITS,
        1 => MAX_UNITS - 5..=MAX_UNITS,
    ]
}

/// The quota, or the largest that its algorithm counts exactly.
fn countable(mut quota: Quota) -> Quota {
    if quota.algorithm == Algorithm::SlidingLog {
        quota.window = quota.window.min(sliding_log::MAX_WINDOW);
    }
    let most = match quota.algorithm {
        Algorithm::TokenBucket | Algorithm::LeakyBucket { .. } => {
            MAX_QUOTA_MILLIS / quota.window.max(quota.algorithm.max_wait()).as_ms()
        }
        _ => MAX_UNITS,
    };
    Quota { limit: quota.limit.min(most).min(quota.algorithm.max_units()).max(1), ..quota }
}

/// A calendar for each pair of numbers.
fn any_calendar(one: u32, other: u32) -> Calendar {
    let zones = ["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Beirut", "America/New_York"];
    let starts = Weekday::from_monday_zero_offset((other % 7) as i8).expect("a day of the week");
    let periods = [
        CalendarPeriod::Hour,
        CalendarPeriod::Day,
        CalendarPeriod::Week { starts },
        CalendarPeriod::Month { starts: (other % 31 + 1) as u8 },
    ];
    let zone = zones[other as usize % zones.len()];
    Calendar::new(periods[one as usize % periods.len()], zone).expect("a zone")
}

fn any_limits() -> impl Strategy<Value = Vec<Arc<Limit>>> {
    let resolutions = prop::sample::select(vec![1_u32, 2, 3, 6, 7, 12, 60]);
    // The longest is a sixth of 30 days.
    let sub_windows =
        prop::sample::select(vec![1_u64, 7, 333, 1_000, 10_000, 3_600_000, 432_000_000]);
    let quota = any_quota();
    let waits = prop_oneof![Just(0_u32), 1_u32..100, 1_u32..100_000];
    let enforced = prop::bool::weighted(0.7);
    let one = (0_usize..8, quota, sub_windows, resolutions, waits, any::<bool>(), enforced);
    prop::collection::vec(one, 1..5).prop_map(|all| {
        type One = (usize, u64, u64, u32, u32, bool, bool);
        let compile = |(index, one): (usize, One)| {
            let (algorithm, quota, sub_window, resolution, max_wait, strict, enforce) = one;
            let quota =
                match Algorithm::all(resolution, Millis::from_ms(max_wait.into())).get(algorithm) {
                    Some(&algorithm) => {
                        let window = Millis::from_ms(sub_window) * u64::from(resolution);
                        countable(Quota::new(quota, window, with_strictness(algorithm, strict)))
                    }
                    None => Quota::calendar(quota, any_calendar(resolution, max_wait)),
                };
            Arc::new(Limit { quota, enforce, ..Limit::clone(&limit(&format!("limit-{index}"), 1)) })
        };
        all.into_iter().enumerate().map(compile).collect()
    })
}

fn any_steps(limits: &[Arc<Limit>]) -> impl Strategy<Value = Vec<Step>> + use<> {
    let count = limits.len();
    let scale = limits.iter().map(|limit| limit.quota.window.as_ms() / 7 + 1).max().unwrap_or(1);
    let largest = limits.iter().map(|limit| limit.quota.limit).max().unwrap_or(1);
    let cost = prop_oneof![
        6 => Just(1_u64),
        3 => 1_u64..6,
        2 => 1..=(largest + 1).min(MAX_UNITS),
        2 => (1..=largest).prop_map(|cost| cost / 3),
        1 => Just(0_u64),
        1 => Just(MAX_UNITS),
    ];
    let overdraw = prop_oneof![
        8 => 1_u64..6,
        1 => any::<u32>().prop_map(u64::from),
        1 => (1..=largest).prop_map(|cost| cost / 4),
        1 => 1..=MAX_UNITS,
    ];
    let adjust_kinds = prop_oneof![
        4 => (0_usize..4, prop_oneof![4 => 1_u64..6, 1 => 1..=largest])
            .prop_map(|(requests_ago, cost)| AdjustKind::Refund { requests_ago, cost }),
        6 => any::<usize>().prop_map(|nth| AdjustKind::RefundAdmitted { nth }),
        2 => (0..scale * 8, prop_oneof![4 => 1_u64..6, 1 => 1..=largest])
            .prop_map(|(ms_ago, cost)| AdjustKind::RefundUnmade { ms_ago, cost }),
        2 => prop_oneof![4 => 1_u64..6, 1 => 1..=largest]
            .prop_map(|cost| AdjustKind::Release { cost }),
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
    let quotas = prop_oneof![2 => 1_u64..40, 1 => any_quota()];
    let reload = (0..count, quotas, 0_u32..5_000, any::<bool>());
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

fn any_sequence() -> impl Strategy<Value = (Vec<Arc<Limit>>, Vec<Step>)> {
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
    fn request(&mut self, limits: &[Arc<Limit>], requested: &[ChargeStep]) -> TestCaseResult {
        let charge = |step: &ChargeStep| {
            let limit: &Arc<Limit> = &limits[step.limit];
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

    fn adjust(&mut self, limits: &[Arc<Limit>], requested: &[AdjustStep]) -> TestCaseResult {
        let mut requested = requested.to_vec();
        let change = |step: &mut AdjustStep| match step.kind {
            AdjustKind::RefundAdmitted { nth } if self.admitted.is_empty() => {
                Change::Refund { charged_at: self.now, cost: nth as u64 % 5 }
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
                let max_wait = limits.iter().map(|limit| limit.algorithm().max_wait()).max();
                let latest = self.now + max_wait.unwrap_or_default() / 2;
                Change::Refund { charged_at: latest.before(ms(ms_ago)), cost }
            }
            AdjustKind::Release { cost } => Change::Release { cost },
            AdjustKind::Overdraw { cost } => Change::Overdraw { cost },
        };
        let changes: Vec<Change> = requested.iter_mut().map(change).collect();
        let adjustment = |(step, &change): (&AdjustStep, &Change)| {
            let limit: &Arc<Limit> = &limits[step.limit];
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

    fn run(&mut self, limits: &mut [Arc<Limit>], steps: &[Step]) -> TestCaseResult {
        for step in steps {
            match step {
                Step::SetBack { by } => self.now -= ms(*by),
                Step::Request { delay, .. } | Step::Adjust { delay, .. } => self.now += ms(*delay),
                &Step::Reload { limit, quota, max_wait, strict } => {
                    let old = limits[limit].quota;
                    let algorithm = match with_strictness(old.algorithm, strict) {
                        Algorithm::LeakyBucket { .. } => {
                            Algorithm::LeakyBucket { max_wait: Millis::from_ms(max_wait.into()) }
                        }
                        other => other,
                    };
                    let quota = countable(Quota { limit: quota, algorithm, ..old });
                    Arc::make_mut(&mut limits[limit]).quota = quota;
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
            now: NOW + ms(1_000_000_000_000),
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
        for max_wait in [0, 7, (1 << 20) - 1] {
            for algorithm in Algorithm::all(1, Millis::from_ms(max_wait)) {
                // Just below MAX_QUOTA_MILLIS: 2^32 - 1 times 2^20 - 1 ms.
                let quota = Quota::new(u32::MAX.into(), Millis::from_ms((1 << 20) - 1), algorithm);
                let name = format!("{}-{max_wait}", algorithm.tag());
                let limit = Arc::new(Limit { quota, ..Limit::clone(&limit(&name, 1)) });
                for (step, cost) in [
                    (0, u64::from(u32::MAX)),
                    (0, 1),
                    (1_048_575, 1),
                    (1, 4_097),
                    (7, 9),
                    (524_287, 3),
                ] {
                    clock.set(clock.store_time() + ms(step));
                    let charges = [Charge { limit: &limit, key: Key(1), cost }];
                    let in_redis = handle.charge(&charges, StoreTime::ZERO).await.unwrap();
                    assert_eq!(memory.charge(&charges, clock.store_time()), in_redis);
                    let change = Change::Overdraw { cost: u64::MAX };
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

/// A window of `window` ms, with the largest quota: each step is (delay in ms, cost).
fn largest_windows() -> [(Quota, [(u64, u64); 7]); 4] {
    let month = Millis::from_secs(30 * 86_400);
    let year = Millis::from_secs(366 * 86_400);
    let steps = |step: Millis| {
        let step = step.as_ms();
        [
            (0, MAX_UNITS),
            (0, 1),
            (step / 3, 1),
            (step * 2 / 3 + 1, MAX_UNITS / 3),
            (step * 5, 4_097),
            (step * 2 / 3, MAX_UNITS - 1),
            (step / 7, MAX_UNITS / 7),
        ]
    };
    [
        (Quota::new(MAX_UNITS, month, Algorithm::FixedWindow), steps(month / 6)),
        (Quota::sliding(MAX_UNITS, month, 6), steps(month / 6)),
        (Quota::sliding(MAX_UNITS, month, 1), steps(month)),
        (Quota::sliding(MAX_UNITS, year, 1), steps(year)),
    ]
}

#[test]
fn quotas_of_2_to_the_53rd_are_exact_in_lua() {
    let redis = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let clock = Clock::manual(NOW);
        let counter_store = counter_store(&redis, clock.clone());
        let handle = counter_store.worker();
        let memory = MemoryStore::new(1_000);
        for (index, (quota, steps)) in largest_windows().into_iter().enumerate() {
            let name = format!("largest-{index}");
            let limit = Arc::new(Limit { quota, ..Limit::clone(&limit(&name, 1)) });
            for (step, cost) in steps {
                clock.set(clock.store_time() + ms(step));
                counter_store.clear_deny_cache();
                let charges = [Charge { limit: &limit, key: Key(1), cost }];
                let in_redis = handle.charge(&charges, StoreTime::ZERO).await.unwrap();
                assert_eq!(memory.charge(&charges, clock.store_time()), in_redis, "{quota:?}");
                for change in [
                    Change::Overdraw { cost: MAX_UNITS - 2 },
                    Change::Refund { charged_at: clock.store_time(), cost: MAX_UNITS / 2 + 1 },
                ] {
                    let adjustments = [Adjustment { limit: &limit, key: Key(2), change }];
                    let in_redis =
                        handle.adjust(&adjustments, DecisionSource::Store, StoreTime::ZERO).await;
                    let in_memory = memory.adjust(&adjustments[0], clock.store_time(), 1);
                    assert_eq!(in_memory, in_redis.decision(0), "{quota:?} {change:?}");
                    let used = in_memory.used;
                    assert!(used > u32::MAX.into() && used <= MAX_UNITS, "{used}");
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
    /// A refund of many recent charges.
    Release,
    Charge,
}

/// Steps for a long record: (delay in ms, step, amount).
fn any_long_steps() -> impl Strategy<Value = Vec<(u64, LongStep, u64)>> {
    use LongStep::{Charge, Overdraw, Refund, RefundAdmitted, RefundOne, Release, TwoCharges};
    let step = prop_oneof![
        1 => Just(Refund),
        1 => Just(RefundOne),
        1 => Just(Overdraw),
        1 => Just(TwoCharges),
        5 => Just(RefundAdmitted),
        1 => Just(Release),
        11 => Just(Charge),
    ];
    let delay = prop_oneof![30 => 0_u64..3, 1 => 0_u64..1_500, 1 => 2_900_u64..3_100];
    prop::collection::vec((delay, step, 1_u64..4), 1_500..2_500)
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
    let long = vec![
        Algorithm::SlidingLog,
        Algorithm::Concurrency,
        Algorithm::LeakyBucket { max_wait: Millis::from_secs(2) },
    ];
    let long = prop::sample::select(long);
    proptest!(config, |(steps in any_long_steps(), quota in 200_u64..4_000, algorithm in long)| {
        caller.set(caller.get() + 1);
        let quota = Quota::new(quota, Millis::from_secs(3), algorithm);
        let limits = [Arc::new(Limit { quota, ..Limit::clone(&limit(algorithm.tag(), 1)) })];
        let mut pair = StorePair {
            runtime: &runtime,
            clock: &clock,
            memory: MemoryStore::new(1_000),
            handle: &handle,
            counter_store: &counter_store,
            first_caller: caller.get(),
            now: NOW + ms(1_000_000_000_000),
            times: Vec::new(),
            admitted: Vec::new(),
        };
        for (delay, step, amount) in steps {
            pair.now += ms(delay);
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
                LongStep::Release => AdjustKind::Release { cost: amount * amount * amount * 20 },
            };
            pair.adjust(&limits, &[AdjustStep { limit: 0, caller: 0, kind }])?;
        }
    });
}
