//! Tests of the adaptive limit, on simulated servers and random histories.

use proptest::prelude::*;
use tidegate_base::time::{CoarseTime, Millis};

use super::{
    AdaptiveLimit, ConcurrencyBounds, Sample, SampleOutcome,
    simulation::{Capacity, FixedLimit, Limiter, Second, Simulation},
};

const BOUNDS: ConcurrencyBounds = ConcurrencyBounds { min: 4, max: 1_000 };

impl Limiter for AdaptiveLimit {
    fn limit(&self) -> u32 {
        AdaptiveLimit::limit(self)
    }

    fn record(&mut self, latency: u64, in_flight: u32, outcome: SampleOutcome, now: u64) {
        let now = CoarseTime::from_ms(now);
        AdaptiveLimit::record(self, Sample { latency, in_flight, outcome }, now);
    }
}

/// 30 workers with 10 ms each serve 3,000 requests a second; the load is 80 % of that. From 20 s to
/// 40 s the capacity is `fallen`, a third.
fn falling(fallen: Capacity) -> Simulation {
    let whole = Capacity { from: 0, workers: 30, service: 10_000 };
    Simulation {
        seed: 7,
        pause: 417,
        timeout: 1_000_000,
        duration: 60_000_000,
        capacities: vec![whole, fallen, Capacity { from: 40_000_000, ..whole }],
    }
}

fn fewer_workers() -> Simulation {
    falling(Capacity { from: 20_000_000, workers: 10, service: 10_000 })
}

fn slower_workers() -> Simulation {
    falling(Capacity { from: 20_000_000, workers: 30, service: 30_000 })
}

fn adaptive() -> AdaptiveLimit {
    AdaptiveLimit::new(BOUNDS, 0, CoarseTime::ZERO)
}

/// The mean of a value of these seconds.
fn mean(seconds: &[Second], value: impl Fn(&Second) -> u64) -> f64 {
    seconds.iter().map(value).sum::<u64>() as f64 / seconds.len() as f64
}

#[test]
fn goodput_follows_a_capacity_that_falls_to_a_third() {
    for simulation in [fewer_workers(), slower_workers()] {
        let seconds = simulation.run(&mut adaptive());
        let goodput = |range: std::ops::Range<usize>| mean(&seconds[range], |one| one.answered);
        let limits: Vec<_> = seconds.iter().map(|second| second.limit).collect();
        assert!(goodput(10..20) > 2_250.0, "{} {limits:?}", goodput(10..20));
        assert!(goodput(20..40) > 850.0, "{} {limits:?}", goodput(20..40));
        assert!(goodput(45..60) > 2_200.0, "{} {limits:?}", goodput(45..60));
        let timeouts = mean(&seconds[22..40], |one| one.timed_out);
        assert!(timeouts < 1.0, "{timeouts}");
    }
}

/// Shows that the test above can fail: a bound that fits the whole capacity does not fit a third.
#[test]
fn goodput_collapses_with_a_fixed_bound() {
    let seconds = fewer_workers().run(&mut FixedLimit(1_000));
    let goodput = mean(&seconds[22..40], |second| second.answered);
    assert!(goodput < 300.0, "{goodput}");
}

#[test]
fn latency_stays_near_that_without_load() {
    // Twice its capacity, for longer than the time between measurements.
    let simulation = Simulation {
        seed: 3,
        pause: 167,
        timeout: 1_000_000,
        duration: 90_000_000,
        capacities: vec![Capacity { from: 0, workers: 30, service: 10_000 }],
    };
    let seconds = simulation.run(&mut adaptive());
    let steady = &seconds[10..];
    let answered = mean(steady, |second| second.answered);
    let latency = mean(steady, |second| second.latency) / answered;
    let limits: Vec<_> = seconds.iter().map(|second| second.limit).collect();
    assert!(latency < 25_000.0, "{latency} {limits:?}");
    assert!(answered > 2_600.0, "{answered} {limits:?}");
}

#[test]
fn a_limit_that_is_not_used_does_not_grow() {
    let mut limit = adaptive();
    for ms in 0..60_000 {
        let sample = Sample { latency: 5_000, in_flight: 2, outcome: SampleOutcome::Responded };
        limit.record(sample, CoarseTime::from_ms(ms));
    }
    assert_eq!(limit.limit(), super::INITIAL_LIMIT);
}

/// The initial limit may be several times too high.
#[test]
fn the_base_latency_of_a_small_server_is_measured_without_its_queue() {
    let simulation = Simulation {
        seed: 11,
        pause: 1_250,
        timeout: 1_000_000,
        duration: 40_000_000,
        capacities: vec![Capacity { from: 0, workers: 4, service: 10_000 }],
    };
    let bounds = ConcurrencyBounds { min: 2, max: 1_000 };
    let seconds = simulation.run(&mut AdaptiveLimit::new(bounds, 0, CoarseTime::ZERO));
    let answered = mean(&seconds[10..], |second| second.answered);
    let latency = mean(&seconds[10..], |second| second.latency) / answered;
    assert!(latency < 25_000.0, "{latency}");
    assert!(answered > 320.0, "{answered}");
}

/// Ends `count` attempts at full load, one each ms from `now` on; returns the limits.
fn load(limit: &mut AdaptiveLimit, latency: u64, dropped: bool, count: u64, now: u64) -> Vec<u32> {
    let outcome = if dropped { SampleOutcome::Dropped } else { SampleOutcome::Responded };
    let end = |ms| {
        let in_flight = limit.limit();
        limit.record(Sample { latency, in_flight, outcome }, CoarseTime::from_ms(now + ms));
        limit.limit()
    };
    (0..count).map(end).collect()
}

#[test]
fn attempts_from_before_a_decrease_do_not_lower_the_limit_again() {
    let mut limit = adaptive();
    load(&mut limit, 1_000, false, 20_000, 0);
    let before = limit.limit();
    let limits = load(&mut limit, 500_000, true, 499, 20_500);
    let after = *limits.last().unwrap();
    assert!(after < before, "{limits:?}");
    assert!(limits.iter().all(|&limit| limit == before || limit == after), "once: {limits:?}");
    let limits = load(&mut limit, 500_000, true, 2_000, 20_999);
    assert!(*limits.last().unwrap() < after, "{limits:?}");
}

#[test]
fn the_base_latency_is_measured_once_a_minute_under_load() {
    let mut limit =
        AdaptiveLimit::new(ConcurrencyBounds { min: 4, max: 100 }, 5_000, CoarseTime::ZERO);
    let limits = load(&mut limit, 5_000, false, 180_000, 0);
    let measurements: Vec<_> =
        (5_000..limits.len()).filter(|&ms| limits[ms - 1] == 100 && limits[ms] == 50).collect();
    assert_eq!(measurements.len(), 2, "{measurements:?}");
    assert!((64_000..68_000).contains(&(measurements[1] - measurements[0])), "{measurements:?}");
    assert_eq!(limits.last(), Some(&100));
}

#[test]
fn rare_timeouts_without_load_do_not_lower_the_limit() {
    let mut limit = adaptive();
    for second in 0..3_600 {
        let outcome =
            if second % 60 == 59 { SampleOutcome::Dropped } else { SampleOutcome::Responded };
        let now = CoarseTime::from_ms(second * 1_000);
        limit.record(Sample { latency: 5_000, in_flight: 2, outcome }, now);
    }
    assert_eq!(limit.limit(), super::INITIAL_LIMIT);
}

#[test]
fn timeouts_lower_the_limit_to_its_minimum() {
    let mut limit = adaptive();
    for ms in 0..600_000 {
        let in_flight = limit.limit();
        let sample = Sample { latency: 0, in_flight, outcome: SampleOutcome::Dropped };
        limit.record(sample, CoarseTime::from_ms(ms));
    }
    assert_eq!(limit.limit(), BOUNDS.min);
}

proptest! {
    /// No history moves the limit out of its bounds, and `record` returns the limit.
    #[test]
    fn the_limit_stays_within_its_bounds(
        min in 0_u32..50,
        span in 0_u32..2_000,
        random in any::<u64>(),
        events in prop::collection::vec(
            (0_u64..550, prop_oneof![0_u64..100_000, any::<u64>()], 0_u32..3_000, any::<bool>()),
            1..600,
        ),
    ) {
        let bounds = ConcurrencyBounds { min, max: min + span };
        let mut now = CoarseTime::from_ms(1_700_000_000_000);
        let mut limit = AdaptiveLimit::new(bounds, random, now);
        let mut published = limit.limit();
        for (step, latency, in_flight, dropped) in events {
            // The clock may be set back by 50 ms.
            now = now.after(Millis::from_ms(step)).before(Millis::from_ms(50));
            let outcome =
                if dropped { SampleOutcome::Dropped } else { SampleOutcome::Responded };
            if let Some(changed) = limit.record(Sample { latency, in_flight, outcome }, now) {
                published = changed;
            }
            prop_assert_eq!(published, limit.limit());
            prop_assert!((min.max(1)..=(min + span).max(1)).contains(&published));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// A server of any size refuses few requests at half its capacity, and still serves most of its
    /// capacity when twice as much is requested.
    #[test]
    fn the_limit_fits_servers_of_any_size(
        workers in 8_u32..50,
        service in 4_000_u64..50_000,
        seed in any::<u64>(),
    ) {
        let per_request = service / u64::from(workers);
        let capacities = vec![Capacity { from: 0, workers, service }];
        let simulation = Simulation {
            seed, pause: per_request * 2, timeout: 2_000_000, duration: 20_000_000, capacities,
        };
        let seconds = simulation.run(&mut adaptive());
        let (answered, refused) =
            (mean(&seconds[3..18], |one| one.answered), mean(&seconds[3..18], |one| one.refused));
        // If the measured base latency is low by chance, some requests are refused until the next
        // measurement.
        prop_assert!(refused < 0.2 * answered, "{refused} of {answered}");
        let seconds = Simulation { pause: per_request / 2, ..simulation }.run(&mut adaptive());
        let answered = mean(&seconds[8..18], |one| one.answered);
        let capacity = 1e6 / (service as f64 / f64::from(workers));
        prop_assert!(answered > 0.7 * capacity, "{answered} of {capacity}");
    }
}
