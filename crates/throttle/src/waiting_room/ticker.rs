//! The exchange of a gateway with the shared state, once a second. Without Redis, a gateway
//! continues alone: it moves its own frontier over the tickets that it counts itself, by its share
//! of the free places.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use tidegate_base::time::{Millis, StoreTime};
use tidegate_redis::RedisFailure;

use super::{
    WaitingRoom,
    counts::{EpochCounts, IntervalCount},
    place::{EpochIndex, QueueTime, RoomEpoch, UnixSecond},
    state::{ProfilePoint, RoomCall, RoomReply, Seat, Standing},
    view::{RoomView, WaitBasis},
};

/// Time over which the rate of admissions is averaged.
const RATE_TIME: Millis = Millis::from_mins(5);

/// More gateways than any fleet has: a bound for a number that Redis returns.
const MAX_GATEWAYS: u64 = 1 << 16;

/// The smallest rate of admissions, a second.
const MIN_RATE: f64 = 1e-6;

/// Where the shared state is.
#[expect(async_fn_in_trait, reason = "one thread drives it, so the futures need not be `Send`")]
pub trait RoomStore {
    /// Exchanges once: one round trip with a timeout.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached or gives no valid reply.
    async fn exchange(&mut self, call: &RoomCall) -> Result<RoomReply, RedisFailure>;

    /// Lets users, whose turn it is, take places: one round trip with a timeout. `length` is that
    /// of an epoch. The seats are in the order of the `holders`.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached or gives no valid reply.
    async fn claim(&mut self, length: Millis, holders: &[u64]) -> Result<Vec<Seat>, RedisFailure>;
}

/// What a gateway knows at a tick.
#[derive(Clone, Copy, Debug)]
pub struct RoomTick {
    /// The time by the filters' clock.
    pub now: StoreTime,
    /// What the gateway does.
    pub standing: Standing,
    /// The estimated number of active users; `None` if it is not known.
    pub active: Option<u64>,
    /// The number of users that may be active.
    pub max_active: u64,
    /// Time for which a user stays active.
    pub memory: Millis,
    /// The longest head start.
    pub head_start: Millis,
}

/// Drives the waiting room of a process.
pub struct RoomTicker<S> {
    room: Arc<WaitingRoom>,
    /// `None` if this gateway is alone.
    store: Option<S>,
    /// Counts that were not sent yet, by epoch and second.
    unsent: BTreeMap<EpochIndex, BTreeMap<UnixSecond, u64>>,
    /// The counts of the previous epoch, to which a worker may still add.
    previous: Option<Arc<EpochCounts>>,
    /// The base of the next epoch.
    base: UnixSecond,
    /// The number of gateways at the last exchange.
    gateways: u64,
    rate: AdmissionRate,
}

impl<S: RoomStore> RoomTicker<S> {
    /// Drives `room`; `store` has the state that gateways share.
    pub fn new(room: Arc<WaitingRoom>, store: Option<S>) -> Self {
        let base = room.view().frontier().second();
        Self {
            room,
            store,
            unsent: BTreeMap::new(),
            previous: None,
            base,
            gateways: 1,
            rate: AdmissionRate::default(),
        }
    }

    /// Exchanges once, and publishes the result for the workers. Returns the reply of the shared
    /// state, or else this gateway's own.
    ///
    /// # Errors
    ///
    /// The shared state cannot be reached.
    pub async fn tick(&mut self, tick: RoomTick) -> Result<RoomReply, RedisFailure> {
        let epoch = RoomEpoch::at(UnixSecond::of(tick.now), self.room.settings.epoch_length());
        let call = RoomCall {
            epoch,
            counted: self.take_counts(epoch),
            standing: tick.standing,
            active: tick.active.filter(|_| !self.room.is_closed()),
            max_active: tick.max_active,
            frontier: self.room.view().frontier(),
            hold: self.room.settings.hold(),
            ask: self.room.settings.longest_pause(),
            entering: self.room.entering(),
            turned_away: self.room.turned_away.swap(0, Ordering::Relaxed),
            head_start: tick.head_start,
            share: self.gateways,
        };
        if self.store.is_none() {
            return Ok(self.exchange_alone(&call, &tick));
        }
        let shared = RoomCall { counted: self.add_unsent(&call), share: 1, ..call.clone() };
        let outcome = match &mut self.store {
            Some(store) => store.exchange(&shared).await,
            None => Err(RedisFailure::Io),
        };
        self.room.stats.calls.add(1);
        match &outcome {
            Ok(reply) => {
                self.unsent.clear();
                self.gateways = reply.gateways.clamp(1, MAX_GATEWAYS);
                // Only counts: this gateway admits no ticket by itself.
                let follow = RoomCall {
                    standing: Standing::Forced,
                    active: None,
                    frontier: reply.frontier,
                    ..call
                };
                let mut own = self.room.own.lock();
                own.exchange(&follow, tick.now);
                own.follow(reply.frontier);
                // It gives out its first own place when the users are known that others have
                // admitted.
                own.hold(tick.now + self.room.settings.hold());
                drop(own);
                self.rate.source = ReplySource::Shared;
                self.publish(reply, 1, &tick);
            }
            Err(failure) => {
                self.room.stats.count_failure(*failure);
                if self.room.view().is_synced() {
                    self.exchange_alone(&call, &tick);
                }
            }
        }
        outcome
    }

    /// Exchanges with this gateway's own state.
    fn exchange_alone(&mut self, call: &RoomCall, tick: &RoomTick) -> RoomReply {
        let reply = self.room.own.lock().exchange(call, tick.now);
        self.rate.source = ReplySource::Own;
        self.publish(&reply, call.share, tick);
        reply
    }

    /// Takes the counts of the workers in the epoch before `epoch` and in `epoch`, which begins if
    /// it has not yet.
    fn take_counts(&mut self, epoch: RoomEpoch) -> [Vec<IntervalCount>; 2] {
        let mut counted = [Vec::new(), Vec::new()];
        let mut take = |counts: &EpochCounts| {
            let taken = counts.take();
            match counts.epoch() {
                own if own == epoch => {
                    counted[0].extend(counts.take_early());
                    counted[1].extend(taken);
                }
                own if own == epoch.previous() => counted[0].extend(taken),
                // Their tickets ask again in this epoch.
                _ => {}
            }
        };
        if let Some(previous) = self.previous.take() {
            take(&previous);
        }
        let current = self.room.counts.load_full();
        take(&current);
        if current.epoch() != epoch {
            self.room.counts.store(Arc::new(EpochCounts::new(epoch, self.base)));
            self.previous = Some(current);
        }
        counted
    }

    /// Adds the counts of a call to the unsent ones. Returns all of them.
    fn add_unsent(&mut self, call: &RoomCall) -> [Vec<IntervalCount>; 2] {
        let epochs = [call.epoch.previous().index, call.epoch.index];
        self.unsent.retain(|index, _| epochs.contains(index));
        for (index, counts) in epochs.iter().zip(&call.counted) {
            let unsent = self.unsent.entry(*index).or_default();
            for IntervalCount { second, tickets } in counts {
                *unsent.entry(*second).or_default() += tickets;
            }
        }
        epochs.map(|index| {
            let unsent = self.unsent.get(&index).into_iter().flatten();
            unsent
                .map(|(second, tickets)| IntervalCount { second: *second, tickets: *tickets })
                .collect()
        })
    }

    /// Publishes a reply, whose tickets are those of one gateway among `share`.
    fn publish(&mut self, reply: &RoomReply, share: u64, tick: &RoomTick) {
        self.base = reply.base;
        let now = tick.now;
        let before = self.room.view();
        let passed = now.since(before.at);
        let usual = tick.max_active as f64 / tick.memory.max(Millis::MILLISECOND).as_secs_f64();
        let turns = TurnCount { turns: reply.turns, share };
        let rate = self.rate.next(turns, passed, usual);
        if reply.profile.is_empty() {
            self.rate.average = None;
            self.rate.basis = WaitBasis::Memory;
        }
        let all = |point: &ProfilePoint| ProfilePoint { tickets: point.tickets * share, ..*point };
        // Never ahead of the clock, which may be set back.
        self.room.view.store(Arc::new(RoomView {
            frontier: reply.frontier.min(QueueTime::at(now)),
            profile: reply.profile.iter().map(all).collect(),
            pending: reply.pending * share,
            turns: reply.turns,
            rate: rate.max(MIN_RATE),
            basis: self.rate.basis,
            memory: tick.memory,
            is_synced: true,
            is_shared: self.rate.source == ReplySource::Shared,
            is_demanded: reply.is_demanded(),
            at: now,
        }));
    }
}

/// The source of a reply.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum ReplySource {
    #[default]
    Shared,
    Own,
}

/// The average number of tickets that are admitted in a second.
#[derive(Debug)]
struct AdmissionRate {
    source: ReplySource,
    /// The number of turns at the last tick, and its source.
    turns: Option<(ReplySource, u64)>,
    /// `None` before the first tick.
    average: Option<f64>,
    /// What the average is.
    basis: WaitBasis,
}

impl Default for AdmissionRate {
    fn default() -> Self {
        let source = ReplySource::default();
        Self { source, turns: None, average: None, basis: WaitBasis::Memory }
    }
}

impl AdmissionRate {
    /// The average, a time of `passed` after the last tick. It begins at `usual` when tickets begin
    /// to wait.
    fn next(&mut self, count: TurnCount, passed: Millis, usual: f64) -> f64 {
        let TurnCount { turns, share } = count;
        let before = self.turns.replace((self.source, turns));
        let before = before.filter(|(source, _)| *source == self.source && !passed.is_zero());
        let average = self.average.unwrap_or(usual);
        let average = before.map_or(average, |(_, before)| {
            let seconds = passed.as_secs_f64();
            let current = turns.saturating_sub(before) as f64 * share as f64 / seconds;
            if turns > before {
                self.basis = WaitBasis::Measured;
            }
            average + (current - average) * (1.0 - (-seconds / RATE_TIME.as_secs_f64()).exp())
        });
        self.average = Some(average);
        average
    }
}

/// The tickets whose turn has come at one gateway among `share`.
#[derive(Clone, Copy)]
struct TurnCount {
    turns: u64,
    share: u64,
}
