//! [`RedisRecords`]: reads and replaces records in Redis, over connections of its own.

use std::{
    future::Future,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use ::redis::{RedisError, aio::MultiplexedConnection};
use tidegate_base::time::{Millis, MonotonicTime};
use tidegate_redis::{Connector, NodeConnection, RedisFailure, Script};
use tidegate_system::clock::Clock;
use tokio::sync::Mutex;

use super::names::{RecordAddress, RecordNames, RecordTag, TAGS};

/// Timeout of one call.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout of connecting: longer than two probes of a server are apart, so that a call does not
/// fail once Redis is back.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Pause after a failure, within which calls fail at once.
const PAUSE: Millis = Millis::from_secs(1);

/// Maximum length of a record, in bytes.
pub const MAX_RECORD: usize = 16 << 10;

/// The records in Redis.
pub(super) struct RedisRecords {
    connector: Connector,
    clock: Clock,
    swap: Script,
    pub(super) names: RecordNames,
    /// For each tag, the index of the connection to its server.
    servers: [usize; TAGS],
    connections: [Mutex<ServerConnection>; TAGS],
    failing: [AtomicBool; TAGS],
    calls: AtomicU64,
}

/// The connection to one server.
#[derive(Default)]
struct ServerConnection {
    open: Option<NodeConnection>,
    /// Grows with each connection.
    number: u64,
    failed_at: Option<MonotonicTime>,
}

/// A connection for one call.
struct CallConnection {
    connection: MultiplexedConnection,
    number: u64,
}

/// What a call does.
#[derive(Clone, Copy, Eq, PartialEq)]
enum CallKind {
    Read,
    Write,
}

/// A text that was read.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum RecordText {
    /// There is no record.
    Missing,
    /// Its bytes, at most one more than [`MAX_RECORD`].
    Text(Vec<u8>),
    /// It is of another type.
    OtherType,
}

impl RedisRecords {
    /// Opens no connection yet.
    pub(super) fn new(connector: Connector, clock: Clock) -> Self {
        let mut servers = [0; TAGS];
        for tag in RecordTag::all() {
            let is_same = |other: &RecordTag| connector.has_same_server(&tag.text(), &other.text());
            let first = RecordTag::all().find(is_same).unwrap_or(tag);
            servers[tag.index()] = first.index();
        }
        Self {
            names: RecordNames { namespace: connector.namespace().into() },
            connector,
            clock,
            swap: Script::new(include_str!("../../../../lua/write_consumer.lua")),
            servers,
            connections: Default::default(),
            failing: Default::default(),
            calls: AtomicU64::new(0),
        }
    }

    /// True if the last call to the server of this tag failed.
    pub(super) fn is_failing(&self, tag: RecordTag) -> bool {
        self.failing[self.servers[tag.index()]].load(Ordering::Relaxed)
    }

    /// The number of calls that were sent.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Reads a record.
    pub(super) async fn read(&self, address: &RecordAddress) -> Result<RecordText, RedisFailure> {
        let read = self.call(address.tag, CallKind::Read, |mut connection| async move {
            let mut command = ::redis::cmd("GETRANGE");
            // One byte more than allowed shows that a record is too long.
            command.arg(&address.key).arg(0).arg(MAX_RECORD);
            match command.query_async::<Vec<u8>>(&mut connection).await {
                Ok(text) if text.is_empty() => Ok(RecordText::Missing),
                Ok(text) => Ok(RecordText::Text(text)),
                Err(error) if error.code() == Some("WRONGTYPE") => Ok(RecordText::OtherType),
                Err(error) => Err(error),
            }
        });
        read.await
    }

    /// Replaces the record whose text is `old` by `new`. An empty text stands for no record.
    /// Returns false if the record has another text, and stays.
    pub(super) async fn swap(
        &self,
        address: &RecordAddress,
        old: &[u8],
        new: &[u8],
    ) -> Result<bool, RedisFailure> {
        let swapped = self.call(address.tag, CallKind::Write, |connection| {
            let command = |by| {
                let mut command = self.swap.command(by);
                command.arg(1).arg(&address.key).arg(old).arg(new).arg(MAX_RECORD);
                command
            };
            Script::invoke(command, move |command| {
                let mut connection = connection.clone();
                async move { command.query_async::<u8>(&mut connection).await }
            })
        });
        swapped.await.map(|swapped| swapped == 1)
    }

    async fn call<T, F: Future<Output = Result<T, RedisError>>>(
        &self,
        tag: RecordTag,
        kind: CallKind,
        send: impl Fn(MultiplexedConnection) -> F,
    ) -> Result<T, RedisFailure> {
        let mut may_repeat = kind == CallKind::Read;
        loop {
            let CallConnection { connection, number } = self.connected(tag).await?;
            self.calls.fetch_add(1, Ordering::Relaxed);
            let failure = match self.clock.timeout(TIMEOUT, send(connection)).await {
                Ok(Ok(reply)) => {
                    self.note_success(tag);
                    return Ok(reply);
                }
                Ok(Err(error)) => self.connector.classify_error(&error),
                Err(_) => RedisFailure::Timeout,
            };
            let mut server = self.connection(tag).lock().await;
            let is_current = server.number == number;
            if failure == RedisFailure::Io && may_repeat {
                // The connection had ended while it was idle, or another server has the record.
                may_repeat = false;
                server.open = server.open.take().filter(|_| !is_current);
                continue;
            }
            // A server that refuses writes can be read.
            if is_current && (kind == CallKind::Read || failure != RedisFailure::Server) {
                self.note_failure(tag, &mut server, failure);
            }
            return Err(failure);
        }
    }

    fn connection(&self, tag: RecordTag) -> &Mutex<ServerConnection> {
        &self.connections[self.servers[tag.index()]]
    }

    /// The connection to the server of this tag, opened if there is none. Concurrent calls wait for
    /// the same one.
    async fn connected(&self, tag: RecordTag) -> Result<CallConnection, RedisFailure> {
        let mut server = self.connection(tag).lock().await;
        let now = self.clock.monotonic();
        if server.failed_at.is_some_and(|at| now < at + PAUSE) {
            return Err(RedisFailure::Unsent);
        }
        if server.open.as_ref().is_none_or(NodeConnection::is_stale) {
            server.open = None;
            let text = tag.text();
            let connecting =
                self.clock.timeout(CONNECT_TIMEOUT, self.connector.connect(&text)).await;
            match connecting.unwrap_or(Err(RedisFailure::Timeout)) {
                Ok(opened) => {
                    server.open = Some(opened);
                    server.number += 1;
                }
                Err(failure) => {
                    self.note_failure(tag, &mut server, failure);
                    return Err(failure);
                }
            }
        }
        let connection = server.open.as_ref().map(|own| own.connection.clone());
        let connection = connection.ok_or(RedisFailure::Io)?;
        Ok(CallConnection { connection, number: server.number })
    }

    fn note_success(&self, tag: RecordTag) {
        if self.failing[self.servers[tag.index()]].swap(false, Ordering::Relaxed) {
            tracing::info!(tag = tag.text(), "consumers can be read from Redis again");
        }
    }

    /// Begins a pause. Drops the connection, unless Redis itself replied with an error.
    fn note_failure(&self, tag: RecordTag, server: &mut ServerConnection, failure: RedisFailure) {
        server.failed_at = Some(self.clock.monotonic());
        if failure != RedisFailure::Server {
            server.open = None;
        }
        if !self.failing[self.servers[tag.index()]].swap(true, Ordering::Relaxed) {
            let (tag, reason) = (tag.text(), failure.label());
            tracing::warn!(
                tag,
                reason,
                "consumers cannot be read from Redis; the known ones are served"
            );
        }
    }
}
