//! The bound of the window, and the two faults that GitHub found in its first implementation.

use crate::ms;
use proptest::prelude::*;
use tidegate_base::time::StoreTime;

use super::*;
use crate::{
    Algorithm, Calendar, CalendarPeriod,
    properties::{Simulation, histories_of},
};

const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_window_holds_the_quota_and_any_interval_twice_the_quota(
        history in histories_of(Algorithm::FixedWindow, false)
    ) {
        let simulation = Simulation::run(&history);
        let (limit, window) = (simulation.quota.limit, simulation.quota.window);
        let held = |from: StoreTime| {
            let inside = simulation.admitted.iter().filter(|(at, ..)| (from..from + window).contains(at));
            inside.map(|&(_, cost, _)| cost).sum::<u64>()
        };
        let mut end = StoreTime::ZERO;
        for &(at, ..) in &simulation.admitted {
            if at >= end {
                // A window starts with its first charge.
                end = at + window;
                prop_assert!(held(at) <= limit);
            }
            prop_assert!(held(at) <= 2 * limit);
        }
    }
}

/// A limiter with GitHub's two faults: the reset time is computed from a TTL in whole seconds, and
/// a request is checked and counted in two calls at different times.
#[derive(Default)]
struct FaultyWindow {
    count: u64,
    expires: StoreTime,
}

impl FaultyWindow {
    /// The reply to Redis's `TTL` at `at`.
    fn ttl(&self, at: StoreTime) -> u64 {
        self.expires.since(at).as_whole_secs()
    }

    /// The reset header: the TTL read at `at` plus the gateway's clock after the reply, in s.
    fn reset(&self, at: StoreTime, latency: Millis) -> u64 {
        (at + latency).whole_periods(Millis::from_secs(1)) + self.ttl(at)
    }

    fn is_exhausted(&self, at: StoreTime, limit: u64) -> bool {
        self.expires > at && self.count >= limit
    }

    /// Counts a request, in a new window if the key has expired.
    fn count(&mut self, at: StoreTime, window: Millis) -> u64 {
        if self.expires <= at {
            *self = Self { count: 0, expires: at + window };
        }
        self.count += 1;
        self.count
    }
}

#[test]
fn a_reset_from_a_ttl_wobbles_and_a_stored_reset_does_not() {
    let quota = Quota::new(5_000, Millis::from_secs(10), Algorithm::FixedWindow);
    let (mut faulty, mut state) = (FaultyWindow::default(), FixedWindowState::default());
    faulty.count(NOW, quota.window);
    charge(&mut state, &quota, NOW, 1);
    let (mut wobbling, mut stored) = (Vec::new(), Vec::new());
    for at in (0..9_000).step_by(130) {
        wobbling.push(faulty.reset(NOW + ms(at), Millis::from_ms(90)));
        stored.push(
            decide(&mut state, &quota, NOW + ms(at), 0).reset_at.as_unix_ms().div_ceil(1_000),
        );
    }
    assert!(wobbling.windows(2).any(|pair| pair[1] < pair[0]), "the fault shows: {wobbling:?}");
    assert_eq!(stored, vec![1_700_000_010; stored.len()]);
}

#[test]
fn one_call_never_refuses_with_the_whole_quota_remaining() {
    let quota = Quota::new(5_000, Millis::from_secs(10), Algorithm::FixedWindow);
    let mut faulty = FaultyWindow::default();
    for _ in 0..quota.limit {
        faulty.count(NOW, quota.window);
    }
    // The check reads the old window; the count for the headers starts a new one.
    let (check, count) = (NOW + ms(9_999), NOW + ms(10_001));
    let rejected = faulty.is_exhausted(check, quota.limit);
    let remaining = quota.limit - faulty.count(count, quota.window) + 1;
    assert!(rejected && remaining == quota.limit, "the fault shows");

    // One call has one time: the decision and its headers agree.
    for at in 9_990..10_010 {
        let mut state = FixedWindowState::default();
        charge(&mut state, &quota, NOW, quota.limit);
        let decision = admit(&mut state, &quota, NOW + ms(at), 1);
        assert_eq!(decision.admitted, at >= 10_000);
        assert_eq!(decision.remaining, if decision.admitted { 4_999 } else { 0 });
    }
}

#[test]
fn a_window_past_its_end_counts_as_empty() {
    let quota = Quota::new(5, Millis::from_secs(10), Algorithm::FixedWindow);
    let mut stale = FixedWindowState { reset_at: NOW, count: 5 };
    let decision = decide(&mut stale, &quota, NOW, 1);
    assert_eq!((decision.admitted, decision.used, decision.remaining), (true, 0, 5));
    assert_eq!(stale, FixedWindowState { reset_at: NOW, count: 5 }, "a decision writes nothing");
}

#[test]
fn a_refund_applies_only_to_its_own_window() {
    let quota = Quota::new(5, Millis::from_secs(10), Algorithm::FixedWindow);
    let mut state = FixedWindowState::default();
    charge(&mut state, &quota, NOW, 2);
    assert_eq!(refund(&mut state, &quota, NOW + ms(9_999), NOW, 1).used, 1);
    charge(&mut state, &quota, NOW + ms(10_000), 3);
    assert_eq!(
        refund(&mut state, &quota, NOW + ms(10_001), NOW, 1).used,
        3,
        "charged in the previous window"
    );
    assert_eq!(refund(&mut state, &quota, NOW + ms(10_001), NOW + ms(10_000), 9).used, 0);
}

/// A month of `zone` from `starts` on.
fn month(limit: u64, starts: u8) -> Quota {
    let calendar = Calendar::new(CalendarPeriod::Month { starts }, "Europe/Berlin");
    Quota::calendar(limit, calendar.unwrap())
}

/// The start of 2026-12-01 in Berlin.
const DECEMBER: StoreTime = StoreTime::from_unix_ms(1_796_079_600_000);
/// The start of 2027-01-01 in Berlin.
const JANUARY: StoreTime = StoreTime::from_unix_ms(1_798_758_000_000);

#[test]
fn a_calendar_window_ends_with_the_calendar_whenever_it_is_first_charged() {
    let quota = month(5, 1);
    for at in [DECEMBER, DECEMBER + ms(1), JANUARY.before(ms(1))] {
        let mut state = FixedWindowState::default();
        assert_eq!(decide(&mut state, &quota, at, 0).reset_at, JANUARY, "unused");
        let decision = admit(&mut state, &quota, at, 5);
        assert_eq!((decision.remaining, decision.reset_at), (0, JANUARY));
        let refused = decide(&mut state, &quota, JANUARY.before(ms(1)), 1);
        assert_eq!(refused.retry_at, Some(JANUARY));
        assert!(decide(&mut state, &quota, JANUARY, 5).admitted);
    }
}

#[test]
fn a_clock_that_steps_back_over_a_boundary_keeps_the_count() {
    let quota = month(5, 1);
    let mut state = FixedWindowState::default();
    charge(&mut state, &quota, JANUARY + ms(1_000), 5);
    let reset_at = state.reset_at;
    let refused = decide(&mut state, &quota, JANUARY.before(ms(3_000)), 1);
    assert!(!refused.admitted);
    assert_eq!(refused.reset_at, reset_at);
    // Refunds of the window before do not reach it, and its own do.
    refund(&mut state, &quota, JANUARY.before(ms(2_000)), DECEMBER + ms(1), 5);
    assert_eq!(state.count, 5);
    refund(&mut state, &quota, JANUARY.before(ms(2_000)), JANUARY + ms(1_000), 2);
    assert_eq!(state.count, 3);
    // Set back by more, the window moves with the clock.
    decide(&mut state, &quota, JANUARY.before(ms(60_000)), 1);
    assert_eq!((state.reset_at, state.count), (JANUARY, 3));
}

#[test]
fn a_new_billing_day_ends_the_window_no_later() {
    let mut state = FixedWindowState::default();
    charge(&mut state, &month(5, 1), DECEMBER + ms(1), 4);
    let of_day_15 = month(5, 15);
    let earlier = decide(&mut state, &of_day_15, DECEMBER + ms(2), 1);
    let day_15 = DECEMBER + ms(14 * 86_400_000);
    assert_eq!((earlier.used, earlier.reset_at), (4, day_15));
    let later = decide(&mut state, &month(5, 1), DECEMBER + ms(3), 1);
    assert_eq!(
        (later.used, later.reset_at),
        (4, day_15),
        "a window that has begun ends as it said"
    );
    assert_eq!(decide(&mut state, &month(5, 1), day_15, 0).reset_at, JANUARY);
}
