use tidegate_system::secret::KeySecret;

use super::*;
use crate::{
    HashKeys,
    geometry::{Geometry, MAX_GROWTH, Sizing},
};

const MINUTE: Millis = Millis::from_mins(1);
/// On a minute boundary.
const START: StoreTime = StoreTime::from_unix_ms(1_700_000_040_000);
const CAPACITY: u64 = 1_000;

/// A filter with one minute of memory before the current one, and the control of its size.
struct Grown {
    filter: Filter,
    control: GrowthControl,
    tokens: u64,
    now: StoreTime,
}

impl Grown {
    fn new() -> Self {
        let sizing = Sizing { capacity: CAPACITY, false_positive: 0.001, memory: MINUTE };
        let positions = std::array::from_fn(|i| i as u8);
        let hash_keys = HashKeys { token_secret: KeySecret(1, 2), positions };
        let filter = Filter::new(Geometry::new(&sizing).unwrap(), hash_keys, START);
        let mut grown = Self { filter, control: GrowthControl::default(), tokens: 0, now: START };
        assert_eq!(grown.tick(MAX_GROWTH), None);
        grown
    }

    fn record(&mut self, tokens: u64) {
        for _ in 0..tokens {
            self.tokens += 1;
            self.filter.record(self.tokens);
        }
    }

    /// One tick. Resizes the filter if it is needed.
    fn tick(&mut self, max_growth: u32) -> Option<u32> {
        let fills = self.filter.fills(self.filter.geometry().growth);
        let growth = self.control.wanted(&self.filter, &fills, max_growth, self.now)?;
        let resized = self.filter.resized(growth);
        let all = resized.geometry().bits.max(self.filter.geometry().bits);
        resized.absorb(&self.filter, 0..all);
        self.filter = resized;
        self.control.set_resized(*fills.last().unwrap(), self.now);
        Some(growth)
    }
}

#[test]
fn filters_grow_each_time_that_their_tokens_fill_them() {
    let mut grown = Grown::new();
    grown.record(CAPACITY * 9 / 10);
    grown.now = START + MINUTE / 2;
    assert_eq!(grown.tick(MAX_GROWTH), None);
    grown.record(CAPACITY / 5);
    assert_eq!(grown.tick(MAX_GROWTH), Some(4));
    assert_eq!(grown.tick(MAX_GROWTH), None, "the share of set positions is the same");
    grown.record(CAPACITY * 7 / 2);
    assert_eq!(grown.tick(MAX_GROWTH), None);
    grown.record(CAPACITY);
    assert_eq!(grown.tick(8), Some(8), "at most");
    grown.record(CAPACITY * 20);
    assert_eq!(grown.tick(8), None);
    assert!((1..=grown.tokens).all(|token| grown.filter.contains(token)));
}

#[test]
fn filters_that_fill_fast_grow_for_the_rest_of_the_generation() {
    for (second, growth) in [(0, 16), (6, 16), (9, 8), (14, 8), (21, 4), (59, 4)] {
        let mut grown = Grown::new();
        grown.record(CAPACITY * 11 / 10);
        grown.now = START + Millis::from_secs(second);
        assert_eq!(grown.tick(MAX_GROWTH), Some(growth), "full after {second} s");
    }
}

#[test]
fn filters_shrink_once_all_generations_have_few_tokens() {
    let mut grown = Grown::new();
    grown.record(CAPACITY * 2);
    grown.now = START + MINUTE / 2;
    assert_eq!(grown.tick(MAX_GROWTH), Some(4));
    // The minute of the many tokens is live during the next one.
    for (minute, shrunk) in [(1, None), (2, Some(1))] {
        grown.filter.rotate(START + MINUTE * minute + super::super::filter::GRACE);
        grown.record(CAPACITY / 5);
        assert_eq!(grown.tick(MAX_GROWTH), shrunk, "{minute}");
    }
    let last = grown.tokens - CAPACITY / 5 + 1..=grown.tokens;
    assert!(last.into_iter().all(|token| grown.filter.contains(token)));
}

#[test]
fn a_lowered_maximum_shrinks_the_filters_at_once() {
    let mut grown = Grown::new();
    grown.record(CAPACITY * 2);
    grown.now = START + MINUTE / 2;
    assert_eq!(grown.tick(MAX_GROWTH), Some(4));
    assert_eq!(grown.tick(2), Some(2));
    assert_eq!(grown.tick(2), None);
    assert!((1..=grown.tokens).all(|token| grown.filter.contains(token)));
}
