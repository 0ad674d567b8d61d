//! The window's bound, and the two faults that GitHub found in theirs.

use proptest::prelude::*;

use super::*;
use crate::limit::{
    Algorithm,
    promises::{Life, histories_of},
};

const NOW: Millis = 1_700_000_000_000;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_window_holds_the_quota_and_any_interval_two(
        history in histories_of(Algorithm::FixedWindow, false)
    ) {
        let life = Life::whole(&history);
        let (limit, window) = (u64::from(life.quota.limit), life.quota.window);
        let held = |from: Millis| {
            let inside = life.admitted.iter().filter(|(at, ..)| (from..from + window).contains(at));
            inside.map(|&(_, cost, _)| u64::from(cost)).sum::<u64>()
        };
        let mut end = 0;
        for &(at, ..) in &life.admitted {
            if at >= end {
                // A window starts with its first charge.
                end = at + window;
                prop_assert!(held(at) <= limit);
            }
            prop_assert!(held(at) <= 2 * limit);
        }
    }
}

/// A limiter with GitHub's first two faults: the reset is worked out from a TTL in whole seconds, and a
/// request is checked and counted in two calls, between which time passes.
#[derive(Default)]
struct Faulty {
    count: u32,
    expires: Millis,
}

impl Faulty {
    /// Redis' `TTL` at its own time.
    fn ttl(&self, at: Millis) -> Millis {
        self.expires.saturating_sub(at) / 1_000
    }

    /// The header, from the TTL read at `at` and the gateway's clock after the answer has come.
    fn reset(&self, at: Millis, latency: Millis) -> u64 {
        (at + latency) / 1_000 + self.ttl(at)
    }

    fn is_exhausted(&self, at: Millis, limit: u32) -> bool {
        self.expires > at && self.count >= limit
    }

    /// Counts, beginning anew where the key has expired.
    fn count(&mut self, at: Millis, window: Millis) -> u32 {
        if self.expires <= at {
            *self = Self { count: 0, expires: at + window };
        }
        self.count += 1;
        self.count
    }
}

#[test]
fn the_reset_of_a_ttl_wobbles_and_a_stored_one_does_not() {
    let quota = Quota::new(5_000, 10_000, 1);
    let (mut faulty, mut state) = (Faulty::default(), State::default());
    faulty.count(NOW, quota.window);
    charge(&mut state, &quota, NOW, 1);
    let (mut wobbling, mut stored) = (Vec::new(), Vec::new());
    for at in (0..9_000).step_by(130) {
        wobbling.push(faulty.reset(NOW + at, 90));
        stored.push(decide(&mut state, &quota, NOW + at, 0).reset_at.div_ceil(1_000));
    }
    assert!(wobbling.windows(2).any(|pair| pair[1] < pair[0]), "the fault shows: {wobbling:?}");
    assert_eq!(stored, vec![1_700_000_010; stored.len()]);
}

#[test]
fn a_rejection_with_all_of_the_quota_left_needs_two_calls() {
    let quota = Quota::new(5_000, 10_000, 1);
    let mut faulty = Faulty::default();
    for _ in 0..quota.limit {
        faulty.count(NOW, quota.window);
    }
    // The check meets the old window, the count that fills the headers in meets a fresh one.
    let (check, count) = (NOW + 9_999, NOW + 10_001);
    let rejected = faulty.is_exhausted(check, quota.limit);
    let remaining = quota.limit - faulty.count(count, quota.window) + 1;
    assert!(rejected && remaining == quota.limit, "the fault shows");

    // One call has one time: at each of them the answer and its headers agree.
    for at in 9_990..10_010 {
        let mut state = State::default();
        charge(&mut state, &quota, NOW, quota.limit);
        let decision = admit(&mut state, &quota, NOW + at, 1);
        assert_eq!(decision.admitted, at >= 10_000);
        assert_eq!(decision.remaining, if decision.admitted { 4_999 } else { 0 });
    }
}

#[test]
fn what_is_past_its_end_is_ignored_whoever_still_holds_it() {
    let quota = Quota::new(5, 10_000, 1);
    let mut stale = State { reset_at: NOW, count: 5 };
    let decision = decide(&mut stale, &quota, NOW, 1);
    assert_eq!((decision.admitted, decision.used, decision.remaining), (true, 0, 5));
    assert_eq!(stale, State { reset_at: NOW, count: 5 }, "a look writes nothing");
}

#[test]
fn a_refund_belongs_to_its_window() {
    let quota = Quota::new(5, 10_000, 1);
    let mut state = State::default();
    charge(&mut state, &quota, NOW, 2);
    assert_eq!(refund(&mut state, &quota, NOW + 9_999, NOW, 1).used, 1);
    charge(&mut state, &quota, NOW + 10_000, 3);
    assert_eq!(refund(&mut state, &quota, NOW + 10_001, NOW, 1).used, 3, "of the window before");
    assert_eq!(refund(&mut state, &quota, NOW + 10_001, NOW + 10_000, 9).used, 0);
}
