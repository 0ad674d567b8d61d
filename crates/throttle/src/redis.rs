//! The shared filters in Redis, over a separate connection: bulk traffic that no request waits for.

use std::{future::Future, sync::Arc, time::Duration};

use ::redis::{Cmd, FromRedisValue, RedisError};
use tidegate_base::time::Millis;
use tidegate_redis::{Connector, NodeConnection, RedisFailure, Script, ScriptRef};
use tidegate_system::clock::{Clock, StoreTime};

use super::{
    ClockOffset,
    geometry::UnixMinute,
    payload::PayloadError,
    sync::{
        AppendOutcome, CommitOutcome, FilterStore, LogId, LogOffset, LogPart, PayloadVersion,
        ReadOutcome, ServerTime, SyncStats,
    },
};

/// Timeout of one call. A payload can be several MB long, so this is much longer than the timeout
/// of a decision.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// Time without a reply after which a tick asks over a new connection: the old one may be lost.
const RECONNECT_AFTER: Duration = Duration::from_millis(500);

/// Time for which Redis keeps a log of new tokens after the last one. Gateways read it for two
/// minutes.
const LOG_TTL: Millis = Millis::from_secs(130);

/// The filters of one throttle in Redis, under the keys `NAMESPACE:{NAME}:MINUTE`, and the logs of
/// new tokens, under `NAMESPACE:{NAME}:MINUTE:log:SENT:GROUP` (see [`LogId`]). The braces are a
/// hash tag, which puts all keys on one node of a Cluster.
pub struct RedisFilterStore {
    connector: Connector,
    /// The hash tag of the keys.
    name: String,
    /// The prefix of the keys.
    prefix: String,
    clock: Clock,
    timeout: Duration,
    stats: Arc<SyncStats>,
    read: Script,
    commit: Script,
    read_logs: Script,
    append_log: Script,
    connection: Option<NodeConnection>,
}

impl RedisFilterStore {
    /// Opens no connection yet. A manual `clock` also replaces Redis' clock.
    pub fn new(connector: Connector, name: &str, clock: Clock, stats: Arc<SyncStats>) -> Self {
        Self {
            name: name.to_owned(),
            prefix: format!("{}:{{{name}}}:", connector.namespace()),
            connector,
            clock,
            timeout: TIMEOUT,
            stats,
            read: Script::new(include_str!("../../../lua/read_filter.lua")),
            commit: Script::new(include_str!("../../../lua/commit_filter.lua")),
            read_logs: Script::new(include_str!("../../../lua/read_logs.lua")),
            append_log: Script::new(include_str!("../../../lua/append_log.lua")),
            connection: None,
        }
    }

    /// Replaces [`TIMEOUT`].
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The time that the scripts use, as their argument; 0 for Redis' clock.
    fn manual_now(&self) -> u64 {
        self.clock.manual_now().map_or(0, StoreTime::as_unix_ms)
    }

    fn key(&self, minute: UnixMinute) -> String {
        format!("{}{}", self.prefix, minute.as_minutes())
    }

    fn log_key(&self, log: LogId) -> String {
        let (minute, sent, group) = (log.minute.as_minutes(), log.sent.as_minutes(), log.group);
        format!("{}{minute}:log:{sent}:{group:016x}", self.prefix)
    }

    /// Calls a script; `arguments` adds the arguments after the keys.
    async fn call<T: FromRedisValue>(
        &mut self,
        script: fn(&Self) -> &Script,
        keys: &[String],
        arguments: impl Fn(&mut Cmd),
    ) -> Result<T, RedisFailure> {
        let current = self.connection.as_ref().ok_or(RedisFailure::Io)?;
        let (connection, stale) = (current.connection.clone(), current.until_stale());
        let command = |by: ScriptRef| {
            let mut command = script(self).command(by);
            command.arg(keys.len()).arg(keys);
            arguments(&mut command);
            command
        };
        let reply = Script::invoke(command, |command| {
            self.stats.calls.add(1);
            let mut connection = connection.clone();
            async move { command.query_async(&mut connection).await }
        });
        let outcome = tokio::select! {
            biased;
            outcome = self.timed(reply) => outcome,
            // After a partition, the reply may be lost.
            () = stale => Err(RedisFailure::Io),
        };
        self.check_connection(outcome)
    }

    /// Drops the connection after a failure other than an error reply of Redis.
    fn check_connection<T>(&mut self, outcome: Result<T, RedisFailure>) -> Result<T, RedisFailure> {
        if outcome.as_ref().is_err_and(|failure| *failure != RedisFailure::Server) {
            self.connection = None;
        }
        outcome
    }

    /// Replaces the connection.
    async fn connect(&mut self) -> Result<(), RedisFailure> {
        self.connection = None;
        self.connection = Some(self.connector.connect(&self.name).await?);
        Ok(())
    }

    /// The time of the server, and its distance from this machine's.
    async fn read_clocks(&mut self) -> Result<ServerTime, RedisFailure> {
        let before = self.clock.store_time();
        let theirs = self.server_time().await?;
        // Negative if the clock was set back meanwhile.
        let passed = ClockOffset::between(self.clock.store_time(), before);
        let now = self.clock.manual_now().unwrap_or(theirs);
        // The server read its clock about halfway between.
        let clock_offset = ClockOffset::between(now, passed.half().apply(before));
        Ok(ServerTime { now, clock_offset })
    }

    /// The time of the server.
    async fn server_time(&mut self) -> Result<StoreTime, RedisFailure> {
        let mut connection = self.connection.as_ref().ok_or(RedisFailure::Io)?.connection.clone();
        self.stats.calls.add(1);
        let command = ::redis::cmd("TIME");
        let reply = self.timed(command.query_async(&mut connection)).await;
        let (seconds, micros): (u64, u64) = self.check_connection(reply)?;
        let fraction = Millis::from_duration(Duration::from_micros(micros));
        Ok(StoreTime::ZERO.after(Millis::from_secs(seconds)).after(fraction))
    }

    /// Waits for a reply within the timeout, and classifies its error.
    async fn timed<T>(
        &self,
        reply: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisFailure> {
        let reply = self.clock.timeout(self.timeout, reply).await;
        let reply = reply.map_err(|_| RedisFailure::Timeout)?;
        reply.map_err(|error| self.connector.classify_error(&error))
    }
}

impl FilterStore for RedisFilterStore {
    /// The first call of a tick, and the only one that connects.
    async fn time(&mut self) -> Result<ServerTime, RedisFailure> {
        let stale = match &self.connection {
            Some(connection) if !connection.is_stale() => connection.until_stale(),
            _ => {
                self.connect().await?;
                return self.read_clocks().await;
            }
        };
        // After a partition, the reply over an old connection is late or lost, while a new one
        // works.
        let clock = self.clock.clone();
        let read = tokio::select! {
            biased;
            read = clock.timeout(RECONNECT_AFTER, self.read_clocks()) => read.ok(),
            () = stale => None,
        };
        if let Some(read) = read {
            return read;
        }
        self.connect().await?;
        self.read_clocks().await
    }

    async fn read(
        &mut self,
        minute: UnixMinute,
        known: Option<PayloadVersion>,
        max_len: usize,
    ) -> Result<ReadOutcome, RedisFailure> {
        let PayloadVersion { timestamp, len } =
            known.unwrap_or(PayloadVersion { timestamp: StoreTime::ZERO, len: 0 });
        let key = self.key(minute);
        let (state, timestamp, len, payload): (u8, u64, u64, Vec<u8>) = self
            .call(
                |store| &store.read,
                &[key],
                |command| {
                    command.arg(timestamp.as_unix_ms()).arg(len).arg(max_len);
                },
            )
            .await?;
        self.stats.bytes_read.add(payload.len() as u64);
        let version = (timestamp > 0)
            .then_some(PayloadVersion { timestamp: StoreTime::from_unix_ms(timestamp), len });
        match (state, version) {
            (0, _) => Ok(ReadOutcome::Absent),
            (1, Some(_)) => Ok(ReadOutcome::Unchanged),
            (2, Some(version)) => Ok(ReadOutcome::Value(version, payload)),
            (3, version) => Ok(ReadOutcome::Unusable(PayloadError::TooLong, version)),
            (4, version) => Ok(ReadOutcome::Unusable(PayloadError::WrongType, version)),
            _ => Err(RedisFailure::Reply),
        }
    }

    async fn commit(
        &mut self,
        minute: UnixMinute,
        expected: Option<StoreTime>,
        payload: &[u8],
        ttl: Millis,
    ) -> Result<CommitOutcome, RedisFailure> {
        let (key, manual) = (self.key(minute), self.manual_now());
        let expected = expected.map_or(0, StoreTime::as_unix_ms);
        self.stats.bytes_written.add(payload.len() as u64);
        let (written, timestamp): (u8, u64) = self
            .call(
                |store| &store.commit,
                &[key],
                |command| {
                    command.arg(expected).arg(payload).arg(ttl.as_whole_secs()).arg(manual);
                },
            )
            .await?;
        match written {
            0 => Ok(CommitOutcome::Conflict),
            1 => Ok(CommitOutcome::Committed(StoreTime::from_unix_ms(timestamp))),
            _ => Err(RedisFailure::Reply),
        }
    }
    async fn read_logs(
        &mut self,
        logs: &[LogOffset],
        max_len: usize,
    ) -> Result<Vec<LogPart>, RedisFailure> {
        let keys: Vec<String> = logs.iter().map(|known| self.log_key(known.log)).collect();
        let offsets: Vec<u64> = logs.iter().map(|known| known.offset).collect();
        let parts: Vec<(u64, Vec<u8>)> = self
            .call(
                |store| &store.read_logs,
                &keys,
                |command| {
                    command.arg(max_len).arg(&offsets);
                },
            )
            .await?;
        let parts: Vec<LogPart> =
            parts.into_iter().map(|(start, bytes)| LogPart { start, bytes }).collect();
        let len: usize = parts.iter().map(|part| part.bytes.len()).sum();
        self.stats.bytes_read.add(len as u64);
        Ok(parts)
    }

    async fn append_log(
        &mut self,
        log: LogId,
        tokens: &[u8],
        max_len: usize,
    ) -> Result<AppendOutcome, RedisFailure> {
        let key = self.log_key(log);
        self.stats.bytes_written.add(tokens.len() as u64);
        let appended: u8 = self
            .call(
                |store| &store.append_log,
                &[key],
                |command| {
                    command.arg(tokens).arg(max_len).arg(LOG_TTL.as_whole_secs());
                },
            )
            .await?;
        match appended {
            0 => Ok(AppendOutcome::Full),
            1 => Ok(AppendOutcome::Appended),
            _ => Err(RedisFailure::Reply),
        }
    }
}
