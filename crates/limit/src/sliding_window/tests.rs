//! The bounds of the sliding window and its decisions, on random histories.

use proptest::prelude::*;
use tidegate_base::time::StoreTime;

use super::*;
use crate::{Algorithm, ms};

/// A history on a clock that only goes forward: quota, start (ms), and steps of (ms since the last,
/// cost).
type History = (Quota, StoreTime, Vec<(u64, u64)>);

fn quotas() -> impl Strategy<Value = Quota> {
    let resolutions = prop::sample::select(vec![1_u32, 2, 3, 6, 7, 10, 60]);
    let sub_windows = prop::sample::select(vec![1_u64, 7, 50, 1_000, 10_000]);
    (1_u64..40, sub_windows, resolutions).prop_map(|(limit, s, resolution)| {
        Quota::sliding(limit, Millis::from_ms(s) * u64::from(resolution), resolution)
    })
}

/// The quota, counted strictly.
fn strict(quota: Quota) -> Quota {
    let resolution = quota.algorithm.resolution();
    Quota { algorithm: Algorithm::SlidingWindow { resolution, strict: true }, ..quota }
}

/// Steps, most of them shorter than a sub-window, some longer than a window.
fn steps(quota: Quota) -> impl Strategy<Value = Vec<(u64, u64)>> {
    let s = quota.sub_window().as_ms();
    let step = prop_oneof![
        4 => 0..=s / 3 + 1,
        3 => 0..=s * 2,
        1 => 0..=quota.window.as_ms() * 2 + s,
    ];
    let cost = prop_oneof![4 => Just(1_u64), 2 => 1_u64..5, 1 => 1..=quota.limit + 1];
    prop::collection::vec((step, cost), 1..60)
}

fn histories() -> impl Strategy<Value = History> {
    (quotas(), 0_u64..1_000_000).prop_flat_map(|(quota, start)| {
        let start = StoreTime::from_unix_ms(1_700_000_000_000 + start);
        steps(quota).prop_map(move |steps| (quota, start, steps))
    })
}

/// The record after a history, its clock, and the admitted charges: (time, cost).
fn replay(
    (quota, start, steps): &History,
) -> (SlidingWindowState, StoreTime, Vec<(StoreTime, u64)>) {
    let (mut state, mut now, mut admitted) = (SlidingWindowState::default(), *start, Vec::new());
    for &(step, cost) in steps {
        now += ms(step);
        if admit(&mut state, quota, now, cost).admitted {
            admitted.push((now, cost));
        }
    }
    (state, now, admitted)
}

/// The charges in `range`, added up.
fn within(admitted: &[(StoreTime, u64)], range: std::ops::Range<StoreTime>) -> u64 {
    admitted.iter().filter(|(at, _)| range.contains(at)).map(|&(_, cost)| cost).sum()
}

/// The model: the usage at `now`, computed from the list of charges.
fn modelled_use(admitted: &[(StoreTime, u64)], quota: &Quota, now: StoreTime) -> u64 {
    let (s, k) = (quota.sub_window(), u64::from(quota.algorithm.resolution()));
    let start = now.round_down_to(s);
    let full = within(admitted, start - s * (k - 1)..start + s);
    let old = within(admitted, start - s * k..start - s * (k - 1));
    full + ((start + s).since(now) * old).div_ceil(s)
}

/// `millis` rounded up to a whole second, as in a header.
fn header_seconds(millis: u64) -> u64 {
    millis.div_ceil(1_000) * 1_000
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn usage_matches_the_model(history in histories()) {
        let (quota, start, steps) = &history;
        let (mut state, mut now, mut admitted) = (SlidingWindowState::default(), *start, Vec::new());
        for &(step, cost) in steps {
            now += ms(step);
            let before = modelled_use(&admitted, quota, now);
            let unchanged = state.clone();
            let peeked = decide(&mut state, quota, now, cost);
            prop_assert_eq!(&state, &unchanged, "a decision charges nothing");
            prop_assert_eq!(peeked.used, before);
            prop_assert_eq!(peeked.admitted, before + cost <= quota.limit);
            prop_assert_eq!(peeked.remaining, quota.limit - before);
            let mut twin = state.clone();
            let decision = admit(&mut state, quota, now, cost);
            if peeked.admitted {
                prop_assert_eq!(&charge(&mut twin, quota, now, cost), &decision);
                admitted.push((now, cost));
            } else {
                prop_assert_eq!(&decision, &peeked);
                prop_assert_eq!(&state, &unchanged, "a refusal charges nothing");
            }
            prop_assert_eq!(decision.used, modelled_use(&admitted, quota, now));
            prop_assert_eq!(decision.limit, decision.used + decision.remaining);
            prop_assert!(decision.reset_at > now || decision.used == 0);
            prop_assert!(expires_at(&state, quota) >= state.reset_at);
            if !decision.admitted && cost == 1 {
                prop_assert_eq!(decision.remaining, 0);
            }
            if decision.remaining == 0 {
                prop_assert!(!decide(&mut state, quota, now, 1).admitted);
            }
        }
    }

    #[test]
    fn bounds_every_interval(history in histories()) {
        let (_, _, admitted) = replay(&history);
        let quota = history.0;
        let (limit, s) = (quota.limit, quota.sub_window());
        for &(at, _) in &admitted {
            let aligned = at.round_down_to(s);
            let window = within(&admitted, aligned..aligned + quota.window);
            prop_assert!(window <= limit, "{window} in k aligned sub-windows from {aligned:?}");
            let short = within(&admitted, at..at + (quota.window - s));
            prop_assert!(short <= limit, "{short} in W - s from {at:?}");
            let cut = aligned - quota.window;
            let old = within(&admitted, cut..cut + s);
            let bound = limit + at.since(aligned) * old / s;
            let any = within(&admitted, at + ms(1) - quota.window..at + ms(1));
            prop_assert!(any <= bound, "{any} in W up to {at:?}, above {bound}");
        }
    }

    #[test]
    fn retry_at_is_exact(history in histories(), cost in 1_u64..45, later in 0_u64..20_000) {
        let (mut state, now, _) = replay(&history);
        let (quota, now) = (&history.0, now + ms(later));
        let refused = decide(&mut state, quota, now, cost);
        let Some(retry_at) = refused.retry_at else {
            prop_assert_eq!(refused.admitted, cost <= quota.limit);
            return Ok(());
        };
        prop_assert!(!refused.admitted && retry_at > now);
        let before = decide(&mut state, quota, retry_at - ms(1), cost);
        prop_assert!(!before.admitted, "admitted 1 ms before {retry_at:?}");
        prop_assert_eq!(before.retry_at, Some(retry_at), "it stays while nothing is charged");
        prop_assert!(decide(&mut state, quota, retry_at, cost).admitted);
    }

    #[test]
    fn reset_never_moves_back_and_moves_only_with_a_charge(history in histories()) {
        let (quota, start, steps) = &history;
        let (mut state, mut now, mut last_reset) = (SlidingWindowState::default(), *start, StoreTime::ZERO);
        for &(step, cost) in steps {
            now += ms(step);
            let peeked = decide(&mut state, quota, now, 0);
            prop_assert!(peeked.reset_at >= last_reset, "moved back as time passed");
            prop_assert!(peeked.reset_at == last_reset || last_reset <= now, "moved without a charge");
            last_reset = peeked.reset_at;
            let decision = admit(&mut state, quota, now, cost);
            prop_assert!(decision.reset_at >= last_reset, "moved back by a charge");
            prop_assert!(decision.reset_at == last_reset || decision.admitted, "moved by a refusal");
            last_reset = decision.reset_at;
        }
    }

    #[test]
    fn waiting_until_retry_after_or_reset_admits(history in histories(), cost in 1_u64..40) {
        let (mut state, now, _) = replay(&history);
        let quota = &history.0;
        let cost = cost.min(quota.limit);
        let refused = decide(&mut state, quota, now, cost);
        if let Some(retry_at) = refused.retry_at {
            let seconds = (retry_at - now).div_ceil(ms(1_000)).max(1);
            prop_assert!(decide(&mut state, quota, now + ms(seconds * 1_000), cost).admitted);
        }
        // A caller that charges the same cost until it is refused is admitted at the reset.
        let mut charged = false;
        loop {
            let decision = admit(&mut state, quota, now, cost);
            if !decision.admitted {
                let reset = header_seconds(decision.reset_at.as_unix_ms());
                prop_assert!(!charged || decide(&mut state, quota, StoreTime::from_unix_ms(reset), cost).admitted);
                break;
            }
            charged = true;
        }
    }

    #[test]
    fn a_constant_cost_is_admitted_at_the_reset(
        quota in quotas(), cost in 1_u64..40, gaps in prop::collection::vec(0_u64..3_000, 1..60)
    ) {
        let cost = cost.min(quota.limit);
        let (mut state, mut now) = (SlidingWindowState::default(), 1_700_000_000_123);
        for gap in gaps {
            now += gap;
            let reset_at = admit(&mut state, &quota, StoreTime::from_unix_ms(now), cost).reset_at;
            let mut alone = state.clone();
            prop_assert!(decide(&mut alone, &quota, StoreTime::from_unix_ms(header_seconds(reset_at.as_unix_ms())), cost).admitted);
        }
    }

    #[test]
    fn a_burst_in_one_ms_admits_the_quota_exactly(quota in quotas(), extra in 1_u64..20) {
        let mut state = SlidingWindowState::default();
        let requests = 0..quota.limit + extra;
        let passed = requests.filter(|_| admit(&mut state, &quota, StoreTime::from_unix_ms(1_700_000_000_000), 1).admitted);
        prop_assert_eq!(passed.count() as u64, quota.limit);
    }

    #[test]
    fn a_changed_quota_keeps_usage(history in histories(), limit in 1_u64..60) {
        let (mut state, now, admitted) = replay(&history);
        let quota = Quota { limit, ..history.0 };
        let used = modelled_use(&admitted, &quota, now);
        let decision = decide(&mut state, &quota, now, 1);
        prop_assert_eq!(decision.used, used);
        prop_assert_eq!(decision.remaining, limit.saturating_sub(used));
        if let Some(retry_at) = decision.retry_at {
            prop_assert!(decision.reset_at >= retry_at);
            prop_assert!(!decide(&mut state, &quota, retry_at - ms(1), 1).admitted);
            prop_assert!(decide(&mut state, &quota, StoreTime::from_unix_ms(header_seconds(decision.reset_at.as_unix_ms())), 1).admitted);
        }
    }

    #[test]
    fn a_small_step_back_changes_nothing(history in histories(), back in 1_u64..=MAX_STEP_BACK.as_ms()) {
        let (mut state, _, _) = replay(&history);
        prop_assume!(state.updated_at > StoreTime::ZERO);
        let (quota, unchanged, updated_at) = (&history.0, state.clone(), state.updated_at);
        let expected = decide(&mut state, quota, updated_at, 1);
        prop_assert_eq!(decide(&mut state, quota, updated_at - ms(back), 1), expected);
        prop_assert_eq!(state, unchanged);
    }

    #[test]
    fn a_clock_set_back_delays_retry_by_at_most_a_window(history in histories(), back in 0_u64..100_000_000) {
        let (mut state, now, _) = replay(&history);
        let quota = &history.0;
        let set = now - MAX_STEP_BACK - ms(1) - ms(back);
        let decision = decide(&mut state, quota, set, quota.limit);
        let longest = quota.window + quota.sub_window();
        prop_assert!(decision.reset_at <= set + MAX_STEP_BACK + longest);
        if let Some(retry_at) = decision.retry_at {
            prop_assert!(retry_at <= set + MAX_STEP_BACK + longest);
            prop_assert!(decide(&mut state, quota, retry_at, quota.limit).admitted);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_strict_window_bounds_every_interval((quota, start, steps) in histories()) {
        let quota = strict(quota);
        let (_, _, admitted) = replay(&(quota, start, steps));
        for &(at, _) in &admitted {
            let any = within(&admitted, at + ms(1) - quota.window..at + ms(1));
            prop_assert!(any <= quota.limit, "{any} in W up to {at:?}");
        }
    }

    #[test]
    fn a_change_of_strictness_keeps_the_counts(history in histories()) {
        let (mut state, now, _) = replay(&history);
        let lax = decide(&mut state, &history.0, now, 1);
        let full = decide(&mut state, &strict(history.0), now, 1);
        prop_assert!(full.used >= lax.used && full.reset_at >= lax.reset_at);
    }
}

#[test]
fn the_largest_quotas_neither_overflow_nor_overcharge() {
    for units in [u64::from(u32::MAX), u64::from(u32::MAX) + 1, MAX_UNITS] {
        let quota = Quota::sliding(units, Millis::from_ms(1 << 40), 1);
        let mut state = SlidingWindowState::default();
        let now = StoreTime::from_unix_ms(1_700_000_000_000);
        assert!(admit(&mut state, &quota, now, units).admitted);
        let refused = admit(&mut state, &quota, now, 1);
        assert_eq!((refused.admitted, refused.used, refused.remaining), (false, units, 0));
        assert_eq!(state.counts.get(0), units);
        let retry_at = refused.retry_at.unwrap();
        assert!(!decide(&mut state, &quota, retry_at - ms(1), 1).admitted);
        assert!(decide(&mut state, &quota, retry_at, 1).admitted);
    }
}

#[test]
fn usage_saturates_at_the_largest_number_of_units() {
    let quota = Quota::sliding(MAX_UNITS, Millis::from_secs(60), 6);
    let mut state = SlidingWindowState::default();
    let now = StoreTime::from_unix_ms(1_700_000_000_000);
    for later in (0..60_000).step_by(10_000) {
        assert_eq!(charge(&mut state, &quota, now + ms(later), MAX_UNITS).used, MAX_UNITS);
    }
    // The overdrafts were dropped, so the oldest count is the only one.
    assert_eq!(decide(&mut state, &quota, now + ms(70_000), 0).used, 0);
}

proptest! {
    #[test]
    fn retry_at_of_large_quotas_is_exact(
        limit in MAX_UNITS / 8..=MAX_UNITS,
        s in prop_oneof![1_u64..1_000, Just(432_000_000), 1_u64..31_622_400_000],
        resolution in 1_u32..8,
        steps in prop::collection::vec((0_u64..=100, 1_u64..=40), 1..20),
        last in 1_u64..=100,
    ) {
        let quota = Quota::sliding(limit, Millis::from_ms(s) * u64::from(resolution), resolution);
        let mut state = SlidingWindowState::default();
        let mut now = StoreTime::from_unix_ms(1_700_000_000_000);
        for (later, part) in steps {
            now += ms(u64::try_from(u128::from(s) * u128::from(later) / 60).unwrap());
            let decision = admit(&mut state, &quota, now, limit / 40 * part);
            prop_assert_eq!(decision.remaining, limit.saturating_sub(decision.used));
        }
        let cost = limit / 100 * last;
        let refused = decide(&mut state, &quota, now, cost);
        let Some(retry_at) = refused.retry_at else {
            prop_assert!(refused.admitted);
            return Ok(());
        };
        prop_assert!(!decide(&mut state.clone(), &quota, retry_at - ms(1), cost).admitted);
        prop_assert!(decide(&mut state, &quota, retry_at, cost).admitted);
    }
}

#[test]
fn up_to_seven_sub_windows_are_stored_inline() {
    let mut state = SlidingWindowState::default();
    let quota = Quota::sliding(5, Millis::from_secs(7), 7);
    admit(&mut state, &quota, StoreTime::from_unix_ms(1_700_000_000_000), 1);
    assert!(matches!(state.counts, Counts::Inline(_)));
}
