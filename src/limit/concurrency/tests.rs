//! Slots in flight: never more than there are, given back once, and back by themselves.

use proptest::prelude::*;

use super::*;

const NOW: Millis = 1_700_000_000_000;

fn quota() -> Quota {
    Quota::new(3, 10_000, 1)
}

/// What happens next: so many ms later a request of this cost comes, one of those in flight ends, one is
/// forgotten by a gateway that died, or one takes its lease anew.
#[derive(Clone, Debug)]
enum Step {
    Ask(u32),
    End(usize),
    Die(usize),
    Renew(usize),
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let later = prop_oneof![4 => 0_u64..3, 3 => 0_u64..3_000, 1 => 0_u64..12_000];
    let step = prop_oneof![
        5 => prop_oneof![4 => Just(1_u32), 1 => 1_u32..4].prop_map(Step::Ask),
        3 => any::<usize>().prop_map(Step::End),
        1 => any::<usize>().prop_map(Step::Die),
        2 => any::<usize>().prop_map(Step::Renew),
    ];
    prop::collection::vec((later, step), 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn slots_are_held_by_those_that_have_leases_and_by_nobody_else(
        slots in 1_u32..20, steps in steps()
    ) {
        let quota = Quota { limit: slots, ..quota() };
        let (mut state, mut now) = (State::default(), NOW);
        // What a gateway knows, and what nobody knows any more: (taken at, slots).
        let (mut held, mut lost) = (Vec::<(Millis, u32)>::new(), Vec::<(Millis, u32)>::new());
        for (later, step) in steps {
            now += later;
            // Up to a step longer than the window.
            let lasts = |(at, _): &(Millis, u32)| lease_end(&quota, *at) > now;
            // A gateway renews in time: what has ended was not its own any more.
            held.retain(lasts);
            lost.retain(lasts);
            let live = |all: &[(Millis, u32)]| all.iter().map(|(_, cost)| cost).sum::<u32>();
            let pick = |at: usize, all: &[(Millis, u32)]| (!all.is_empty()).then(|| at % all.len().max(1));
            match step {
                Step::Ask(cost) => {
                    let before = live(&held) + live(&lost);
                    let decision = admit(&mut state, &quota, now, cost);
                    prop_assert_eq!(decision.admitted, before + cost <= slots);
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
            prop_assert_eq!(used, u64::from(live(&held) + live(&lost)));
            prop_assert!(used <= u64::from(slots));
            prop_assert!(state.leases.len() <= slots as usize);
        }
        now += quota.window + quota.window / STEPS + 1;
        prop_assert_eq!(decide(&mut state, &quota, now, 0).used, 0, "all come back");
    }
}

#[test]
fn a_slot_is_given_back_once_and_only_while_its_lease_lasts() {
    let (quota, mut state) = (quota(), State::default());
    assert!(admit(&mut state, &quota, NOW, 1).admitted);
    assert!(admit(&mut state, &quota, NOW + 500, 1).admitted);
    assert_eq!(refund(&mut state, &quota, NOW + 600, NOW, 1).used, 1);
    assert_eq!(refund(&mut state, &quota, NOW + 600, NOW, 1).used, 1, "once");
    assert_eq!(refund(&mut state, &quota, NOW + 600, NOW + 250, 1).used, 1, "no such lease");
    assert_eq!(refund(&mut state, &quota, NOW + 600, NOW + 500, 9).used, 0, "never below nothing");
    assert!(admit(&mut state, &quota, NOW + 700, 3).admitted);
    let end = lease_end(&quota, NOW + 700);
    assert_eq!(decide(&mut state, &quota, end - 1, 1).retry_at, Some(end));
    let ended = decide(&mut state, &quota, end, 1);
    assert!(ended.admitted && ended.used == 0, "the lease has ended");
    assert!(admit(&mut state, &quota, end, 1).admitted);
    assert_eq!(refund(&mut state, &quota, end + 1, NOW + 700, 3).used, 1, "it is over");
}

#[test]
fn a_lease_lasts_for_the_window_and_at_most_a_step_longer() {
    for window in [1, 63, 64, 65, 1_000, 10_000, 3_600_000] {
        let quota = Quota::new(1, window, 1);
        for at in (0..1_000).map(|n| NOW + 17 * n) {
            let longer = lease_end(&quota, at) - at - window;
            assert!(longer < window.div_ceil(STEPS), "{window}: {longer}");
        }
    }
}

#[test]
fn clocks_of_workers_that_differ_lose_no_slot() {
    let (quota, mut state) = (quota(), State::default());
    for at in [NOW + 1, NOW, NOW + 2] {
        assert!(admit(&mut state, &quota, at, 1).admitted);
    }
    for (left, at) in [(2, NOW), (1, NOW + 2), (0, NOW + 1)] {
        assert_eq!(refund(&mut state, &quota, NOW + 1, at, 1).used, left);
    }
}

#[test]
fn a_clock_that_is_set_back_brings_slots_back_within_a_lease() {
    let (quota, mut state) = (quota(), State::default());
    charge(&mut state, &quota, NOW + 1_000_000, 1);
    charge(&mut state, &quota, NOW + 1_000_001, 2);
    let refused = decide(&mut state, &quota, NOW, 1);
    let end = lease_end(&quota, NOW);
    assert_eq!((refused.used, refused.retry_at), (3, Some(end)));
    assert!(decide(&mut state, &quota, end, 3).admitted);
}
