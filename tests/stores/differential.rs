use proptest::{prelude::*, test_runner::TestCaseResult};
use testkit::{redis_server::RedisServer, verdict::OutcomesExt as _};
use tidegate::{
    clock::Clock,
    limit::{
        Adjustment, Algorithm, Change, Charge, DecisionSource, Key, Limit, MAX_QUOTA_MILLIS, Quota,
    },
    store::{CounterStore, StoreHandle, memory::Memory},
};
use tokio::runtime::Runtime;

use crate::support::{NOW, limit, stores};

/// One step of a sequence.
#[derive(Clone, Debug)]
enum Step {
    /// After a delay in ms, a request charges some limits: (limit, caller, cost).
    Request(u64, Vec<(usize, u128, u32)>),
    /// After a delay in ms, charges are adjusted: (limit, caller, how).
    Settle(u64, Vec<(usize, u128, Adjust)>),
    /// The clock is set back, by ms.
    Back(u64),
    /// A reload changes one limit's quota, `max_wait` and strictness.
    Reload(usize, u32, u32, bool),
}

/// How a charge is adjusted.
#[derive(Clone, Copy, Debug)]
enum Adjust {
    /// A partial refund of an earlier charge: (requests ago, units).
    Refund(usize, u32),
    /// A refund of any admitted charge, of any limit and caller.
    GiveBack(usize),
    /// A refund of a charge that was never made, some ms ago.
    Unfounded(u64, u32),
    /// An additional charge, in units.
    Overdraw(u32),
}

fn limits() -> impl Strategy<Value = Vec<Limit>> {
    let resolutions = prop::sample::select(vec![1_u32, 2, 3, 6, 7, 12, 60]);
    let sub_windows = prop::sample::select(vec![1_u64, 7, 333, 1_000, 10_000, 3_600_000]);
    let algorithms = prop::sample::select(Algorithm::ALL.to_vec());
    let quota = prop_oneof![8 => 1_u32..30, 1 => 1_000_000_u32..=u32::MAX / 4];
    let waits = prop_oneof![Just(0_u32), 1_u32..100, 1_u32..100_000];
    let enforced = prop::bool::weighted(0.7);
    let one = (algorithms, quota, sub_windows, resolutions, waits, any::<bool>(), enforced);
    prop::collection::vec(one, 1..5).prop_map(|all| {
        type One = (Algorithm, u32, u64, u32, u32, bool, bool);
        let compile = |(at, one): (usize, One)| {
            let (algorithm, quota, s, resolution, max_wait, strict, enforce) = one;
            let window = s * u64::from(resolution);
            let resolution = if algorithm == Algorithm::SlidingWindow { resolution } else { 1 };
            let most = MAX_QUOTA_MILLIS / u64::max(window / u64::from(resolution), max_wait.into());
            let quota = u32::try_from(most).unwrap_or(u32::MAX).min(quota);
            let max_wait = if algorithm == Algorithm::LeakyBucket { max_wait } else { 0 };
            let quota = Quota { limit: quota, window, resolution, max_wait, strict };
            Limit { algorithm, quota, enforce, ..limit(&format!("limit-{at}"), 1) }
        };
        all.into_iter().enumerate().map(compile).collect()
    })
}

fn steps(limits: &[Limit]) -> impl Strategy<Value = Vec<Step>> + use<> {
    let count = limits.len();
    let s = limits.iter().map(|limit| limit.quota.window / 7 + 1).max().unwrap_or(1);
    let largest = limits.iter().map(|limit| limit.quota.limit).max().unwrap_or(1);
    let cost = prop_oneof![
        6 => Just(1_u32),
        3 => 1_u32..6,
        2 => 1..=largest.saturating_add(1),
        1 => Just(0_u32),
    ];
    let more = prop_oneof![4 => 1_u32..6, 1 => any::<u32>()];
    let corrections = prop_oneof![
        4 => (0_usize..4, 1_u32..6).prop_map(|(ago, cost)| Adjust::Refund(ago, cost)),
        6 => any::<usize>().prop_map(Adjust::GiveBack),
        2 => (0..s * 8, 1_u32..6).prop_map(|(ago, cost)| Adjust::Unfounded(ago, cost)),
        1 => more.prop_map(Adjust::Overdraw),
    ];
    let charges = prop::collection::vec((0..count, 0_u128..2, cost), 1..4);
    let adjustments = prop::collection::vec((0..count, 0_u128..2, corrections), 1..3);
    let later = || prop_oneof![3 => 0..=s / 3, 2 => 0..=s * 2, 1 => 0..=s * 20];
    let reload = (0..count, 1_u32..40, 0_u32..5_000, any::<bool>());
    prop::collection::vec(
        prop_oneof![
            20 => (later(), charges).prop_map(|(later, charges)| Step::Request(later, charges)),
            4 => (later(), adjustments).prop_map(|(later, changes)| Step::Settle(later, changes)),
            1 => (1_u64..12_000).prop_map(Step::Back),
            1 => (1_u64..100_000_000).prop_map(Step::Back),
            2 => reload.prop_map(|(at, quota, wait, strict)| Step::Reload(at, quota, wait, strict)),
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

/// Both stores at the same time.
struct StorePair<'a> {
    runtime: &'a Runtime,
    clock: &'a Clock,
    memory: Memory,
    store: &'a StoreHandle,
    stores: &'a CounterStore,
    /// Distinguishes this sequence's callers from other sequences' in the shared Redis.
    caller: u128,
    now: u64,
    /// The times of the requests.
    times: Vec<u64>,
    /// The admitted charges: limit, caller, time of the charge or of its slot, cost.
    admitted: Vec<(usize, u128, u64, u32)>,
}

impl StorePair<'_> {
    fn request(&mut self, limits: &[Limit], wanted: &[(usize, u128, u32)]) -> TestCaseResult {
        let charge = |&(at, who, cost): &(usize, u128, u32)| {
            let limit: &Limit = &limits[at];
            Charge { limit, key: Key(self.caller + who), cost }
        };
        let charges: Vec<Charge<'_>> = wanted.iter().map(charge).collect();
        // Only decisions of Redis are compared.
        self.stores.clear_deny_cache();
        let ours = self.memory.charge(&charges, self.now);
        let theirs =
            self.runtime.block_on(self.store.charge(&charges, self.now)).expect("local limits");
        prop_assert_eq!(&ours, &theirs);
        if ours.admitted {
            for (&(at, who, cost), outcome) in wanted.iter().zip(&ours.outcomes) {
                if let Some(decided) = outcome.admitted() {
                    self.admitted.push((at, who, decided.charged_at(), cost));
                }
            }
        }
        let ours = self.memory.peek(&charges, self.now);
        let theirs = self.runtime.block_on(self.store.peek(&charges, self.now)).expect("Redis");
        prop_assert_eq!(ours, theirs);
        self.times.push(self.now);
        Ok(())
    }

    fn settle(&mut self, limits: &[Limit], wanted: &[(usize, u128, Adjust)]) -> TestCaseResult {
        let mut wanted = wanted.to_vec();
        let change = |(at, who, correction): &mut (usize, u128, Adjust)| match *correction {
            Adjust::GiveBack(nth) if self.admitted.is_empty() => {
                Change::Refund { charged_at: self.now, cost: nth as u32 % 5 }
            }
            Adjust::GiveBack(nth) => {
                let charged_at;
                let cost;
                (*at, *who, charged_at, cost) =
                    self.admitted.swap_remove(nth % self.admitted.len());
                Change::Refund { charged_at, cost }
            }
            Adjust::Refund(ago, cost) => {
                let at = self.times.len().checked_sub(ago + 1).and_then(|at| self.times.get(at));
                Change::Refund { charged_at: at.copied().unwrap_or(self.now), cost }
            }
            Adjust::Unfounded(ago, cost) => {
                // A leaky bucket's slots are in the future.
                let ahead = limits.iter().map(|limit| u64::from(limit.quota.max_wait)).max();
                let at = self.now + ahead.unwrap_or(0) / 2;
                Change::Refund { charged_at: at.saturating_sub(ago), cost }
            }
            Adjust::Overdraw(cost) => Change::Overdraw { cost },
        };
        let changes: Vec<Change> = wanted.iter_mut().map(change).collect();
        let adjustment = |(&(at, who, _), &change): (&(usize, u128, Adjust), &Change)| {
            let limit: &Limit = &limits[at];
            Adjustment { limit, key: Key(self.caller + who), change }
        };
        let adjustments: Vec<Adjustment<'_>> =
            wanted.iter().zip(&changes).map(adjustment).collect();
        let ours = adjustments.iter().map(|s| self.memory.adjust(s, self.now, 1));
        let ours: Vec<_> = ours.collect();
        let settling = self.store.adjust(&adjustments, DecisionSource::Store, self.now);
        let theirs = self.runtime.block_on(settling);
        prop_assert_eq!(ours, theirs.decisions());
        Ok(())
    }

    fn run(&mut self, limits: &mut [Limit], steps: &[Step]) -> TestCaseResult {
        for step in steps {
            match step {
                Step::Back(by) => self.now -= by,
                Step::Request(later, _) | Step::Settle(later, _) => self.now += later,
                &Step::Reload(at, quota, wait, strict) => {
                    let limit = &mut limits[at];
                    let max_wait = if limit.algorithm == Algorithm::LeakyBucket { wait } else { 0 };
                    limit.quota = Quota { limit: quota, max_wait, strict, ..limit.quota };
                }
            }
            self.clock.set(self.now);
            match step {
                Step::Request(_, wanted) => self.request(limits, wanted)?,
                Step::Settle(_, wanted) => self.settle(limits, wanted)?,
                Step::Back(_) | Step::Reload(..) => {}
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
    let (stores, store) = runtime.block_on(async {
        let stores = stores(&redis, clock.clone());
        let store = stores.worker();
        (stores, store)
    });
    let caller = std::cell::Cell::new(0_u128);
    let config = ProptestConfig { cases: 600, ..ProptestConfig::default() };
    proptest!(config, |((mut limits, steps) in sequences())| {
        // Each sequence has its own callers, so that all share one Redis.
        caller.set(caller.get() + 2);
        let mut both = StorePair {
            runtime: &runtime,
            clock: &clock,
            memory: Memory::new(1_000),
            store: &store,
            stores: &stores,
            caller: caller.get(),
            now: NOW + 1_000_000_000_000,
            times: Vec::new(),
            admitted: Vec::new(),
        };
        both.run(&mut limits, &steps)?;
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
        for algorithm in Algorithm::ALL {
            for max_wait in [0, 7, (1 << 20) - 1] {
                // Just below MAX_QUOTA_MILLIS: 2^32 - 1 times 2^20 - 1 ms.
                let quota = Quota { max_wait, ..Quota::new(u32::MAX, (1 << 20) - 1, 1) };
                let name = format!("{}-{max_wait}", algorithm.tag());
                let limit = Limit { algorithm, quota, ..limit(&name, 1) };
                for (step, cost) in
                    [(0, u32::MAX), (0, 1), (1_048_575, 1), (1, 4_097), (7, 9), (524_287, 3)]
                {
                    clock.set(clock.now() + step);
                    let charges = [Charge { limit: &limit, key: Key(1), cost }];
                    let theirs = store.charge(&charges, 0).await.unwrap();
                    assert_eq!(memory.charge(&charges, clock.now()), theirs);
                    let change = Change::Overdraw { cost: u32::MAX };
                    let adjustments = [Adjustment { limit: &limit, key: Key(2), change }];
                    let theirs = store.adjust(&adjustments, DecisionSource::Store, 0).await;
                    let ours = memory.adjust(&adjustments[0], clock.now(), 1);
                    assert_eq!(ours, theirs.decision(0));
                }
            }
        }
        assert_eq!(stores.stats().failures, [0; 5]);
    });
}

/// The next step of a long record: (delay in ms, kind, amount).
fn crowd() -> impl Strategy<Value = Vec<(u64, u8, u32)>> {
    let later = prop_oneof![30 => 0_u64..3, 1 => 0_u64..1_500, 1 => 2_900_u64..3_100];
    prop::collection::vec((later, 0_u8..20, 1_u32..4), 1_500..2_500)
}

#[test]
fn long_records_decide_alike() {
    let redis = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let clock = Clock::manual(NOW);
    let stores = runtime.block_on(async { stores(&redis, clock.clone()) });
    let store = runtime.block_on(async { stores.worker() });
    let caller = std::cell::Cell::new(0_u128);
    let config = ProptestConfig { cases: 8, max_shrink_iters: 200, ..ProptestConfig::default() };
    let long = vec![Algorithm::SlidingLog, Algorithm::Concurrency, Algorithm::LeakyBucket];
    let long = prop::sample::select(long);
    proptest!(config, |(steps in crowd(), quota in 200_u32..4_000, algorithm in long)| {
        caller.set(caller.get() + 1);
        let max_wait = if algorithm == Algorithm::LeakyBucket { 2_000 } else { 0 };
        let quota = Quota { max_wait, ..Quota::new(quota, 3_000, 1) };
        let limits = [Limit { algorithm, quota, ..limit(algorithm.tag(), 1) }];
        let mut both = StorePair {
            runtime: &runtime,
            clock: &clock,
            memory: Memory::new(1_000),
            store: &store,
            stores: &stores,
            caller: caller.get(),
            now: NOW + 1_000_000_000_000,
            times: Vec::new(),
            admitted: Vec::new(),
        };
        for (later, kind, much) in steps {
            both.now += later;
            clock.set(both.now);
            let ago = (later as usize + 1) * 97 * much as usize;
            match kind {
                0 => both.settle(&limits, &[(0, 0, Adjust::Refund(ago, much))])?,
                1 => both.settle(&limits, &[(0, 0, Adjust::Refund(much as usize, 1))])?,
                2 => both.settle(&limits, &[(0, 0, Adjust::Overdraw(much))])?,
                3 => both.request(&limits, &[(0, 0, much * 100), (0, 0, 1)])?,
                5..=9 => both.settle(&limits, &[(0, 0, Adjust::GiveBack(ago))])?,
                _ => both.request(&limits, &[(0, 0, much)])?,
            }
        }
    });
}
