//! Requests are released at a constant rate, within `max_wait`.

use crate::ms;
use proptest::prelude::*;
use tidegate_base::time::StoreTime;

use super::*;
use crate::{
    Algorithm,
    properties::{Simulation, histories_of},
};

const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

/// A quota with a window and the longest delay in ms.
fn quota(limit: u64, window: u64, max_wait: u64) -> Quota {
    let max_wait = Millis::from_ms(max_wait);
    Quota::new(limit, Millis::from_ms(window), Algorithm::LeakyBucket { max_wait })
}

/// The delays of requests that arrive at once, in ms, until one is refused.
fn released(quota: &Quota) -> Vec<u64> {
    let mut state = LeakyBucketState::default();
    let mut at_once = std::iter::repeat_with(|| admit(&mut state, quota, NOW, 1));
    let admitted = std::iter::from_fn(|| at_once.next().filter(|decision| decision.admitted));
    admitted.map(|decision| decision.wait.as_ms()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn slots_are_apart_and_within_max_wait(history in histories_of(Algorithm::LeakyBucket { max_wait: Millis::ZERO }, false)) {
        let simulation = Simulation::run(&history);
        let (limit, window) = (simulation.quota.limit, simulation.quota.window.as_ms());
        for (first, &(from, _, wait)) in simulation.admitted.iter().enumerate() {
            prop_assert!(wait <= simulation.quota.algorithm.max_wait());
            let (from, mut slots) = (from + wait, 0);
            for pair in simulation.admitted[first..].windows(2) {
                slots += pair[0].1;
                let to = pair[1].0 + pair[1].2;
                // Delays are rounded up to a ms.
                prop_assert!((to.since(from).as_ms() + 1) * limit > slots * window, "{slots} from {from:?} to {to:?}");
            }
        }
    }
}

#[test]
fn four_a_second_are_released_every_250_ms() {
    let expected = [0, 250, 500, 750, 1_000, 1_250, 1_500, 1_750, 2_000];
    assert_eq!(released(&quota(4, 1_000, 2_000)), expected);
    assert_eq!(capacity(&quota(4, 1_000, 2_000)), 9);
    assert_eq!(released(&quota(4, 1_000, 0)), [0]);
    assert_eq!(released(&quota(4, 1_000, 249)), [0]);
    assert_eq!(released(&quota(4, 1_000, 250)), [0, 250]);
}

#[test]
fn three_a_second_do_not_drift() {
    let long = released(&quota(3, 1_000, 4_000_000));
    assert_eq!(long[..7], [0, 334, 667, 1_000, 1_334, 1_667, 2_000]);
    for (n, wait) in long.iter().enumerate() {
        assert_eq!(*wait, (n as u64 * 1_000).div_ceil(3));
    }
}

#[test]
fn a_refused_request_gets_the_time_at_which_it_fits() {
    let (mut state, quota) = (LeakyBucketState::default(), quota(4, 1_000, 500));
    for wait in [0, 250, 500] {
        let decision = admit(&mut state, &quota, NOW, 1);
        assert_eq!((decision.admitted, decision.wait.as_ms()), (true, wait));
    }
    let refused = admit(&mut state, &quota, NOW, 1);
    // Its delay would be 750 ms, 250 above `max_wait`.
    assert_eq!((refused.admitted, refused.wait, refused.remaining), (false, Millis::ZERO, 0));
    assert_eq!(refused.retry_at, Some(NOW + ms(250)));
    assert_eq!(admit(&mut state, &quota, NOW + ms(250), 1).wait.as_ms(), 500);
}

#[test]
fn a_refunded_slot_is_taken_by_the_next_request() {
    let (mut state, quota) = (LeakyBucketState::default(), quota(4, 1_000, 500));
    for _ in 0..3 {
        admit(&mut state, &quota, NOW, 1);
    }
    assert_eq!(refund(&mut state, &quota, NOW + ms(10), NOW + ms(500), 1).remaining, 1);
    assert_eq!(admit(&mut state, &quota, NOW + ms(10), 1).wait.as_ms(), 490);
}
