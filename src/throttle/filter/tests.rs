//! The filter against the crate, against a model with exact sets, and against every interleaving.

use std::sync::atomic::Ordering;

use bloomfilter::Bloom;
use proptest::prelude::*;

use super::*;
use crate::throttle::{geometry::Sizing, payload};

mod every_interleaving;

const MINUTE: Millis = 60_000;
/// A boundary of minutes.
const START: Millis = 1_700_000_040_000;

pub(super) fn sized(capacity: u64, false_positive: f64, minutes: u64) -> Geometry {
    Geometry::new(&Sizing { capacity, false_positive, memory: minutes * MINUTE }).unwrap()
}

pub(super) fn seed(number: u8) -> Seed {
    Seed { secret: (1, 2), positions: std::array::from_fn(|i| number.wrapping_mul(31) ^ i as u8) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn one_generation_is_a_filter_of_the_crate(
        capacity in 1..2_000_u64,
        false_positive in prop_oneof![0.000_001..0.999, 0.001..0.02],
        minutes in 1..90_u64,
        number in any::<u8>(),
        tokens in prop::collection::vec(any::<u64>(), 0..300),
        others in prop::collection::vec(any::<u64>(), 100),
    ) {
        let geometry = sized(capacity, false_positive, minutes);
        let seed = seed(number);
        let ours = Filter::new(geometry, seed, START);
        let empty = payload::header(&geometry, &seed).into_iter().chain(vec![0; geometry.bits / 8]);
        let mut theirs = Bloom::<u64>::from_bytes(empty.collect()).unwrap();
        for token in &tokens {
            prop_assert_eq!(ours.record(*token), !theirs.check_and_set(token));
        }
        for token in tokens.iter().chain(&others) {
            prop_assert_eq!(ours.knows(*token), theirs.check(token));
        }
        let cut = ours.cut(geometry.index(START)).unwrap();
        prop_assert_eq!(&cut, &theirs.as_slice()[payload::HEADER..]);
        let written = [&payload::header(&geometry, &seed)[..], &cut].concat();
        prop_assert_eq!(&written, theirs.as_slice());
    }
}
