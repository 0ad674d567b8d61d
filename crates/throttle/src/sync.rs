//! Shares the filters between gateways through Redis, with optimistic locking.
//!
//! # Generations
//!
//! Each generation has one payload in Redis: the union of the bits that the gateways recorded in
//! it. A gateway merges this payload into its filter. If the payload lacks bits, the gateway writes
//! the union back. If another gateway has written in between, it retries later. The generation
//! stays *dirty* until it is written, even after it has ended, so a conflict delays bits but never
//! loses them.
//!
//! Invariant: **a generation that is neither dirty nor logged has no bit that its known version in
//! Redis lacks.** Recording marks the generation in the filter after it sets the bits, and the mark
//! is taken before the bits are read. A version becomes known only after its bits were merged or
//! written here.
//!
//! Gateways with filters of different sizes share them: each writes payloads of its own size and
//! converts the others' (`payload::resize`). If a larger payload has too many tokens for the filter
//! here, the filter must grow before the payload is merged ([`FilterSync::wanted_growth`]). A
//! payload cannot make it grow beyond the maximum set here, and a payload with few tokens is
//! converted instead.
//!
//! # New tokens
//!
//! Whole generations are long, and the more gateways write one, the more writes conflict: so with
//! many gateways each writes seldom (`pace`), and reads a generation only when most have written
//! it. What cannot wait, tokens that were not active before ([`Filter::take_newcomers`]), is also
//! in a log beside the generation: a gateway appends its new tokens in each tick, without a lock,
//! and reads what the others have appended. The logs only make it faster: they are bounded and
//! short-lived, and what is missing in them comes with the generation. The activity of known tokens
//! is not in the logs. It is known elsewhere some minutes later, long before the token expires
//! there.
//!
//! A tick makes at most [`MAX_CALLS_PER_TICK`] calls, whatever the traffic.
//!
//! # After a partition
//!
//! **Two seconds after Redis can be reached again, each gateway knows the new tokens that the
//! others recorded in the current minute and in the one before it.** The two seconds are the sum
//! of:
//!
//! | at most | until |
//! |---:|---|
//! | 625 ms | the gateway that was cut off probes Redis again (`redis::health`) |
//! | 0 ms | its next tick: while Redis is lost, a tick waits for each probe ([`next_attempt`]) |
//! | 1,200 ms | the next tick of each other gateway ([`next_tick`]) |
//! | 175 ms | is left for the calls |
//!
//! The bound needs a `connect_timeout` below half a second, because a probe may last that long. A
//! loss that no request and no ping has noticed is noticed here: if Redis does not reply with its
//! time within half a second, the tick asks over a new connection. Many gateways that return at the
//! same time come at the random times of their probes, and their new tokens cannot conflict: they
//! are in the logs. Older tokens come later, with the generations.
//!
//! # Which file does what
//!
//! | file | content |
//! |---|---|
//! | `filter_store` | the interface to Redis |
//! | `generations` | what is known of each generation |
//! | `reading`, `writing` | the parts of a tick that read payloads and write them |
//! | `pace` | how often to write |
//! | `log_exchange`, `token_log` | the logs of new tokens |
//! | `stats` | counters |

mod filter_store;
mod generations;
mod log_exchange;
mod pace;
mod reading;
mod stats;
mod token_log;
mod writing;

use std::sync::Arc;

pub use self::{
    filter_store::{
        AppendOutcome, CommitOutcome, FilterStore, PayloadVersion, ReadOutcome, ServerTime,
    },
    stats::SyncStats,
    token_log::{LogId, LogOffset, LogPart, max_len as max_log_part, max_log_len},
};
use tidegate_base::time::{Millis, StoreTime};
use tidegate_redis::RedisFailure;

use self::{
    generations::GenerationTable, pace::WritePace, reading::CATCH_UP_READS, token_log::TokenLog,
    writing::MAX_COMMITS,
};
use super::{ClockOffset, Filter};

/// Maximum number of [`FilterStore`] calls of a tick: the time; the logs are read and two are
/// appended; the age of the current generation; reads and writes of dirty generations, and other
/// reads. Without changes there are three: the time, the logs, and one generation.
pub const MAX_CALLS_PER_TICK: usize = 1 + 3 + 1 + 2 * MAX_COMMITS + CATCH_UP_READS;

/// Mean interval between the starts of two ticks.
const TICK_INTERVAL: Millis = Millis::from_secs(1);

/// The largest difference of an interval from [`TICK_INTERVAL`].
const TICK_JITTER: Millis = Millis::from_ms(200);

/// Interval between the starts of two ticks while the store cannot be reached. Most wait longer,
/// for a probe.
const RETRY_INTERVAL: Millis = Millis::from_ms(250);

/// The start of the tick after one that started at `started`. `random`, 32 new random bits for each
/// tick, makes one interval longer than another: gateways with a fixed phase would conflict in
/// every tick or in none.
pub fn next_tick(started: StoreTime, random: u32) -> StoreTime {
    let span = TICK_JITTER * 2 + Millis::MILLISECOND;
    let jitter = Millis::from_ms((u64::from(random) * span.as_ms()) >> 32);
    started + TICK_INTERVAL - TICK_JITTER + jitter
}

/// The start of the tick after one that started at `started` and did not reach the store.
pub fn next_attempt(started: StoreTime) -> StoreTime {
    started + RETRY_INTERVAL
}

/// The report of a complete tick or load.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SyncReport {
    /// Redis' time at the start of the tick.
    pub now: StoreTime,
    /// Redis' clock minus this machine's.
    pub clock_offset: ClockOffset,
    /// Number of live generations that are still dirty.
    pub pending: usize,
}

/// Synchronizes one filter. The thread that rotates the filter drives it.
pub struct FilterSync {
    stats: Arc<SyncStats>,
    generations: GenerationTable,
    log: TokenLog,
    pace: WritePace,
    loaded: bool,
    /// Number of the current tick.
    tick: u64,
    /// Number of older generations to read after a failure, because other gateways may have changed
    /// them.
    unread_generations: usize,
    /// The failure of the last tick or load.
    failure: Option<RedisFailure>,
    /// The maximum growth that payloads may cause.
    max_growth: u32,
    /// The growth needed by payloads that were not merged in this tick.
    wanted_growth: Option<u32>,
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
            log: TokenLog::default(),
            pace: WritePace::new(getrandom::u64().unwrap_or_default()),
            loaded: false,
            tick: 0,
            unread_generations: 0,
            failure: None,
            max_growth: 1,
            wanted_growth: None,
        }
    }

    /// Replaces the seed of the random intervals between writes.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        Self { pace: WritePace::new(seed), ..self }
    }

    /// Sets the maximum growth that payloads may cause; it is 1 at first.
    pub fn set_max_growth(&mut self, max_growth: u32) {
        self.max_growth = max_growth;
    }

    /// The growth that the filter needs before the remaining payloads of the last tick or load can
    /// be merged; `None` if all were merged.
    pub fn wanted_growth(&self) -> Option<u32> {
        self.wanted_growth
    }

    /// True once a load has succeeded: all payloads that were readable then are merged.
    pub fn is_loaded(&self) -> bool {
        self.loaded
    }

    /// True if `filter` has all live bits that were in Redis during the load: every payload could
    /// be read, or its generation has expired since.
    pub fn is_complete(&self, filter: &Filter) -> bool {
        let live = filter.live_generations();
        self.loaded && !self.generations.live(live).any(|state| state.load_failed)
    }

    /// True if payloads in Redis may have unread changes because of a failure: the last tick
    /// failed, or the following pass over all generations is not complete.
    pub fn has_unread_generations(&self) -> bool {
        self.failure.is_some() || self.unread_generations > 0
    }

    /// True if the last tick or load did not reach the store. An error reply is from a store that
    /// is reached.
    pub fn has_lost_store(&self) -> bool {
        use RedisFailure::{Io, Timeout, Unsent};
        matches!(self.failure, Some(Unsent | Timeout | Io))
    }

    /// Merges the payload of every live generation, newest first, and the logs. Repeat it until it
    /// succeeds and [`Self::is_loaded`], before the first tick.
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
        self.receive_tokens(filter, store, report.now).await?;
        self.loaded = self.wanted_growth.is_none();
        Ok(report)
    }

    /// Exchanges new tokens, merges payloads from Redis, and writes bits that are missing there.
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
        let mut budget = WriteBudget { remaining_commits: MAX_COMMITS, write_error: None };
        self.exchange_tokens(filter, store, report.now, &mut budget).await?;
        for index in filter.live_generations() {
            self.generations.entry(index).dirty |= filter.take_changed(index);
        }
        let is_due = self.pace.is_due(self.tick);
        if is_due {
            self.write_dirty(filter, store, report.now, &mut budget).await?;
        }
        self.read_others(filter, store, &mut budget).await?;
        if is_due {
            self.pace.end_round(self.tick);
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

    /// Counts the outcome of a tick or load. Logs the first failure and the first success after it.
    fn record_outcome(&mut self, filter: &Filter, outcome: &Result<SyncReport, RedisFailure>) {
        match outcome {
            Ok(report) => {
                if self.failure.take().is_some() {
                    tracing::info!("throttle synchronization with Redis recovered");
                }
                self.stats.set_last_success(report.now);
            }
            Err(failure) => {
                self.stats.count_failure(*failure);
                self.unread_generations = filter.live_generations().count();
                if self.failure.replace(*failure).is_none() {
                    let failure = failure.label();
                    tracing::warn!(failure, "throttle synchronization with Redis failed; retrying");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_a_second_on_average() {
        let started = StoreTime::from_unix_ms(7_300);
        for (random, expected) in [(0, 8_100), (u32::MAX / 2, 8_300), (u32::MAX, 8_500)] {
            assert_eq!(next_tick(started, random), StoreTime::from_unix_ms(expected));
        }
    }
}
