//! Property tests of every algorithm, on random histories.

use proptest::prelude::*;
use tidegate_base::time::{Millis, StoreTime};

use super::*;

/// An algorithm, a quota, a start, and the events: (time since the last, event).
pub(super) type History = (Algorithm, Quota, StoreTime, Vec<(Millis, Event)>);

const SECOND: Millis = Millis::from_secs(1);

/// The ms before `at`.
fn just_before(at: StoreTime) -> StoreTime {
    at - Millis::MILLISECOND
}

/// One call on a record.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A request of this cost.
    Request(u64),
    /// A refund: the charge's age in admitted requests, and the number of units.
    Refund(usize, u64),
    /// An overdraft of this cost.
    Overdraw(u64),
}

/// Valid quotas of an algorithm. They replace the options of `algorithm`.
pub(super) fn quotas(algorithm: Algorithm) -> impl Strategy<Value = Quota> {
    let resolutions = prop::sample::select(vec![1_u32, 2, 3, 6, 7, 10, 60]);
    let sub_windows = prop::sample::select(vec![1_u64, 7, 50, 1_000, 10_000]);
    let waits = prop_oneof![Just(0_u64), 1_u64..50, 1_u64..100_000];
    (1_u64..40, sub_windows, resolutions, waits, any::<bool>()).prop_map(
        move |(limit, s, resolution, wait, strict)| {
            let window = Millis::from_ms(s) * u64::from(resolution);
            let algorithm = match algorithm {
                Algorithm::SlidingWindow { .. } => Algorithm::SlidingWindow { resolution, strict },
                Algorithm::LeakyBucket { .. } => {
                    Algorithm::LeakyBucket { max_wait: Millis::from_ms(wait) }
                }
                without_options => without_options,
            };
            Quota::new(limit, window, algorithm)
        },
    )
}

/// Histories of one algorithm, on a clock that only goes forward; `corrected`: with refunds and
/// overdrafts.
pub(super) fn histories_of(
    algorithm: Algorithm,
    corrected: bool,
) -> impl Strategy<Value = History> {
    (quotas(algorithm), 0_u64..1_000_000).prop_flat_map(move |(quota, start)| {
        let s = quota.sub_window().as_ms();
        let later = prop_oneof![
            4 => 0..=s / quota.limit + 1,
            4 => 0..=s / 3 + 1,
            3 => 0..=s * 2,
            1 => 0..=quota.window.as_ms() * 2 + s,
        ];
        let cost = prop_oneof![4 => Just(1_u64), 2 => 1_u64..5, 1 => 1..=quota.limit + 1];
        let weight = u32::from(corrected);
        let event = prop_oneof![
            12 => cost.prop_map(Event::Request),
            2 * weight => (0_usize..4, 1_u64..5).prop_map(|(ago, cost)| Event::Refund(ago, cost)),
            weight => (1_u64..9).prop_map(Event::Overdraw),
        ];
        let events = prop::collection::vec((later.prop_map(Millis::from_ms), event), 1..60);
        events.prop_map(move |events| {
            (quota.algorithm, quota, StoreTime::from_unix_ms(1_700_000_000_000 + start), events)
        })
    })
}

fn histories(corrected: bool) -> impl Strategy<Value = History> {
    let all = prop::sample::select(Algorithm::all(1, Millis::ZERO).to_vec());
    all.prop_flat_map(move |algorithm| histories_of(algorithm, corrected))
}

/// A record, and the clock of the history that it goes through.
pub(super) struct Simulation {
    pub(super) state: AlgorithmState,
    pub(super) quota: Quota,
    pub(super) now: StoreTime,
    /// The admitted requests: (time, cost, delay).
    pub(super) admitted: Vec<(StoreTime, u64, Millis)>,
}

impl Simulation {
    pub(super) fn new((algorithm, quota, start, _): &History) -> Self {
        let state = AlgorithmState::fresh(*algorithm);
        Self { state, quota: *quota, now: *start, admitted: Vec::new() }
    }

    /// Applies one event, `later` after the last.
    pub(super) fn step(&mut self, later: Millis, event: Event) -> Decision {
        self.now += later;
        match event {
            Event::Request(cost) => {
                let decision = self.state.admit(&self.quota, self.now, cost);
                if decision.admitted {
                    self.admitted.push((self.now, cost, decision.wait));
                }
                decision
            }
            Event::Refund(ago, cost) => {
                let at = self.admitted.len().checked_sub(ago + 1);
                // A leaky bucket's charge is identified by its slot; other algorithms have no
                // delay.
                let slot = |(time, _, wait): (StoreTime, u64, Millis)| time + wait;
                let charged_at = at.map_or(self.now, |at| slot(self.admitted[at]));
                let change = Change::Refund { charged_at, cost };
                self.state.adjust(&self.quota, self.now, change)
            }
            Event::Overdraw(cost) => {
                self.state.adjust(&self.quota, self.now, Change::Overdraw { cost })
            }
        }
    }

    pub(super) fn run(history: &History) -> Self {
        let mut simulation = Self::new(history);
        for &(later, event) in &history.3 {
            simulation.step(later, event);
        }
        simulation
    }

    /// The decision on a charge of `cost`, `later` from now; charges nothing.
    pub(super) fn decide_after(&mut self, later: Millis, cost: u64) -> Decision {
        self.state.clone().decide(&self.quota, self.now + later, cost)
    }
}

/// `millis` rounded up to a whole second, as in a header.
fn header_seconds(millis: u64) -> u64 {
    millis.div_ceil(1_000) * 1_000
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_decision_is_consistent(history in histories(false)) {
        let mut simulation = Simulation::new(&history);
        for &(later, event) in &history.3 {
            let Event::Request(cost) = event else { unreachable!("no corrections") };
            let (before, peeked) = (simulation.state.clone(), simulation.decide_after(later, cost));
            let mut twin = simulation.state.clone();
            let decision = simulation.step(later, event);
            if peeked.admitted {
                prop_assert_eq!(twin.charge(&simulation.quota, simulation.now, cost), decision);
                prop_assert_eq!(&twin, &simulation.state);
            } else {
                prop_assert_eq!(decision, peeked);
                prop_assert_eq!(&simulation.state, &before, "a refusal charges nothing");
            }
            prop_assert_eq!(peeked.admitted, cost <= peeked.remaining);
            prop_assert_eq!(decision.limit, decision.used + decision.remaining);
            prop_assert!(decision.reset_at > simulation.now || decision.used == 0);
            let end = simulation.state.expires_at(&simulation.quota);
            prop_assert!(decision.used == 0 || end >= decision.reset_at);
            prop_assert_eq!(decision.remaining > 0, simulation.decide_after(Millis::ZERO, 1).admitted);
            prop_assert!(decision.wait <= simulation.quota.algorithm.max_wait());
        }
        let end = simulation.state.expires_at(&simulation.quota).since(simulation.now);
        let fresh = AlgorithmState::fresh(history.0).decide(&simulation.quota, simulation.now + end, 1);
        prop_assert_eq!(simulation.decide_after(end, 1), fresh, "an expired record decides like a new one");
    }

    #[test]
    fn retry_at_is_exact(history in histories(true), cost in 1_u64..45, later in 0_u64..20_000) {
        let mut simulation = Simulation::run(&history);
        simulation.now += Millis::from_ms(later);
        let refused = simulation.decide_after(Millis::ZERO, cost);
        let Some(retry_at) = refused.retry_at else {
            prop_assert!(refused.admitted || cost > refused.limit);
            return Ok(());
        };
        prop_assert!(!refused.admitted && retry_at > simulation.now);
        let before = simulation.decide_after(just_before(retry_at).since(simulation.now), cost);
        prop_assert!(!before.admitted, "admitted 1 ms before {:?}", retry_at);
        prop_assert_eq!(before.retry_at, Some(retry_at), "it stays while nothing is charged");
        prop_assert!(simulation.decide_after(retry_at.since(simulation.now), cost).admitted);
    }

    #[test]
    fn reset_never_moves_back_and_moves_only_with_a_charge(history in histories(true)) {
        let (mut simulation, mut last_reset) = (Simulation::new(&history), StoreTime::ZERO);
        for &(later, event) in &history.3 {
            let peeked = simulation.decide_after(later, 0);
            prop_assert!(peeked.reset_at >= last_reset, "moved back as time passed");
            let passed = last_reset <= simulation.now + later;
            prop_assert!(peeked.reset_at == last_reset || passed, "moved without a charge");
            last_reset = peeked.reset_at;
            let decision = simulation.step(later, event);
            prop_assert!(decision.reset_at >= last_reset, "moved back by {event:?}");
            let charged = decision.admitted && !matches!(event, Event::Refund(..));
            prop_assert!(decision.reset_at == last_reset || charged, "moved by {event:?}");
            last_reset = decision.reset_at;
        }
    }

    /// A header shows the stored reset, in seconds, whatever the requests cost.
    #[test]
    fn the_shown_reset_never_moves_back_with_the_cost(history in histories(true), costs in prop::collection::vec((0_u64..3_000, 1_u64..45), 1..60)) {
        let (mut simulation, mut shown, mut charged) = (Simulation::run(&history), 0, 0);
        for (later, cost) in costs {
            let decision = simulation.step(Millis::from_ms(later), Event::Request(cost));
            let reset = header_seconds(decision.reset_at.as_unix_ms());
            prop_assert!(reset >= shown, "moved back from {shown} to {reset} by a cost of {cost}");
            charged = if decision.admitted { cost } else { charged };
            let wait = StoreTime::from_unix_ms(reset).since(simulation.now);
            prop_assert!(simulation.decide_after(wait, charged).admitted, "a cost of {charged}");
            shown = reset;
        }
    }

    #[test]
    fn waiting_until_retry_after_or_reset_admits(history in histories(true), cost in 1_u64..40) {
        let mut simulation = Simulation::run(&history);
        let max_cost = simulation.decide_after(Millis::ZERO, 0).limit;
        let cost = cost.min(max_cost);
        if let Some(retry_at) = simulation.decide_after(Millis::ZERO, cost).retry_at {
            let seconds = retry_at.since(simulation.now).as_secs_rounded_up().max(1);
            prop_assert!(simulation.decide_after(Millis::from_secs(seconds), cost).admitted);
        }
        let mut charged = false;
        loop {
            let decision = simulation.step(Millis::ZERO, Event::Request(cost));
            let reset = decision.reset_at.round_up_to(SECOND).since(simulation.now);
            if !decision.admitted {
                prop_assert!(!charged || simulation.decide_after(reset, cost).admitted);
                break;
            }
            prop_assert!(simulation.decide_after(reset, cost).admitted);
            charged = true;
        }
    }

    #[test]
    fn a_refund_restores_usage_and_keeps_the_reset(history in histories(true), cost in 1_u64..40) {
        let mut simulation = Simulation::run(&history);
        let before = simulation.decide_after(Millis::ZERO, 0);
        if simulation.step(Millis::ZERO, Event::Request(cost)).admitted {
            let after = simulation.decide_after(Millis::ZERO, 0);
            let refunded = simulation.step(Millis::ZERO, Event::Refund(0, cost));
            prop_assert_eq!((refunded.used, refunded.remaining), (before.used, before.remaining));
            prop_assert_eq!(refunded.reset_at, after.reset_at, "the reset stays");
        }
    }

    #[test]
    fn an_overdraft_counts_until_the_record_expires(history in histories(true), cost in 1_u64..100) {
        let mut simulation = Simulation::run(&history);
        let before = simulation.decide_after(Millis::ZERO, 0);
        let after = simulation.step(Millis::ZERO, Event::Overdraw(cost));
        let bound = if history.0.holds_permit() { u64::MAX } else { simulation.quota.max_overdrawn() };
        prop_assert_eq!(after.used, (before.used + cost).min(bound.max(before.used)));
        // A leaky bucket may have free slots before the overdrawn ones.
        let left = after.limit.saturating_sub(after.used);
        let bucket = history.0.takes_slot();
        prop_assert!(after.remaining == left || bucket && after.remaining > left);
        let end = simulation.state.expires_at(&simulation.quota).since(simulation.now);
        prop_assert_eq!(simulation.decide_after(end, 0).used, 0);
    }

    /// Whatever a response reports, its caller is admitted again, and its record expires.
    #[test]
    fn a_debt_is_paid_back_in_ten_windows(history in histories(true), cost in 1_u64..=MAX_UNITS) {
        let mut simulation = Simulation::run(&history);
        if history.0.holds_permit() {
            return Ok(());
        }
        let before = simulation.decide_after(Millis::ZERO, 0).used;
        let quota = simulation.quota;
        let after = simulation.step(Millis::ZERO, Event::Overdraw(cost));
        prop_assert!(after.used <= quota.max_overdrawn().max(before));
        let longest = quota.window * (MAX_DEBT_QUOTAS + 1)
            + quota.sub_window()
            // Free slots before the taken ones leave room for as many more.
            + quota.algorithm.max_wait() * 2;
        prop_assert!(simulation.decide_after(longest, 1).admitted);
        let longest = simulation.now + longest + Millis::MILLISECOND;
        prop_assert!(simulation.state.expires_at(&quota) <= longest);
    }

    #[test]
    fn a_changed_quota_keeps_usage(history in histories(true), limit in 1_u64..60) {
        let mut simulation = Simulation::run(&history);
        let before = simulation.decide_after(Millis::ZERO, 1);
        simulation.quota.limit = limit;
        let after = simulation.decide_after(Millis::ZERO, 1);
        if history.0.takes_slot() {
            // Slots are times: taken slots stay taken, to within a ms. Free slots before them are
            // dropped.
            prop_assert!(!(before.admitted && after.admitted) || after.wait + Millis::MILLISECOND >= before.wait);
        } else {
            prop_assert_eq!(after.used, before.used);
            prop_assert_eq!(after.remaining, after.limit.saturating_sub(after.used));
        }
        if let Some(retry_at) = after.retry_at {
            prop_assert!(after.reset_at >= retry_at);
            prop_assert!(!simulation.decide_after(just_before(retry_at).since(simulation.now), 1).admitted);
            prop_assert!(simulation.decide_after(after.reset_at.round_up_to(SECOND).since(simulation.now), 1).admitted);
        }
        let decision = simulation.step(Millis::ZERO, Event::Request(1));
        // A changed quota changes when slots begin, and so when the next one is free.
        let is_kept = !history.0.takes_slot();
        prop_assert!(!is_kept || decision.reset_at >= before.reset_at, "the reset moved back");
    }

    #[test]
    fn a_small_step_back_changes_nothing(history in histories(false), back in 1_u64..=MAX_STEP_BACK.as_ms()) {
        let mut simulation = Simulation::run(&history);
        let Some(&(last, ..)) = simulation.admitted.last() else { return Ok(()) };
        let leases = history.0.holds_permit();
        let back = Millis::from_ms(back);
        let back = if leases { back.min(simulation.quota.window / 4) } else { back };
        simulation.now = last;
        let at_last = simulation.decide_after(Millis::ZERO, 1);
        simulation.now = last - back;
        prop_assert_eq!(simulation.decide_after(Millis::ZERO, 1), at_last);
    }

    #[test]
    fn a_clock_set_back_delays_retry_by_at_most_a_window(history in histories(false), back in 0_u64..100_000_000) {
        let mut simulation = Simulation::run(&history);
        simulation.now -= MAX_STEP_BACK + Millis::from_ms(1 + back);
        let limit = simulation.decide_after(Millis::ZERO, 0).limit;
        // The record has moved back with the clock.
        let decision = simulation.state.decide(&simulation.quota, simulation.now, limit);
        let quota = &simulation.quota;
        let longest = quota.window + quota.sub_window() + quota.algorithm.max_wait();
        prop_assert!(decision.reset_at <= simulation.now + MAX_STEP_BACK + longest);
        if let Some(retry_at) = decision.retry_at {
            prop_assert!(retry_at <= simulation.now + MAX_STEP_BACK + longest);
            prop_assert!(simulation.decide_after(retry_at.since(simulation.now), limit).admitted);
        }
    }

    /// A quota, costs and corrections in units of `unit` change the counts only. (A sliding window
    /// that is not strict rounds its oldest count to a whole unit, so it decides slightly
    /// differently.)
    #[test]
    fn large_units_are_counted_like_small_ones(
        history in histories(true),
        unit in prop_oneof![Just(1_u64 << 32), 1_u64 << 31..1 << 43],
    ) {
        let (algorithm, quota, start, events) = &history;
        if algorithm.max_units() < MAX_UNITS {
            return Ok(());
        }
        let counted = Algorithm::SlidingWindow { resolution: quota.algorithm.resolution(), strict: true };
        let counted = if *algorithm == Algorithm::FixedWindow { *algorithm } else { counted };
        let small = Quota { algorithm: counted, ..*quota };
        let large = Quota { limit: quota.limit * unit, ..small };
        let mut small = Simulation::new(&(counted, small, *start, Vec::new()));
        let mut large = Simulation::new(&(counted, large, *start, Vec::new()));
        for &(later, event) in events {
            let expected = small.step(later, event);
            let decision = large.step(later, match event {
                Event::Request(cost) => Event::Request(cost * unit),
                Event::Refund(ago, cost) => Event::Refund(ago, cost * unit),
                Event::Overdraw(cost) => Event::Overdraw(cost * unit),
            });
            let scaled = Decision {
                limit: expected.limit * unit,
                remaining: expected.remaining * unit,
                used: expected.used * unit,
                ..expected
            };
            prop_assert_eq!(decision, scaled);
        }
    }
}
