//! One worker's idle connections to one endpoint. `named` keeps those whose TLS name depends on the
//! request.

mod named;

use std::{
    cell::{Cell, RefCell},
    io,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use ahash::RandomState;
use hashbrown::HashMap;
use rustls::pki_types::ServerName;
use tidegate_base::time::{CoarseTime, Millis};
use tidegate_system::clock::CoarseClock;
use tidegate_tls::ALPN_HTTP2;
use tidegate_transport::{RawSocket, SharedSocket, Transport};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpStream, UnixStream},
    sync::Notify,
    time::timeout,
};
use tokio_rustls::{TlsConnector, TlsStream, rustls::ClientConfig};

use self::named::NamedPools;
use super::{
    Protocol, ProxiedClient, ServerAddress, Target,
    connection::{ConnectionOwner, UpstreamHttp1Connection},
    endpoint::{ConnectionGuard, EndpointState},
    http2::{Http2Connections, Http2Slot},
    requested_name::{NameRefused, RequestedName},
    target_health::{AttemptKind, NoHttp2},
};

/// Maximum number of idle connections. Further ones are closed.
const MAX_IDLE: usize = 512;
/// Maximum number of requests that wait for one HTTP/2 connection to open. Servers usually allow
/// about 100 streams.
const MAX_WAITING: usize = 100;
/// The time for which HTTP/1.1 is used after the server has asked for it.
const HTTP1_REQUIRED: Millis = Millis::from_mins(5);

/// One worker's connections to one server. Takes the most recently used idle connection first.
pub struct Pool {
    endpoint: Arc<EndpointState>,
    /// True if the server speaks HTTP/2; `None` before the first handshake with [`Protocol::Auto`].
    is_http2: Cell<Option<bool>>,
    /// With [`Protocol::Auto`], requests use HTTP/1.1 until then. Shared with the pools for names
    /// of requests.
    http1_until: Rc<Cell<CoarseTime>>,
    http2: Http2Connections,
    /// Number of connections that are being opened.
    openings: Cell<usize>,
    /// Number of requests that wait for one of them.
    waiting: Cell<usize>,
    /// Wakes these requests.
    opened: Notify,
    #[expect(clippy::vec_box, reason = "a connection keeps its box when a request takes it")]
    idle: RefCell<Vec<Box<UpstreamHttp1Connection>>>,
    /// The name in the handshake, instead of the target's.
    server_name: Option<RequestedName>,
    /// The connections for names of requests.
    named: NamedPools,
    coarse_clock: CoarseClock,
}

/// One worker's pools, by their endpoints. They outlive reloads.
pub struct PoolTable {
    pools: RefCell<HashMap<usize, Rc<Pool>, RandomState>>,
    coarse_clock: CoarseClock,
}

/// A connection on which an exchange may start.
pub(super) enum UpstreamConnection {
    /// An HTTP/1.1 connection. Boxed, because a request moves it many times.
    Http1(Box<UpstreamHttp1Connection>),
    /// A place on an HTTP/2 connection.
    Http2(Http2Slot),
}

/// A request's requirements for its connection.
#[derive(Clone, Debug)]
pub(super) struct ConnectionNeeds {
    /// True if the request asks for an upgrade.
    pub(super) is_upgrade: bool,
    /// True if no idle HTTP/1 connection may be used: the server had closed the last one, or the
    /// attempt is a trial.
    pub(super) needs_new_connection: bool,
    /// The client, for the PROXY protocol.
    pub(super) proxied: ProxiedClient,
    /// Maximum number of connections to the endpoint, over all workers; `None`: unlimited.
    pub(super) max_connections: Option<u32>,
    /// The name that the server's certificate must have; `None`: the target's.
    pub(super) server_name: Option<RequestedName>,
}

impl UpstreamConnection {
    /// True if the connection has carried an exchange before.
    pub(super) fn is_reused(&self) -> bool {
        match self {
            Self::Http1(connection) => connection.is_reused,
            Self::Http2(slot) => slot.is_reused,
        }
    }
}

/// Counts a connection that is being opened. Dropping it wakes the requests that wait.
struct ConnectInFlight<'a>(&'a Pool);

impl<'a> ConnectInFlight<'a> {
    fn new(pool: &'a Pool) -> Self {
        pool.openings.set(pool.openings.get() + 1);
        Self(pool)
    }
}

impl PoolTable {
    /// An empty table.
    pub fn new(coarse_clock: CoarseClock) -> Rc<Self> {
        Rc::new(Self { pools: RefCell::default(), coarse_clock })
    }

    /// The pool of an endpoint.
    pub(super) fn pool(&self, endpoint: &Arc<EndpointState>) -> Rc<Pool> {
        let new = || Pool::new(Arc::clone(endpoint), self.coarse_clock.clone());
        let mut pools = self.pools.borrow_mut();
        // The pool holds the `Arc`, so no other endpoint can have this address.
        Rc::clone(pools.entry(Arc::as_ptr(endpoint).addr()).or_insert_with(new))
    }

    /// Closes all idle connections, to make room for a new one.
    pub(super) fn close_idle(&self) {
        self.pools.borrow().values().for_each(|pool| pool.sweep(Millis::ZERO));
    }

    /// Removes the pools of endpoints that are no longer used.
    pub fn sweep(&self) {
        self.pools.borrow_mut().retain(|_, pool| Rc::strong_count(pool) > 1);
    }
}

impl Drop for ConnectInFlight<'_> {
    fn drop(&mut self) {
        self.0.openings.set(self.0.openings.get() - 1);
        self.0.opened.notify_waiters();
    }
}

/// Counts a request that waits for a connection that is being opened.
struct ConnectWaiter<'a>(&'a Pool);

impl<'a> ConnectWaiter<'a> {
    fn new(pool: &'a Pool) -> Self {
        pool.waiting.set(pool.waiting.get() + 1);
        Self(pool)
    }
}

impl Drop for ConnectWaiter<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

/// Performs the TLS handshake by the rules of `config` with a server that must have this `name`.
pub(super) async fn handshake(
    name: &ServerName<'static>,
    config: &Arc<ClientConfig>,
    socket: RawSocket,
) -> io::Result<TlsStream<RawSocket>> {
    let connector = TlsConnector::from(Arc::clone(config));
    Ok(TlsStream::Client(connector.connect(name.clone(), socket).await?))
}

impl Pool {
    /// An empty pool.
    pub fn new(endpoint: Arc<EndpointState>, coarse_clock: CoarseClock) -> Rc<Self> {
        Rc::new(Self::empty(endpoint, coarse_clock))
    }

    fn empty(endpoint: Arc<EndpointState>, coarse_clock: CoarseClock) -> Self {
        let target = &endpoint.target;
        let is_http2 = match target.protocol {
            Protocol::Http1 => Some(false),
            Protocol::Http2 => Some(true),
            Protocol::Auto if target.tls.is_none() => Some(false),
            Protocol::Auto => None,
        };
        Self {
            endpoint,
            is_http2: Cell::new(is_http2),
            http1_until: Rc::default(),
            http2: Http2Connections::default(),
            openings: Cell::new(0),
            waiting: Cell::new(0),
            opened: Notify::new(),
            idle: RefCell::default(),
            server_name: None,
            named: NamedPools::default(),
            coarse_clock,
        }
    }

    /// The pool for `name`.
    #[cold]
    fn for_requested(&self, name: &RequestedName) -> Rc<Self> {
        self.named.get(name, || {
            let (endpoint, clock) = (Arc::clone(&self.endpoint), self.coarse_clock.clone());
            Rc::new(Self {
                server_name: Some(Rc::clone(name)),
                http1_until: Rc::clone(&self.http1_until),
                ..Self::empty(endpoint, clock)
            })
        })
    }

    /// The pool for the name that `wanted` has, if it is another one than this pool's.
    #[inline]
    fn other(&self, name: Option<&RequestedName>) -> Option<Rc<Self>> {
        name.filter(|_| self.server_name.is_none()).map(|name| self.for_requested(name))
    }

    /// The endpoint, which all workers share.
    pub fn endpoint(&self) -> &Arc<EndpointState> {
        &self.endpoint
    }

    /// The worker's coarse time.
    pub(super) fn now(&self) -> CoarseTime {
        self.coarse_clock.now()
    }

    /// The server and its protocol settings.
    pub fn target(&self) -> &Target {
        &self.endpoint.target
    }

    /// The endpoint's address as text: `10.0.0.1:9000` or `unix:/path`.
    pub fn name(&self) -> &str {
        &self.endpoint.name
    }

    /// True if a request with these needs uses HTTP/2; `None` before the first handshake that
    /// negotiates it.
    fn is_http2(&self, wanted: &ConnectionNeeds) -> Option<bool> {
        if self.needs_http1(wanted) { Some(false) } else { self.is_http2.get() }
    }

    /// True if the request needs HTTP/1.1 for its upgrade, because few servers accept upgrades over
    /// HTTP/2, or the server has asked for it.
    fn needs_http1(&self, wanted: &ConnectionNeeds) -> bool {
        self.target().protocol == Protocol::Auto
            && (wanted.is_upgrade || self.coarse_clock.now() < self.http1_until.get())
    }

    /// Uses HTTP/1.1 for a while, because the server has asked for it. False if the configuration
    /// demands HTTP/2.
    pub(super) fn require_http1(&self) -> bool {
        let is_allowed = self.target().protocol == Protocol::Auto;
        if is_allowed {
            self.http1_until.set(self.coarse_clock.now() + HTTP1_REQUIRED);
        }
        is_allowed
    }

    /// Takes an idle connection, or a place on an HTTP/2 connection. Drops connections that the
    /// server has closed. A trial uses no idle HTTP/1 connection: one from before the ejection does
    /// not show the target's current state.
    pub(super) fn take(
        &self,
        wanted: &ConnectionNeeds,
        kind: AttemptKind,
    ) -> Option<UpstreamConnection> {
        if let Some(other) = self.other(wanted.server_name.as_ref()) {
            return other.take(wanted, kind);
        }
        let is_http2 = self.is_http2(wanted);
        if is_http2 != Some(false) {
            let slot = self.http2.take(&self.coarse_clock);
            if slot.is_some() || is_http2 == Some(true) {
                return slot.map(UpstreamConnection::Http2);
            }
        }
        if wanted.needs_new_connection || kind == AttemptKind::Trial {
            return None;
        }
        let mut idle = self.idle.borrow_mut();
        loop {
            let connection = idle.pop()?;
            if connection.is_reusable() {
                return Some(UpstreamConnection::Http1(connection));
            }
        }
    }

    /// Opens a connection within `connect_timeout`, including handshakes.
    ///
    /// Up to [`MAX_WAITING`] requests share one HTTP/2 connection that is being opened.
    pub(super) async fn connect(
        &self,
        connect_timeout: Duration,
        wanted: &ConnectionNeeds,
    ) -> io::Result<UpstreamConnection> {
        match self.other(wanted.server_name.as_ref()) {
            Some(other) => other.connect_own(connect_timeout, wanted).await,
            None => self.connect_own(connect_timeout, wanted).await,
        }
    }

    async fn connect_own(
        &self,
        connect_timeout: Duration,
        wanted: &ConnectionNeeds,
    ) -> io::Result<UpstreamConnection> {
        let connecting = async {
            while self.is_http2(wanted) != Some(false)
                && self.waiting.get() < self.openings.get() * MAX_WAITING
            {
                let waiting = ConnectWaiter::new(self);
                self.opened.notified().await;
                drop(waiting);
                if let Some(link) = self.take(wanted, AttemptKind::Regular) {
                    return Ok(link);
                }
            }
            let _opening = ConnectInFlight::new(self);
            self.open(wanted).await
        };
        let timed_out = |_| Err(io::ErrorKind::TimedOut.into());
        timeout(connect_timeout, connecting).await.unwrap_or_else(timed_out)
    }

    async fn open(&self, wanted: &ConnectionNeeds) -> io::Result<UpstreamConnection> {
        let is_http1 = self.needs_http1(wanted);
        let guard = ConnectionGuard::open(&self.endpoint, wanted.max_connections)?;
        let socket = self.connect_socket(wanted.proxied).await?;
        self.endpoint.note_connect(self.coarse_clock.now());
        let transport = match &self.target().tls {
            None => Transport::Plain(socket),
            Some(tls) => {
                let rules = &tls.rules;
                let config = if is_http1 { &rules.http1_config } else { &rules.config };
                let own = self.server_name.as_ref();
                let name = own.map_or(&tls.name, |name| &**name);
                let stream = handshake(name, config, socket).await;
                let stream = stream.map_err(|error| NameRefused::of(own, error))?;
                let is_http2 = stream.get_ref().1.alpn_protocol() == Some(ALPN_HTTP2);
                match self.target().protocol {
                    _ if is_http1 => {}
                    Protocol::Auto => self.is_http2.set(Some(is_http2)),
                    Protocol::Http2 if !is_http2 => {
                        return Err(io::Error::other(NoHttp2::default()));
                    }
                    _ => {}
                }
                stream.into()
            }
        };
        if self.is_http2(wanted) == Some(true) {
            let slot = self.http2.open(transport, guard, &self.coarse_clock).await?;
            self.endpoint.set_streams(slot.max_streams());
            return Ok(UpstreamConnection::Http2(slot));
        }
        let mut connection = UpstreamHttp1Connection::new(SharedSocket::new(transport), guard);
        connection.server_name.clone_from(&self.server_name);
        Ok(UpstreamConnection::Http1(Box::new(connection)))
    }

    async fn connect_socket(&self, client: ProxiedClient) -> io::Result<RawSocket> {
        let mut socket = match &self.target().address {
            ServerAddress::Tcp { .. } | ServerAddress::Service(_) => {
                let unresolved = io::ErrorKind::AddrNotAvailable;
                let address = self.target().socket_address().ok_or(unresolved)?;
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                RawSocket::Tcp(stream)
            }
            ServerAddress::Unix(path) => RawSocket::Unix(UnixStream::connect(path).await?),
        };
        if let Some(version) = self.target().send_proxy {
            socket.write_all(&client.header(version)?).await?;
        }
        Ok(socket)
    }

    /// Returns a connection to the pool, or closes it if it cannot be reused.
    pub(super) fn put(&self, mut connection: Box<UpstreamHttp1Connection>) {
        if let Some(other) = self.other(connection.server_name.as_ref()) {
            return other.put(connection);
        }
        let mut idle = self.idle.borrow_mut();
        // With the PROXY protocol, a connection belongs to one client.
        let is_shared = self.target().send_proxy.is_none();
        // Another request needs the place more than an idle connection does.
        let is_needed =
            self.endpoint.is_starved() || self.endpoint.load.connection_budget.is_scarce();
        let is_kept = is_shared && !is_needed;
        if is_kept && connection.is_reusable() && idle.len() < MAX_IDLE {
            connection.mark_idle(self.coarse_clock.now());
            idle.push(connection);
        }
        drop(idle);
        self.check();
    }

    /// Closes connections that have been idle for longer than `limit`; all idle ones if it is zero.
    pub fn sweep(&self, limit: Millis) {
        let now = self.coarse_clock.now();
        self.named.sweep(now, limit);
        self.sweep_own(now, limit);
    }

    fn sweep_own(&self, now: CoarseTime, limit: Millis) {
        let is_kept = |idle_since: CoarseTime| !limit.is_zero() && now.since(idle_since) <= limit;
        self.http2.sweep(now, limit);
        self.idle.borrow_mut().retain(|connection| is_kept(connection.idle_since));
        self.check();
    }

    /// Checks the invariants of the idle connections, in debug builds.
    fn check(&self) {
        if cfg!(debug_assertions) {
            let idle = self.idle.borrow();
            assert!(idle.len() <= MAX_IDLE, "{} idle connections", idle.len());
            assert!(
                idle.iter().all(|connection| connection.is_reused
                    && connection.owner == ConnectionOwner::AnyClient)
            );
            let is_shared = self.target().send_proxy.is_none();
            assert!(is_shared || idle.is_empty(), "a client's own connection is kept");
            let open = self.endpoint.connections() as usize;
            assert!(idle.len() <= open, "{} idle connections, {open} open", idle.len());
        }
    }

    /// The number of idle connections.
    pub fn idle_count(&self) -> usize {
        self.own_idle_count() + self.named.idle_count()
    }

    fn own_idle_count(&self) -> usize {
        self.idle.borrow().len() + self.http2.idle_count()
    }

    /// True if it has a connection, or one is being opened.
    fn is_in_use(&self) -> bool {
        !self.idle.borrow().is_empty() || self.openings.get() > 0 || self.http2.is_open()
    }
}
