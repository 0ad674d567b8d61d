//! [`RedisStorage`]: what gateways share about certificates in Redis, over a connection of its own.
//!
//! All keys have one hash tag, so that they are on one server: `NAMESPACE:{acme}:` and
//!
//! | key | content |
//! |---|---|
//! | `certificates` | a hash: for each certificate the record of its chain and key |
//! | `versions` | a hash: for each certificate a random text that every new record replaces |
//! | `failures` | a hash: for each certificate the number of failed orders since the last successful one |
//! | `account:NAME` | the record of an account's key |
//! | `lease:NAME` | the owner of the current order, which expires; or `paused`, after a failed order |
//! | `domain:NAME` | the owner of the order that proves this domain by `tls-alpn-01`, which expires |
//! | `responses` | a sorted set: the records of responses to authorities, by the time at which they end |

use std::{
    future::Future,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use ::redis::{Cmd, FromRedisValue, RedisError, aio::MultiplexedConnection};
use parking_lot::Mutex;
use tidegate_base::time::Millis;
use tidegate_redis::{Connector, NodeConnection, RedisFailure, Script, ScriptRef};
use tidegate_system::clock::Clock;

/// Timeout of one call, and of connecting.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The hash tag of the keys, which determines their server.
const TAG: &str = "acme";
/// The largest number of responses that are read.
const MAX_RESPONSES: usize = 1_000;
/// The largest number of certificates that are looked at for one of other domains.
const MAX_CERTIFICATES: usize = 1_000;
/// The longest record that is read, in bytes.
const MAX_RECORD: usize = 1 << 20;

/// What gateways share.
pub(super) struct RedisStorage {
    connector: Connector,
    pub(super) clock: Clock,
    connection: tokio::sync::Mutex<Option<NodeConnection>>,
    scripts: StorageScripts,
    /// Why the last call failed; `None` if it succeeded.
    failure: Mutex<Option<RedisFailure>>,
    failed_calls: AtomicU64,
}

struct StorageScripts {
    read_orders: Script,
    take_lease: Script,
    keep_lease: Script,
    end_lease: Script,
    share_responses: Script,
    write_certificate: Script,
}

/// What one certificate has in Redis, without its record.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct PolledCertificate {
    /// The version of the record; `None` without one.
    pub(super) version: Option<Box<str>>,
    /// The text of the lease; `None` if it is free.
    pub(super) lease: Option<Box<str>>,
    /// The time until the lease ends.
    pub(super) left: Millis,
}

/// What was read at once.
#[derive(Debug, Default)]
pub(super) struct PolledOrders {
    /// The records of responses; the one that ends last is at the end.
    pub(super) responses: Vec<Vec<u8>>,
    /// In the order of the names.
    pub(super) certificates: Vec<PolledCertificate>,
}

/// A lease, for calls.
pub(super) struct LeaseKeys {
    /// A text that no other lease has.
    pub(super) owner: String,
    /// The certificate's name.
    pub(super) name: String,
    /// The domains that the order proves by `tls-alpn-01`.
    pub(super) domains: Box<[Box<str>]>,
}

/// The pause after a failed order.
pub(super) struct LeasePause {
    /// The number of failed orders since the last successful one.
    pub(super) failures: u32,
    /// Its length.
    pub(super) length: Duration,
    /// The text of the lease meanwhile.
    pub(super) text: String,
}

/// A record that is written.
pub(super) struct NewRecord<'r> {
    /// The certificate's name.
    pub(super) name: &'r str,
    /// The version that it replaces; empty: none.
    pub(super) replaced: &'r str,
    /// Its own version.
    pub(super) version: &'r str,
    /// The record.
    pub(super) record: &'r [u8],
}

type RawCertificate = (Option<Vec<u8>>, Option<Vec<u8>>, i64);

impl RedisStorage {
    /// Opens no connection yet.
    pub(super) fn new(connector: Connector, clock: Clock) -> Self {
        let scripts = StorageScripts {
            read_orders: Script::new(include_str!("../../../../lua/read_orders.lua")),
            take_lease: Script::new(include_str!("../../../../lua/take_lease.lua")),
            keep_lease: Script::new(include_str!("../../../../lua/keep_lease.lua")),
            end_lease: Script::new(include_str!("../../../../lua/end_lease.lua")),
            share_responses: Script::new(include_str!("../../../../lua/share_responses.lua")),
            write_certificate: Script::new(include_str!("../../../../lua/write_certificate.lua")),
        };
        let (connection, failure) = (tokio::sync::Mutex::default(), Mutex::default());
        let failed_calls = AtomicU64::new(0);
        Self { connector, clock, connection, scripts, failure, failed_calls }
    }

    /// The key `kind`, or that of `name` below it.
    pub(super) fn key(&self, kind: &str, name: Option<&str>) -> String {
        let namespace = self.connector.namespace();
        name.map_or_else(
            || format!("{namespace}:{{{TAG}}}:{kind}"),
            |name| format!("{namespace}:{{{TAG}}}:{kind}:{name}"),
        )
    }

    /// Why the last call failed; `None` if it succeeded.
    pub(super) fn failure(&self) -> Option<RedisFailure> {
        *self.failure.lock()
    }

    /// The number of calls that failed.
    pub(super) fn failed_calls(&self) -> u64 {
        self.failed_calls.load(Ordering::Relaxed)
    }

    /// Reads the responses, and the state of the certificates with these names.
    pub(super) async fn poll(&self, names: &[String]) -> Result<PolledOrders, RedisFailure> {
        let mut keys = vec![self.key("responses", None), self.key("versions", None)];
        keys.extend(names.iter().map(|name| self.key("lease", Some(name))));
        let fill = |command: &mut Cmd| {
            command.arg(keys.len()).arg(&keys).arg(MAX_RESPONSES).arg(names);
        };
        let (responses, certificates): (_, Vec<RawCertificate>) =
            self.call_script(&self.scripts.read_orders, fill).await?;
        if certificates.len() != names.len() {
            return Err(RedisFailure::Reply);
        }
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned().into_boxed_str();
        let certificates = certificates.into_iter().map(|(version, lease, left)| {
            let left = Millis::from_ms(left.try_into().unwrap_or(0));
            PolledCertificate { version: version.map(text), lease: lease.map(text), left }
        });
        Ok(PolledOrders { responses, certificates: certificates.collect() })
    }

    /// The record of a certificate; `None` without one, or if it is too long to be one.
    pub(super) async fn certificate(&self, name: &str) -> Result<Option<Vec<u8>>, RedisFailure> {
        let key = self.key("certificates", None);
        let length: usize = self.call(|command| command.arg(&key).arg(name), "HSTRLEN").await?;
        if length > MAX_RECORD {
            return Ok(None);
        }
        self.call(|command| command.arg(&key).arg(name), "HGET").await
    }

    /// All names and records of certificates; none if they are too many.
    pub(super) async fn certificates(&self) -> Result<Vec<(String, Vec<u8>)>, RedisFailure> {
        let key = self.key("certificates", None);
        let count: usize = self.call(|command| command.arg(&key), "HLEN").await?;
        if count > MAX_CERTIFICATES {
            return Ok(Vec::new());
        }
        let all: Vec<(Vec<u8>, Vec<u8>)> =
            self.call(|command| command.arg(&key), "HGETALL").await?;
        let named = all.into_iter().map(|(name, own)| Some((String::from_utf8(name).ok()?, own)));
        Ok(named.flatten().collect())
    }

    /// Writes a record, unless another gateway orders the certificate, or has ordered another one
    /// since. Returns true if it was written.
    pub(super) async fn write_certificate(
        &self,
        owner: &str,
        new: &NewRecord<'_>,
    ) -> Result<bool, RedisFailure> {
        let lease = self.key("lease", Some(new.name));
        let others = ["certificates", "versions", "failures"].map(|kind| self.key(kind, None));
        let fill = |command: &mut Cmd| {
            command.arg(4).arg(&lease).arg(&others).arg(owner).arg(new.name);
            command.arg(new.replaced).arg(new.version).arg(new.record);
        };
        let written: u8 = self.call_script(&self.scripts.write_certificate, fill).await?;
        Ok(written == 1)
    }

    /// The record of an account.
    pub(super) async fn account(&self, name: &str) -> Result<Option<Vec<u8>>, RedisFailure> {
        let key = self.key("account", Some(name));
        let record: Vec<u8> =
            self.call(|command| command.arg(&key).arg(0).arg(MAX_RECORD), "GETRANGE").await?;
        Ok((!record.is_empty()).then_some(record))
    }

    /// Writes the record of an account, unless there is one. Returns true if it was written.
    pub(super) async fn add_account(
        &self,
        name: &str,
        record: &[u8],
    ) -> Result<bool, RedisFailure> {
        let key = self.key("account", Some(name));
        let added: Option<String> =
            self.call(|command| command.arg(&key).arg(record).arg("NX"), "SET").await?;
        Ok(added.is_some())
    }

    /// Removes the record of an account.
    pub(super) async fn remove_account(&self, name: &str) -> Result<(), RedisFailure> {
        let key = self.key("account", Some(name));
        self.call::<u64>(|command| command.arg(&key), "DEL").await.map(drop)
    }

    /// Takes a lease. Returns the number of failed orders; `None` if it is taken. `mode` is
    /// `forced` if a pause does not count.
    pub(super) async fn take_lease(
        &self,
        lease: &LeaseKeys,
        length: Duration,
        mode: &str,
    ) -> Result<Option<u32>, RedisFailure> {
        let mut keys = vec![self.key("failures", None)];
        keys.extend(self.keys_of(lease));
        let fill = |command: &mut Cmd| {
            command.arg(keys.len()).arg(&keys).arg(&lease.owner);
            command.arg(millis(length)).arg(&lease.name).arg(mode);
        };
        let failures: i64 = self.call_script(&self.scripts.take_lease, fill).await?;
        Ok(u32::try_from(failures).ok())
    }

    /// Extends a lease. Returns false if it was lost.
    pub(super) async fn keep_lease(
        &self,
        lease: &LeaseKeys,
        length: Duration,
    ) -> Result<bool, RedisFailure> {
        let keys = self.keys_of(lease);
        let fill = |command: &mut Cmd| {
            command.arg(keys.len()).arg(&keys).arg(&lease.owner).arg(millis(length));
        };
        let kept: u8 = self.call_script(&self.scripts.keep_lease, fill).await?;
        Ok(kept == 1)
    }

    /// Ends a lease and the responses of its order; after a failed order, with a pause.
    pub(super) async fn end_lease(
        &self,
        lease: &LeaseKeys,
        responses: &[Vec<u8>],
        pause: Option<LeasePause>,
    ) -> Result<(), RedisFailure> {
        let mut keys = vec![self.key("responses", None), self.key("failures", None)];
        keys.extend(self.keys_of(lease));
        let none = LeasePause { failures: 0, length: Duration::ZERO, text: String::new() };
        let pause = pause.unwrap_or(none);
        let fill = |command: &mut Cmd| {
            command.arg(keys.len()).arg(&keys).arg(&lease.owner).arg(&lease.name);
            command.arg(pause.failures).arg(millis(pause.length)).arg(&pause.text).arg(responses);
        };
        self.call_script::<u8>(&self.scripts.end_lease, fill).await.map(drop)
    }

    /// Adds responses, for `length`. Returns false if the lease was lost.
    pub(super) async fn share_responses(
        &self,
        lease: &LeaseKeys,
        length: Duration,
        responses: &[Vec<u8>],
    ) -> Result<bool, RedisFailure> {
        let keys = [self.key("responses", None), self.key("lease", Some(&lease.name))];
        let fill = |command: &mut Cmd| {
            command.arg(2).arg(&keys).arg(&lease.owner).arg(millis(length)).arg(responses);
        };
        let added: u8 = self.call_script(&self.scripts.share_responses, fill).await?;
        Ok(added == 1)
    }

    fn keys_of(&self, lease: &LeaseKeys) -> Vec<String> {
        let domains = lease.domains.iter().map(|domain| self.key("domain", Some(domain)));
        std::iter::once(self.key("lease", Some(&lease.name))).chain(domains).collect()
    }

    async fn call_script<T: FromRedisValue>(
        &self,
        script: &Script,
        fill: impl Fn(&mut Cmd),
    ) -> Result<T, RedisFailure> {
        let command = |by: ScriptRef| {
            let mut command = script.command(by);
            fill(&mut command);
            command
        };
        self.send(|connection| {
            Script::invoke(command, move |command| {
                let mut connection = connection.clone();
                async move { command.query_async(&mut connection).await }
            })
        })
        .await
    }

    async fn call<T: FromRedisValue>(
        &self,
        fill: impl Fn(&mut Cmd) -> &mut Cmd,
        name: &str,
    ) -> Result<T, RedisFailure> {
        let mut command = ::redis::cmd(name);
        fill(&mut command);
        self.send(|mut connection| async move { command.query_async(&mut connection).await }).await
    }

    /// Sends a call over the connection, which is opened if there is none.
    async fn send<T, F: Future<Output = Result<T, RedisError>>>(
        &self,
        call: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, RedisFailure> {
        let sending = async {
            let reply = call(self.connected().await?).await;
            reply.map_err(|error| self.connector.classify_error(&error))
        };
        let sent = self.clock.timeout(TIMEOUT, sending).await;
        let sent = sent.unwrap_or(Err(RedisFailure::Timeout));
        self.note(sent.as_ref().err().copied()).await;
        sent
    }

    async fn connected(&self) -> Result<MultiplexedConnection, RedisFailure> {
        let mut current = self.connection.lock().await;
        if current.as_ref().is_none_or(NodeConnection::is_stale) {
            *current = None;
            *current = Some(self.connector.connect(TAG).await?);
        }
        current.as_ref().map(|own| own.connection.clone()).ok_or(RedisFailure::Io)
    }

    /// Drops the connection after a failure other than an error reply of Redis. Logs the first
    /// failure, and the first success after it.
    async fn note(&self, failure: Option<RedisFailure>) {
        if failure.is_some_and(|failure| failure != RedisFailure::Server) {
            *self.connection.lock().await = None;
        }
        let before = std::mem::replace(&mut *self.failure.lock(), failure);
        match (failure, before) {
            (Some(failure), before) => {
                self.failed_calls.fetch_add(1, Ordering::Relaxed);
                if before.is_none() {
                    let (reason, keys) = (failure.label(), self.key("*", None));
                    let effect = "the current certificates stay, and none is ordered";
                    tracing::error!(reason, keys, effect, "certificates cannot be read from Redis");
                }
            }
            (None, Some(_)) => tracing::info!("certificates can be read from Redis again"),
            (None, None) => {}
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A text that no other version and no other owner has.
///
/// # Errors
///
/// The system has no random numbers.
pub(super) fn random_text() -> Result<String, RedisFailure> {
    let numbers = getrandom::u64().and_then(|high| Ok((high, getrandom::u64()?)));
    let (high, low) = numbers.map_err(|_| RedisFailure::Unsent)?;
    Ok(format!("{high:016x}{low:016x}"))
}
