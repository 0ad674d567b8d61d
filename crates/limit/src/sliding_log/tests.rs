//! The log compared with a list of charges, and its bound.

use crate::ms;
use proptest::prelude::*;
use tidegate_base::time::StoreTime;

use super::*;
use crate::{
    Algorithm,
    properties::{Event, Simulation, histories_of},
};

const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

/// The charges that count at `now`, added up.
fn modelled_use(charges: &[(StoreTime, u64)], window: Millis, now: StoreTime) -> u64 {
    let live = charges.iter().filter(|&&(at, _)| at + window > now);
    live.map(|&(_, cost)| cost).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn usage_matches_a_list_of_charges(history in histories_of(Algorithm::SlidingLog, true)) {
        let (mut simulation, mut charges) = (Simulation::new(&history), Vec::<(StoreTime, u64)>::new());
        for &(later, event) in &history.3 {
            let decision = simulation.step(later, event);
            match event {
                Event::Request(cost) if decision.admitted => charges.push((simulation.now, cost)),
                Event::Request(_) => {}
                Event::Overdraw(cost) => {
                    let quota = simulation.quota;
                    let used = modelled_use(&charges, quota.window, simulation.now);
                    let room = quota.max_overdrawn() - used;
                    charges.push((simulation.now, cost.min(room)));
                }
                Event::Refund(ago, mut cost) => {
                    let at = simulation.admitted.len().checked_sub(ago + 1);
                    let charged_at = at.map_or(simulation.now, |at| simulation.admitted[at].0);
                    let there = charges.iter_mut().filter(|(at, _)| *at == charged_at);
                    for (_, left) in there {
                        let given = cost.min(*left);
                        (*left, cost) = (*left - given, cost - given);
                    }
                }
            }
            prop_assert_eq!(decision.used, modelled_use(&charges, simulation.quota.window, simulation.now));
        }
    }

    #[test]
    fn no_interval_of_a_window_holds_more_than_the_quota(history in histories_of(Algorithm::SlidingLog, false)) {
        let simulation = Simulation::run(&history);
        let charges: Vec<_> = simulation.admitted.iter().map(|&(at, cost, _)| (at, cost)).collect();
        for (end, &(at, _)) in charges.iter().enumerate() {
            let used = modelled_use(&charges[..=end], simulation.quota.window, at);
            prop_assert!(used <= simulation.quota.limit, "{used} up to {at:?}");
        }
    }
}

#[test]
fn charges_in_one_ms_share_an_entry_and_all_count() {
    let (mut state, quota) =
        (SlidingLogState::default(), Quota::new(3, Millis::from_secs(1), Algorithm::SlidingLog));
    let passed = (0..5).filter(|_| admit(&mut state, &quota, NOW, 1).admitted);
    assert_eq!(passed.count(), 3);
    assert_eq!(state.entries.len(), 1);
}

#[test]
fn a_charge_expires_exactly_a_window_later() {
    let (mut state, quota, now) = (
        SlidingLogState::default(),
        Quota::new(2, Millis::from_secs(1), Algorithm::SlidingLog),
        StoreTime::from_unix_ms(1_700_000_000_999),
    );
    assert!(admit(&mut state, &quota, now, 1).admitted);
    assert!(admit(&mut state, &quota, now + ms(400), 1).admitted);
    let refused = admit(&mut state, &quota, now + ms(999), 1);
    assert_eq!((refused.admitted, refused.retry_at), (false, Some(now + ms(1_000))));
    assert!(admit(&mut state, &quota, now + ms(1_000), 1).admitted);
    assert_eq!(admit(&mut state, &quota, now + ms(1_001), 1).retry_at, Some(now + ms(1_400)));
    assert_eq!(admit(&mut state, &quota, now + ms(1_001), 2).retry_at, Some(now + ms(2_000)));
}

#[test]
fn entries_are_bounded_by_the_quota_and_expired_memory_is_freed() {
    let (mut state, quota) = (
        SlidingLogState::default(),
        Quota::new(10_000, Millis::from_secs(60), Algorithm::SlidingLog),
    );
    let mut now = NOW;
    for _ in 0..30_000 {
        now += ms(3);
        admit(&mut state, &quota, now, 1);
        assert!(state.entries.len() <= 10_000);
    }
    admit(&mut state, &quota, now + ms(59_999), 1);
    admit(&mut state, &quota, now + ms(60_000), 1);
    assert!(state.entries.len() < 4 && state.entries.capacity() < 100);
}

#[test]
fn refunds_leave_no_entries_behind() {
    for in_flight in [1, 2, 500] {
        let (mut state, quota) = (
            SlidingLogState::default(),
            Quota::new(1_000, Millis::from_secs(60), Algorithm::SlidingLog),
        );
        for now in (0..10_000).map(|count| NOW + ms(count)) {
            assert!(admit(&mut state, &quota, now, 1).admitted);
            refund(&mut state, &quota, now, now + ms(1) - ms(in_flight), 1);
            assert!(state.entries.len() as u64 <= in_flight, "{}", state.entries.len());
        }
    }
}

#[test]
fn a_refund_is_limited_to_the_maximum_depth() {
    let (mut state, quota) = (
        SlidingLogState::default(),
        Quota::new(u64::from(u32::MAX), Millis::from_secs(60), Algorithm::SlidingLog),
    );
    let start = NOW;
    for count in 0..=MAX_REFUND_DEPTH as u64 {
        admit(&mut state, &quota, start + ms(count), 2);
    }
    let now = start + ms(MAX_REFUND_DEPTH as u64);
    let used = decide(&mut state, &quota, now, 0).used;
    assert_eq!(refund(&mut state, &quota, now, start, 1).used, used);
    assert_eq!(refund(&mut state, &quota, now, start + ms(1), 5).used, used - 2);
    assert_eq!(refund(&mut state, &quota, now, start + ms(1), 1).used, used - 2, "never below 0");
    assert_eq!(decide(&mut state, &quota, start + ms(60_000), 0).used, used - 4);
}
