//! How gateways tell each other whom they saw: once a second, through Redis, under optimistic locking.
//!
//! Each minute has one value in Redis: the union of what gateways recorded in it. A gateway takes in
//! what is there, and where something is missing writes the union back, unless another gateway wrote
//! in between: then it gives up until its next tick. The minute stays *dirty* until it is written, also
//! when it has ended, so giving up delays and never loses.
//!
//! What is held true: **a minute that is not dirty has nothing that its known version in Redis has
//! not.** Recording marks the minute in the filter after its bits, and the mark is taken before they
//! are read; a version is known only after its bits were taken in, or were written from here.
//!
//! A tick makes at most [`CALLS_A_TICK`] calls, whatever the traffic.

mod exchange;
mod minutes;
mod stats;

use std::{sync::Arc, time::Duration};

use self::minutes::Minutes;
pub use self::{
    exchange::{Commit, Exchange, Read, Time, Version},
    stats::{REFUSALS, Stats, label},
};
use super::{
    Filter, Geometry,
    geometry::Millis,
    payload::{self, Refusal},
};
use crate::store::Failure;

/// Minutes before the previous one that a tick looks at to write them, at most. With one that it looks
/// at by rotation they are all, so an outage is made up for slowly: a minute has megabytes.
const OLDER: usize = 2;

/// Minutes that a tick writes, at most.
const COMMITS: usize = 2 + OLDER;

/// Calls of [`Exchange`] that a tick makes, at most: the time, the current and the previous minute
/// and older ones, writes. In a quiet time there are four: time, current, previous, and one older.
pub const CALLS_A_TICK: usize = 1 + 2 + (OLDER + 1) + COMMITS;

/// How long Redis keeps a minute beyond its time in memory.
const SPARE: Duration = Duration::from_mins(10);

/// The length of a slot in which there is one tick, in ms.
const SLOT: Millis = 1_000;

/// When the tick of the slot number `slot` is, in ms since the Unix epoch: at a place that `dice` (32
/// random bits, drawn anew for each) gives. Gateways that tick at a fixed distance from each other
/// would meet each time or never.
pub fn next_tick(slot: u64, dice: u32) -> Millis {
    slot * SLOT + ((u64::from(dice) * SLOT) >> 32)
}

/// What came of a tick or of a load that has done all that it had to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Synced {
    /// Redis' time as the tick began, in ms since the Unix epoch.
    pub now: Millis,
    /// By how much Redis' clock is ahead of this machine's, in ms.
    pub ahead: i64,
    /// Live minutes of which something is still to be written.
    pub pending: usize,
}

/// One gateway's part in it, for one filter. The thread that turns the filter drives it.
pub struct Sync {
    stats: Arc<Stats>,
    minutes: Minutes,
    loaded: bool,
    /// The number of the tick.
    tick: u64,
    /// Older minutes to look at without delay, because others may have changed them.
    hurry: usize,
    /// Whether the last tick failed.
    lost: bool,
}

/// What a tick may still do.
struct Budget {
    commits: usize,
    /// Redis answers, and refuses to write.
    refusal: Option<Failure>,
}

impl Sync {
    /// For a filter in which nothing was recorded that others should know.
    pub fn new(stats: Arc<Stats>) -> Self {
        Self { stats, minutes: Minutes::default(), loaded: false, tick: 0, hurry: 0, lost: false }
    }

    /// Whether all that Redis had to tell was loaded, as far as it could be read.
    pub fn is_loaded(&self) -> bool {
        self.loaded
    }

    /// Whether `filter` knows all that Redis had to tell: everything was loaded, and all of it could be
    /// read, or has left memory since.
    pub fn is_complete(&self, filter: &Filter) -> bool {
        let live = filter.live();
        self.loaded && !self.minutes.among(live).any(|minute| minute.missing)
    }

    /// Whether others may have told Redis something since a failure that was not looked at yet: the
    /// last tick failed, or the round of looks after that is not over.
    pub fn is_behind(&self) -> bool {
        self.lost || self.hurry > 0
    }

    /// Takes in every live minute, newest first. To be repeated until it succeeds; only then tick.
    pub async fn load(
        &mut self,
        filter: &Filter,
        exchange: &mut impl Exchange,
    ) -> Result<Synced, Failure> {
        let outcome = self.try_load(filter, exchange).await;
        self.settle(filter, &outcome);
        outcome
    }

    async fn try_load(
        &mut self,
        filter: &Filter,
        exchange: &mut impl Exchange,
    ) -> Result<Synced, Failure> {
        let synced = self.begin(exchange).await?;
        for index in filter.live().rev() {
            self.read(filter, exchange, index).await?;
            // Unpacking takes its time, and this thread has other things to do.
            tokio::task::yield_now().await;
        }
        self.loaded = true;
        Ok(synced)
    }

    /// One exchange: takes in what is new in Redis, and writes what is missing there.
    ///
    /// # Errors
    ///
    /// The first failure. What was not written stays dirty; what was read is known.
    pub async fn tick(
        &mut self,
        filter: &Filter,
        exchange: &mut impl Exchange,
    ) -> Result<Synced, Failure> {
        let outcome = self.try_tick(filter, exchange).await;
        self.settle(filter, &outcome);
        outcome
    }

    async fn try_tick(
        &mut self,
        filter: &Filter,
        exchange: &mut impl Exchange,
    ) -> Result<Synced, Failure> {
        let mut synced = self.begin(exchange).await?;
        let live = filter.live();
        let (oldest, current) = (*live.start(), *live.end());
        for index in live.clone() {
            self.minutes.at(index).dirty |= filter.take_changed(index);
        }
        let mut budget = Budget { commits: COMMITS, refusal: None };
        for index in (oldest..=current).rev().take(2) {
            self.visit(filter, exchange, index, &mut budget).await?;
        }
        let at_least = if self.hurry > 0 { OLDER + 1 } else { 0 };
        for index in self.minutes.choose(oldest..=current.saturating_sub(2), OLDER, at_least) {
            self.visit(filter, exchange, index, &mut budget).await?;
            self.hurry = self.hurry.saturating_sub(1);
        }
        if live.count() <= 2 {
            self.hurry = 0;
        }
        if let Some(failure) = budget.refusal {
            return Err(failure);
        }
        let unwritten = self.minutes.among(filter.live()).filter(|minute| minute.dirty);
        synced.pending = unwritten.count();
        Ok(synced)
    }

    async fn begin(&mut self, exchange: &mut impl Exchange) -> Result<Synced, Failure> {
        self.tick += 1;
        self.stats.ticks.add(1);
        let Time { now, ahead } = exchange.time().await?;
        Ok(Synced { now, ahead, pending: 0 })
    }

    /// Reads a minute, and writes it if it is dirty then.
    async fn visit(
        &mut self,
        filter: &Filter,
        exchange: &mut impl Exchange,
        index: u64,
        budget: &mut Budget,
    ) -> Result<(), Failure> {
        let is_absent = self.read(filter, exchange, index).await?;
        let tick = self.tick;
        let minute = self.minutes.at(index);
        if !minute.dirty || minute.foreign || budget.commits == 0 || budget.refusal.is_some() {
            return Ok(());
        }
        // Out of memory since it was read: nobody needs it any more.
        let Some(bits) = filter.cut(index) else { return Ok(()) };
        if is_absent && bits.iter().all(|&byte| byte == 0) {
            minute.dirty = false;
            return Ok(());
        }
        let geometry = filter.geometry();
        let payload = payload::encode(geometry, filter.seed(), &bits);
        if is_saturated(filter, &payload) {
            // The others would refuse it, and write theirs, and so on without end.
            minute.dirty = false;
            return Ok(());
        }
        budget.commits -= 1;
        minute.tried = tick;
        let expected = minute.known.map(|version| version.ts);
        let number = geometry.minute(index);
        match exchange.commit(number, expected, &payload, time_to_live(geometry)).await {
            Ok(Commit::Done(ts)) => {
                self.stats.commits.add(1);
                let minute = self.minutes.at(index);
                minute.known = Some(Version { ts, len: payload.len() as u64 });
                (minute.dirty, minute.tried) = (false, 0);
            }
            Ok(Commit::Conflict) => self.stats.conflicts.add(1),
            // It may still answer who reads.
            Err(Failure::Server) => budget.refusal = Some(Failure::Server),
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    /// Takes in what Redis has of a minute. Says whether that was nothing.
    async fn read(
        &mut self,
        filter: &Filter,
        exchange: &mut impl Exchange,
        index: u64,
    ) -> Result<bool, Failure> {
        let geometry = filter.geometry();
        let (number, longest) = (geometry.minute(index), payload::max_len(geometry));
        let known = self.minutes.at(index).known;
        match exchange.read(number, known, longest).await? {
            Read::Unchanged => {}
            Read::Absent => {
                if known.is_some() {
                    // It was evicted, or Redis was emptied: other minutes may be gone as well.
                    self.hurry = filter.live().count();
                }
                let minute = self.minutes.at(index);
                minute.dirty |= known.is_some();
                (minute.known, minute.foreign) = (None, false);
                return Ok(true);
            }
            Read::Refused(refusal, version) => self.refuse(index, refusal, version),
            Read::Value(version, payload) => {
                match payload::decode(geometry, filter.seed(), &payload) {
                    Err(refusal) => self.refuse(index, refusal, Some(version)),
                    Ok(bits) => {
                        let Some(merged) = filter.merge(index, &bits) else { return Ok(false) };
                        let minute = self.minutes.at(index);
                        minute.known = Some(version);
                        minute.dirty = merged.lacked > 0;
                        (minute.foreign, minute.missing) = (false, false);
                    }
                }
            }
        }
        Ok(false)
    }

    /// A value that cannot be used. It is replaced by what is known here, be that nothing: those who
    /// know more then see a new version, and add to it. Only what gateways of another configuration
    /// wrote is left to them.
    fn refuse(&mut self, index: u64, refusal: Refusal, version: Option<Version>) {
        self.stats.refuse(refusal);
        let missing = !self.loaded;
        let minute = self.minutes.at(index);
        let foreign = matches!(refusal, Refusal::Geometry | Refusal::Seed);
        // What was there of ours is not any more.
        minute.dirty |= !foreign || (minute.known.is_some() && !minute.foreign);
        (minute.known, minute.foreign) = (version, foreign);
        minute.missing |= missing;
    }

    /// Counts what came of it, and says once that Redis is lost or back.
    fn settle(&mut self, filter: &Filter, outcome: &Result<Synced, Failure>) {
        match outcome {
            Ok(synced) => {
                if std::mem::replace(&mut self.lost, false) {
                    tracing::info!("Redis is back: the throttle's filters are shared again");
                }
                self.stats.succeeded(synced.now);
            }
            Err(failure) => {
                self.stats.failed(*failure);
                self.hurry = filter.live().count();
                if !std::mem::replace(&mut self.lost, true) {
                    let failure = failure.label();
                    tracing::warn!(failure, "Redis is lost: the throttle's filters are not shared");
                }
            }
        }
    }
}

/// Whether `payload`, written here, would be refused because it says nothing of anybody.
fn is_saturated(filter: &Filter, payload: &[u8]) -> bool {
    let geometry = filter.geometry();
    // What is that full does not get shorter; so what was packed need not be unpacked.
    payload.len() == payload::max_len(geometry)
        && payload::decode(geometry, filter.seed(), payload) == Err(Refusal::Saturated)
}

/// How long Redis keeps a minute after a commit: as long as any gateway remembers it, and some more.
fn time_to_live(geometry: &Geometry) -> Duration {
    let live = geometry.generation * (u64::from(geometry.memory) + 1);
    Duration::from_millis(live) + SPARE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_is_anywhere_in_its_slot_and_nowhere_else() {
        assert_eq!(next_tick(7, 0), 7_000);
        assert_eq!(next_tick(7, u32::MAX / 2), 7_499);
        assert_eq!(next_tick(7, u32::MAX), 7_999);
    }

    #[test]
    fn redis_keeps_a_minute_longer_than_any_gateway() {
        let geometry = Geometry { bits: 8, hashes: 1, generation: 1_200_000, memory: 30 };
        assert_eq!(time_to_live(&geometry), Duration::from_mins(31 * 20 + 10));
    }
}
