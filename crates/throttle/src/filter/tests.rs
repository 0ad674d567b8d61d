//! The filter compared with the `bloomfilter` crate and with a list of recordings, and in all
//! interleavings.

use std::sync::atomic::Ordering;

use bloomfilter::Bloom;
use proptest::prelude::*;
use tidegate_system::secret::KeySecret;

use super::*;
use crate::{geometry::Sizing, payload};

mod interleavings;
mod memory;

const MINUTE: Millis = Millis::from_mins(1);
/// On a minute boundary.
const START: StoreTime = StoreTime::from_unix_ms(1_700_000_040_000);

pub(super) fn sized(capacity: u64, false_positive: f64, minutes: u64) -> Geometry {
    Geometry::new(&Sizing { capacity, false_positive, memory: MINUTE * minutes }).unwrap()
}

pub(super) fn hash_keys(number: u8) -> HashKeys {
    HashKeys {
        token_secret: KeySecret(1, 2),
        positions: std::array::from_fn(|i| number.wrapping_mul(31) ^ i as u8),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn one_generation_equals_a_filter_of_the_crate(
        capacity in 1..2_000_u64,
        false_positive in prop_oneof![0.000_001..0.999, 0.001..0.02],
        minutes in 1..90_u64,
        number in any::<u8>(),
        tokens in prop::collection::vec(any::<u64>(), 0..300),
        others in prop::collection::vec(any::<u64>(), 100),
    ) {
        let geometry = sized(capacity, false_positive, minutes);
        let hash_keys = hash_keys(number);
        let ours = Filter::new(geometry, hash_keys, START);
        let empty = payload::header(&geometry, &hash_keys).into_iter().chain(vec![0; geometry.bits / 8]);
        let mut theirs = Bloom::<u64>::from_bytes(empty.collect()).unwrap();
        for token in &tokens {
            prop_assert_eq!(ours.record(*token), !theirs.check_and_set(token));
        }
        for token in tokens.iter().chain(&others) {
            prop_assert_eq!(ours.contains(*token), theirs.check(token));
        }
        let exported = ours.export(geometry.index(START)).unwrap();
        prop_assert_eq!(&exported, &theirs.as_slice()[payload::HEADER_LEN..]);
        let written = [&payload::header(&geometry, &hash_keys)[..], &exported].concat();
        prop_assert_eq!(&written, theirs.as_slice());
    }
}

/// With every live generation at capacity.
#[test]
fn the_false_positive_rate_is_as_configured() {
    for (false_positive, minutes, lookups) in
        [(0.01, 30, 40_000), (0.001, 30, 200_000), (0.01, 1, 40_000)]
    {
        let capacity = 2_000;
        let geometry = sized(capacity, false_positive, minutes);
        let filter = Filter::new(geometry, hash_keys(3), START);
        let mut token = 0;
        for minute in 0..=minutes {
            filter.rotate(START + MINUTE * minute + GRACE);
            for _ in 0..capacity {
                token += 1;
                filter.record(token);
            }
        }
        assert_eq!(filter.live_generations().count() as u64, minutes + 1);
        assert!((1..=token).all(|token| filter.contains(token)));
        let wrong = (1..=lookups).filter(|other| filter.contains(token + other)).count();
        let rate = wrong as f64 / lookups as f64;
        assert!(rate < 1.2 * false_positive, "{rate} of {false_positive}");
        assert!(
            rate > 0.8 * false_positive,
            "{rate} of {false_positive}: the filters are larger than necessary"
        );
    }
}

#[test]
fn generations_that_are_not_live_cannot_be_read_or_changed() {
    let filter = Filter::new(sized(100, 0.001, 3), hash_keys(4), START + GRACE);
    filter.record(1);
    let current = *filter.live_generations().end();
    assert_eq!(filter.live_generations(), current - 3..=current);
    let bits = filter.export(current).unwrap();
    for index in [0, current - 32, current - 4, current + 1, current + 32, u64::MAX] {
        assert!(!filter.take_changed(index));
        filter.mark_changed(index);
        assert_eq!(filter.export(index), None);
        assert_eq!(filter.merge(index, &bits), None);
    }
    assert_eq!(filter.occupied() as u32, bits.iter().map(|byte| byte.count_ones()).sum::<u32>());
    assert!(filter.take_changed(current));
    assert!(!filter.take_changed(current));
    filter.mark_changed(current);
    assert!(filter.take_changed(current));
    assert!(!filter.record(1) && !filter.take_changed(current), "the token is not new");
}

#[test]
fn a_merge_counts_what_each_side_was_missing() {
    let [ours, theirs] = [1, 2].map(|token| {
        let filter = Filter::new(sized(100, 0.001, 30), hash_keys(5), START);
        assert!(filter.record(token));
        filter
    });
    let index = *ours.live_generations().end();
    let hashes = u64::from(ours.geometry().hashes);
    assert!(ours.take_changed(index));
    let bits = theirs.export(index).unwrap();
    assert_eq!(
        ours.merge(index, &bits),
        Some(MergeCounts { added: hashes, remote_missing: hashes })
    );
    assert_eq!(ours.merge(index, &bits), Some(MergeCounts { added: 0, remote_missing: hashes }));
    assert!(!ours.take_changed(index), "a merge is not a change");
    assert!(ours.contains(1) && ours.contains(2));
    assert_eq!(ours.occupied() as u64, 2 * hashes);
    // Shorter and longer than the filter.
    assert!(ours.merge(index, &[]).is_some());
    assert!(ours.merge(index, &[0xff; 10_000]).is_some());
    assert_eq!(ours.occupied(), ours.geometry().bits);
}

/// A slot is cleared in steps before it is reused, or at once if the clock jumps.
#[test]
fn a_slot_is_cleared_within_twenty_steps() {
    let filter = Filter::new(sized(100, 0.01, 30), hash_keys(6), START);
    (0..100).for_each(|token| assert!(filter.record(token)));
    let has_bits = |filter: &Filter| filter.words.iter().any(|word| word.load(Relaxed) != 0);
    filter.rotate(START + MINUTE * 30);
    filter.rotate(START + MINUTE * 31 + GRACE - Millis::MILLISECOND);
    assert!(filter.contains(1));
    for second in 0..20 {
        assert!(has_bits(&filter));
        filter.rotate(START + MINUTE * 31 + GRACE + Millis::from_secs(second));
        assert!(!filter.contains(1));
    }
    assert!(!has_bits(&filter));
    // These generations are empty: nothing is swept.
    for minute in 32..70 {
        filter.rotate(START + MINUTE * minute);
        assert_eq!(filter.sweep.lock().uncleared(), 0);
    }
    filter.record(1);
    filter.rotate(START + MINUTE * 70);
    filter.rotate(START + MINUTE * 10_000);
    assert!(!filter.contains(1));
    filter.rotate(START);
    assert_eq!(*filter.live_generations().end(), START.since(StoreTime::ZERO) / MINUTE + 10_000);
    filter.rotate(StoreTime::MAX);
    assert_eq!(filter.live_generations(), u64::from(u32::MAX) - 30..=u64::from(u32::MAX));
}

/// A thread that was suspended while it recorded marks a slot that is no longer live.
#[test]
fn a_slot_marked_late_is_cleared_before_it_is_reused() {
    let filter = Filter::new(sized(100, 0.01, 1), hash_keys(7), START);
    filter.rotate(START + MINUTE * 10);
    let slot = Filter::<Native>::slot_mask(START.since(StoreTime::ZERO) / MINUTE);
    filter.words.iter().for_each(|word| _ = word.fetch_or(slot, Relaxed));
    filter.changed.fetch_or(slot, Release);
    assert!(!filter.contains(1));
    (11..32).for_each(|minute| filter.rotate(START + MINUTE * minute));
    assert!(!filter.contains(1));
    filter.rotate(START + MINUTE * 32);
    assert!(!filter.contains(1));
    assert_eq!(filter.occupied(), 0);
}

/// Newcomers are the tokens that the half of the memory before the current generation does not
/// have.
#[test]
fn newcomers_are_the_tokens_that_others_may_not_know() {
    let geometry = sized(10_000, 0.000_1, 30);
    let filter = Filter::new(geometry, hash_keys(1), START);
    let first = geometry.index(START);
    let mut sent = Vec::new();
    for minute in [0, 0, 1, 16, 31, 47, 48] {
        filter.rotate(START + MINUTE * minute);
        filter.record(7);
        sent.push(filter.take_newcomers(first + minute).len());
    }
    assert_eq!(sent, [1, 0, 0, 0, 0, 1, 0]);
    filter.record(8);
    filter.rotate(START + MINUTE * 49);
    filter.record(9);
    assert_eq!(filter.take_newcomers(first + 47), [0; 0], "neither current nor previous");
    assert_eq!(filter.take_newcomers(first + 48), [8], "of the previous generation");
    assert_eq!(filter.take_newcomers(first + 49), [9]);
    filter.record(10);
    filter.rotate(START + MINUTE * 51);
    assert_eq!(filter.take_newcomers(first + 51), [0; 0], "10 is two generations old");
}

#[test]
fn with_a_memory_of_a_minute_all_tokens_are_newcomers() {
    let geometry = sized(100, 0.001, 1);
    let filter = Filter::new(geometry, hash_keys(1), START);
    for minute in 0..3 {
        filter.rotate(START + MINUTE * minute);
        filter.record(7);
        assert_eq!(filter.take_newcomers(geometry.index(START) + minute), [7]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A filter that learns tokens has the bits of the filter that recorded them, and nothing to
    /// write.
    #[test]
    fn learned_tokens_equal_recorded_ones(
        minutes in 1..40_u64,
        recorded in prop::collection::vec((0..5_u64, any::<u64>()), 0..100),
    ) {
        let geometry = sized(200, 0.01, minutes);
        let [ours, theirs] = [(); 2].map(|()| Filter::new(geometry, hash_keys(1), START));
        for minute in 0..5 {
            for filter in [&ours, &theirs] {
                filter.rotate(START + MINUTE * minute);
            }
            let index = geometry.index(START + MINUTE * minute);
            let tokens: Vec<u64> =
                recorded.iter().filter(|(at, _)| *at == minute).map(|(_, token)| *token).collect();
            let new = tokens.iter().filter(|token| theirs.record(**token)).count();
            prop_assert_eq!(ours.learn(index, &tokens), new > 0);
            prop_assert!(!ours.learn(index, &tokens) && !ours.take_changed(index));
        }
        for index in ours.live_generations() {
            prop_assert_eq!(ours.export(index), theirs.export(index));
        }
        prop_assert!(!ours.learn(*ours.live_generations().end() + 1, &[1]));
    }
}
