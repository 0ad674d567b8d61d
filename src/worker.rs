//! A worker thread: accepts and serves connections, checks their deadlines, and drains at the end.
//!
//! A worker has its own runtime, listeners (the kernel spreads connections over them:
//! `SO_REUSEPORT`), upstream connections and counters, so that requests need no locks.

use std::{
    cell::{Cell, RefCell},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    rc::{Rc, Weak},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
    time::Duration,
};

use rustix::io::Errno;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::LocalOptions,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    clock::{CoarseClock, CoarseTime},
    connection::{
        self, AcceptedConnection, ClientHttp2Connection, Connection, Handshake, HandshakeError,
        Sweepable,
    },
    connection_state::{COARSE_TICK, CloseMode},
    gateway::{ConnectionPermit, Gateway, Peer, Shared},
    identity::client,
    metrics::{ConnectionProtocol, OpeningFailure, WorkerMetrics},
    snapshot::ListenerRules,
    transport::PrefixedStream,
    upstream::{PeerAddress, ProxiedClient},
};

/// Interval between two sweeps, which check deadlines and set the coarse clock.
const SWEEP_INTERVAL: Duration = Duration::from_millis(COARSE_TICK);
/// Bytes of a client connection that the kernel has and may not send yet, from which it takes no more.
const MAX_UNSENT: u32 = 128 * 1024;
/// Sweeps from one removal of idle upstream connections to the next.
const SWEEPS_PER_POOL_SWEEP: u32 = 10;
/// Delay after a failed accept, for example for lack of a file descriptor. While `max_connections`
/// is reached, also the interval at which it is read again: a reload may have raised it.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Time after the stop during which idle connections may still send a request.
const DRAIN_GRACE: Duration = Duration::from_millis(100);
/// Time limit of a stopping worker's pending calls to the store, and the least time limit for
/// returning leased tokens.
const STORE_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Least time between two warnings of a worker, in ms.
const WARNING_INTERVAL: u64 = 1000;
/// Length of a listener's accept queue.
const BACKLOG: i32 = 4096;

/// Checks that no other process listens on `address`. With `SO_REUSEPORT` another gateway could
/// share it with the workers, and each would get a part of the connections.
///
/// # Errors
///
/// The address is in use, or cannot be bound.
pub fn ensure_unused(address: SocketAddr) -> io::Result<()> {
    bind(address, false).map(drop)
}

/// Opens a listener whose address other workers can share.
///
/// # Errors
///
/// The address cannot be bound.
pub fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = bind(address, true)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn bind(address: SocketAddr, reuse_port: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP));
    let socket = match socket {
        // On a machine without IPv6, `[::]` is every IPv4 address.
        Err(error)
            if address.ip() == Ipv6Addr::UNSPECIFIED
                && Errno::from_io_error(&error) == Some(Errno::AFNOSUPPORT) =>
        {
            return bind((Ipv4Addr::UNSPECIFIED, address.port()).into(), reuse_port);
        }
        socket => socket?,
    };
    if address.is_ipv6() {
        // `[::]` accepts IPv4 clients too.
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(reuse_port)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// A listener for clients.
#[derive(Debug)]
pub struct ClientListener {
    /// Its index in the configuration.
    pub index: usize,
    /// The socket, nonblocking.
    pub socket: std::net::TcpListener,
}

/// When and how a worker stops.
#[derive(Clone, Debug)]
pub struct Shutdown {
    /// Cancelled when the worker must stop accepting connections.
    pub drain: CancellationToken,
    /// Time that requests in flight then have to finish.
    pub drain_timeout: Duration,
    /// Whether the listeners are then those of a successor, which serves the connections that wait in them.
    pub is_handed_over: Arc<AtomicBool>,
}

/// Serves on `listeners` until `shutdown`, and then drains. Drops `failure` when it accepts connections, or
/// sends why it cannot.
pub fn run(
    shared: Arc<Shared>,
    listeners: Vec<ClientListener>,
    shutdown: Shutdown,
    failure: Sender<io::Error>,
) {
    let mut failure = Some(failure);
    let served = serve(shared, listeners, shutdown, || failure = None);
    if let (Err(error), Some(failure)) = (served, failure) {
        // Nothing receives it if another worker has failed before.
        let _ = failure.send(error);
    }
}

/// As [`run`], but calls `on_ready` when it accepts connections.
///
/// # Errors
///
/// The runtime cannot be created, or a listener cannot be registered with it.
fn serve(
    shared: Arc<Shared>,
    listeners: Vec<ClientListener>,
    shutdown: Shutdown,
    on_ready: impl FnOnce(),
) -> io::Result<()> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build_local(LocalOptions::default())?;
    let served = runtime.block_on(async move {
        let worker = Rc::new(Worker::new(shared, shutdown));
        let mut accepting = Vec::new();
        for ClientListener { index, socket } in listeners {
            let listener = TcpListener::from_std(socket)?;
            let origin = Origin { listener: index, address: listener.local_addr()? };
            accepting.push(tokio::task::spawn_local(worker.clone().accept(origin, listener)));
        }
        worker.shared.accepting_workers.fetch_add(1, Ordering::AcqRel);
        on_ready();
        let sweeping = tokio::task::spawn_local(worker.clone().sweep());
        for task in accepting {
            let _ = task.await;
        }
        worker.shared.accepting_workers.fetch_sub(1, Ordering::AcqRel);
        worker.tasks.close();
        let clock = worker.shared.clock.clone();
        let drain_timeout = worker.shutdown.drain_timeout;
        let deadline = clock.uptime() + drain_timeout;
        if clock.timeout(drain_timeout, worker.drain()).await.is_err() {
            let connections = worker.tasks.len();
            tracing::warn!(connections, "connections were cut off: drain_timeout has passed");
            // Aborts their requests, which returns slots in leaky buckets and concurrency permits.
            worker.close_connections(CloseMode::Immediate);
        }
        // Before the runtime ends: calls to Redis go over this worker's connection.
        let _ = clock.timeout(STORE_DRAIN_TIMEOUT, worker.gateway.drain()).await;
        let left = deadline.saturating_sub(clock.uptime());
        worker.gateway.return_leased_units(left.max(STORE_DRAIN_TIMEOUT)).await;
        worker.gateway.close();
        sweeping.abort();
        Ok(())
    });
    // Does not wait for DNS lookups in progress.
    runtime.shutdown_background();
    served
}

/// The listener that accepted a connection.
#[derive(Clone, Copy)]
struct Origin {
    /// Its index in the configuration.
    listener: usize,
    address: SocketAddr,
}

struct Worker {
    shared: Arc<Shared>,
    gateway: Gateway,
    shutdown: Shutdown,
    /// Set by each sweep.
    coarse_clock: CoarseClock,
    connections: RefCell<Vec<Weak<dyn Sweepable>>>,
    /// The tasks of the connections.
    tasks: TaskTracker,
    /// How connections close while the worker drains; new connections start in this mode.
    close_mode: Cell<CloseMode>,
    /// The last warning, by the coarse clock.
    warned_at: Cell<Option<CoarseTime>>,
}

impl Worker {
    fn new(shared: Arc<Shared>, shutdown: Shutdown) -> Self {
        let coarse_clock = CoarseClock::new(shared.clock.uptime().to_coarse());
        Self {
            gateway: Gateway::new(shared.clone(), coarse_clock.clone()),
            shared,
            shutdown,
            coarse_clock,
            connections: RefCell::default(),
            tasks: TaskTracker::new(),
            close_mode: Cell::new(CloseMode::KeepOpen),
            warned_at: Cell::new(None),
        }
    }

    /// Closes every connection after its current request. Idle connections are closed after
    /// [`DRAIN_GRACE`], so that a request that the client has already sent is still answered. If a successor
    /// serves, they have longer: most send their next request, and learn from its response that they are closed.
    async fn drain(&self) {
        self.close_connections(CloseMode::AfterRequest);
        let is_handed_over = self.shutdown.is_handed_over.load(Ordering::Acquire);
        let grace = if is_handed_over { self.shutdown.drain_timeout / 2 } else { DRAIN_GRACE };
        let _ = self.shared.clock.timeout(grace, self.tasks.wait()).await;
        self.close_connections(CloseMode::WhenIdle);
        self.tasks.wait().await;
    }

    fn close_connections(&self, mode: CloseMode) {
        self.close_mode.set(mode);
        let connections = self.connections.borrow();
        connections.iter().filter_map(Weak::upgrade).for_each(|open| open.request_close(mode));
    }

    async fn accept(self: Rc<Self>, origin: Origin, listener: TcpListener) {
        let drain = self.shutdown.drain.clone();
        while let Some(accepted) = drain.run_until_cancelled(listener.accept()).await {
            match accepted {
                Ok((socket, address)) => self.handle_accepted(origin, socket, address).await,
                Err(error) if is_connection_error(&error) => {}
                Err(error) => {
                    // For example no free file descriptor. The error persists, so its warning is rate-limited.
                    self.warn(|| tracing::warn!(%error, "cannot accept connections"));
                    let delay = self.shared.clock.sleep(ACCEPT_RETRY_DELAY);
                    let _ = drain.run_until_cancelled(delay).await;
                }
            }
        }
        if self.shutdown.is_handed_over.load(Ordering::Acquire) {
            return;
        }
        // Connections that the kernel accepted before the stop are served, not reset. The runtime
        // may not have seen the last ones, so they are accepted with the standard library.
        let Ok(listener) = listener.into_std() else { return };
        loop {
            let (socket, address) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if is_connection_error(&error) => continue,
                Err(_) => return,
            };
            // Does not wait for a permit: open connections close only after this loop.
            if let (Ok(socket), Some(permit)) = (into_tokio(socket), self.try_acquire_permit()) {
                self.spawn_connection(origin, socket, address, permit);
            }
        }
    }

    fn spawn_connection(
        self: &Rc<Self>,
        origin: Origin,
        socket: TcpStream,
        address: SocketAddr,
        permit: ConnectionPermit,
    ) {
        let serve = self.clone().serve(origin, socket, address, permit);
        tokio::task::spawn_local(self.tasks.track_future(serve));
    }

    /// Serves a connection, as soon as there is a permit for it. A drain does not wait for the permit, but the
    /// connection does: it was accepted.
    async fn handle_accepted(
        self: &Rc<Self>,
        origin: Origin,
        socket: TcpStream,
        address: SocketAddr,
    ) {
        if let Some(permit) = self.try_acquire_permit() {
            return self.spawn_connection(origin, socket, address, permit);
        }
        let acquired = self.shutdown.drain.run_until_cancelled(self.acquire_permit()).await;
        if let Some(permit) = acquired {
            return self.spawn_connection(origin, socket, address, permit);
        }
        let worker = self.clone();
        let serve = async move {
            let permit = worker.acquire_permit().await;
            worker.serve(origin, socket, address, permit).await;
        };
        tokio::task::spawn_local(self.tasks.track_future(serve));
    }

    fn try_acquire_permit(&self) -> Option<ConnectionPermit> {
        let bound = self.shared.live.snapshot().http.max_connections;
        self.shared.connection_limit.try_acquire(bound)
    }

    /// Waits until fewer than `max_connections` are open in the process.
    async fn acquire_permit(&self) -> ConnectionPermit {
        let limit = &self.shared.connection_limit;
        loop {
            if let Some(permit) = self.try_acquire_permit() {
                return permit;
            }
            self.warn(|| {
                let open = limit.open();
                tracing::warn!(open, "as many connections are open as may be: further ones wait");
            });
            // A reload may raise the bound without a permit being released.
            let _ = self.shared.clock.timeout(ACCEPT_RETRY_DELAY, limit.wait_for_release()).await;
        }
    }

    /// Calls `warn`, at most once per [`WARNING_INTERVAL`].
    fn warn(&self, warn: impl FnOnce()) {
        let now = self.coarse_clock.now();
        if self.warned_at.get().is_none_or(|at| now.saturating_sub(at) >= WARNING_INTERVAL) {
            self.warned_at.set(Some(now));
            warn();
        }
    }

    async fn serve(
        self: Rc<Self>,
        origin: Origin,
        socket: TcpStream,
        address: SocketAddr,
        mut permit: ConnectionPermit,
    ) {
        let peer = client::canonical_address(address.ip());
        let rules = self.listener_rules(origin.listener);
        let http = self.shared.live.snapshot().http;
        // The PROXY protocol names the client behind a load balancer only later.
        let is_balancer = rules.proxy_protocol.as_ref().is_some_and(|from| from.contains(peer));
        if !is_balancer && !self.admit_client(&mut permit, peer) {
            return;
        }
        // If this fails, responses may be slower, but they are correct.
        let _ = socket.set_nodelay(true);
        // Or a client that does not read costs the kernel megabytes, and the time to copy them.
        let _ = SockRef::from(&socket).set_tcp_notsent_lowat(MAX_UNSENT);
        let _open = OpenConnection::new(self.gateway.metrics());
        let accepted_at = self.coarse_clock.now();
        let destination = local_address(&socket, origin.address);
        let opened = if rules.is_plain_http1() {
            AcceptedConnection::plain(socket)
        } else {
            let handshake = Handshake::new(self.coarse_clock.clone());
            self.register(&handshake);
            let admit = is_balancer
                .then_some(|ip| self.admit_client(&mut permit, client::canonical_address(ip)));
            match Box::pin(handshake.open(socket, admit, &rules)).await {
                Ok(opened) => opened,
                Err(error) => return self.count_handshake_error(peer, &error),
            }
        };
        let AcceptedConnection { transport, before, is_http2, proxied, certificate } = opened;
        let mut addresses = proxied.unwrap_or(ProxiedClient { source: address, destination });
        let ip = client::canonical_address(addresses.source.ip());
        addresses.source.set_ip(ip);
        let is_tls = certificate.is_some();
        self.gateway.metrics().count_opened(ConnectionProtocol { is_http2, is_tls });
        let forwarding = PeerAddress::new(ip, if is_tls { "https" } else { "http" });
        let redirect_https = rules.redirect_https;
        drop(rules);
        let usage = self.gateway.client_usage(ip).into();
        let peer = Peer {
            address: ip,
            usage,
            proxied: addresses,
            forwarding,
            certificate,
            redirect_https,
        };
        let (clock, max_requests) = (self.coarse_clock.clone(), http.max_requests_per_connection);
        if is_http2 {
            let connection = ClientHttp2Connection::new(peer, clock, http.head, max_requests);
            connection.continue_deadline(accepted_at);
            self.register(&connection);
            let transport = PrefixedStream::new(before, transport);
            Box::pin(connection.serve(transport, &self.gateway)).await;
        } else {
            let connection =
                Connection::new(transport, before, peer, clock, http.head, max_requests);
            connection.continue_deadline(accepted_at);
            self.register(&connection);
            connection::serve(connection, &self.gateway).await;
        }
    }

    /// Counts and logs a connection that ended before HTTP.
    fn count_handshake_error(&self, peer: IpAddr, error: &HandshakeError) {
        let failure = match error {
            HandshakeError::ProxyProtocol => OpeningFailure::ProxyProtocol,
            HandshakeError::NotTls | HandshakeError::Tls(_) => OpeningFailure::Tls,
            HandshakeError::Timeout => OpeningFailure::Timeout,
            HandshakeError::Closed(_) => OpeningFailure::Closed,
            // Counted by `admit_client`.
            HandshakeError::Refused | HandshakeError::Stopping => return,
        };
        self.gateway.metrics().count_opening_failure(failure);
        tracing::debug!(client = %peer, %error, "a connection ended before its first request");
    }

    /// Counts the connection for its client. Returns whether the client may have another one.
    fn admit_client(&self, permit: &mut ConnectionPermit, ip: IpAddr) -> bool {
        let snapshot = self.shared.live.snapshot();
        let identity = &snapshot.identity;
        // Not for a trusted proxy: its connections carry many clients.
        let bound = snapshot.http.max_connections_per_client;
        let Some(bound) = bound.filter(|_| !identity.trusted_proxies.contains(ip)) else {
            return true;
        };
        let bound = self.shared.connection_limit.client_share().min(bound.into());
        let masked = client::mask_address(ip, identity.ipv6_prefix);
        if permit.assign_client(self.shared.clients.usage(masked), bound) {
            return true;
        }
        self.gateway.metrics().connections_refused.add(1);
        self.warn(|| {
            tracing::warn!(
                client = %ip, bound, "connection refused: http.max_connections_per_client is reached"
            );
        });
        false
    }

    /// Lets the sweep see a connection, and the drain close it.
    fn register<C: Sweepable + 'static>(&self, connection: &Rc<C>) {
        connection.request_close(match self.close_mode.get() {
            // It was being opened, and its first request may be on the way.
            CloseMode::WhenIdle => CloseMode::AfterRequest,
            mode => mode,
        });
        let connection: Weak<C> = Rc::downgrade(connection);
        self.connections.borrow_mut().push(connection);
    }

    /// How connections of a listener begin.
    fn listener_rules(&self, listener: usize) -> Arc<ListenerRules> {
        self.shared.live.snapshot().listeners.get(listener).cloned().unwrap_or_default()
    }

    /// Periodically sets the coarse clock, expires deadlines, renews leases and flushes the access
    /// log.
    async fn sweep(self: Rc<Self>) {
        let clock = &self.shared.clock;
        let mut ticks = clock.interval(SWEEP_INTERVAL);
        for count in 1_u32.. {
            ticks.tick().await;
            let now = clock.uptime().to_coarse();
            self.coarse_clock.set(now);
            self.gateway.metrics().sweeps.add(1);
            let deadlines = self.shared.live.snapshot().http.timeouts;
            self.connections.borrow_mut().retain(|connection| {
                let Some(connection) = connection.upgrade() else { return false };
                connection.sweep(now, &deadlines);
                true
            });
            self.gateway.sweep_mirrors();
            self.gateway.renew_leases();
            self.gateway.yield_connections();
            self.gateway.flush_log();
            if count % SWEEPS_PER_POOL_SWEEP == 0 {
                self.gateway.sweep_pools();
            }
        }
    }
}

/// Counts an open connection in the metrics until it is dropped, even by a panic of its task.
struct OpenConnection<'a>(&'a WorkerMetrics);

impl<'a> OpenConnection<'a> {
    fn new(metrics: &'a WorkerMetrics) -> Self {
        metrics.accepted.add(1);
        metrics.connections.add(1);
        Self(metrics)
    }
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.connections.decrement();
    }
}

/// The address that the client connected to. `listener` is that of the listener, which may stand for all
/// addresses of the machine.
fn local_address(socket: &TcpStream, listener: SocketAddr) -> SocketAddr {
    if !listener.ip().is_unspecified() {
        return listener;
    }
    let mut address = socket.local_addr().unwrap_or(listener);
    address.set_ip(client::canonical_address(address.ip()));
    address
}

/// Registers a socket that was accepted with the standard library.
fn into_tokio(socket: std::net::TcpStream) -> io::Result<TcpStream> {
    socket.set_nonblocking(true)?;
    TcpStream::from_std(socket)
}

/// Whether an accept failed because of the connection itself, so that the next one may succeed.
fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}
