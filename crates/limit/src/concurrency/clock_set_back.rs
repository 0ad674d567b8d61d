//! Clocks that are set back: the permits of a live request count exactly once.

use proptest::prelude::*;
use tidegate_base::time::StoreTime;

use super::*;
use crate::{Algorithm, ms};

const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

/// The window, in ms.
const WINDOW: u64 = 10_000;

/// Maximum duration of a lease, in ms, unless the clock is set back again.
const LONGEST: u64 = WINDOW + WINDOW / 4 + WINDOW / 64 + 1;

#[derive(Clone, Debug)]
enum Step {
    Request(u64),
    End(usize),
    /// A gateway dies: its lease is no longer renewed.
    Die(usize),
    SetBack(u64),
}

/// The permits of one request, with the time of their charge by the clock and in elapsed time (ms).
#[derive(Clone, Copy, Debug)]
struct HeldPermits {
    charged_at: StoreTime,
    since: u64,
    permits: u64,
}

/// A record, its clock, and the permits that it should count.
struct Simulation {
    quota: Quota,
    state: ConcurrencyState,
    /// Elapsed time, in ms.
    monotonic: u64,
    clock: StoreTime,
    /// The elapsed time at which the clock was last set back, in ms.
    set_back_at: u64,
    held: Vec<HeldPermits>,
    lost: Vec<HeldPermits>,
}

impl Simulation {
    fn advance(&mut self, by: u64) {
        self.monotonic += by;
        self.clock += ms(by);
    }

    /// Advances the time by `later` ms; each request renews its lease after a third of the window.
    fn advance_renewing(&mut self, later: u64) {
        let end = self.monotonic + later;
        while let Some(due) = (0..self.held.len()).min_by_key(|&at| self.held[at].since)
            && self.held[due].since + WINDOW / 3 <= end
        {
            self.advance((self.held[due].since + WINDOW / 3).saturating_sub(self.monotonic));
            let HeldPermits { charged_at, permits, .. } = self.held[due];
            charge(&mut self.state, &self.quota, self.clock, permits);
            refund(&mut self.state, &self.quota, self.clock, charged_at, permits);
            self.held[due] = HeldPermits { charged_at: self.clock, since: self.monotonic, permits };
        }
        self.advance(end - self.monotonic);
    }

    fn step(&mut self, step: &Step) -> Option<Decision> {
        let pick = |at: usize, held: &[HeldPermits]| at.checked_rem(held.len());
        match *step {
            Step::Request(permits) => {
                let decision = admit(&mut self.state, &self.quota, self.clock, permits);
                if decision.admitted {
                    let (charged_at, since) = (self.clock, self.monotonic);
                    self.held.push(HeldPermits { charged_at, since, permits });
                }
                return Some(decision);
            }
            Step::End(at) => {
                if let Some(at) = pick(at, &self.held) {
                    let HeldPermits { charged_at, permits, .. } = self.held.swap_remove(at);
                    refund(&mut self.state, &self.quota, self.clock, charged_at, permits);
                }
            }
            Step::Die(at) => {
                if let Some(at) = pick(at, &self.held) {
                    self.lost.push(self.held.swap_remove(at));
                }
            }
            Step::SetBack(by) => {
                self.clock -= ms(by);
                self.set_back_at = self.monotonic;
            }
        }
        None
    }

    /// Permits of leases that are no longer renewed and may not have ended.
    fn lost(&self) -> u64 {
        let lasts =
            |held: &&HeldPermits| held.since.max(self.set_back_at) + LONGEST > self.monotonic;
        self.lost.iter().filter(lasts).map(|held| held.permits).sum()
    }

    fn used(&mut self) -> u64 {
        decide(&mut self.state, &self.quota, self.clock, 0).used
    }
}

fn permits(held: &[HeldPermits]) -> u64 {
    held.iter().map(|held| held.permits).sum()
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let later = prop_oneof![4 => 0_u64..3, 4 => 0_u64..1_500, 1 => 0_u64..12_000];
    let step = prop_oneof![
        6 => prop_oneof![4 => Just(1_u64), 1 => 1_u64..4].prop_map(Step::Request),
        3 => any::<usize>().prop_map(Step::End),
        1 => any::<usize>().prop_map(Step::Die),
        2 => prop_oneof![
            1_u64..2_500,
            2_500_u64..10_000,
            10_000_u64..100_000,
            1_u64..10_000_000_000,
        ].prop_map(Step::SetBack),
    ];
    prop::collection::vec((later, step), 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn live_slots_count_exactly_once(
        limit in 1_u64..12, steps in steps()
    ) {
        let mut simulation = Simulation {
            quota: Quota::new(limit, Millis::from_ms(WINDOW), Algorithm::Concurrency),
            state: ConcurrencyState::default(),
            monotonic: 0,
            clock: NOW,
            set_back_at: 0,
            held: Vec::new(),
            lost: Vec::new(),
        };
        for (later, step) in steps {
            simulation.advance_renewing(later);
            let before = simulation.used();
            if let Some(decision) = simulation.step(&step) {
                let Step::Request(permits) = step else { unreachable!("only requests are decided") };
                prop_assert_eq!(decision.admitted, before + permits <= limit);
            }
            let (used, held, lost) = (simulation.used(), permits(&simulation.held), simulation.lost());
            prop_assert!(held <= limit);
            prop_assert!(used >= held, "{used} of {held} count: {:?}", simulation.state);
            prop_assert!(used <= held + lost, "{used} of {held} and {lost}: {:?}", simulation.state);
            prop_assert!(simulation.state.groups.len() <= 82);
        }
        simulation.advance_renewing(0);
        while !simulation.held.is_empty() {
            simulation.step(&Step::End(0));
        }
        prop_assert!(simulation.used() <= simulation.lost(), "all live permits were refunded");
        simulation.advance_renewing(LONGEST);
        prop_assert_eq!(simulation.used(), 0, "lost leases have ended");
    }
}

#[test]
fn a_renewal_after_the_clock_was_set_back_counts_once() {
    for back in [0, 100, 4_999, 5_001, 60_000, 1_000_000_000] {
        let (quota, mut state) = (
            Quota::new(10, Millis::from_ms(WINDOW), Algorithm::Concurrency),
            ConcurrencyState::default(),
        );
        let taken: Vec<StoreTime> = (0..5).map(|n| NOW + ms(200 * n)).collect();
        for &at in &taken {
            assert!(admit(&mut state, &quota, at, 1).admitted);
        }
        let now = NOW + ms(3_000) - ms(back);
        for &at in &taken {
            charge(&mut state, &quota, now, 1);
            refund(&mut state, &quota, now, at, 1);
        }
        assert_eq!(decide(&mut state, &quota, now, 0).used, 5, "back by {back}");
        refund(&mut state, &quota, now, now, 5);
        assert_eq!(decide(&mut state, &quota, now, 0).used, 0, "back by {back}");
    }
}

#[test]
fn a_record_has_at_most_65_groups() {
    let quota = Quota::new(100_000, Millis::from_secs(30), Algorithm::Concurrency);
    let mut state = ConcurrencyState::default();
    for n in 0..200_000 {
        charge(&mut state, &quota, NOW + ms(n), 1);
        assert!(state.groups.len() <= 65, "{}", state.groups.len());
    }
}
