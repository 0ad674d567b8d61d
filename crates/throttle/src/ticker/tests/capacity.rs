//! More tokens than `capacity`: the share of unknown tokens that pass, and the report of it.

use super::*;
use crate::{CapacityState, Geometry, ThrottleSettings, geometry::Sizing};

const CAPACITY: u64 = 400;
/// The configured false-positive rate.
const CONFIGURED: f64 = 0.001;

/// The result of one run.
struct Outcome {
    /// The share of unknown tokens that pass, counted.
    passed: f64,
    /// The same, as the throttle measures it.
    measured: f64,
    /// The largest measured share in a tick.
    most: f64,
    /// The minute, from 1, in which the excess was first reported.
    reported_in: Option<u64>,
    memory_bytes: u64,
}

/// A throttle with filters for [`CAPACITY`] that may grow by `growth`.
fn throttle_with_growth(growth: u32) -> Arc<Throttle> {
    let sizing = Sizing { capacity: CAPACITY, false_positive: CONFIGURED, memory: MINUTE * 30 };
    let geometry = Geometry::new(&sizing).unwrap();
    let settings = ThrottleSettings {
        sizing,
        geometry,
        max_memory: geometry.grown(growth).bytes(),
        ..(*throttle(FilterSharing::Local, NOW).settings()).clone()
    };
    Throttle::new(
        settings,
        &tidegate_system::secret::SharedSecret::from_namespace("test"),
        FilterSharing::Local,
        NOW,
    )
}

/// Records new tokens, `times` as many as the capacity, in each of 32 minutes. A tick is 1 s long
/// in the first minute, and then 5 s.
async fn run(times: u64, growth: u32) -> Outcome {
    let clock = Clock::manual(NOW);
    let throttle = throttle_with_growth(growth);
    let mut ticker = Ticker::new(&throttle, &clock, FilterSharing::Local);
    let (mut token, mut reported_in, mut most) = (0, None, 0.0_f64);
    let seconds = (0..60).chain((60..32 * 60).step_by(5));
    for second in seconds {
        clock.set(NOW + Millis::from_secs(second));
        ticker.tick(None::<&mut ClockStore>).await;
        most = most.max(throttle.status().false_positive);
        if throttle.status().capacity == CapacityState::Exceeded {
            reported_in = reported_in.or(Some(second / 60 + 1));
        }
        let length = if second < 60 { 1 } else { 5 };
        while token < (second + length) * CAPACITY * times / 60 {
            token += 1;
            throttle.filter.load().record(token);
        }
    }
    ticker.tick(None::<&mut ClockStore>).await;
    let filters = throttle.filter.load();
    // The last 30 minutes.
    assert!((token - 30 * CAPACITY * times..=token).all(|token| filters.contains(token)));
    let lookups = 20_000;
    let passed = (1..=lookups).filter(|other| filters.contains(1 << 40 | other)).count();
    let status = throttle.status();
    Outcome {
        passed: passed as f64 / lookups as f64,
        measured: status.false_positive,
        most,
        reported_in,
        memory_bytes: status.memory_bytes,
    }
}

#[tokio::test]
#[expect(clippy::print_stderr, reason = "figures for the reader of the output")]
async fn unknown_tokens_that_pass_beyond_the_capacity_are_few_and_reported() {
    eprintln!("times  growth  passed %  measured %  at most %  reported in minute  KiB");
    for growth in [1, 8] {
        for times in [1, 2, 3, 5, 10] {
            let Outcome { passed, measured, most, reported_in, memory_bytes } =
                run(times, growth).await;
            eprintln!(
                "{times:5} {growth:7} {:9.2} {:11.2} {:10.2} {reported_in:?} {:6}",
                passed * 100.0,
                measured * 100.0,
                most * 100.0,
                memory_bytes >> 10
            );
            let difference = (passed - measured).abs();
            assert!(difference < 0.15 * measured + 0.002, "{passed} of {measured}");
            let is_exceeded = most >= 2.0 * CONFIGURED;
            assert!(!is_exceeded || reported_in.is_some(), "{times} x {growth}");
            if growth == 8 {
                assert!(most < 0.05, "{most} at {times} times the capacity");
            }
            if growth == 1 && times >= 3 {
                assert!(passed > 0.1 && reported_in.is_some_and(|minute| minute < 32));
            }
        }
    }
}
