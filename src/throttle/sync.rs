//! Shares the filters between gateways: once a second, through Redis, with optimistic locking.
//!
//! Each generation has one payload in Redis: the union of the bits that the gateways recorded in it. A
//! gateway merges this payload into its filter. If the payload lacks bits, the gateway writes the union back.
//! If another gateway has written in between, it retries in its next tick. The generation stays *dirty* until
//! it is written, even after it has ended, so a conflict delays bits but never loses them.
//!
//! Invariant: **a generation that is not dirty has no bit that its known version in Redis lacks.** Recording
//! marks the generation in the filter after it sets the bits, and the mark is taken before the bits are read.
//! A version becomes known only after its bits were merged or written here.
//!
//! Gateways with filters of different sizes share them: each writes payloads of its own size and converts the
//! others' ([`payload::resize`]). If a larger payload has too many tokens for the filter here, the filter
//! must grow before the payload is merged ([`FilterSync::wanted_growth`]). A payload cannot make it grow
//! beyond the maximum set here, and a payload with few tokens is converted instead.
//!
//! A tick makes at most [`MAX_CALLS_PER_TICK`] calls, whatever the traffic.

mod filter_store;
mod generations;
mod stats;

use std::{borrow::Cow, sync::Arc, time::Duration};

use self::generations::GenerationTable;
pub use self::{
    filter_store::{CommitOutcome, FilterStore, PayloadVersion, ReadOutcome, ServerTime},
    stats::SyncStats,
};
use super::{
    Filter, Geometry,
    payload::{self, PayloadError},
};
use crate::{clock::StoreTime, redis::RedisFailure};

/// Maximum number of dirty generations that a tick synchronizes in addition to the current and the previous
/// one. A tick also reads at least one clean generation, round-robin. The bound is low because a payload can
/// be several MB long: a gateway catches up slowly after an outage.
const MAX_OLDER: usize = 2;

/// Maximum number of generations that a tick writes.
const MAX_COMMITS: usize = 2 + MAX_OLDER;

/// Maximum number of [`FilterStore`] calls of a tick: the time; reads of the current, the previous and older
/// generations; writes. Without changes there are four: the time, and reads of the current, the previous and
/// one older generation.
pub const MAX_CALLS_PER_TICK: usize = 1 + 2 + (MAX_OLDER + 1) + MAX_COMMITS;

/// Time for which Redis keeps a payload after its generation has expired.
const EXPIRY_MARGIN: Duration = Duration::from_mins(10);

/// One tick happens in each interval of this length, in ms.
const TICK_INTERVAL: u64 = 1_000;

/// The time of the tick in the interval with number `interval`, in ms since the Unix epoch. `random`, 32 new
/// random bits for each tick, places it within the interval: gateways with a fixed phase would conflict in
/// every tick or in none.
pub fn tick_time(interval: u64, random: u32) -> StoreTime {
    let within = (u64::from(random) * TICK_INTERVAL) >> 32;
    StoreTime::from_unix_ms(interval * TICK_INTERVAL + within)
}

/// The report of a complete tick or load.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SyncReport {
    /// Redis' time at the start of the tick.
    pub now: StoreTime,
    /// Redis' clock minus this machine's, in ms.
    pub clock_offset: i64,
    /// Number of live generations that are still dirty.
    pub pending: usize,
}

/// Synchronizes one filter. The thread that rotates the filter drives it.
pub struct FilterSync {
    stats: Arc<SyncStats>,
    generations: GenerationTable,
    loaded: bool,
    /// Number of the current tick.
    tick: u64,
    /// Number of older generations to read after a failure, because other gateways may have changed them.
    unread_generations: usize,
    /// True if the last tick or load failed.
    is_failing: bool,
    /// The maximum growth that payloads may cause.
    max_growth: u32,
    /// The growth needed by payloads that were not merged in this tick.
    wanted_growth: Option<u32>,
}

/// The result of a read from Redis.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ReadState {
    Absent,
    Present,
    /// A payload that can be merged only after the filter has grown.
    TooLarge,
}

/// The writes that a tick may still make.
struct WriteBudget {
    remaining_commits: usize,
    /// The error reply to a write, after which the tick only reads.
    write_error: Option<RedisFailure>,
}

impl FilterSync {
    /// For a filter that has no unshared tokens.
    pub fn new(stats: Arc<SyncStats>) -> Self {
        Self {
            stats,
            generations: GenerationTable::default(),
            loaded: false,
            tick: 0,
            unread_generations: 0,
            is_failing: false,
            max_growth: 1,
            wanted_growth: None,
        }
    }

    /// Sets the maximum growth that payloads may cause; it is 1 at first.
    pub fn set_max_growth(&mut self, max_growth: u32) {
        self.max_growth = max_growth;
    }

    /// The growth that the filter needs before the remaining payloads of the last tick or load can be merged;
    /// `None` if all were merged.
    pub fn wanted_growth(&self) -> Option<u32> {
        self.wanted_growth
    }

    /// True once a load has succeeded: all payloads that were readable then are merged.
    pub fn is_loaded(&self) -> bool {
        self.loaded
    }

    /// True if `filter` has all live bits that were in Redis during the load: every payload could be read, or
    /// its generation has expired since.
    pub fn is_complete(&self, filter: &Filter) -> bool {
        let live = filter.live_generations();
        self.loaded && !self.generations.live(live).any(|state| state.load_failed)
    }

    /// True if payloads in Redis may have unread changes because of a failure: the last tick failed, or the
    /// following pass over all generations is not complete.
    pub fn has_unread_generations(&self) -> bool {
        self.is_failing || self.unread_generations > 0
    }

    /// Merges the payload of every live generation, newest first. Repeat it until it succeeds and
    /// [`Self::is_loaded`], before the first tick.
    ///
    /// # Errors
    ///
    /// The first failure. Payloads read before it are merged.
    pub async fn load(
        &mut self,
        filter: &Filter,
        store: &mut impl FilterStore,
    ) -> Result<SyncReport, RedisFailure> {
        let outcome = self.try_load(filter, store).await;
        self.record_outcome(filter, &outcome);
        outcome
    }

    async fn try_load(
        &mut self,
        filter: &Filter,
        store: &mut impl FilterStore,
    ) -> Result<SyncReport, RedisFailure> {
        let report = self.begin_tick(store).await?;
        for index in filter.live_generations().rev() {
            self.read(filter, store, index).await?;
            // Decompression takes long, and this thread has other tasks.
            tokio::task::yield_now().await;
        }
        self.loaded = self.wanted_growth.is_none();
        Ok(report)
    }

    /// Merges new payloads from Redis, and writes bits that are missing there.
    ///
    /// # Errors
    ///
    /// The first failure. Unwritten generations stay dirty; payloads that were read are merged.
    pub async fn tick(
        &mut self,
        filter: &Filter,
        store: &mut impl FilterStore,
    ) -> Result<SyncReport, RedisFailure> {
        let outcome = self.try_tick(filter, store).await;
        self.record_outcome(filter, &outcome);
        outcome
    }

    async fn try_tick(
        &mut self,
        filter: &Filter,
        store: &mut impl FilterStore,
    ) -> Result<SyncReport, RedisFailure> {
        let mut report = self.begin_tick(store).await?;
        let live = filter.live_generations();
        let (oldest, current) = (*live.start(), *live.end());
        for index in live.clone() {
            self.generations.entry(index).dirty |= filter.take_changed(index);
        }
        let mut budget = WriteBudget { remaining_commits: MAX_COMMITS, write_error: None };
        for index in (oldest..=current).rev().take(2) {
            self.sync_generation(filter, store, index, &mut budget).await?;
        }
        let at_least = if self.unread_generations > 0 { MAX_OLDER + 1 } else { 0 };
        for index in
            self.generations.select(oldest..=current.saturating_sub(2), MAX_OLDER, at_least)
        {
            self.sync_generation(filter, store, index, &mut budget).await?;
            self.unread_generations = self.unread_generations.saturating_sub(1);
        }
        if live.count() <= 2 {
            self.unread_generations = 0;
        }
        if let Some(failure) = budget.write_error {
            return Err(failure);
        }
        let unwritten =
            self.generations.live(filter.live_generations()).filter(|state| state.dirty);
        report.pending = unwritten.count();
        Ok(report)
    }

    async fn begin_tick(
        &mut self,
        store: &mut impl FilterStore,
    ) -> Result<SyncReport, RedisFailure> {
        self.tick += 1;
        self.stats.ticks.add(1);
        self.wanted_growth = None;
        let ServerTime { now, clock_offset } = store.time().await?;
        Ok(SyncReport { now, clock_offset, pending: 0 })
    }

    /// Reads a generation, and writes it if it is dirty afterwards.
    async fn sync_generation(
        &mut self,
        filter: &Filter,
        store: &mut impl FilterStore,
        index: u64,
        budget: &mut WriteBudget,
    ) -> Result<(), RedisFailure> {
        let found = self.read(filter, store, index).await?;
        let tick = self.tick;
        let state = self.generations.entry(index);
        if !state.dirty
            || state.foreign
            || found == ReadState::TooLarge
            || budget.remaining_commits == 0
            || budget.write_error.is_some()
        {
            return Ok(());
        }
        // If the generation has expired since it was read, no gateway needs it.
        let Some(bits) = filter.export(index) else { return Ok(()) };
        if found == ReadState::Absent && bits.iter().all(|&byte| byte == 0) {
            state.dirty = false;
            return Ok(());
        }
        if payload::is_saturated(&bits) {
            // Other gateways would reject the payload and write their own, in an endless loop.
            state.dirty = false;
            return Ok(());
        }
        let geometry = filter.geometry();
        let payload = payload::encode(geometry, filter.hash_keys(), &bits);
        budget.remaining_commits -= 1;
        state.last_attempt = tick;
        let expected = state.known.map(|version| version.timestamp);
        let minute = geometry.minute(index);
        match store.commit(minute, expected, &payload, expiry(geometry)).await {
            Ok(CommitOutcome::Committed(timestamp)) => {
                self.stats.commits.add(1);
                let state = self.generations.entry(index);
                state.known = Some(PayloadVersion { timestamp, len: payload.len() as u64 });
                (state.dirty, state.last_attempt) = (false, 0);
            }
            Ok(CommitOutcome::Conflict) => self.stats.conflicts.add(1),
            // Reads may still succeed.
            Err(RedisFailure::Server) => budget.write_error = Some(RedisFailure::Server),
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    /// Merges the payload of a generation.
    async fn read(
        &mut self,
        filter: &Filter,
        store: &mut impl FilterStore,
        index: u64,
    ) -> Result<ReadState, RedisFailure> {
        let geometry = filter.geometry();
        let (minute, max_len) = (geometry.minute(index), payload::max_len(geometry));
        let known = self.generations.entry(index).known;
        match store.read(minute, known, max_len).await? {
            ReadOutcome::Unchanged => {}
            ReadOutcome::Absent => {
                if known.is_some() {
                    // The payload was evicted or Redis was flushed, so others may be gone as well.
                    self.unread_generations = filter.live_generations().count();
                }
                let state = self.generations.entry(index);
                state.dirty |= known.is_some();
                (state.known, state.foreign) = (None, false);
                return Ok(ReadState::Absent);
            }
            ReadOutcome::Unusable(error, version) => self.reject(index, error, version),
            ReadOutcome::Value(version, payload) => {
                match payload::decode(geometry, filter.hash_keys(), &payload) {
                    Err(error) => self.reject(index, error, Some(version)),
                    Ok(bits) => return Ok(self.merge(filter, index, version, &bits)),
                }
            }
        }
        Ok(ReadState::Present)
    }

    /// Merges the bits of a payload, converted to the size of the filter, unless the filter must grow first.
    fn merge(
        &mut self,
        filter: &Filter,
        index: u64,
        version: PayloadVersion,
        bits: &[u8],
    ) -> ReadState {
        let geometry = filter.geometry();
        let growth = (bits.len() * 8 / geometry.configured_bits()) as u32;
        let bits = if growth == geometry.growth {
            Cow::Borrowed(bits)
        } else {
            Cow::Owned(payload::resize(bits, geometry.bits / 8))
        };
        let allowed = growth.min(self.max_growth);
        if allowed > geometry.growth && !payload::is_sparse(&bits) {
            self.wanted_growth = self.wanted_growth.max(Some(allowed));
            self.generations.entry(index).load_failed |= !self.loaded;
            return ReadState::TooLarge;
        }
        if let Some(merged) = filter.merge(index, &bits) {
            let state = self.generations.entry(index);
            state.known = Some(version);
            state.dirty = merged.remote_missing > 0;
            (state.foreign, state.load_failed) = (false, false);
        }
        ReadState::Present
    }

    /// Handles an unusable payload. It is replaced with this gateway's bits, even if there are none: other
    /// gateways then read the new version and add their bits. Only payloads of gateways with another
    /// configuration are not replaced.
    fn reject(&mut self, index: u64, error: PayloadError, version: Option<PayloadVersion>) {
        self.stats.count_unusable(error);
        let is_loading = !self.loaded;
        let state = self.generations.entry(index);
        let foreign = matches!(error, PayloadError::Geometry | PayloadError::Seed);
        // If a foreign payload has replaced a usable one, Redis has lost the usable one's bits.
        state.dirty |= !foreign || (state.known.is_some() && !state.foreign);
        (state.known, state.foreign) = (version, foreign);
        state.load_failed |= is_loading;
    }

    /// Counts the outcome of a tick or load. Logs the first failure and the first success after it.
    fn record_outcome(&mut self, filter: &Filter, outcome: &Result<SyncReport, RedisFailure>) {
        match outcome {
            Ok(report) => {
                if std::mem::replace(&mut self.is_failing, false) {
                    tracing::info!("throttle synchronization with Redis recovered");
                }
                self.stats.set_last_success(report.now);
            }
            Err(failure) => {
                self.stats.count_failure(*failure);
                self.unread_generations = filter.live_generations().count();
                if !std::mem::replace(&mut self.is_failing, true) {
                    let failure = failure.label();
                    tracing::warn!(failure, "throttle synchronization with Redis failed; retrying");
                }
            }
        }
    }
}

/// Time for which Redis keeps a payload after a commit: the time for which its generation is live, and
/// [`EXPIRY_MARGIN`].
fn expiry(geometry: &Geometry) -> Duration {
    let live = geometry.generation_length * (u64::from(geometry.complete_generations) + 1);
    Duration::from_millis(live) + EXPIRY_MARGIN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_spread_over_their_interval() {
        for (random, expected) in [(0, 7_000), (u32::MAX / 2, 7_499), (u32::MAX, 7_999)] {
            assert_eq!(tick_time(7, random), StoreTime::from_unix_ms(expected));
        }
    }

    #[test]
    fn redis_keeps_a_payload_longer_than_gateways_keep_its_generation() {
        let geometry = Geometry {
            bits: 8,
            growth: 1,
            hashes: 1,
            generation_length: 1_200_000,
            complete_generations: 30,
        };
        assert_eq!(expiry(&geometry), Duration::from_mins(31 * 20 + 10));
    }
}
