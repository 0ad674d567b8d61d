//! The places that users take when they ask, and how far the frontier moves for them.
//!
//! A place is taken by a user that asks, never given to one that may have left. So the frontier may
//! pass more tickets than places are free: as many as fill the places, by the share of passed users
//! who came lately. The places are promised to them for as long as they may take to ask, even if
//! estimates of the active users rise meanwhile.

use std::collections::BTreeMap;

use ahash::RandomState;
use hashbrown::HashMap;

use super::{Millis, RoomCall, StoreTime, UnixSecond};
use crate::waiting_room::settings::{KNOWN_ELSEWHERE, TURN_RETRY};

/// The period by which places taken and refused are counted.
const SECOND: Millis = Millis::from_secs(1);

/// Number of periods of the time within which passed users ask.
const PERIODS: u64 = 16;

/// The time over which averages are taken, in times within which passed users ask.
const MEMORY: u64 = 8;

/// The smallest share of passed users that is taken to ask.
const MIN_SHARE: f64 = 1.0 / 1024.0;

/// A ticket in averages: they are kept in millionths.
const ONE: u64 = 1_000_000;

/// Time without a step after which no place is given out.
const MAX_AGE: Millis = Millis::from_secs(5);

/// The shortest period.
const SHORTEST: Millis = Millis::MILLISECOND;

/// The answer to a user that asks for a place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Seat {
    /// None is free.
    None,
    /// The user takes one.
    Taken,
    /// The user took one a few seconds ago, which is still kept for it.
    Kept,
}

/// The number of a period, counted from the Unix epoch.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct PeriodIndex(u64);

impl PeriodIndex {
    /// The period of this length that contains `time`.
    fn of(time: StoreTime, length: Millis) -> Self {
        Self(time.since(StoreTime::ZERO) / length)
    }

    /// True if it ended `count` periods before `now` began.
    fn has_ended(self, now: Self, count: u64) -> bool {
        self.0 + count < now.0
    }
}

/// Numbers by period.
#[derive(Clone, Debug, Default)]
struct Periods(BTreeMap<PeriodIndex, u64>);

impl Periods {
    fn add(&mut self, at: PeriodIndex, number: u64) {
        if number > 0 {
            *self.0.entry(at).or_default() += number;
        }
    }

    fn sum(&self) -> u64 {
        self.0.values().sum()
    }

    /// Subtracts `number`, from the oldest periods first, as far as there is any.
    fn subtract_oldest(&mut self, mut number: u64) {
        while number > 0
            && let Some(mut oldest) = self.0.first_entry()
        {
            let subtracted = number.min(*oldest.get());
            *oldest.get_mut() -= subtracted;
            number -= subtracted;
            if *oldest.get() == 0 {
                oldest.remove();
            }
        }
    }

    /// Forgets the periods after `now`, and the ones that ended `count` periods ago. Returns the
    /// sum of the latter.
    fn forget(&mut self, now: PeriodIndex, count: u64) -> u64 {
        let mut ended = 0;
        self.0.retain(|at, number| {
            let has_ended = at.has_ended(now, count);
            ended += if has_ended { *number } else { 0 };
            !has_ended && *at <= now
        });
        ended
    }
}

/// What a step of the frontier has to know.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeatStep {
    /// The time of the step.
    pub(super) now: StoreTime,
    /// Time since the last step.
    pub(super) gap: Millis,
    /// The time within which a waiting user asks again.
    pub(super) ask: Millis,
}

/// The places that users may take. Free places and shares are `f64` in its steps, as the numbers of
/// Lua are: see [`RoomState`](super::RoomState).
#[derive(Clone, Debug, Default)]
pub(super) struct Seats {
    /// Places that may be taken until the next step.
    free: u64,
    /// Places taken, by second.
    taken: Periods,
    /// Requests for a place when none was free, by second.
    refused: Periods,
    /// Tickets that the frontier has passed, millionths of places that were promised to them and
    /// not taken yet, and places taken, by a 16th of the time within which users ask.
    passed: Periods,
    promised: Periods,
    came: Periods,
    period_length: Millis,
    /// Averages, in millionths, of the passed tickets and the places taken of earlier periods.
    average_passed: u64,
    average_came: u64,
    /// Users whose first request is in flight, as reported since the last step, and before it.
    entering: [u64; 2],
    /// The users for whom places are kept, and the second in which each took it.
    holders: HashMap<u64, UnixSecond, RandomState>,
}

impl Seats {
    /// Adds what a gateway reports at `now`.
    pub(super) fn report(&mut self, call: &RoomCall, now: StoreTime) {
        self.entering[0] += call.entering;
        self.refused.add(PeriodIndex::of(now, SECOND), call.turned_away);
    }

    /// Lets each of `holders` take a place at `now`, if one is free. `moved_at` is the time of the
    /// last step.
    pub(super) fn claim(
        &mut self,
        holders: &[u64],
        now: StoreTime,
        moved_at: StoreTime,
    ) -> Vec<Seat> {
        let second = UnixSecond::of(now);
        self.holders.retain(|_, at| at.after(KNOWN_ELSEWHERE) >= second);
        if now.since(moved_at) <= MAX_AGE {
            return holders.iter().map(|holder| self.claim_one(*holder, now)).collect();
        }
        let free = std::mem::take(&mut self.free);
        let seats = holders.iter().map(|holder| self.claim_one(*holder, now)).collect();
        self.free = free;
        seats
    }

    fn claim_one(&mut self, holder: u64, now: StoreTime) -> Seat {
        let (second, period) = (UnixSecond::of(now), PeriodIndex::of(now, SECOND));
        if self.holders.get(&holder).is_some_and(|at| *at <= second) {
            return Seat::Kept;
        }
        if self.free == 0 {
            self.refused.add(period, 1);
            return Seat::None;
        }
        self.free -= 1;
        self.taken.add(period, 1);
        self.came.add(self.asking_period(now), 1);
        self.promised.subtract_oldest(ONE);
        self.holders.insert(holder, second);
        Seat::Taken
    }

    /// Forgets who was passed and who came: after an outage, users who were passed have asked
    /// elsewhere.
    pub(super) fn forget_shares(&mut self) {
        (self.passed, self.promised, self.came) = Default::default();
        (self.average_passed, self.average_came) = (0, 0);
    }

    /// Begins a step. Returns the places of users who may not be active yet.
    pub(super) fn begin(&mut self, step: SeatStep) -> u64 {
        self.period_length = Millis::from_ms(step.ask.as_ms().div_ceil(PERIODS)).max(SHORTEST);
        let second = PeriodIndex::of(step.now, SECOND);
        let period = self.asking_period(step.now);
        let span = (step.ask * MEMORY).max(SHORTEST);
        let (gap, span) = (step.gap.min(span).as_ms() as f64, span.as_ms() as f64);
        let decay = |average: u64| {
            let lost = average as f64 * gap / span;
            average - (lost.floor() as u64).min(average)
        };
        self.average_passed =
            decay(self.average_passed) + self.passed.forget(period, PERIODS) * ONE;
        self.average_came = decay(self.average_came) + self.came.forget(period, PERIODS) * ONE;
        self.promised.forget(period, PERIODS);
        self.refused.forget(second, TURN_RETRY / SECOND);
        self.taken.forget(second, KNOWN_ELSEWHERE / SECOND);
        let entering = self.entering[0].max(self.entering[1]);
        self.entering = [0, self.entering[0]];
        self.taken.sum() + entering
    }

    /// Gives out `free` places; `None` gives out none, not even promised ones. Returns how many
    /// tickets the frontier may pass.
    pub(super) fn give_out(&mut self, free: Option<f64>) -> f64 {
        let Some(free) = free else {
            self.free = 0;
            return 0.0;
        };
        self.free = (free.floor() as u64).max(self.promised.sum() / ONE);
        ((free - self.expected()).max(0.0) / self.share()).floor()
    }

    /// Records that the frontier has passed `tickets` in the step at `now`.
    pub(super) fn pass(&mut self, tickets: u64, now: StoreTime) {
        let period = self.asking_period(now);
        self.promised.add(period, (tickets as f64 * self.share() * ONE as f64).floor() as u64);
        self.passed.add(period, tickets);
    }

    /// The period at `now` of the time within which users ask.
    fn asking_period(&self, now: StoreTime) -> PeriodIndex {
        PeriodIndex::of(now, self.period_length.max(SHORTEST))
    }

    /// The number of users who are expected to ask for a place.
    pub(super) fn expected(&self) -> f64 {
        self.refused.sum() as f64 + self.promised.sum() as f64 / ONE as f64
    }

    /// The share of passed users who come. Users who came lately count in full, although not all
    /// who were passed with them had time to come: too high a share leaves a place empty for a
    /// while, too low a one lets users overtake.
    fn share(&self) -> f64 {
        let lately = self.came.sum() + self.refused.sum() + 1;
        let asked = (self.average_came + lately * ONE) as f64;
        (asked / (self.average_passed + ONE) as f64).clamp(MIN_SHARE, 1.0)
    }
}
