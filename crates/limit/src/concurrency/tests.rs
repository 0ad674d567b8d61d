//! Permits: never more than the quota, released once, and free again when their lease ends.

use proptest::prelude::*;
use tidegate_base::time::StoreTime;

use super::*;
use crate::{Algorithm, ms};

const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

fn quota() -> Quota {
    Quota::new(3, Millis::from_secs(10), Algorithm::Concurrency)
}

/// One step: a request of this cost arrives; a request in flight ends, is lost with its gateway, or
/// renews its lease.
#[derive(Clone, Debug)]
enum Step {
    Request(u64),
    End(usize),
    Die(usize),
    Renew(usize),
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let later = prop_oneof![4 => 0_u64..3, 3 => 0_u64..3_000, 1 => 0_u64..12_000];
    let step = prop_oneof![
        5 => prop_oneof![4 => Just(1_u64), 1 => 1_u64..4].prop_map(Step::Request),
        3 => any::<usize>().prop_map(Step::End),
        1 => any::<usize>().prop_map(Step::Die),
        2 => any::<usize>().prop_map(Step::Renew),
    ];
    prop::collection::vec((later, step), 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn used_permits_are_those_of_leases_that_have_not_ended(
        permits in 1_u64..20, steps in steps()
    ) {
        let quota = Quota { limit: permits, ..quota() };
        let (mut state, mut now) = (ConcurrencyState::default(), NOW);
        // Leases of live gateways, and of dead ones: (taken at, permits).
        let (mut held, mut lost) = (Vec::<(StoreTime, u64)>::new(), Vec::<(StoreTime, u64)>::new());
        for (later, step) in steps {
            now += ms(later);
            let lasts = |(at, _): &(StoreTime, u64)| permit_end(&quota, *at) > now;
            // A lease that was not renewed in time has ended.
            held.retain(lasts);
            lost.retain(lasts);
            let live = |all: &[(StoreTime, u64)]| all.iter().map(|(_, cost)| cost).sum::<u64>();
            let pick = |at: usize, all: &[(StoreTime, u64)]| (!all.is_empty()).then(|| at % all.len().max(1));
            match step {
                Step::Request(cost) => {
                    let before = live(&held) + live(&lost);
                    let decision = admit(&mut state, &quota, now, cost);
                    prop_assert_eq!(decision.admitted, before + cost <= permits);
                    if decision.admitted {
                        held.push((now, cost));
                    }
                }
                Step::End(at) => if let Some(at) = pick(at, &held) {
                    let (at, cost) = held.swap_remove(at);
                    refund(&mut state, &quota, now, at, cost);
                },
                Step::Die(at) => if let Some(at) = pick(at, &held) {
                    lost.push(held.swap_remove(at));
                },
                Step::Renew(at) => if let Some(at) = pick(at, &held) {
                    let (before, cost) = held[at];
                    charge(&mut state, &quota, now, cost);
                    refund(&mut state, &quota, now, before, cost);
                    held[at].0 = now;
                },
            }
            let used = decide(&mut state, &quota, now, 0).used;
            prop_assert_eq!(used, live(&held) + live(&lost));
            prop_assert!(used <= permits);
            prop_assert!(state.groups.len() <= permits as usize);
        }
        now += quota.window + quota.window / ROUNDING_DIVISOR + Millis::MILLISECOND;
        prop_assert_eq!(decide(&mut state, &quota, now, 0).used, 0, "all leases have ended");
    }
}

#[test]
fn a_permit_is_refunded_once_and_only_before_its_lease_ends() {
    let (quota, mut state) = (quota(), ConcurrencyState::default());
    assert!(admit(&mut state, &quota, NOW, 1).admitted);
    assert!(admit(&mut state, &quota, NOW + ms(500), 1).admitted);
    assert_eq!(refund(&mut state, &quota, NOW + ms(600), NOW, 1).used, 1);
    assert_eq!(refund(&mut state, &quota, NOW + ms(600), NOW, 1).used, 1, "once");
    assert_eq!(
        refund(&mut state, &quota, NOW + ms(600), NOW + ms(250), 1).used,
        1,
        "no such lease"
    );
    assert_eq!(
        refund(&mut state, &quota, NOW + ms(600), NOW + ms(500), 9).used,
        0,
        "never below 0"
    );
    assert!(admit(&mut state, &quota, NOW + ms(700), 3).admitted);
    let end = permit_end(&quota, NOW + ms(700));
    assert_eq!(decide(&mut state, &quota, end - ms(1), 1).retry_at, Some(end));
    let ended = decide(&mut state, &quota, end, 1);
    assert!(ended.admitted && ended.used == 0, "the lease has ended");
    assert!(admit(&mut state, &quota, end, 1).admitted);
    assert_eq!(
        refund(&mut state, &quota, end + ms(1), NOW + ms(700), 3).used,
        1,
        "its lease has ended"
    );
}

#[test]
fn a_lease_lasts_the_window_rounded_up() {
    for window in [1, 63, 64, 65, 1_000, 10_000, 3_600_000] {
        let quota = Quota::new(1, Millis::from_ms(window), Algorithm::Concurrency);
        for at in (0..1_000).map(|n| NOW + ms(17 * n)) {
            let longer = permit_end(&quota, at).since(at) - quota.window;
            assert!(longer.as_ms() < window.div_ceil(ROUNDING_DIVISOR), "{window}: {longer}");
        }
    }
}

#[test]
fn charges_out_of_order_lose_no_permit() {
    let (quota, mut state) = (quota(), ConcurrencyState::default());
    for at in [NOW + ms(1), NOW, NOW + ms(2)] {
        assert!(admit(&mut state, &quota, at, 1).admitted);
    }
    for (left, at) in [(2, NOW), (1, NOW + ms(2)), (0, NOW + ms(1))] {
        assert_eq!(refund(&mut state, &quota, NOW + ms(1), at, 1).used, left);
    }
}

#[test]
fn after_a_clock_set_back_leases_end_within_a_window() {
    let (quota, mut state) = (quota(), ConcurrencyState::default());
    charge(&mut state, &quota, NOW + ms(1_000_000), 1);
    charge(&mut state, &quota, NOW + ms(1_000_001), 2);
    let refused = decide(&mut state, &quota, NOW, 1);
    let end = permit_end(&quota, NOW);
    assert_eq!((refused.used, refused.retry_at), (3, Some(end)));
    assert!(decide(&mut state, &quota, end, 3).admitted);
}
