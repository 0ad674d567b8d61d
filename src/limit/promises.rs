//! What is promised of every algorithm, on random histories of each.

use proptest::prelude::*;

use super::*;

/// An algorithm, a quota, a start, and what happens: (ms since the last, what).
pub(super) type History = (Algorithm, Quota, Millis, Vec<(Millis, Event)>);

/// One thing that happens to a record.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A request of this cost.
    Ask(u32),
    /// So much of what was charged so many admitted requests ago is given back.
    Refund(usize, u32),
    /// So much more is charged.
    Overdraw(u32),
}

/// Quotas that an algorithm may have.
pub(super) fn quotas(algorithm: Algorithm) -> impl Strategy<Value = Quota> {
    let resolutions = prop::sample::select(vec![1_u32, 2, 3, 6, 7, 10, 60]);
    let sub_windows = prop::sample::select(vec![1_u64, 7, 50, 1_000, 10_000]);
    let waits = prop_oneof![Just(0_u32), 1_u32..50, 1_u32..100_000];
    (1_u32..40, sub_windows, resolutions, waits, any::<bool>()).prop_map(
        move |(limit, s, resolution, wait, strict)| {
            let window = s * u64::from(resolution);
            let sliding = algorithm == Algorithm::SlidingWindow;
            Quota {
                max_wait: if algorithm == Algorithm::LeakyBucket { wait } else { 0 },
                strict: sliding && strict,
                ..Quota::new(limit, window, if sliding { resolution } else { 1 })
            }
        },
    )
}

/// Histories of one algorithm, on a clock that only goes forward; `corrected`: with settlements.
pub(super) fn histories_of(
    algorithm: Algorithm,
    corrected: bool,
) -> impl Strategy<Value = History> {
    (quotas(algorithm), 0_u64..1_000_000).prop_flat_map(move |(quota, start)| {
        let s = quota.sub_window();
        let later = prop_oneof![
            4 => 0..=s / u64::from(quota.limit) + 1,
            4 => 0..=s / 3 + 1,
            3 => 0..=s * 2,
            1 => 0..=quota.window * 2 + s,
        ];
        let cost = prop_oneof![4 => Just(1_u32), 2 => 1_u32..5, 1 => 1..=quota.limit + 1];
        let rarely = u32::from(corrected);
        let event = prop_oneof![
            12 => cost.prop_map(Event::Ask),
            2 * rarely => (0_usize..4, 1_u32..5).prop_map(|(ago, cost)| Event::Refund(ago, cost)),
            rarely => (1_u32..9).prop_map(Event::Overdraw),
        ];
        let events = prop::collection::vec((later, event), 1..60);
        events.prop_map(move |events| (algorithm, quota, 1_700_000_000_000 + start, events))
    })
}

fn histories(corrected: bool) -> impl Strategy<Value = History> {
    let all = prop::sample::select(Algorithm::ALL.to_vec());
    all.prop_flat_map(move |algorithm| histories_of(algorithm, corrected))
}

/// A record that lives through a history.
pub(super) struct Life {
    pub(super) state: State,
    pub(super) quota: Quota,
    pub(super) now: Millis,
    /// What was admitted: when, how much, and how long it had to wait.
    pub(super) admitted: Vec<(Millis, u32, Millis)>,
}

impl Life {
    pub(super) fn begin((algorithm, quota, start, _): &History) -> Self {
        let state = State::fresh(*algorithm);
        Self { state, quota: *quota, now: *start, admitted: Vec::new() }
    }

    /// Lives on; tells what was decided.
    pub(super) fn step(&mut self, later: Millis, event: Event) -> Decision {
        self.now += later;
        match event {
            Event::Ask(cost) => {
                let decision = self.state.admit(&self.quota, self.now, cost);
                if decision.admitted {
                    self.admitted.push((self.now, cost, decision.wait));
                }
                decision
            }
            Event::Refund(ago, cost) => {
                let at = self.admitted.len().checked_sub(ago + 1);
                // A leaky bucket's charge is known by its slot; nothing else waits for one.
                let slot = |(time, _, wait): (Millis, u32, Millis)| time + wait;
                let charged_at = at.map_or(self.now, |at| slot(self.admitted[at]));
                let change = Change::Refund { charged_at, cost };
                self.state.settle(&self.quota, self.now, change)
            }
            Event::Overdraw(cost) => {
                self.state.settle(&self.quota, self.now, Change::Overdraw { cost })
            }
        }
    }

    pub(super) fn whole(history: &History) -> Self {
        let mut life = Self::begin(history);
        for &(later, event) in &history.3 {
            life.step(later, event);
        }
        life
    }

    /// What a charge of `cost` would meet after so many ms; charges nothing.
    pub(super) fn would(&mut self, later: Millis, cost: u32) -> Decision {
        self.state.clone().decide(&self.quota, self.now + later, cost)
    }
}

/// The first whole second at or after `millis`, as a header tells it.
fn header_seconds(millis: Millis) -> Millis {
    millis.div_ceil(1_000) * 1_000
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_decision_is_in_itself_true(history in histories(false)) {
        let mut life = Life::begin(&history);
        for &(later, event) in &history.3 {
            let Event::Ask(cost) = event else { unreachable!("no corrections") };
            let (kept, asked) = (life.state.clone(), life.would(later, cost));
            let mut twin = life.state.clone();
            let decision = life.step(later, event);
            if asked.admitted {
                prop_assert_eq!(twin.charge(&life.quota, life.now, cost), decision);
                prop_assert_eq!(&twin, &life.state);
            } else {
                prop_assert_eq!(decision, asked);
                prop_assert_eq!(&life.state, &kept, "a refusal charges nothing");
            }
            prop_assert_eq!(asked.admitted, u64::from(cost) <= asked.remaining);
            prop_assert_eq!(decision.limit, decision.used + decision.remaining);
            prop_assert!(decision.reset_at > life.now || decision.used == 0);
            let end = life.state.expires_at(&life.quota);
            prop_assert!(decision.used == 0 || end >= decision.reset_at);
            prop_assert_eq!(decision.remaining > 0, life.would(0, 1).admitted);
            prop_assert!(decision.wait <= u64::from(life.quota.max_wait));
        }
        let end = life.state.expires_at(&life.quota).saturating_sub(life.now);
        let fresh = State::fresh(history.0).decide(&life.quota, life.now + end, 1);
        prop_assert_eq!(life.would(end, 1), fresh, "a record means nothing when it has expired");
    }

    #[test]
    fn retry_at_is_exact(history in histories(true), cost in 1_u32..45, later in 0_u64..20_000) {
        let mut life = Life::whole(&history);
        life.now += later;
        let refused = life.would(0, cost);
        let Some(retry_at) = refused.retry_at else {
            prop_assert!(refused.admitted || u64::from(cost) > refused.limit);
            return Ok(());
        };
        prop_assert!(!refused.admitted && retry_at > life.now);
        let before = life.would(retry_at - 1 - life.now, cost);
        prop_assert!(!before.admitted, "admitted 1 ms before {}", retry_at);
        prop_assert_eq!(before.retry_at, Some(retry_at), "it stays while nobody charges");
        prop_assert!(life.would(retry_at - life.now, cost).admitted);
    }

    #[test]
    fn reset_moves_forward_and_only_with_a_charge(history in histories(true)) {
        let (mut life, mut shown) = (Life::begin(&history), 0);
        for &(later, event) in &history.3 {
            let looked = life.would(later, 0);
            prop_assert!(looked.reset_at >= shown, "moved back by time");
            let passed = shown <= life.now + later;
            prop_assert!(looked.reset_at == shown || passed, "moved without a charge");
            shown = looked.reset_at;
            let decision = life.step(later, event);
            prop_assert!(decision.reset_at >= shown, "moved back by {event:?}");
            let charged = decision.admitted && !matches!(event, Event::Refund(..));
            prop_assert!(decision.reset_at == shown || charged, "moved by {event:?}");
            shown = decision.reset_at;
        }
    }

    #[test]
    fn obedience_is_rewarded(history in histories(true), cost in 1_u32..40) {
        let mut life = Life::whole(&history);
        let most = u32::try_from(life.would(0, 0).limit).unwrap();
        let cost = cost.min(most);
        if let Some(retry_at) = life.would(0, cost).retry_at {
            let seconds = (retry_at - life.now).div_ceil(1_000).max(1);
            prop_assert!(life.would(seconds * 1_000, cost).admitted);
        }
        let mut charged = false;
        loop {
            let decision = life.step(0, Event::Ask(cost));
            let reset = header_seconds(decision.reset_at) - life.now;
            if !decision.admitted {
                prop_assert!(!charged || life.would(reset, cost).admitted);
                break;
            }
            prop_assert!(life.would(reset, cost).admitted);
            charged = true;
        }
    }

    #[test]
    fn a_refund_leaves_everything_as_it_was(history in histories(true), cost in 1_u32..40) {
        let mut life = Life::whole(&history);
        let before = life.would(0, 0);
        if life.step(0, Event::Ask(cost)).admitted {
            let after = life.would(0, 0);
            let refunded = life.step(0, Event::Refund(0, cost));
            prop_assert_eq!((refunded.used, refunded.remaining), (before.used, before.remaining));
            prop_assert_eq!(refunded.reset_at, after.reset_at, "the reset stays");
        }
    }

    #[test]
    fn an_overdraft_is_used_and_paid_back(history in histories(true), cost in 1_u32..100) {
        let mut life = Life::whole(&history);
        let before = life.would(0, 0);
        let after = life.step(0, Event::Overdraw(cost));
        prop_assert_eq!(after.used, before.used + u64::from(cost));
        // A leaky bucket may have free slots before those that were overdrawn.
        let left = after.limit.saturating_sub(after.used);
        let bucket = history.0 == Algorithm::LeakyBucket;
        prop_assert!(after.remaining == left || bucket && after.remaining > left);
        let end = life.state.expires_at(&life.quota) - life.now;
        prop_assert_eq!(life.would(end, 0).used, 0);
    }

    #[test]
    fn a_changed_quota_keeps_what_was_used(history in histories(true), limit in 1_u32..60) {
        let mut life = Life::whole(&history);
        let before = life.would(0, 1);
        life.quota.limit = limit;
        let after = life.would(0, 1);
        if history.0 == Algorithm::LeakyBucket {
            // Slots are times: those that are taken stay taken, to a ms. Those that were given back
            // before others are not kept.
            prop_assert!(!(before.admitted && after.admitted) || after.wait + 1 >= before.wait);
        } else {
            prop_assert_eq!(after.used, before.used);
            prop_assert_eq!(after.remaining, after.limit.saturating_sub(after.used));
        }
        if let Some(retry_at) = after.retry_at {
            prop_assert!(after.reset_at >= retry_at);
            prop_assert!(!life.would(retry_at - 1 - life.now, 1).admitted);
            prop_assert!(life.would(header_seconds(after.reset_at) - life.now, 1).admitted);
        }
        let decision = life.step(0, Event::Ask(1));
        prop_assert!(decision.reset_at >= before.reset_at, "the reset moved back");
    }

    #[test]
    fn a_small_step_back_stands_still(history in histories(false), back in 1_u64..=MAX_STEP_BACK) {
        let mut life = Life::whole(&history);
        let Some(&(seen, ..)) = life.admitted.last() else { return Ok(()) };
        let leases = history.0 == Algorithm::Concurrency;
        let back = if leases { back.min(life.quota.window / 4) } else { back };
        life.now = seen;
        let at_seen = life.would(0, 1);
        life.now = seen - back;
        prop_assert_eq!(life.would(0, 1), at_seen);
    }

    #[test]
    fn a_clock_set_back_locks_nobody_out(history in histories(false), back in 0_u64..100_000_000) {
        let mut life = Life::whole(&history);
        life.now -= MAX_STEP_BACK + 1 + back;
        let limit = u32::try_from(life.would(0, 0).limit).unwrap();
        // From here on the record has moved with the clock.
        let decision = life.state.decide(&life.quota, life.now, limit);
        let quota = &life.quota;
        let longest = quota.window + quota.sub_window() + u64::from(quota.max_wait);
        prop_assert!(decision.reset_at <= life.now + MAX_STEP_BACK + longest);
        if let Some(retry_at) = decision.retry_at {
            prop_assert!(retry_at <= life.now + MAX_STEP_BACK + longest);
            prop_assert!(life.would(retry_at - life.now, limit).admitted);
        }
    }
}
