//! The bucket compared with a textbook token bucket, and its bound.

use crate::ms;
use proptest::prelude::*;
use tidegate_base::time::StoreTime;

use super::*;
use crate::{
    Algorithm,
    properties::{Event, Simulation, histories_of},
};

const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_interval_holds_at_most_the_burst_and_the_refill(history in histories_of(Algorithm::TokenBucket, false)) {
        let simulation = Simulation::run(&history);
        let (limit, window) = (simulation.quota.limit, simulation.quota.window.as_ms());
        for (first, &(from, ..)) in simulation.admitted.iter().enumerate() {
            let mut held = 0;
            for &(to, cost, _) in &simulation.admitted[first..] {
                held += cost;
                let max = limit * window + limit * to.since(from).as_ms();
                prop_assert!(held * window <= max, "{held} from {from:?} to {to:?}");
            }
        }
    }

    /// A textbook bucket: a number of tokens, in units of 1/window, that refills with time.
    #[test]
    fn decisions_match_a_textbook_bucket(history in histories_of(Algorithm::TokenBucket, false)) {
        let (limit, window) = (history.1.limit, history.1.window.as_ms());
        let (mut simulation, mut tokens, mut last) = (Simulation::new(&history), limit * window, history.2);
        for &(later, event) in &history.3 {
            let Event::Request(cost) = event else { continue };
            let decision = simulation.step(later, event);
            tokens = (tokens + simulation.now.since(last).as_ms() * limit).min(limit * window);
            last = simulation.now;
            let fits = cost * window <= tokens;
            prop_assert_eq!(decision.admitted, fits);
            if fits {
                tokens -= cost * window;
            }
            prop_assert_eq!(decision.remaining, tokens / window);
        }
    }
}

#[test]
fn the_rate_does_not_drift() {
    // A token every 333 1/3 ms: exactly three a second, for any time.
    let (mut state, quota) =
        (GcraState::default(), Quota::new(3, Millis::from_secs(1), Algorithm::TokenBucket));
    charge(&mut state, &quota, NOW, 3);
    let mut now = NOW;
    for n in 1..=300_000 {
        now = decide(&mut state, &quota, now, 1).retry_at.expect("an empty bucket");
        assert!(admit(&mut state, &quota, now, 1).admitted);
        assert_eq!(now, NOW + ms((n * 1_000_u64).div_ceil(3)));
    }
}

#[test]
fn a_refund_after_a_window_has_no_effect() {
    let (mut state, quota) =
        (GcraState::default(), Quota::new(10, Millis::from_secs(1), Algorithm::TokenBucket));
    charge(&mut state, &quota, NOW, 5);
    assert_eq!(refund(&mut state, &quota, NOW, NOW, 2).used, 3);
    charge(&mut state, &quota, NOW + ms(999), 5);
    let used = decide(&mut state, &quota, NOW + ms(1_000), 0).used;
    assert_eq!(refund(&mut state, &quota, NOW + ms(1_000), NOW, 2).used, used);
}
