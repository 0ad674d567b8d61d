//! The time to choose a target, and the goodput of a server whose capacity falls to a third, with
//! adaptive concurrency and with fixed bounds: `cargo bench --bench balance`.

#![allow(clippy::print_stdout, reason = "a table is the result")]

#[path = "../crates/upstream/src/adaptive_concurrency/simulation.rs"]
mod simulation;

use std::{
    hint::black_box,
    ops::Range,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use divan::Bencher;
use simulation::{Capacity, FixedLimit, Limiter, Second, Simulation};
use tidegate::{
    balance::{
        Balancer, EndpointView, PeakEwma, Pick, PickRequest, Policy, TargetKey, WeightedEndpoint,
    },
    mix::SplitMix,
    time::{CoarseTime, Millis},
    upstream::{
        adaptive_concurrency::{AdaptiveLimit, ConcurrencyBounds, Sample, SampleOutcome},
        retry_budget::RetryBudget,
        target_health::{
            AttemptKind, Availability, ConnectFailure, FailedAttempt, Failure, HealthSettings,
            HealthView, TargetHealth, UpstreamHealth,
        },
    },
};

const NOW: CoarseTime = CoarseTime::from_ms(1_700_000_000_000);

/// The numbers of targets.
const TARGETS: [usize; 2] = [8, 1_000];

const SETTINGS: HealthSettings = HealthSettings {
    failures: 5,
    duration: Millis::from_secs(10),
    max_duration: Millis::from_secs(300),
    max_share: 50,
    unhealthy_after: 3,
    healthy_after: 2,
    check_interval: Millis::ZERO,
    slow_start: Millis::from_secs(30),
};

fn main() {
    if std::env::args().any(|arg| arg == "--bench") {
        print_goodput();
    }
    divan::main();
}

/// What the choice reads of one target, as workers share it.
#[derive(Default)]
struct Target {
    health: AtomicU64,
    in_flight: AtomicU32,
    latency: AtomicU64,
}

struct Targets {
    targets: Vec<Target>,
    total_in_flight: AtomicU64,
}

impl EndpointView for Targets {
    fn is_available(&self, index: usize) -> bool {
        let bits = self.targets[index].health.load(Ordering::Relaxed);
        HealthView::from_bits(bits).availability(NOW) == Availability::Available
    }

    fn ramp(&self, index: usize) -> u32 {
        let bits = self.targets[index].health.load(Ordering::Relaxed);
        HealthView::from_bits(bits).ramp(NOW, SETTINGS.slow_start)
    }

    fn in_flight(&self, index: usize) -> u32 {
        self.targets[index].in_flight.load(Ordering::Relaxed)
    }

    fn cost(&self, index: usize) -> u64 {
        PeakEwma::from_bits(self.targets[index].latency.load(Ordering::Relaxed)).cost(NOW)
    }

    fn total_in_flight(&self) -> u64 {
        self.total_in_flight.load(Ordering::Relaxed)
    }
}

/// A view with targets that have about 10 requests in flight and about 10 ms.
fn targets(count: usize) -> Targets {
    let targets = (0..count as u64).map(|index| {
        let observed_at = NOW - Millis::from_ms(50);
        let latency = PeakEwma::default().observe(10_000 + index * 7_919 % 5_000, observed_at);
        Target {
            in_flight: AtomicU32::new((8 + index * 31 % 5) as u32),
            latency: AtomicU64::new(latency.to_bits()),
            ..Target::default()
        }
    });
    Targets { targets: targets.collect(), total_in_flight: AtomicU64::new(10 * count as u64) }
}

fn balancer(policy: Policy, count: usize, weight: impl Fn(usize) -> u32) -> Balancer {
    let names: Vec<String> =
        (0..count).map(|index| format!("10.0.{}.{}:9000", index / 256, index % 256)).collect();
    let endpoints = names
        .iter()
        .enumerate()
        .map(|(index, name)| WeightedEndpoint { name, weight: weight(index) });
    Balancer::new(policy, &endpoints.collect::<Vec<_>>())
}

/// Measures choices, each for another request.
fn choose(bencher: Bencher<'_, '_>, balancer: &Balancer, view: &Targets) {
    let mut request = 0_u64;
    bencher.bench_local(|| -> Option<Pick> {
        request += 1;
        // Keys and random bits that a processor cannot predict.
        let random = request.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let input = PickRequest { turn: request, key: TargetKey(random), random, excluded: &[] };
        black_box(balancer).choose(black_box(&input), black_box(view))
    });
}

#[divan::bench(args = TARGETS)]
fn round_robin(bencher: Bencher<'_, '_>, count: usize) {
    choose(bencher, &balancer(Policy::RoundRobin, count, |_| 1), &targets(count));
}

#[divan::bench(args = TARGETS)]
fn round_robin_weighted(bencher: Bencher<'_, '_>, count: usize) {
    let balancer = balancer(Policy::RoundRobin, count, |index| 1 + index as u32 % 100);
    choose(bencher, &balancer, &targets(count));
}

#[divan::bench(args = TARGETS)]
fn least_requests(bencher: Bencher<'_, '_>, count: usize) {
    choose(bencher, &balancer(Policy::LeastRequests, count, |_| 1), &targets(count));
}

#[divan::bench(args = TARGETS)]
fn least_requests_weighted(bencher: Bencher<'_, '_>, count: usize) {
    let balancer = balancer(Policy::LeastRequests, count, |index| 1 + index as u32 % 100);
    choose(bencher, &balancer, &targets(count));
}

#[divan::bench(args = TARGETS)]
fn peak_ewma(bencher: Bencher<'_, '_>, count: usize) {
    choose(bencher, &balancer(Policy::PeakEwma, count, |_| 1), &targets(count));
}

#[divan::bench(args = TARGETS)]
fn hash(bencher: Bencher<'_, '_>, count: usize) {
    choose(bencher, &balancer(Policy::Hash, count, |_| 1), &targets(count));
}

fn failed(failure: Failure) -> FailedAttempt {
    FailedAttempt { kind: AttemptKind::Regular, failure, client: [10, 0, 0, 1].into(), sent: NOW }
}

/// Half of the targets is ejected.
#[divan::bench(args = TARGETS)]
fn least_requests_half_ejected(bencher: Bencher<'_, '_>, count: usize) {
    let view = targets(count);
    let mut health = UpstreamHealth::new(SETTINGS, vec![TargetHealth::new(); count], NOW);
    for index in 0..count / 2 {
        health.record_failure(index, failed(Failure::Connect(ConnectFailure::Refused)), NOW);
        view.targets[index].health.store(health.view(index).to_bits(), Ordering::Relaxed);
    }
    choose(bencher, &balancer(Policy::LeastRequests, count, |_| 1), &view);
}

/// Computed when the configuration or the DNS changes.
#[divan::bench(args = [Policy::RoundRobin, Policy::LeastRequests, Policy::Hash])]
fn new_balancer_of_1000(bencher: Bencher<'_, '_>, policy: Policy) {
    bencher.bench_local(|| balancer(policy, 1_000, |index| 1 + index as u32 % 100));
}

/// A failure that changes nothing, under the lock that workers share.
#[divan::bench(args = TARGETS)]
fn record_failure_and_success(bencher: Bencher<'_, '_>, count: usize) {
    let mut health = UpstreamHealth::new(SETTINGS, vec![TargetHealth::new(); count], NOW);
    bencher.bench_local(|| {
        let health = black_box(&mut health);
        health.record_failure(1, failed(Failure::Timeout), NOW);
        health.record_success(1, AttemptKind::Regular, NOW)
    });
}

/// What the budget adds to each request.
#[divan::bench]
fn retry_budget_record_request(bencher: Bencher<'_, '_>) {
    let budget = AtomicU64::new(RetryBudget::new(NOW).to_bits());
    bencher.bench_local(|| {
        let record = |bits| Some(RetryBudget::from_bits(bits).record_request(NOW).to_bits());
        black_box(&budget).fetch_update(Ordering::Relaxed, Ordering::Relaxed, record)
    });
}

/// What adaptive concurrency adds to each attempt, without its lock.
#[divan::bench]
fn adaptive_limit_record(bencher: Bencher<'_, '_>) {
    let mut limit = AdaptiveLimit::new(ConcurrencyBounds { min: 4, max: 1_000 }, 0, NOW);
    let mut request = 0;
    bencher.bench_local(|| {
        request += 1;
        let sample = Sample { latency: 1_000, in_flight: 15, outcome: SampleOutcome::Responded };
        black_box(&mut limit).record(black_box(sample), NOW + Millis::from_ms(request / 1_000))
    });
}

impl Limiter for AdaptiveLimit {
    fn limit(&self) -> u32 {
        AdaptiveLimit::limit(self)
    }

    fn record(&mut self, latency: u64, in_flight: u32, outcome: SampleOutcome, now: u64) {
        AdaptiveLimit::record(
            self,
            Sample { latency, in_flight, outcome },
            CoarseTime::from_ms(now),
        );
    }
}

/// 2,400 requests a second for a server that can do 3,000, and from 20 s to 40 s 1,000. A request
/// is given up after a second, and the server works on it nevertheless.
fn print_goodput() {
    let whole = Capacity { from: 0, workers: 30, service: 10_000 };
    println!("requests answered per second, mean latency (ms), timeouts per second");
    println!("{:28} {:>22} {:>22} {:>22}", "", "3,000/s", "a third, 20-40 s", "3,000/s again");
    for (fall, workers, service) in
        [("10 of 30 workers", 10, 10_000), ("three times slower", 30, 30_000)]
    {
        let simulation = Simulation {
            seed: 7,
            pause: 417,
            timeout: 1_000_000,
            duration: 60_000_000,
            capacities: vec![
                whole,
                Capacity { from: 20_000_000, workers, service },
                Capacity { from: 40_000_000, ..whole },
            ],
        };
        println!("{fall}");
        let bounds = ConcurrencyBounds { min: 4, max: 1_000 };
        print_row(
            "  adaptive 4..1000",
            &simulation.run(&mut AdaptiveLimit::new(bounds, 0, CoarseTime::ZERO)),
        );
        for limit in [30, 60, 300, 1_000, u32::MAX] {
            let name = match limit {
                u32::MAX => "  no bound".to_owned(),
                limit => format!("  bound {limit}"),
            };
            print_row(&name, &simulation.run(&mut FixedLimit(limit)));
        }
    }
    println!();
}

fn print_row(name: &str, seconds: &[Second]) {
    let cell = |range: Range<usize>| {
        let seconds = &seconds[range];
        let sum = |value: fn(&Second) -> u64| seconds.iter().map(value).sum::<u64>();
        let answered = sum(|second| second.answered);
        format!(
            "{:8} {:6.1} {:6}",
            answered / seconds.len() as u64,
            sum(|second| second.latency) as f64 / answered.max(1) as f64 / 1_000.0,
            sum(|second| second.timed_out) / seconds.len() as u64,
        )
    };
    println!("{name:28} {} {} {}", cell(5..20), cell(20..40), cell(40..60));
}
