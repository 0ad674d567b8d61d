use proptest::prelude::*;

use super::*;
use crate::estimate::max_countable;

fn sizing() -> impl Strategy<Value = Sizing> {
    let capacity = prop_oneof![1..100_u64, 1..1_000_000_000_u64, Just(1_000_000_000)];
    let false_positive = prop_oneof![
        0.000_000_1..1.0_f64,
        any::<f64>().prop_map(|rate| rate.abs().fract()).prop_filter("not 0", |rate| *rate > 0.0),
        Just(f64::MIN_POSITIVE),
        Just(5e-324),
        Just(1.0 - f64::EPSILON / 2.0),
    ];
    let memory = prop_oneof![1..=30_u64, 1..=30 * 24 * 60_u64].prop_map(Millis::from_mins);
    (capacity, false_positive, memory).prop_map(|(capacity, false_positive, memory)| Sizing {
        capacity,
        false_positive,
        memory,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn every_sizing_has_a_geometry_or_an_error(sizing in sizing()) {
        let Ok(geometry) = Geometry::new(&sizing) else {
            let error = Geometry::new(&sizing).unwrap_err();
            let large = sizing.capacity as f64 * sizing.memory.as_secs_f64() > 1e10;
            prop_assert!(sizing.false_positive < 1e-15 || large, "{error}");
            return Ok(());
        };
        prop_assert!(geometry.bits >= 8 && geometry.bits.is_multiple_of(8));
        prop_assert!((1..=MAX_HASHES).contains(&geometry.hashes));
        prop_assert!((1..=MAX_COMPLETE_GENERATIONS).contains(&geometry.complete_generations));
        prop_assert!(!geometry.generation_length.is_zero() && (geometry.generation_length % MINUTE).is_zero());
        prop_assert_eq!(geometry.bytes(), geometry.bits as u64 * 4);
        // The generations are as short as 30 of them allow, and cover the memory.
        let remembered = geometry.generation_length * geometry.complete_generations.into();
        prop_assert!(remembered >= sizing.memory);
        prop_assert!(remembered - sizing.memory < geometry.generation_length);
        if sizing.memory <= MINUTE * 30 {
            prop_assert_eq!(geometry.generation_length, MINUTE);
            prop_assert_eq!(remembered, sizing.memory);
        }
        let index = geometry.index(StoreTime::from_unix_ms(1_700_000_040_123));
        prop_assert_eq!(geometry.index(geometry.minute(index).time()), index);
        prop_assert!(max_countable(&geometry) < u64::MAX);
    }

    #[test]
    fn sizes_equal_those_of_the_bloomfilter_crate(
        capacity in 1..3_000_u64,
        false_positive in prop_oneof![0.000_1..0.999_f64, 0.000_1..0.02],
        minutes in 1..=60_u64,
    ) {
        let sizing = Sizing { capacity, false_positive, memory: MINUTE * minutes };
        let geometry = Geometry::new(&sizing).unwrap();
        let tokens = (capacity * (geometry.generation_length / MINUTE)) as usize;
        let live = f64::from(geometry.complete_generations + 1);
        let rate = 1.0 - (1.0 - false_positive).powf(1.0 / live);
        // The rate is computed differently and may round to another byte.
        let bytes = Bloom::<u64>::compute_bitmap_size(tokens, rate);
        prop_assert!((geometry.bits / 8).abs_diff(bytes) <= 1);
        let theirs = Bloom::<u64>::new_with_seed(geometry.bits / 8, tokens, &[0; 32]).unwrap();
        prop_assert_eq!(theirs.len(), geometry.bits as u64);
        prop_assert_eq!(theirs.number_of_hash_functions(), geometry.hashes);
    }
}

#[test]
fn impossible_sizings_are_rejected_with_their_reason() {
    let good = Sizing { capacity: 1_000_000, false_positive: 0.001, memory: MINUTE * 30 };
    for sizing in [Sizing { capacity: 0, ..good }, Sizing { memory: Millis::ZERO, ..good }] {
        assert_eq!(Geometry::new(&sizing), Err(SizingError::Zero));
    }
    for false_positive in [0.0, -0.1, 1.0, 1.5, f64::NAN, f64::INFINITY, 1e-30] {
        assert_eq!(Geometry::new(&Sizing { false_positive, ..good }), Err(SizingError::Rate));
    }
    let large = Sizing { capacity: u64::MAX, memory: Millis::MAX, ..good };
    let Err(SizingError::TooLarge(bytes)) = Geometry::new(&large) else { panic!("it fits") };
    assert!(bytes > 1e15);
}

#[test]
fn default_settings_have_the_documented_size() {
    let sizing = Sizing { capacity: 1_000_000, false_positive: 0.001, memory: MINUTE * 30 };
    let geometry = Geometry::new(&sizing).unwrap();
    assert_eq!(
        (geometry.bytes() / 1_000_000, geometry.hashes, geometry.complete_generations),
        (86, 15, 30)
    );
    let coarse = Geometry::new(&Sizing { false_positive: 0.01, ..sizing }).unwrap();
    assert_eq!(coarse.bytes() / 1_000_000, 66);
    let long = Geometry::new(&Sizing { memory: MINUTE * 31, ..sizing }).unwrap();
    assert_eq!((long.generation_length, long.complete_generations), (MINUTE * 2, 16));
}
