//! Gateways that exchange filters in virtual time: no token is lost, whatever fails.

mod arbitrary_link;
pub(crate) mod fake_link;
pub(crate) mod virtual_time;

use std::{
    cell::{Cell, RefCell},
    sync::Arc,
};

use testkit::random::SplitMix64;
use tidegate::clock::ms;
use tidegate::{
    clock::StoreTime,
    redis::RedisFailure,
    throttle::{
        Filter, payload,
        sync::{
            CommitOutcome, FilterStore, FilterSync, MAX_CALLS_PER_TICK, ReadOutcome, SyncStats,
            next_tick,
        },
    },
    time::Millis,
};

use self::{
    fake_link::{FakeLink, FakeStore, Faults},
    virtual_time::{Task, VirtualTime},
};
use crate::support::{MINUTE, NOW, geometry, hash_keys};

/// The parameters of a simulation.
#[derive(Clone, Copy)]
struct Plan {
    gateways: usize,
    /// Gateways that start later, one a minute from the second minute on.
    late: usize,
    /// Time in which tokens are recorded and faults occur, in ms.
    duration: u64,
    /// Time without faults after it, in ms.
    recovery: u64,
    /// Mean interval between two tokens of all gateways, in µs.
    mean_interval: u64,
    faults: Faults,
    /// When Redis is flushed, in ms from the start; 0: never.
    flush_at: u64,
    /// True if minutes are evicted at random.
    evictions: bool,
    /// True if gateways run a simpler protocol instead, see [`single_minute_tick`].
    single_minute: bool,
    seed: u64,
}

impl Plan {
    fn without_faults(gateways: usize, seed: u64) -> Self {
        Self {
            gateways,
            late: 0,
            duration: 3 * MINUTE,
            recovery: 6 * MINUTE,
            mean_interval: 200_000,
            faults: Faults::default(),
            flush_at: 0,
            evictions: false,
            single_minute: false,
            seed,
        }
    }
}

/// The outcome of a simulation.
#[derive(Default)]
struct SimulationResult {
    /// Live tokens missing from a gateway's filter at the end, over all gateways.
    lost: usize,
    recorded: usize,
    /// Propagation times of tokens between gateways, in ms, sorted.
    propagation: Vec<u64>,
    /// Intervals between two commits of any gateways, in ms, sorted.
    commit_intervals: Vec<u64>,
    conflicts: u64,
    most_calls: usize,
}

/// A recorded token, its generation, and the time.
struct RecordedToken {
    token: u64,
    generation: u64,
    at: StoreTime,
}

struct Simulation<'a> {
    plan: Plan,
    time: &'a VirtualTime,
    store: &'a FakeStore<'a>,
    filters: &'a [Filter],
    recorded_tokens: RefCell<Vec<RecordedToken>>,
    propagation: RefCell<Vec<u64>>,
    most_calls: Cell<usize>,
    /// Gateways that accept requests.
    serving: Cell<usize>,
}

impl Simulation<'_> {
    async fn gateway(&self, id: usize) {
        let (filter, time) = (&self.filters[id], self.time);
        let rng = SplitMix64(self.plan.seed << 32 | id as u64);
        let mut link = FakeLink::new(self.store, id as u64, rng);
        let late = (id + 1).saturating_sub(self.plan.gateways) as u64;
        time.sleep(late * MINUTE * 1_000 + link.rng.below(1_000_000)).await;
        filter.rotate(time.now());
        let mut sync =
            FilterSync::new(Arc::new(SyncStats::default())).with_seed(link.rng.next_u64());
        while sync.load(filter, &mut link).await.is_err() {
            time.sleep(1_000_000).await;
            filter.rotate(time.now());
        }
        assert!(sync.is_complete(filter));
        (link.calls, link.most_calls) = (0, 0);
        self.serving.set(self.serving.get() + 1);
        let mut seen = self.recorded_tokens.borrow().len();
        let mut awaited = Vec::new();
        let mut started = time.now();
        loop {
            let next = next_tick(started, link.rng.next_u64() as u32);
            time.sleep_until(next.as_unix_ms() * 1_000).await;
            started = time.now();
            filter.rotate(time.now());
            let outcome = if self.plan.single_minute {
                single_minute_tick(filter, &mut link).await
            } else {
                sync.tick(filter, &mut link).await.map(drop)
            };
            let _ = outcome;
            self.most_calls.set(self.most_calls.get().max(link.most_calls));
            awaited.extend(seen..self.recorded_tokens.borrow().len());
            seen = self.recorded_tokens.borrow().len();
            awaited.retain(|&index| {
                let RecordedToken { token, at, .. } = self.recorded_tokens.borrow()[index];
                let known = filter.contains(token);
                if known && time.now() > at {
                    self.propagation.borrow_mut().push((time.now() - at).as_ms());
                }
                !known
            });
        }
    }

    /// Records new tokens at random gateways.
    async fn send_requests(&self) {
        let mut rng = SplitMix64(self.plan.seed ^ 0xfeed);
        let end = self.time.now() + ms(self.plan.duration);
        while self.time.now() < end {
            self.time.sleep(rng.below(self.plan.mean_interval * 2)).await;
            // Gateways load at different times: no token is recorded until `gateways` of them
            // serve.
            let serving = self.serving.get();
            if serving < self.plan.gateways {
                continue;
            }
            let at = rng.below(self.plan.gateways as u64) as usize;
            let (filter, token) = (&self.filters[at], rng.next_u64());
            let generation = *filter.live_generations().end();
            if filter.record(token) {
                let at = self.time.now();
                self.recorded_tokens.borrow_mut().push(RecordedToken { token, generation, at });
            }
        }
        self.store.faults.set(Faults::default());
    }

    async fn inject_faults(&self) {
        let mut rng = SplitMix64(self.plan.seed ^ 0xdead);
        let start = self.time.now();
        for second in 1..self.plan.duration / 1_000 {
            self.time.sleep_until((start + ms(second * 1_000)).as_unix_ms() * 1_000).await;
            if second * 1_000 == self.plan.flush_at {
                self.store.flush();
            }
            if self.plan.evictions && rng.one_in(20) {
                self.store.evict(&mut rng);
            }
        }
    }
}

/// A tick of a simpler protocol: only the current minute is exchanged, and conflicting commits are
/// abandoned.
async fn single_minute_tick(
    filter: &Filter,
    store: &mut impl FilterStore,
) -> Result<(), RedisFailure> {
    store.time().await?;
    let (geometry, index) = (filter.geometry(), *filter.live_generations().end());
    let minute = geometry.minute(index);
    let expected = match store.read(minute, None, usize::MAX).await? {
        ReadOutcome::Value(version, payload) => {
            let bits = payload::decode(geometry, filter.hash_keys(), &payload).expect("a payload");
            filter.merge(index, &bits);
            Some(version.timestamp)
        }
        _ => None,
    };
    let Some(bits) = filter.export(index) else { return Ok(()) };
    let payload = payload::encode(geometry, filter.hash_keys(), &bits);
    let _: CommitOutcome = store.commit(minute, expected, &payload, Millis::ZERO).await?;
    Ok(())
}

fn simulate(plan: Plan) -> SimulationResult {
    let time = VirtualTime::new(NOW);
    let store = FakeStore::new(&time, plan.faults);
    let filters: Vec<Filter> = (0..plan.gateways + plan.late)
        .map(|_| Filter::new(geometry(300, 10), hash_keys(), time.now()))
        .collect();
    let simulation = Simulation {
        plan,
        time: &time,
        store: &store,
        filters: &filters,
        recorded_tokens: RefCell::default(),
        propagation: RefCell::default(),
        most_calls: Cell::new(0),
        serving: Cell::new(0),
    };
    let mut tasks: Vec<Task<'_>> =
        vec![Box::pin(simulation.send_requests()), Box::pin(simulation.inject_faults())];
    for id in 0..filters.len() {
        tasks.push(Box::pin(simulation.gateway(id)));
    }
    time.run(tasks, NOW + ms(plan.duration) + ms(plan.recovery));
    let recorded_tokens = simulation.recorded_tokens.take();
    let mut outcome = SimulationResult {
        recorded: recorded_tokens.len(),
        conflicts: store.usage.get().conflicts,
        propagation: simulation.propagation.take(),
        most_calls: simulation.most_calls.get(),
        ..SimulationResult::default()
    };
    for filter in &filters {
        let live = filter.live_generations();
        let within = recorded_tokens.iter().filter(|token| live.contains(&token.generation));
        outcome.lost += within.filter(|recorded| !filter.contains(recorded.token)).count();
    }
    let commits = store.commits.take();
    outcome.commit_intervals = commits.windows(2).map(|pair| (pair[1] - pair[0]).as_ms()).collect();
    outcome.commit_intervals.sort_unstable();
    outcome.propagation.sort_unstable();
    outcome
}

/// The percentile `share` of sorted values.
fn percentile(sorted: &[u64], share: usize) -> u64 {
    sorted
        .get((sorted.len() * share / 100).min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or(0)
}

fn assert_no_token_lost(plan: Plan) -> SimulationResult {
    let outcome = simulate(plan);
    let seed = plan.seed;
    assert!(outcome.recorded > 100, "{} tokens, seed {seed}", outcome.recorded);
    assert_eq!(outcome.lost, 0, "tokens lost of {}, seed {seed}", outcome.recorded);
    assert!(outcome.most_calls <= MAX_CALLS_PER_TICK, "{} calls in a tick", outcome.most_calls);
    outcome
}

/// Commits that conflict until their minute ends, failing calls, and lost replies.
const ALL_FAULTS: Faults = Faults {
    lost_calls: 50,
    lost_replies: 50,
    conflicting: 3,
    outage: (StoreTime::ZERO, StoreTime::ZERO),
};

#[test]
fn twenty_gateways_lose_no_token_in_concurrent_writes() {
    let outcome = assert_no_token_lost(Plan::without_faults(20, 1));
    assert!(outcome.conflicts > 0, "no commit conflicted");
}

#[test]
fn twenty_gateways_lose_no_token_under_all_faults() {
    let outage = (NOW + ms(MINUTE) + ms(20_000), NOW + ms(3 * MINUTE));
    assert_no_token_lost(Plan {
        late: 2,
        duration: 5 * MINUTE,
        faults: Faults { outage, ..ALL_FAULTS },
        flush_at: 4 * MINUTE - 10_000,
        evictions: true,
        ..Plan::without_faults(20, 2)
    });
}

#[test]
fn few_gateways_lose_no_token_in_many_runs() {
    for seed in 0..16 {
        let mut rng = SplitMix64(seed);
        let start = NOW + ms(rng.below(4) * 45_000);
        let outage = (start, start + ms(rng.below(2) * 100_000));
        assert_no_token_lost(Plan {
            gateways: 2 + rng.below(3) as usize,
            late: rng.below(2) as usize,
            duration: 4 * MINUTE,
            mean_interval: 500_000,
            faults: Faults { outage, ..ALL_FAULTS },
            flush_at: rng.below(4) * 50_000,
            evictions: rng.one_in(2),
            ..Plan::without_faults(0, seed)
        });
    }
}

/// A gateway that starts after a flush receives the tokens that others recorded before.
#[test]
fn activity_before_a_flush_reaches_later_gateways() {
    assert_no_token_lost(Plan {
        late: 3,
        duration: 3 * MINUTE + 30_000,
        flush_at: 2 * MINUTE + 55_000,
        ..Plan::without_faults(3, 3)
    });
}

/// The simulation detects losses.
#[test]
fn a_single_minute_protocol_loses_concurrent_writes_at_a_minutes_end() {
    let outcome =
        simulate(Plan { faults: ALL_FAULTS, single_minute: true, ..Plan::without_faults(5, 4) });
    assert!(outcome.lost > 0, "of {}", outcome.recorded);
    assert_no_token_lost(Plan { faults: ALL_FAULTS, ..Plan::without_faults(5, 4) });
}

#[test]
#[expect(clippy::print_stderr, reason = "figures for the reader of the output")]
fn tokens_reach_every_gateway_within_seconds() {
    for gateways in [2, 5, 20] {
        let outcome = assert_no_token_lost(Plan {
            mean_interval: 100_000,
            ..Plan::without_faults(gateways, 5)
        });
        let SimulationResult { propagation, commit_intervals, conflicts, recorded, .. } = &outcome;
        let [p50, p99] = [50, 99].map(|share| percentile(propagation, share));
        let (longest, commits) = (commit_intervals.last().unwrap(), commit_intervals.len());
        eprintln!(
            "{gateways:2} gateways, {recorded} tokens: known elsewhere after p50 {p50} ms, p99 {p99} ms; \
             {commits} commits, {conflicts} conflicts, between commits p99 {} ms, most {longest} ms",
            percentile(commit_intervals, 99)
        );
        assert!(p50 < 1_500 && p99 < 3_000, "{p50} {p99}");
    }
}
