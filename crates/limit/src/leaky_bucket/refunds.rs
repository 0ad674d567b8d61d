//! Refunds of the last taken slot, and of earlier ones.

use proptest::prelude::*;
use tidegate_base::time::StoreTime;

use super::*;
use crate::{Algorithm, ms};

const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

/// Four a second, with a delay of at most a second.
const FOUR: Quota =
    Quota::new(4, Millis::from_secs(1), Algorithm::LeakyBucket { max_wait: Millis::from_secs(1) });

/// The delays of `count` requests, in ms.
fn waits(state: &mut LeakyBucketState, now: StoreTime, count: usize) -> Vec<Option<u64>> {
    let admit = |_| {
        let decision = admit(state, &FOUR, now, 1);
        decision.admitted.then_some(decision.wait.as_ms())
    };
    (0..count).map(admit).collect()
}

#[test]
fn slots_are_a_quarter_of_a_second_apart_up_to_max_wait() {
    let mut state = LeakyBucketState::default();
    let expected = [Some(0), Some(250), Some(500), Some(750), Some(1_000), None];
    assert_eq!(waits(&mut state, NOW, 6), expected);
    assert_eq!(decide(&mut state, &FOUR, NOW + ms(100), 1).retry_at, Some(NOW + ms(250)));
}

#[test]
fn a_refund_of_the_last_slot_also_drops_the_free_slots_before_it() {
    let mut state = LeakyBucketState::default();
    assert_eq!(waits(&mut state, NOW, 4).pop(), Some(Some(750)));
    assert_eq!(refund(&mut state, &FOUR, NOW + ms(10), NOW + ms(500), 1).used, 3);
    assert_eq!(state.free_slots.len(), 1);
    assert_eq!(refund(&mut state, &FOUR, NOW + ms(10), NOW + ms(750), 1).used, 2);
    assert!(state.free_slots.is_empty());
    assert_eq!(waits(&mut state, NOW + ms(10), 3), [Some(490), Some(740), Some(990)]);
}

#[test]
fn beyond_the_maximum_the_soonest_run_is_dropped() {
    let quota =
        Quota { algorithm: Algorithm::LeakyBucket { max_wait: Millis::from_secs(100) }, ..FOUR };
    let mut state = LeakyBucketState::default();
    let slots: Vec<_> = (0..80).map(|_| NOW + admit(&mut state, &quota, NOW, 1).wait).collect();
    for slot in slots.iter().skip(1).step_by(2) {
        refund(&mut state, &quota, NOW, *slot, 1);
    }
    // Among the 40 refunds, the one of the very last slot shortened the backlog.
    assert_eq!(state.free_slots.len(), 32);
    assert_eq!(admit(&mut state, &quota, NOW, 1).wait, slots[15].since(NOW));
}

#[test]
fn a_changed_quota_or_a_clock_set_back_drops_free_slots() {
    let mut state = LeakyBucketState::default();
    waits(&mut state, NOW, 4);
    refund(&mut state, &FOUR, NOW + ms(10), NOW + ms(250), 1);
    let eight = Quota { limit: 8, ..FOUR };
    assert_eq!(state.clone().free_slots.len(), 1);
    assert_eq!(admit(&mut state.clone(), &eight, NOW + ms(20), 1).wait.as_ms(), 980);
    assert_eq!(admit(&mut state.clone(), &FOUR, NOW - ms(60_000), 1).wait.as_ms(), 990);
    assert_eq!(admit(&mut state, &FOUR, NOW + ms(20), 1).wait.as_ms(), 230);
}

#[test]
fn slots_at_fractions_of_a_ms_can_be_refunded() {
    let quota = Quota { limit: 7, ..FOUR };
    let mut state = LeakyBucketState::default();
    let last = (0..5).map(|_| admit(&mut state, &quota, NOW, 1).wait).last();
    let before = state.clone();
    let wait = admit(&mut state, &quota, NOW, 1).wait;
    refund(&mut state, &quota, NOW, NOW + last.unwrap(), 1);
    assert_eq!(admit(&mut state, &quota, NOW, 1).wait, last.unwrap());
    refund(&mut state, &quota, NOW, NOW + wait, 1);
    assert_eq!(state.gcra.backlog(NOW), before.gcra.backlog(NOW));
}

proptest! {
    #[test]
    fn no_two_requests_share_a_slot(
        quota in 1_u64..2_000, window in 1_u64..5_000, max_wait in 0_u64..10_000,
        steps in prop::collection::vec((0_u64..500, any::<bool>()), 1..200),
    ) {
        let max_wait = Millis::from_ms(max_wait);
        let window = Millis::from_ms(window);
        let quota = Quota::new(quota, window, Algorithm::LeakyBucket { max_wait });
        let (mut state, mut now) = (LeakyBucketState::default(), NOW);
        let mut taken: Vec<StoreTime> = Vec::new();
        for (later, gone) in steps {
            now += ms(later);
            let decision = admit(&mut state, &quota, now, 1);
            if decision.admitted {
                prop_assert!(decision.wait <= max_wait);
                taken.push(now + decision.wait);
            }
            // The last delayed request is cancelled.
            if gone && taken.last().is_some_and(|&slot| slot > now) {
                refund(&mut state, &quota, now, taken.pop().unwrap(), 1);
            }
        }
        // Any n requests in a row are n slots apart; delays are in whole ms, rounded up.
        for (at, first) in taken.iter().enumerate() {
            let last = taken[taken.len() - 1];
            let least = window * (taken.len() - 1 - at) as u64 / quota.limit;
            prop_assert!(last.since(*first) + Millis::MILLISECOND >= least, "{first:?} to {last:?}: {least}");
        }
    }
}
