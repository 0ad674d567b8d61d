//! The interface to the shared store, so that the protocol can be tested without Redis.

use tidegate_base::time::{Millis, StoreTime};
use tidegate_redis::RedisFailure;

use super::token_log::{LogId, LogOffset, LogPart};
use crate::{ClockOffset, geometry::UnixMinute, payload::PayloadError};

/// The shared filters of one throttle. Each call is one round trip with a timeout.
#[expect(async_fn_in_trait, reason = "one thread drives it, so the futures need not be `Send`")]
pub trait FilterStore {
    /// Reads the store's clock.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached or gives no valid reply.
    async fn time(&mut self) -> Result<ServerTime, RedisFailure>;

    /// Reads the payload of the generation whose first minute is `minute`, unless its version is
    /// `known`. A payload of more than `max_len` bytes is not fetched.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached or gives no valid reply.
    async fn read(
        &mut self,
        minute: UnixMinute,
        known: Option<PayloadVersion>,
        max_len: usize,
    ) -> Result<ReadOutcome, RedisFailure>;

    /// Replaces the payload of the generation that starts at `minute` and sets its expiry to `ttl`,
    /// if the stored time stamp still is `expected`; with `None`, if no readable payload is stored.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached or gives no valid reply.
    async fn commit(
        &mut self,
        minute: UnixMinute,
        expected: Option<StoreTime>,
        payload: &[u8],
        ttl: Millis,
    ) -> Result<CommitOutcome, RedisFailure>;

    /// Reads what follows the offsets in logs of new tokens: a part for each log, and of each the
    /// last bytes, at most `max_len`, a multiple of 8.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached or gives no valid reply.
    async fn read_logs(
        &mut self,
        logs: &[LogOffset],
        max_len: usize,
    ) -> Result<Vec<LogPart>, RedisFailure>;

    /// Appends tokens to a log of at most `max_len` bytes.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached or gives no valid reply.
    async fn append_log(
        &mut self,
        log: LogId,
        tokens: &[u8],
        max_len: usize,
    ) -> Result<AppendOutcome, RedisFailure>;
}

/// The reply to [`FilterStore::append_log`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AppendOutcome {
    /// Appended.
    Appended,
    /// The log would be too long: nothing was appended.
    Full,
}

/// The reply to [`FilterStore::time`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ServerTime {
    /// The store's time.
    pub now: StoreTime,
    /// The store's clock minus this machine's.
    pub clock_offset: ClockOffset,
}

/// Identifies one version of a payload.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PayloadVersion {
    /// The time stamp: the time of the commit by the store's clock, or the ms after the time stamp
    /// before it, so that it grows with each commit. Above 0, below 2^53 - 1.
    pub timestamp: StoreTime,
    /// Length of the payload in bytes, to detect a truncated one.
    pub len: u64,
}

/// The reply to [`FilterStore::read`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ReadOutcome {
    /// Nothing is stored.
    Absent,
    /// The known version is stored.
    Unchanged,
    /// Another version is stored.
    Value(PayloadVersion, Vec<u8>),
    /// The payload is unusable and was not fetched. Without a version if it has no readable time
    /// stamp.
    Unusable(PayloadError, Option<PayloadVersion>),
}

/// The reply to [`FilterStore::commit`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CommitOutcome {
    /// Written, with this time stamp.
    Committed(StoreTime),
    /// Another gateway wrote first: nothing was written.
    Conflict,
}
