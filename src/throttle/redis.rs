//! The exchange over one connection of its own to Redis: bulk traffic, which no request waits for.

use std::{future::Future, sync::Arc, time::Duration};

use redis::{Cmd, FromRedisValue, aio::MultiplexedConnection};
use tokio::time;

use super::{
    geometry::Millis,
    payload::Refusal,
    sync::{Commit, Exchange, Read, Stats, Time, Version},
};
use crate::{
    clock::Clock,
    store::{Connector, Failure, NodeConnection},
};

/// How long one call may take. A minute's filter has megabytes: much longer than a decision.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// One throttle's keys, `NAMESPACE:{NAME}:MINUTE`; the braces make all of them live on one node of a
/// Cluster.
pub struct RedisLink {
    connector: Connector,
    /// The keys' hash tag.
    name: String,
    /// What the keys begin with.
    prefix: String,
    clock: Clock,
    timeout: Duration,
    stats: Arc<Stats>,
    read: Script,
    commit: Script,
    connection: Option<NodeConnection>,
}

impl RedisLink {
    /// Connects nothing yet. A manual `clock` gives Redis its time too.
    pub fn new(connector: Connector, name: &str, clock: Clock, stats: Arc<Stats>) -> Self {
        Self {
            name: name.to_owned(),
            prefix: format!("{}:{{{name}}}:", connector.namespace()),
            connector,
            clock,
            timeout: TIMEOUT,
            stats,
            read: Script::new(include_str!("../../lua/read_filter.lua")),
            commit: Script::new(include_str!("../../lua/commit_filter.lua")),
            connection: None,
        }
    }

    /// The same with another patience than [`TIMEOUT`].
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// What Redis should take for the time; 0: its own clock.
    fn manual_now(&self) -> u64 {
        self.clock.manual_now().unwrap_or(0)
    }

    /// Runs one script on one key; `arguments` adds what follows the key.
    async fn run<T: FromRedisValue>(
        &mut self,
        script: fn(&Self) -> &Script,
        key: &str,
        arguments: impl Fn(&mut Cmd),
    ) -> Result<T, Failure> {
        let connection = self.connection.as_ref().ok_or(Failure::Io)?.connection.clone();
        let outcome = self.try_run(connection, script(self), key, arguments).await;
        self.keep_or_drop(outcome)
    }

    /// Gives the connection up after a failure other than an error of Redis' own.
    fn keep_or_drop<T>(&mut self, outcome: Result<T, Failure>) -> Result<T, Failure> {
        if outcome.as_ref().is_err_and(|failure| *failure != Failure::Server) {
            self.connection = None;
        }
        outcome
    }

    /// The server's time, in ms since the Unix epoch.
    async fn ask_time(&mut self) -> Result<Millis, Failure> {
        let mut connection = self.connection.as_ref().ok_or(Failure::Io)?.connection.clone();
        self.stats.calls.add(1);
        let command = redis::cmd("TIME");
        let answer = within(self.timeout, command.query_async(&mut connection)).await;
        let answer = answer.and_then(|time| time.map_err(|error| self.connector.classify_error(&error)));
        let (seconds, micros): (u64, u64) = self.keep_or_drop(answer)?;
        Ok(seconds.saturating_mul(1_000).saturating_add(micros / 1_000))
    }

    async fn try_run<T: FromRedisValue>(
        &self,
        mut connection: MultiplexedConnection,
        script: &Script,
        key: &str,
        arguments: impl Fn(&mut Cmd),
    ) -> Result<T, Failure> {
        for (verb, body) in [("EVALSHA", &*script.sha), ("EVAL", script.text)] {
            let mut command = redis::cmd(verb);
            command.arg(body).arg(1).arg(key);
            arguments(&mut command);
            self.stats.calls.add(1);
            let answer = within(self.timeout, command.query_async(&mut connection)).await;
            match answer? {
                Ok(value) => return Ok(value),
                // Redis forgot the script, so it ran nothing.
                Err(error) if error.code() == Some("NOSCRIPT") => {}
                Err(error) => return Err(self.connector.classify_error(&error)),
            }
        }
        Err(Failure::Reply)
    }
}

impl Exchange for RedisLink {
    async fn time(&mut self) -> Result<Time, Failure> {
        // The first call of a tick, and the only one that connects.
        if self.connection.as_ref().is_none_or(NodeConnection::is_stale) {
            self.connection = None;
            self.connection = Some(self.connector.connect(&self.name).await?);
        }
        let before = self.clock.now();
        let theirs = self.ask_time().await?;
        let local = before.midpoint(self.clock.now());
        let now = self.clock.manual_now().unwrap_or(theirs);
        Ok(Time { now, ahead: now.wrapping_sub(local).cast_signed() })
    }

    async fn read(
        &mut self,
        minute: u64,
        known: Option<Version>,
        max_len: usize,
    ) -> Result<Read, Failure> {
        let Version { ts, len } = known.unwrap_or(Version { ts: 0, len: 0 });
        let key = format!("{}{minute}", self.prefix);
        let (state, ts, len, payload): (u8, u64, u64, Vec<u8>) = self
            .run(
                |link| &link.read,
                &key,
                |command| {
                    command.arg(ts).arg(len).arg(max_len);
                },
            )
            .await?;
        self.stats.bytes_read.add(payload.len() as u64);
        let version = (ts > 0).then_some(Version { ts, len });
        match (state, version) {
            (0, _) => Ok(Read::Absent),
            (1, Some(_)) => Ok(Read::Unchanged),
            (2, Some(version)) => Ok(Read::Value(version, payload)),
            (3, version) => Ok(Read::Refused(Refusal::TooLong, version)),
            (4, version) => Ok(Read::Refused(Refusal::Type, version)),
            _ => Err(Failure::Reply),
        }
    }

    async fn commit(
        &mut self,
        minute: u64,
        expected: Option<u64>,
        payload: &[u8],
        ttl: Duration,
    ) -> Result<Commit, Failure> {
        let (key, manual) = (format!("{}{minute}", self.prefix), self.manual_now());
        self.stats.bytes_written.add(payload.len() as u64);
        let (written, ts): (u8, u64) = self
            .run(
                |link| &link.commit,
                &key,
                |command| {
                    command.arg(expected.unwrap_or(0)).arg(payload).arg(ttl.as_secs()).arg(manual);
                },
            )
            .await?;
        match written {
            0 => Ok(Commit::Conflict),
            1 => Ok(Commit::Done(ts)),
            _ => Err(Failure::Reply),
        }
    }
}

async fn within<T>(timeout: Duration, work: impl Future<Output = T>) -> Result<T, Failure> {
    time::timeout(timeout, work).await.map_err(|_| Failure::Timeout)
}

/// A script, and the name that Redis knows it by.
struct Script {
    text: &'static str,
    sha: Box<str>,
}

impl Script {
    fn new(text: &'static str) -> Self {
        Self { text, sha: redis::Script::new(text).get_hash().into() }
    }
}
