//! Refunds in any order, by many gateways.

use proptest::prelude::*;
use tidegate_base::time::StoreTime;

use super::*;
use crate::{Algorithm, AlgorithmState, Change, ms};

const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

/// Four a second, with a delay of at most two seconds.
const FOUR: Quota =
    Quota::new(4, Millis::from_secs(1), Algorithm::LeakyBucket { max_wait: Millis::from_secs(2) });

fn fresh() -> AlgorithmState {
    AlgorithmState::fresh(FOUR.algorithm)
}

fn refund_slots(
    state: &mut AlgorithmState,
    quota: &Quota,
    now: StoreTime,
    slot: StoreTime,
    cost: u64,
) -> Decision {
    state.adjust(quota, now, Change::Refund { charged_at: slot, cost })
}

/// One step: a request of this cost arrives, or a request refunds its slots.
#[derive(Clone, Copy, Debug)]
enum Step {
    Request(u64),
    Refund(usize),
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let later = prop_oneof![6 => Just(0_u64), 3 => 0_u64..40, 1 => 0_u64..2_000];
    let cost = prop_oneof![3 => Just(1_u64), 1 => 1_u64..5];
    let step = prop_oneof![
        3 => cost.prop_map(Step::Request),
        2 => any::<usize>().prop_map(Step::Refund),
    ];
    prop::collection::vec((later, step), 1..150)
}

fn quotas() -> impl Strategy<Value = Quota> {
    (1_u64..2_000, 1_u64..5_000, 0_u64..20_000).prop_map(|(limit, window, max_wait)| {
        let max_wait = Millis::from_ms(max_wait);
        Quota::new(limit, Millis::from_ms(window), Algorithm::LeakyBucket { max_wait })
    })
}

/// Taken slots: the time at which they begin, rounded up, and their number.
type Taken = Vec<(StoreTime, u64)>;

/// True if the time between any two taken slots is long enough for the slots in between. Times are
/// in whole ms, rounded up.
fn are_apart(taken: &Taken, quota: &Quota) -> bool {
    let mut taken = taken.clone();
    taken.sort_unstable();
    taken.iter().enumerate().all(|(first, &(from, _))| {
        let mut slots = 0;
        taken[first..].windows(2).all(|pair| {
            slots += pair[0].1;
            (pair[1].0.since(from).as_ms() + 1) * quota.limit > slots * quota.window.as_ms()
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn no_slot_is_taken_twice_and_all_are_free_after_refunds(
        quota in quotas(), steps in steps(), order in any::<u64>()
    ) {
        let (mut state, mut now) = (fresh(), NOW);
        // Requests that can still refund their slots, and requests that were released.
        let (mut taken, mut released) = (Taken::new(), Taken::new());
        for (later, step) in steps {
            now += ms(later);
            // A request whose slot has begun was released and refunds nothing.
            let (begun, waiting) = taken.into_iter().partition(|&(slot, _)| slot <= now);
            taken = waiting;
            released.append(&mut { begun });
            match step {
                // If several slots begin in one ms, its time does not identify a slot of a larger
                // cost.
                Step::Request(cost) if cost == 1 || quota.window.as_ms() >= quota.limit => {
                    let peeked = state.clone().decide(&quota, now, cost);
                    let decision = state.admit(&quota, now, cost);
                    prop_assert_eq!(peeked.admitted, decision.admitted);
                    if decision.admitted {
                        prop_assert_eq!(peeked.wait, decision.wait);
                        let last = quota.window * (cost - 1) / quota.limit;
                        prop_assert!(decision.wait + last <= quota.algorithm.max_wait());
                        taken.push((now + decision.wait, cost));
                    } else if let Some(retry_at) = decision.retry_at {
                        let later = state.clone().decide(&quota, retry_at, cost);
                        prop_assert!(later.admitted, "refused at {retry_at:?}");
                    }
                    prop_assert_eq!(decision.limit, decision.used + decision.remaining);
                }
                Step::Refund(at) if !taken.is_empty() && taken.len() <= 64 => {
                    let (slot, cost) = taken.swap_remove(at % taken.len());
                    let before = state.decide(&quota, now, 0).used;
                    let after = refund_slots(&mut state, &quota, now, slot, cost);
                    // A free slot that has begun counts as taken until all later ones are free.
                    let left = before - cost;
                    prop_assert!(after.used == left || after.used + 1 == left);
                }
                _ => {}
            }
        }
        let all: Taken = released.iter().chain(&taken).copied().collect();
        prop_assert!(are_apart(&all, &quota), "{all:?}");
        if taken.len() > 64 {
            return Ok(());
        }
        // All delayed requests are cancelled in some order; then all released slots pass.
        let mut order = order;
        while !taken.is_empty() {
            order = order.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (slot, cost) = taken.swap_remove((order >> 33) as usize % taken.len());
            refund_slots(&mut state, &quota, now, slot, cost);
        }
        let slot = Millis::from_ms(quota.window.as_ms().div_ceil(quota.limit));
        let over = released.iter().map(|&(from, cost)| from + slot * cost).max();
        let now = now.max(over.unwrap_or_default());
        let decision = state.decide(&quota, now, 1);
        prop_assert_eq!((decision.used, decision.wait), (0, Millis::ZERO));
    }
}

#[test]
fn a_freed_slot_goes_to_the_next_request() {
    let mut state = fresh();
    let waits: Vec<_> = (0..6).map(|_| state.admit(&FOUR, NOW, 1).wait.as_ms()).collect();
    assert_eq!(waits, [0, 250, 500, 750, 1_000, 1_250]);
    assert_eq!(refund_slots(&mut state, &FOUR, NOW + ms(10), NOW + ms(500), 1).used, 5);
    assert_eq!(refund_slots(&mut state, &FOUR, NOW + ms(10), NOW + ms(250), 1).used, 4);
    assert_eq!(refund_slots(&mut state, &FOUR, NOW + ms(10), NOW + ms(250), 1).used, 4, "once");
    assert_eq!(
        refund_slots(&mut state, &FOUR, NOW + ms(10), NOW + ms(600), 1).used,
        4,
        "no such slot"
    );
    // A cost that does not fit goes after all others; one that fits takes the freed slots in order.
    assert_eq!(state.clone().admit(&FOUR, NOW + ms(20), 3).wait.as_ms(), 1_480);
    assert_eq!(state.clone().admit(&FOUR, NOW + ms(20), 2).wait.as_ms(), 230);
    assert_eq!(state.admit(&FOUR, NOW + ms(20), 1).wait.as_ms(), 230);
    assert_eq!(state.admit(&FOUR, NOW + ms(20), 1).wait.as_ms(), 480);
    assert_eq!(state.admit(&FOUR, NOW + ms(20), 1).wait.as_ms(), 1_480);
}

#[test]
fn a_free_slot_that_has_passed_is_not_used() {
    let mut state = fresh();
    for _ in 0..4 {
        state.admit(&FOUR, NOW, 1);
    }
    assert_eq!(refund_slots(&mut state, &FOUR, NOW + ms(10), NOW + ms(250), 1).remaining, 6);
    let decision = state.admit(&FOUR, NOW + ms(251), 1);
    assert_eq!(decision.wait.as_ms(), 749);
}
