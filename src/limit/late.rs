//! What is promised of charges that were made elsewhere and come late.

use proptest::prelude::*;

use super::{
    promises::{Event, History, Life, histories_of},
    *,
};

/// The algorithms for which that means something.
const MEANT: [Algorithm; 4] = [
    Algorithm::SlidingWindow,
    Algorithm::SlidingLog,
    Algorithm::FixedWindow,
    Algorithm::TokenBucket,
];

fn histories(of: &[Algorithm], corrected: bool) -> impl Strategy<Value = History> + use<> {
    let all = prop::sample::select(of.to_vec());
    all.prop_flat_map(move |algorithm| histories_of(algorithm, corrected))
}

/// A record that got the charges of a history at their time, and one that got those of `alone` late; and
/// whether none of these was a window late.
fn apart(history: &History, alone: &[bool], later: Millis) -> (Life, Life, bool) {
    let (mut all, mut shared) = (Life::begin(history), Life::begin(history));
    let (mut late, mut charged) = (Vec::new(), 0);
    for &(later, event) in &history.3 {
        all.step(later, event);
        shared.now = all.now;
        for &(at, cost, _) in &all.admitted[charged..] {
            if alone[charged % alone.len()] {
                late.push((at, cost));
            } else {
                shared.step(0, Event::Overdraw(cost));
            }
            charged += 1;
        }
    }
    all.now += later;
    shared.now += later;
    let mut in_time = true;
    for (at, cost) in late {
        in_time &= shared.now - at < shared.quota.window;
        shared.step(0, Event::Late(shared.now - at, cost));
    }
    (all, shared, in_time)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn it_frees_nothing_and_moves_no_reset_back(
        history in histories(&Algorithm::ALL, true),
        ago in 0_u64..200_000,
        cost in 1_u32..60,
    ) {
        let mut life = Life::whole(&history);
        let ago = ago % (2 * life.quota.window + 1);
        let (before, retry) = (life.would(0, 0), life.would(0, 1).retry_at);
        let after = life.step(0, Event::Late(ago, cost));
        prop_assert!(before.used <= after.used && after.used <= before.used + u64::from(cost));
        prop_assert!(after.remaining <= before.remaining);
        prop_assert!(after.reset_at >= before.reset_at);
        prop_assert!(after.wait == 0 && after.retry_at.is_none());
        let later = life.would(0, 1);
        prop_assert!(later.retry_at >= retry);
        if let Some(retry_at) = later.retry_at {
            prop_assert!(after.reset_at >= retry_at);
        }
        let reach = life.quota.window + life.quota.sub_window();
        if ago >= reach || !MEANT.contains(&history.0) {
            prop_assert_eq!(after, before, "what is past is forgotten");
        }
        if after.used > 0 {
            prop_assert!(life.state.expires_at(&life.quota) >= after.reset_at);
        }
    }

    #[test]
    fn made_now_it_is_an_overdraft(history in histories(&MEANT, true), cost in 1_u32..60) {
        let (mut late, mut plain) = (Life::whole(&history), Life::whole(&history));
        let (late, plain) = (late.step(0, Event::Late(0, cost)), plain.step(0, Event::Overdraw(cost)));
        prop_assert_eq!((late.used, late.remaining), (plain.used, plain.remaining));
        prop_assert!(late.reset_at <= plain.reset_at);
    }

    #[test]
    fn what_was_admitted_apart_counts_as_if_it_had_been_together(
        history in histories(&MEANT, false),
        alone in prop::collection::vec(any::<bool>(), 1..20),
        later in 0_u64..20_000,
    ) {
        let (mut all, mut shared, in_time) = apart(&history, &alone, later);
        let (all, shared) = (all.would(0, 0), shared.would(0, 0));
        match history.0 {
            Algorithm::SlidingWindow => prop_assert_eq!(shared.used, all.used),
            // A window that began later counts nothing of before, and any interval meets two windows.
            Algorithm::FixedWindow => prop_assert!(shared.used <= 2 * all.limit),
            // Of a bucket that never filled up, what is older counts still.
            Algorithm::TokenBucket if !in_time => {}
            _ => prop_assert!(shared.used >= all.used),
        }
    }

    #[test]
    fn what_was_all_admitted_alone_counts_exactly(
        history in histories(&MEANT, false),
        later in 0_u64..20_000,
    ) {
        let (mut all, mut merged, in_time) = apart(&history, &[true], later);
        let (all, merged) = (all.would(0, 0), merged.would(0, 0));
        match history.0 {
            // The last charge of a window that is over may begin one that is not.
            Algorithm::FixedWindow => prop_assert!(merged.used >= all.used),
            Algorithm::TokenBucket if !in_time => {}
            _ => prop_assert_eq!(merged.used, all.used),
        }
    }
}

#[test]
fn a_bucket_owes_what_has_not_flowed_back_since() {
    let quota = Quota::new(10, 1_000, 1);
    let mut state = State::fresh(Algorithm::TokenBucket);
    let late = |charged_at| Change::Late { charged_at, cost: 4 };
    assert_eq!(state.settle(&quota, 10_000, late(9_800)).used, 2);
    assert_eq!(state.settle(&quota, 10_000, late(9_800)).used, 6, "nothing flowed in meanwhile");
    assert_eq!(state.settle(&quota, 10_000, late(9_000)).used, 6, "a window ago");
}

#[test]
fn a_window_begins_with_what_was_charged_in_it_elsewhere() {
    let quota = Quota::new(10, 1_000, 1);
    let mut state = State::fresh(Algorithm::FixedWindow);
    let late = |charged_at| Change::Late { charged_at, cost: 4 };
    assert_eq!(state.settle(&quota, 10_000, late(9_000)).used, 0, "it is over");
    let opened = state.settle(&quota, 10_000, late(9_400));
    assert_eq!((opened.used, opened.reset_at), (4, 10_400));
    assert_eq!(state.settle(&quota, 10_000, late(9_300)).used, 4, "before it began");
    assert_eq!(state.settle(&quota, 10_000, late(20_000)).used, 8, "what is ahead is now");
}
