//! The bucket against one of whole fractions, and its bound.

use proptest::prelude::*;

use super::*;
use crate::limit::{
    Algorithm,
    promises::{Event, Life, histories_of},
};

const NOW: Millis = 1_700_000_000_000;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn holds_the_burst_and_what_flows_in(history in histories_of(Algorithm::TokenBucket, false)) {
        let life = Life::whole(&history);
        let (limit, window) = (u64::from(life.quota.limit), life.quota.window);
        for (first, &(from, ..)) in life.admitted.iter().enumerate() {
            let mut held = 0;
            for &(to, cost, _) in &life.admitted[first..] {
                held += u64::from(cost);
                let most = limit * window + limit * (to - from);
                prop_assert!(held * window <= most, "{held} from {from} to {to}");
            }
        }
    }

    /// The textbook's bucket: tokens, here in units of 1/window, that flow in with time.
    #[test]
    fn counts_what_the_textbook_counts(history in histories_of(Algorithm::TokenBucket, false)) {
        let (limit, window) = (u64::from(history.1.limit), history.1.window);
        let (mut life, mut tokens, mut last) = (Life::begin(&history), limit * window, history.2);
        for &(later, event) in &history.3 {
            let Event::Ask(cost) = event else { continue };
            let decision = life.step(later, event);
            tokens = (tokens + (life.now - last) * limit).min(limit * window);
            last = life.now;
            let fits = u64::from(cost) * window <= tokens;
            prop_assert_eq!(decision.admitted, fits);
            if fits {
                tokens -= u64::from(cost) * window;
            }
            prop_assert_eq!(decision.remaining, tokens / window);
        }
    }
}

#[test]
fn nothing_drifts() {
    // A token each 333 and a third ms: three of them take a second, for as long as it goes on.
    let (mut state, quota) = (Horizon::default(), Quota::new(3, 1_000, 1));
    charge(&mut state, &quota, NOW, 3);
    let mut now = NOW;
    for n in 1..=300_000 {
        now = decide(&mut state, &quota, now, 1).retry_at.expect("an empty bucket");
        assert!(admit(&mut state, &quota, now, 1).admitted);
        assert_eq!(now, NOW + (n * 1_000_u64).div_ceil(3));
    }
}

#[test]
fn a_refund_after_a_window_has_flowed_back_already() {
    let (mut state, quota) = (Horizon::default(), Quota::new(10, 1_000, 1));
    charge(&mut state, &quota, NOW, 5);
    assert_eq!(refund(&mut state, &quota, NOW, NOW, 2).used, 3);
    charge(&mut state, &quota, NOW + 999, 5);
    let used = decide(&mut state, &quota, NOW + 1_000, 0).used;
    assert_eq!(refund(&mut state, &quota, NOW + 1_000, NOW, 2).used, used);
}
