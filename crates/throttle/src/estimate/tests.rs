use tidegate_base::time::{Millis, StoreTime};
use tidegate_system::secret::KeySecret;

use super::*;
use crate::{Filter, HashKeys, geometry::Sizing};

const START: StoreTime = StoreTime::from_unix_ms(1_700_000_040_000);

fn sized(capacity: u64, false_positive: f64) -> Geometry {
    Geometry::new(&Sizing { capacity, false_positive, memory: Millis::from_mins(30) }).unwrap()
}

/// The estimate for `tokens` distinct tokens, each recorded in one to three of the minutes.
fn estimate_of(geometry: Geometry, run: u64, tokens: u64) -> Estimate {
    let positions = std::array::from_fn(|i| (run.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> i) as u8);
    let filter =
        Filter::new(geometry, HashKeys { token_secret: KeySecret(1, 2), positions }, START);
    for minute in 0..6 {
        filter.rotate(START + Millis::from_mins(minute));
        for token in (0..tokens).filter(|token| [token % 6, token % 5, 3].contains(&minute)) {
            filter.record(token << 20 | run);
        }
    }
    estimate(filter.geometry(), filter.occupied())
}

#[test]
fn the_true_number_is_within_the_error_in_nine_of_ten_runs() {
    for (capacity, false_positive) in [(100, 0.001), (300, 0.05)] {
        let geometry = sized(capacity, false_positive);
        let most = max_countable(&geometry);
        for tokens in [most / 100, most / 10, most / 2, most * 95 / 100] {
            let runs = 60;
            let near = (0..runs).map(|run| estimate_of(geometry, run, tokens)).filter(|estimate| {
                !estimate.saturated && estimate.tokens.abs_diff(tokens) <= estimate.error
            });
            let near = near.count();
            assert!(near * 10 >= 9 * runs as usize, "{near} of {runs}: {tokens} of {most}");
        }
        let over = estimate_of(geometry, 1, most * 3 / 2);
        assert!(over.saturated && over.tokens.abs_diff(most) <= 1);
    }
}

#[test]
fn estimates_grow_with_occupied_positions_within_the_error() {
    let geometry = sized(1_000_000, 0.001);
    let most = max_countable(&geometry);
    assert!((20_000_000..23_000_000).contains(&most), "{most}");
    let (mut last, mut saturated) = (0, false);
    for step in 0..=100_000 {
        let occupied = (geometry.bits as f64 * f64::from(step) / 100_000.0) as usize;
        let estimate = estimate(&geometry, occupied);
        assert!(estimate.tokens >= last && (estimate.saturated || !saturated));
        assert!(estimate.error as f64 <= 1.0 + 0.051 * estimate.tokens as f64);
        (last, saturated) = (estimate.tokens, estimate.saturated);
    }
    assert!(saturated);
    let half = estimate(&geometry, geometry.bits / 2);
    assert!(half.tokens.abs_diff(994_614) < 10_000 && half.error < 1_000, "{half:?}");
}

#[test]
fn empty_filters_estimate_zero_and_full_ones_are_saturated() {
    let geometry = sized(1_000, 0.001);
    let none = estimate(&geometry, 0);
    assert_eq!(none, Estimate { tokens: 0, error: 0, saturated: false });
    for occupied in [geometry.bits, geometry.bits + 1, usize::MAX] {
        let full = estimate(&geometry, occupied);
        assert!(full.saturated && full.tokens.abs_diff(max_countable(&geometry)) <= 1);
    }
    // Too small for any estimate.
    let small = Geometry {
        bits: 8,
        growth: 1,
        hashes: 3,
        generation_length: Millis::from_mins(1),
        complete_generations: 1,
    };
    assert_eq!(max_countable(&small), 0);
    assert!(estimate(&small, 1).saturated);
}
