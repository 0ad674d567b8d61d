//! One server of the shared store, as the whole process sees it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    TlsCertificates, aio::MultiplexedConnection,
};
use tokio::{sync::watch, time};

use super::{
    Credentials, Failure, RedisOptions, code,
    gate::{Gate, Pass},
    place::slot_tag,
    probe::{probe, unhurried},
    sentinel::Sentinel,
};
use crate::store::SetupError;

/// How many commands may wait to be written; those behind wait within their own timeout.
const PIPELINE: usize = 1_024;

/// [`Node::slot`] of a server that is no node of a Cluster, or serves no slot.
const NO_SLOT: u32 = u32::MAX;

/// A shard's primary, a replica, a Cluster's node, or whom Sentinel calls the primary.
pub(super) struct Node {
    /// `host:port`, or Sentinel's name for it.
    pub(super) name: Box<str>,
    target: Target,
    options: Arc<RedisOptions>,
    pub(super) gate: Gate,
    /// Workers whose breaker is open.
    lost: AtomicUsize,
    /// How often all connections were called wrong.
    revoked: watch::Sender<u64>,
    /// A slot that this node of a Cluster serves.
    slot: AtomicU32,
    /// Why there is no connection, as it was told last; nothing while there is one.
    unreached: Mutex<String>,
    /// The same of why a connection is of no use.
    unfit: Mutex<String>,
}

enum Target {
    Server(Box<Client>),
    Sentinel(Arc<Sentinel>),
}

/// A connection that was found alive, and when the server came up that it leads to.
pub(super) struct Connected {
    pub(super) connection: MultiplexedConnection,
    pub(super) epoch: u64,
}

impl Node {
    pub(super) fn server(client: Client, options: Arc<RedisOptions>) -> Self {
        let name = client.get_connection_info().addr().to_string().to_ascii_lowercase();
        Self::new(name.into(), Target::Server(Box::new(client)), options)
    }

    pub(super) fn watched(sentinel: Arc<Sentinel>, options: Arc<RedisOptions>) -> Self {
        Self::new(sentinel.master.clone(), Target::Sentinel(sentinel), options)
    }

    fn new(name: Box<str>, target: Target, options: Arc<RedisOptions>) -> Self {
        Self {
            name,
            target,
            options,
            gate: Gate::new(),
            lost: AtomicUsize::new(0),
            revoked: watch::Sender::new(0),
            slot: AtomicU32::new(NO_SLOT),
            unreached: Mutex::default(),
            unfit: Mutex::default(),
        }
    }

    /// The host of a server with a fixed address.
    pub(super) fn host(&self) -> Option<&str> {
        match &self.target {
            Target::Server(client) => address(client.get_connection_info()).map(|(host, _)| host),
            Target::Sentinel(_) => None,
        }
    }

    /// Workers that have lost it.
    pub(super) fn lost(&self) -> usize {
        self.lost.load(Ordering::Relaxed)
    }

    /// Whether nobody is known to have lost it.
    pub(super) fn is_up(&self) -> bool {
        self.lost() == 0 && !self.gate.is_down()
    }

    /// A worker's breaker opens.
    pub(super) fn lose(&self, failure: Failure) {
        if self.lost.fetch_add(1, Ordering::Relaxed) == 0 {
            let (shard, failure) = (&*self.name, failure.label());
            tracing::warn!(shard, failure, "Redis is lost: limits fall back");
        }
    }

    /// A worker's breaker closes.
    pub(super) fn regain(&self) {
        if self.lost.fetch_sub(1, Ordering::Relaxed) == 1 {
            tracing::info!(shard = &*self.name, "Redis is back: limits are shared again");
        }
    }

    /// A worker whose breaker is open ends.
    pub(super) fn forget(&self) {
        self.lost.fetch_sub(1, Ordering::Relaxed);
    }

    /// A slot that it serves, so that a write can be tried there.
    pub(super) fn serves(&self, slot: u16) {
        self.slot.store(slot.into(), Ordering::Relaxed);
    }

    /// Calls every connection wrong: they lead to a server that is the primary no more.
    pub(super) fn revoke(&self) {
        self.revoked.send_modify(|times| *times += 1);
    }

    /// Tells of [`Self::revoke`].
    pub(super) fn revocations(&self) -> watch::Receiver<u64> {
        self.revoked.subscribe()
    }

    /// Connects, within the connect timeout, without asking the gate. Commands have no timeout of their
    /// own: whoever waits for one says how long.
    pub(super) async fn open(&self) -> Result<MultiplexedConnection, Failure> {
        let opened = match &self.target {
            Target::Server(client) => open(client, self.options.connect_timeout).await,
            Target::Sentinel(sentinel) => sentinel.primary(&self.options).await,
        };
        self.tell(&self.unreached, "no connection to Redis", opened)
    }

    /// Tells why, each reason once until it goes well again or there is another.
    fn tell<T>(
        &self,
        told: &Mutex<String>,
        what: &str,
        outcome: Result<T, Unconnected>,
    ) -> Result<T, Failure> {
        let unconnected = match outcome {
            Ok(connected) => {
                told.lock().clear();
                return Ok(connected);
            }
            Err(unconnected) => unconnected,
        };
        let Unconnected { failure, why } = unconnected;
        let mut told = told.lock();
        if *told != why {
            tracing::warn!(shard = &*self.name, %why, "{what}");
            *told = why;
        }
        Err(failure)
    }

    /// Uses the pass: connects, and makes sure that Redis writes and knows the scripts.
    pub(super) async fn connect(&self, pass: Pass<'_>) -> Result<Connected, Failure> {
        let connected = self.ready().await;
        let epoch = pass.end(connected.as_ref().map(drop).map_err(|&failure| failure));
        Ok(Connected { connection: connected?, epoch })
    }

    async fn ready(&self) -> Result<MultiplexedConnection, Failure> {
        let mut connection = self.open().await?;
        let namespace = &self.options.namespace;
        let key = match u16::try_from(self.slot.load(Ordering::Relaxed)) {
            Ok(slot) => format!("{namespace}:{{{}}}:probe", slot_tag(slot)),
            Err(_) => format!("{namespace}:probe"),
        };
        let probed = probe(&mut connection, &key, &self.options).await;
        self.tell(&self.unfit, "Redis answers, but limits cannot use it", probed)?;
        Ok(connection)
    }

    /// Whether a connection still leads to somebody, whatever he says; he may take his time, for whether
    /// he is too slow is found by requests.
    pub(super) async fn ping(&self, connection: &mut MultiplexedConnection) -> Result<(), Failure> {
        let ping = redis::cmd("PING");
        let pinging = ping.exec_async(connection);
        match time::timeout(unhurried(&self.options), pinging).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => match Failure::of(&error) {
                Failure::Server | Failure::Reply => Ok(()),
                failure => Err(failure),
            },
            Err(_) => Err(Failure::Timeout),
        }
    }

    /// Uses the pass: connects, whatever the server can do. That it cannot be reached is told at the gate;
    /// that it can says nothing yet.
    pub(super) async fn reach(&self, pass: Pass<'_>) -> Result<MultiplexedConnection, Failure> {
        let opened = self.open().await;
        if let Err(failure) = &opened {
            pass.end(Err(*failure));
        }
        opened
    }
}

/// Why there is no connection; `why` holds nothing that was sent.
pub(super) struct Unconnected {
    pub(super) failure: Failure,
    pub(super) why: String,
}

impl Unconnected {
    /// By what a server answered.
    pub(super) fn by(error: &redis::RedisError) -> Self {
        let failure = Failure::of(error);
        Self { failure, why: code(error).unwrap_or_else(|| failure.label().to_owned()) }
    }
}

impl From<Failure> for Unconnected {
    fn from(failure: Failure) -> Self {
        Self { failure, why: failure.label().to_owned() }
    }
}

/// Whether a Cluster says that the key is at another node.
pub(super) fn is_elsewhere(error: &redis::RedisError) -> bool {
    matches!(error.code(), Some("MOVED" | "ASK"))
}

/// Connects to one server.
pub(super) async fn open(
    client: &Client,
    within: Duration,
) -> Result<MultiplexedConnection, Unconnected> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(within))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(PIPELINE);
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    // The crate's timeout may leave the look-up of the name out; this one does not.
    let error = match time::timeout(within, connecting).await {
        Ok(Ok(connection)) => return Ok(connection),
        Ok(Err(error)) => error,
        Err(_) => return Err(Failure::Timeout.into()),
    };
    let mut unconnected = Unconnected::by(&error);
    if error.kind() == redis::ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("WRONGPASS" | "NOAUTH" | "NOPERM"))
    {
        "the user name or the password is refused".clone_into(&mut unconnected.why);
    } else if error.is_io_error() {
        // The system's or TLS' own words: nothing was answered yet.
        unconnected.why = error.to_string();
    }
    Err(unconnected)
}

/// Reads a URL. The error does not repeat it: it may hold a password.
pub(super) fn client(
    url: &str,
    credentials: &Credentials,
    tls_ca: Option<&[u8]>,
) -> Result<Client, SetupError> {
    let expected = "expected redis://[user:password@]host[:port][/database] or rediss://";
    let info = url.into_connection_info().map_err(|_| SetupError::Url(expected))?;
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    let info = with_credentials(info.set_tcp_settings(tcp), credentials);
    let opened = match tls_ca {
        Some(ca) if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) => {
            let certificates = TlsCertificates { client_tls: None, root_cert: Some(ca.to_vec()) };
            return Client::build_with_tls(info, certificates).map_err(|_| SetupError::Ca);
        }
        _ => Client::open(info),
    };
    opened.map_err(|_| SetupError::Url(expected))
}

/// Fills each half of a login that the URL leaves open.
fn with_credentials(info: ConnectionInfo, credentials: &Credentials) -> ConnectionInfo {
    let mut settings = info.redis_settings().clone();
    if let Some(username) = credentials.username.as_ref().filter(|_| settings.username().is_none())
    {
        settings = settings.set_username(username);
    }
    if let Some(password) = credentials.password.as_ref().filter(|_| settings.password().is_none())
    {
        settings = settings.set_password(password);
    }
    info.set_redis_settings(settings)
}

/// The same way in, at another address.
pub(super) fn client_at(like: &ConnectionInfo, host: &str, port: u16) -> Option<Client> {
    let host = host.to_owned();
    let address = match like.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host, port),
    };
    Client::open(like.clone().set_addr(address)).ok()
}

/// Host and port; `None` of a socket in the file system.
pub(super) fn address(info: &ConnectionInfo) -> Option<(&str, u16)> {
    match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Some((host, *port))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_half_of_a_login_is_the_urls_or_else_the_configured() {
        let configured = Credentials { username: Some("us".into()), password: Some("hush".into()) };
        for (login, wanted) in [
            ("", (Some("us"), Some("hush"))),
            ("me@", (Some("me"), Some("hush"))),
            (":mine@", (Some("us"), Some("mine"))),
            ("me:mine@", (Some("me"), Some("mine"))),
        ] {
            let client = client(&format!("redis://{login}h:1"), &configured, None).unwrap();
            let settings = client.get_connection_info().redis_settings();
            assert_eq!((settings.username(), settings.password()), wanted, "{login}");
            let found = client_at(client.get_connection_info(), "h", 2).unwrap();
            let settings = found.get_connection_info().redis_settings();
            assert_eq!((settings.username(), settings.password()), wanted, "{login}");
        }
    }
}
