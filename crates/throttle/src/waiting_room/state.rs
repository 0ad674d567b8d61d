//! The state that gateways share: how many tickets wait in which interval of places, and the
//! frontier, up to which tickets are admitted. Pure: the time is a parameter.
//! `lua/waiting_room.lua` is its twin in Redis.
//!
//! Once a second, for all gateways together, the frontier moves over as many counted tickets as
//! fill the free places: `max_active`, less the active users, less the places that were taken
//! lately, whose users may not be among the active ones yet. It never moves back. A user up to the
//! frontier takes a place when it asks (`seats`).

mod exchange;
mod seats;

use std::collections::BTreeMap;

pub use self::{
    exchange::{ProfilePoint, RoomCall, RoomReply, Standing},
    seats::Seat,
};
use tidegate_base::time::{Millis, StoreTime};

use self::{
    exchange::REPORT_VALID,
    seats::{SeatStep, Seats},
};
use super::{
    counts::IntervalCount,
    place::{EpochIndex, FIRST_NEW, QueueTime, RoomEpoch, UnixSecond},
};

/// Time between two moves of the frontier.
const STEP: Millis = Millis::from_secs(1);

/// Time for which counts of tickets may be on their way. The frontier does not pass younger
/// tickets.
const SETTLE: Millis = Millis::from_secs(3);

/// Time without an exchange after which counts may be missing, and gateways may have given out
/// places alone.
const GAP: Millis = Millis::from_secs(5);

/// Each point of a profile has this many times the tickets of the one before it.
const POINT_GROWTH: f64 = 1.1;

/// The tickets that were counted in an epoch.
#[derive(Clone, Debug)]
struct EpochTable {
    base: UnixSecond,
    /// By the ids of intervals.
    counts: BTreeMap<u64, u64>,
}

/// An interval of places with waiting tickets. It ends before `end`.
struct PlaceInterval {
    first: UnixSecond,
    end: UnixSecond,
    /// As in Lua, because the frontier passes parts of it.
    tickets: f64,
}

/// Whom a step of the frontier admits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum StepAdmits {
    /// All users: no gateway throttles.
    AllUsers,
    /// As many users as places are free.
    ByFreePlaces,
}

/// What a move of the frontier found.
struct FrontierMove {
    /// The number of tickets that the frontier has passed.
    passed: u64,
    /// The first second with waiting tickets; `None` if no ticket waits.
    first_waiting: Option<UnixSecond>,
}

/// The shared state.
///
/// Its twin in Redis makes the same steps. Counts and times are whole numbers below 2^53; parts of
/// tickets and of places are `f64`. The numbers of Lua are doubles, so both twins compute the same
/// as long as they do the same operations in the same order.
#[derive(Clone, Debug, Default)]
pub struct RoomState {
    /// False until the first exchange.
    exists: bool,
    frontier: QueueTime,
    /// The newest epoch of an exchange.
    epoch: EpochIndex,
    /// From this epoch on, the counts are complete.
    complete_from: EpochIndex,
    /// The epoch to which `next_base` belongs.
    next_epoch: EpochIndex,
    next_base: UnixSecond,
    moved_at: StoreTime,
    /// No place is given out before this time.
    held_until: StoreTime,
    throttled_at: StoreTime,
    demanded_at: StoreTime,
    calm_at: StoreTime,
    /// The largest number of active users that was reported since the last step.
    active: Option<u64>,
    calls: u64,
    gateways: u64,
    turns: u64,
    pending: u64,
    seats: Seats,
    tables: BTreeMap<EpochIndex, EpochTable>,
    profile: Vec<ProfilePoint>,
}

impl RoomState {
    /// Exchanges with a gateway at `now`.
    pub fn exchange(&mut self, call: &RoomCall, now: StoreTime) -> RoomReply {
        self.begin(call, now);
        for (epoch, counts) in [call.epoch.previous(), call.epoch].into_iter().zip(&call.counted) {
            self.add(epoch, counts);
        }
        self.calls += 1;
        self.seats.report(call, now);
        self.active = self.active.max(call.active);
        let admitted = self.report(call.standing, now);
        // A clock that was set back does not stop the frontier.
        let is_due = now.checked_since(self.moved_at).is_none_or(|passed| passed >= STEP);
        if is_due && self.epoch == call.epoch.index {
            self.step(call, now, admitted);
        }
        RoomReply {
            frontier: self.frontier,
            base: self.base_after(call.epoch),
            demanded_at: self.demanded_at,
            calm_at: self.calm_at,
            now,
            gateways: self.gateways,
            turns: self.turns,
            pending: self.pending,
            profile: self.profile.clone(),
        }
    }

    /// Adopts the frontier of another state.
    pub fn follow(&mut self, frontier: QueueTime) {
        self.frontier = frontier;
    }

    /// Lets each of `holders`, whose turn it is, take a place if one is free.
    pub fn claim(&mut self, holders: &[u64], now: StoreTime) -> Vec<Seat> {
        self.seats.claim(holders, now, self.moved_at)
    }

    /// Gives out no place before `until`.
    pub fn hold(&mut self, until: StoreTime) {
        self.held_until = self.held_until.max(until);
    }

    fn begin(&mut self, call: &RoomCall, now: StoreTime) {
        if !self.exists {
            // A gateway that throttles since an earlier epoch has given out tickets. A state that
            // was lost counts all of them before it admits any.
            let is_throttling = matches!(call.standing, Standing::Forced | Standing::Demanded);
            let is_lost = is_throttling && call.frontier.second() < call.epoch.start();
            *self = Self {
                exists: true,
                frontier: call.frontier,
                complete_from: if is_lost { call.epoch.index.after(2) } else { EpochIndex(0) },
                ..Self::default()
            };
        }
        // Never ahead of the clock, which may be set back.
        self.frontier = self.frontier.min(QueueTime::at(now));
        let index = call.epoch.index;
        self.epoch = if self.epoch > index.after(1) { index } else { self.epoch.max(index) };
        let oldest = self.epoch.before(3);
        self.tables.retain(|index, _| *index >= oldest);
        self.add(call.epoch, &[]);
    }

    /// Adds counts to the table of an epoch, which is created if it is missing.
    fn add(&mut self, epoch: RoomEpoch, counts: &[IntervalCount]) {
        let is_next = self.next_epoch == epoch.index;
        let base = if is_next { self.next_base } else { self.frontier.second() };
        let new = EpochTable { base, counts: BTreeMap::new() };
        let table = self.tables.entry(epoch.index).or_insert(new);
        for count in counts {
            *table.counts.entry(epoch.id(table.base, count.second)).or_default() += count.tickets;
        }
    }

    /// Records what a gateway reports. Returns whom a step is to admit.
    fn report(&mut self, standing: Standing, now: StoreTime) -> StepAdmits {
        match standing {
            Standing::Silent => {}
            Standing::Calm => {
                let passed = now.checked_since(self.throttled_at);
                if passed.is_none_or(|passed| passed > REPORT_VALID) {
                    return StepAdmits::AllUsers;
                }
            }
            Standing::Forced => self.throttled_at = now,
            Standing::Demanded => (self.throttled_at, self.demanded_at) = (now, now),
        }
        StepAdmits::ByFreePlaces
    }

    fn step(&mut self, call: &RoomCall, now: StoreTime, admitted: StepAdmits) {
        let gap = now.since(self.moved_at);
        if self.moved_at > StoreTime::ZERO && gap > GAP {
            self.held_until = now + gap.min(call.hold);
            self.seats.forget_shares();
        }
        self.moved_at = now;
        // A clock that was set back ends a hold.
        self.held_until = self.held_until.min(now + call.hold);
        (self.gateways, self.calls) = (self.calls, 0);
        let entering = self.seats.begin(SeatStep { now, gap, ask: call.ask });
        let active = self.active.take();
        if admitted == StepAdmits::AllUsers {
            self.calm_at = now;
            self.frontier = self.frontier.max(QueueTime::of_second(earliest(call, now)));
        }
        let is_settled = now >= call.epoch.start().time() + SETTLE;
        let has_counts = self.has_counts(call, now);
        let free = match active {
            Some(active) if has_counts && admitted == StepAdmits::ByFreePlaces => {
                // Without the shared state, a gateway fills its part of all places: it cannot see
                // what others admit.
                let places = call.max_active as f64 / call.share.max(1) as f64;
                Some((places - active as f64 - entering as f64).max(0.0))
            }
            _ => None,
        };
        let wanted = self.seats.give_out(free);
        let wanted = if is_settled { wanted } else { 0.0 };
        let FrontierMove { passed, first_waiting } = self.move_frontier(call, wanted, now);
        self.set_next_base(call, first_waiting, now);
        self.turns += passed;
        self.seats.pass(passed, now);
        let expected = self.seats.expected();
        self.pending = entering + expected.min(free.unwrap_or(expected)).ceil() as u64;
    }

    /// True if all waiting tickets are counted.
    fn has_counts(&self, call: &RoomCall, now: StoreTime) -> bool {
        call.epoch.index >= self.complete_from && now >= self.held_until
    }

    /// Moves the frontier over at most `wanted` waiting tickets that are settled at `now`, and makes
    /// the profile of the others.
    fn move_frontier(&mut self, call: &RoomCall, wanted: f64, now: StoreTime) -> FrontierMove {
        let (epoch, settled) = (call.epoch, UnixSecond::of(now.before(SETTLE)));
        let intervals = self.intervals(epoch);
        let (mut left, mut waiting, mut shown) = (wanted, 0.0_f64, 0.0_f64);
        let mut first_waiting = None;
        let mut last = UnixSecond::default();
        self.profile.clear();
        for PlaceInterval { first, end, tickets } in intervals {
            let (first_place, end_place) = (QueueTime::of_second(first), QueueTime::of_second(end));
            if end_place <= self.frontier || tickets <= 0.0 {
                continue;
            }
            let width = end_place.distance_from(first_place);
            let low = first_place.max(self.frontier);
            let mut rest = tickets * end_place.distance_from(low) / width;
            if left > 0.0 && end <= settled {
                if rest <= left {
                    left -= rest;
                    self.frontier = end_place;
                    rest = 0.0;
                } else {
                    self.frontier = low.advanced(left * width / tickets);
                    left = 0.0;
                    rest = tickets * end_place.distance_from(self.frontier) / width;
                }
            }
            if rest > 0.0 {
                first_waiting.get_or_insert(first);
                waiting += rest;
                last = end;
                if waiting >= shown * POINT_GROWTH + 1.0 {
                    shown = waiting;
                    let tickets = waiting.floor() as u64;
                    self.profile.push(ProfilePoint { second: end, tickets });
                }
            }
        }
        if waiting > shown && waiting >= 1.0 {
            let tickets = waiting.floor() as u64;
            self.profile.push(ProfilePoint { second: last, tickets });
        }
        FrontierMove { passed: (wanted - left).ceil() as u64, first_waiting }
    }

    /// Sets the base of the next epoch, unless it is set. `first_waiting` is the first second with
    /// waiting tickets.
    fn set_next_base(
        &mut self,
        call: &RoomCall,
        first_waiting: Option<UnixSecond>,
        now: StoreTime,
    ) {
        let next_epoch = call.epoch.index.after(1);
        if self.next_epoch == next_epoch {
            return;
        }
        let front = self.frontier.second();
        self.next_epoch = next_epoch;
        // While counts are missing, older tickets may wait than the first that was counted.
        let first = first_waiting.filter(|_| self.has_counts(call, now)).unwrap_or(front);
        self.next_base = first.min(earliest(call, now)).max(front);
    }

    /// The intervals with waiting tickets, in the order of places: what the epoch before counted,
    /// whose tickets ask again in this one, and the new tickets of this one.
    fn intervals(&self, epoch: RoomEpoch) -> Vec<PlaceInterval> {
        let mut intervals = Vec::new();
        for (epoch, from) in [(epoch.previous(), 0), (epoch, FIRST_NEW)] {
            let Some(table) = self.tables.get(&epoch.index) else { continue };
            for (id, tickets) in table.counts.range(from..) {
                let seconds = epoch.seconds(table.base, *id);
                let tickets = *tickets as f64;
                intervals.push(PlaceInterval { first: seconds.start, end: seconds.end, tickets });
            }
        }
        intervals
    }

    /// The base of the epoch after `epoch`, as far as it is known.
    fn base_after(&self, epoch: RoomEpoch) -> UnixSecond {
        let is_known = self.next_epoch == epoch.index.after(1);
        if is_known { self.next_base } else { self.frontier.second() }
    }
}

/// The first second, before `now`, that a new ticket may have as its place.
fn earliest(call: &RoomCall, now: StoreTime) -> UnixSecond {
    UnixSecond::of(now.before(call.head_start))
}

#[cfg(test)]
mod tests;
