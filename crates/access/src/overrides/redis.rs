//! [`RedisOverrides`]: the overrides in Redis, over a connection of its own.
//!
//! They are in one hash, `NAMESPACE:{overrides}`: a field for each override, and `version`, a
//! random text that every change replaces. Once a second a gateway reads the version, and the whole
//! hash only if the version is another one. Redis is the truth, with one exception: if it has lost
//! its data, so that the hash is missing, the first gateway that finds it missing writes back what
//! it knows.

use std::{future::Future, sync::Arc, time::Duration};

use ::redis::{Cmd, FromRedisValue, RedisError};
use tidegate_redis::{Connector, NodeConnection, RedisFailure, Script, ScriptRef};
use tidegate_system::clock::Clock;

use super::{
    change::{Changed, OverrideChange, OverrideError},
    record::{Override, OverrideId},
    set::{MAX_OVERRIDES, OverrideSet},
};

/// Timeout of one call. The whole hash can be several MB long.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The hash tag of the key, which determines its server.
const TAG: &str = "overrides";

/// The field of the version.
const VERSION: &str = "version";

/// The largest number of ended overrides that one change removes.
const MAX_ENDED: usize = 1_000;

/// The overrides in Redis.
pub(super) struct RedisOverrides {
    connector: Connector,
    key: String,
    clock: Clock,
    write: Script,
    restore: Script,
    connection: Option<NodeConnection>,
    /// The version that was read last; `None` before the first read, and if the hash was missing.
    version: Option<Box<str>>,
    /// The overrides of that version.
    last: OverrideSet,
}

impl RedisOverrides {
    /// Opens no connection yet. Overrides end by `clock`.
    pub(super) fn new(connector: Connector, clock: Clock) -> Self {
        Self {
            key: format!("{}:{{{TAG}}}", connector.namespace()),
            connector,
            clock,
            write: Script::new(include_str!("../../../../lua/write_override.lua")),
            restore: Script::new(include_str!("../../../../lua/restore_overrides.lua")),
            connection: None,
            version: None,
            last: OverrideSet::default(),
        }
    }

    /// Reads the overrides if their version is another one than at the last read. If the hash is
    /// missing, although this gateway has `known` overrides, writes them back.
    pub(super) async fn read_if_changed(
        &mut self,
        known: &OverrideSet,
    ) -> Result<Option<OverrideSet>, RedisFailure> {
        let key = self.key.clone();
        let version: Option<String> = self.call(|| command("HGET", &key, Some(VERSION))).await?;
        match version {
            None if known.is_empty() && self.version.is_none() => Ok(None),
            None => {
                if !known.is_empty() {
                    self.write_back(known).await?;
                }
                self.read_all().await.map(Some)
            }
            Some(text) if self.version.as_deref() == Some(&*text) => Ok(None),
            Some(_) => self.read_all().await.map(Some),
        }
    }

    /// Writes back what this gateway knows, if the hash is missing: else a change would begin a
    /// hash without it.
    async fn restore_lost(&mut self) -> Result<(), RedisFailure> {
        if self.last.is_empty() {
            return Ok(());
        }
        let key = self.key.clone();
        let version: Result<Option<String>, _> =
            self.call(|| command("HGET", &key, Some(VERSION))).await;
        match version {
            Ok(Some(_)) => Ok(()),
            // A key of another type is an error reply.
            Ok(None) | Err(RedisFailure::Server) => {
                let known = self.last.clone();
                self.write_back(&known).await
            }
            Err(failure) => Err(failure),
        }
    }

    /// Writes back what this gateway knows, after Redis has lost its data.
    async fn write_back(&mut self, known: &OverrideSet) -> Result<(), RedisFailure> {
        let (key, version) = (self.key.clone(), new_version()?);
        let records: Vec<(String, String)> =
            known.iter().map(|(id, own)| (id.to_string(), own.to_json())).collect();
        let written: u8 = self
            .call_script(
                |store| &store.restore,
                |command| {
                    command.arg(1).arg(&key).arg(&version);
                    for (id, text) in &records {
                        command.arg(id).arg(text);
                    }
                },
            )
            .await?;
        if written == 1 {
            let overrides = known.len();
            tracing::warn!(
                overrides,
                "Redis had lost the overrides; this gateway has written them back"
            );
        }
        Ok(())
    }

    /// Reads the whole hash.
    async fn read_all(&mut self) -> Result<OverrideSet, RedisFailure> {
        let key = self.key.clone();
        let fields: usize = self.call(|| command("HLEN", &key, None)).await?;
        if fields > MAX_OVERRIDES + 1 {
            tracing::error!(
                fields,
                "the overrides in Redis are too many; expected at most {MAX_OVERRIDES}"
            );
            return Err(RedisFailure::Reply);
        }
        let all: Vec<(String, Vec<u8>)> = self.call(|| command("HGETALL", &key, None)).await?;
        let (mut set, mut version, mut faulty) = (OverrideSet::default(), None, 0_usize);
        for (field, value) in all {
            if field == VERSION {
                version = String::from_utf8(value).ok().map(Into::into);
                continue;
            }
            match Override::of_json(&value) {
                Ok(own) if OverrideId::parse(&field) == Some(own.id()) => drop(set.insert(own)),
                Ok(_) | Err(_) => faulty += 1,
            }
        }
        if faulty > 0 {
            tracing::warn!(faulty, "overrides in Redis cannot be read and do not apply");
        }
        self.version = version;
        self.last.clone_from(&set);
        Ok(set)
    }

    /// Makes a change.
    pub(super) async fn change(
        &mut self,
        change: OverrideChange,
    ) -> Result<Changed, OverrideError> {
        let (id, text) = match &change {
            OverrideChange::Set(new) => (new.id(), new.to_json()),
            OverrideChange::Lift(id) => (*id, String::new()),
        };
        self.restore_lost().await.map_err(OverrideError::Redis)?;
        let (key, now) = (self.key.clone(), self.clock.store_time());
        let version = new_version().map_err(OverrideError::Redis)?;
        let ended = self.last.iter().filter(|(_, own)| !own.is_in_force(now)).take(MAX_ENDED);
        let ended: Vec<(String, String)> =
            ended.map(|(id, own)| (id.to_string(), own.to_json())).collect();
        let written = self.call_script(
            |store| &store.write,
            |command| {
                command
                    .arg(1)
                    .arg(&key)
                    .arg(id.to_string())
                    .arg(&text)
                    .arg(MAX_OVERRIDES)
                    .arg(&version);
                for (id, text) in &ended {
                    command.arg(id).arg(text);
                }
            },
        );
        let (outcome, before): (i8, Vec<u8>) = written.await.map_err(OverrideError::Redis)?;
        match outcome {
            1 => {}
            0 => return Err(OverrideError::Unknown),
            -1 => return Err(OverrideError::Full),
            _ => return Err(OverrideError::Redis(RedisFailure::Reply)),
        }
        let before = Override::of_json(&before).ok().map(Arc::new);
        // If this fails, the next poll reads them.
        let set = self.read_all().await.ok();
        Ok(Changed { before, set })
    }

    async fn call_script<T: FromRedisValue>(
        &mut self,
        script: fn(&Self) -> &Script,
        arguments: impl Fn(&mut Cmd),
    ) -> Result<T, RedisFailure> {
        let connection = self.connected().await?;
        let command = |by: ScriptRef| {
            let mut command = script(self).command(by);
            arguments(&mut command);
            command
        };
        let reply = Script::invoke(command, |command| {
            let mut connection = connection.clone();
            async move { command.query_async(&mut connection).await }
        });
        let outcome = self.timed(reply).await;
        self.check_connection(outcome)
    }

    async fn call<T: FromRedisValue>(
        &mut self,
        command: impl Fn() -> Cmd,
    ) -> Result<T, RedisFailure> {
        let mut connection = self.connected().await?;
        let command = command();
        let outcome = self.timed(command.query_async(&mut connection)).await;
        self.check_connection(outcome)
    }

    /// The connection, opened if there is none.
    async fn connected(&mut self) -> Result<::redis::aio::MultiplexedConnection, RedisFailure> {
        if self.connection.as_ref().is_none_or(NodeConnection::is_stale) {
            self.connection = None;
            self.connection = Some(self.connector.connect(TAG).await?);
        }
        let connection = self.connection.as_ref().map(|own| own.connection.clone());
        connection.ok_or(RedisFailure::Io)
    }

    /// Drops the connection after a failure other than an error reply of Redis.
    fn check_connection<T>(&mut self, outcome: Result<T, RedisFailure>) -> Result<T, RedisFailure> {
        if outcome.as_ref().is_err_and(|failure| *failure != RedisFailure::Server) {
            self.connection = None;
        }
        outcome
    }

    /// Waits for a reply within the timeout, and classifies its error.
    async fn timed<T>(
        &self,
        reply: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisFailure> {
        let reply = self.clock.timeout(TIMEOUT, reply).await;
        let reply = reply.map_err(|_| RedisFailure::Timeout)?;
        reply.map_err(|error| self.connector.classify_error(&error))
    }
}

/// A version that no other change has.
fn new_version() -> Result<String, RedisFailure> {
    // Without random numbers nothing is sent.
    let numbers = getrandom::u64().and_then(|high| Ok((high, getrandom::u64()?)));
    let (high, low) = numbers.map_err(|_| RedisFailure::Unsent)?;
    Ok(format!("{high:016x}{low:016x}"))
}

fn command(name: &str, key: &str, field: Option<&str>) -> Cmd {
    let mut command = ::redis::cmd(name);
    command.arg(key);
    if let Some(field) = field {
        command.arg(field);
    }
    command
}
