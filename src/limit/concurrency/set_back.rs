//! Clocks that are set back: what live requests hold counts once, and never less.

use proptest::prelude::*;

use super::*;

const NOW: Millis = 1_700_000_000_000;

const WINDOW: Millis = 10_000;

/// A lease lasts no longer than this, unless the clock is set back again.
const LONGEST: Millis = WINDOW + WINDOW / 4 + WINDOW / 64 + 1;

#[derive(Clone, Debug)]
enum Step {
    Ask(u32),
    End(usize),
    /// A gateway ends, and nothing renews the lease any more.
    Die(usize),
    SetBack(Millis),
}

/// Slots of one request: when they were charged, by the clock and in time that really passed.
#[derive(Clone, Copy, Debug)]
struct Held {
    charged_at: Millis,
    since: Millis,
    slots: u32,
}

/// A record, the clock that it is read by, and what should be in it.
struct World {
    quota: Quota,
    state: State,
    /// Time that really passed.
    passed: Millis,
    clock: Millis,
    set_back: Millis,
    held: Vec<Held>,
    lost: Vec<Held>,
}

impl World {
    fn advance(&mut self, by: Millis) {
        self.passed += by;
        self.clock += by;
    }

    /// Lets time pass; each request renews its lease when a third of it is over.
    fn pass(&mut self, later: Millis) {
        let end = self.passed + later;
        while let Some(due) = (0..self.held.len()).min_by_key(|&at| self.held[at].since)
            && self.held[due].since + WINDOW / 3 <= end
        {
            self.advance((self.held[due].since + WINDOW / 3).saturating_sub(self.passed));
            let Held { charged_at, slots, .. } = self.held[due];
            charge(&mut self.state, &self.quota, self.clock, slots);
            refund(&mut self.state, &self.quota, self.clock, charged_at, slots);
            self.held[due] = Held { charged_at: self.clock, since: self.passed, slots };
        }
        self.advance(end - self.passed);
    }

    fn step(&mut self, step: &Step) -> Option<Decision> {
        let pick = |at: usize, held: &[Held]| at.checked_rem(held.len());
        match *step {
            Step::Ask(slots) => {
                let decision = admit(&mut self.state, &self.quota, self.clock, slots);
                if decision.admitted {
                    let (charged_at, since) = (self.clock, self.passed);
                    self.held.push(Held { charged_at, since, slots });
                }
                return Some(decision);
            }
            Step::End(at) => {
                if let Some(at) = pick(at, &self.held) {
                    let Held { charged_at, slots, .. } = self.held.swap_remove(at);
                    refund(&mut self.state, &self.quota, self.clock, charged_at, slots);
                }
            }
            Step::Die(at) => {
                if let Some(at) = pick(at, &self.held) {
                    self.lost.push(self.held.swap_remove(at));
                }
            }
            Step::SetBack(by) => {
                self.clock -= by;
                self.set_back = self.passed;
            }
        }
        None
    }

    /// Slots whose leases may last though they are no longer renewed.
    fn lost(&self) -> u64 {
        let lasts = |held: &&Held| held.since.max(self.set_back) + LONGEST > self.passed;
        self.lost.iter().filter(lasts).map(|held| u64::from(held.slots)).sum()
    }

    fn used(&mut self) -> u64 {
        decide(&mut self.state, &self.quota, self.clock, 0).used
    }
}

fn slots(held: &[Held]) -> u64 {
    held.iter().map(|held| u64::from(held.slots)).sum()
}

fn steps() -> impl Strategy<Value = Vec<(Millis, Step)>> {
    let later = prop_oneof![4 => 0_u64..3, 4 => 0_u64..1_500, 1 => 0_u64..12_000];
    let step = prop_oneof![
        6 => prop_oneof![4 => Just(1_u32), 1 => 1_u32..4].prop_map(Step::Ask),
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
    fn what_live_requests_hold_counts_once_and_never_less(
        limit in 1_u32..12, steps in steps()
    ) {
        let mut world = World {
            quota: Quota::new(limit, WINDOW, 1),
            state: State::default(),
            passed: 0,
            clock: NOW,
            set_back: 0,
            held: Vec::new(),
            lost: Vec::new(),
        };
        for (later, step) in steps {
            world.pass(later);
            let before = world.used();
            if let Some(decision) = world.step(&step) {
                let Step::Ask(slots) = step else { unreachable!("only requests ask") };
                prop_assert_eq!(decision.admitted, before + u64::from(slots) <= u64::from(limit));
            }
            let (used, held, lost) = (world.used(), slots(&world.held), world.lost());
            prop_assert!(held <= u64::from(limit));
            prop_assert!(used >= held, "{used} of {held} count: {:?}", world.state);
            prop_assert!(used <= held + lost, "{used} of {held} and {lost}: {:?}", world.state);
            prop_assert!(world.state.leases.len() <= 82);
        }
        world.pass(0);
        while !world.held.is_empty() {
            world.step(&Step::End(0));
        }
        prop_assert!(world.used() <= world.lost(), "all are given back");
        world.pass(LONGEST);
        prop_assert_eq!(world.used(), 0, "what was lost comes back");
    }
}

#[test]
fn a_renewal_after_the_clock_was_set_back_counts_once() {
    for back in [0, 100, 4_999, 5_001, 60_000, 1_000_000_000] {
        let (quota, mut state) = (Quota::new(10, WINDOW, 1), State::default());
        let taken: Vec<Millis> = (0..5).map(|n| NOW + 200 * n).collect();
        for &at in &taken {
            assert!(admit(&mut state, &quota, at, 1).admitted);
        }
        let now = NOW + 3_000 - back;
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
fn however_many_slots_are_held_a_record_is_as_long_as_a_lease_has_steps() {
    let quota = Quota::new(100_000, 30_000, 1);
    let mut state = State::default();
    for n in 0..200_000 {
        charge(&mut state, &quota, NOW + n, 1);
        assert!(state.leases.len() <= 65, "{}", state.leases.len());
    }
}
