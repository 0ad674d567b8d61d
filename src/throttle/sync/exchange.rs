//! What the protocol needs of Redis, so that it can be driven without one.

use std::time::Duration;

use crate::{
    store::Failure,
    throttle::{geometry::Millis, payload::Refusal},
};

/// One throttle's keys in Redis. Each call is one round trip, and fails rather than wait for long.
#[expect(async_fn_in_trait, reason = "one thread drives it: nothing needs to be sent to another")]
pub trait Exchange {
    /// Asks for the time.
    async fn time(&mut self) -> Result<Time, Failure>;

    /// What is kept of a minute (counted from the Unix epoch), unless that is `known` already. A value
    /// of more than `max_len` bytes is refused and not fetched.
    async fn read(
        &mut self,
        minute: u64,
        known: Option<Version>,
        max_len: usize,
    ) -> Result<Read, Failure>;

    /// Replaces what is kept of a minute, unless it is not the one with the time stamp `expected` any
    /// more; `None`: unless something readable is there. It is kept for `ttl`.
    async fn commit(
        &mut self,
        minute: u64,
        expected: Option<u64>,
        payload: &[u8],
        ttl: Duration,
    ) -> Result<Commit, Failure>;
}

/// The answer to [`Exchange::time`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Time {
    /// Redis' time, in ms since the Unix epoch.
    pub now: Millis,
    /// By how much Redis' clock is ahead of this machine's, in ms.
    pub ahead: i64,
}

/// Tells one state of a minute from another.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Version {
    /// The time stamp: grows with each commit. Above 0, below 2^53 - 1.
    pub ts: u64,
    /// The payload's length in bytes: so that one that was cut off is noticed.
    pub len: u64,
}

/// The answer to [`Exchange::read`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Read {
    /// Nothing is kept.
    Absent,
    /// It is what is known already.
    Unchanged,
    /// Another version.
    Value(Version, Vec<u8>),
    /// Not fetched. Without a version if there is no readable time stamp.
    Refused(Refusal, Option<Version>),
}

/// The answer to [`Exchange::commit`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Commit {
    /// Written, with this time stamp.
    Done(u64),
    /// Somebody else was first: nothing was written.
    Conflict,
}
