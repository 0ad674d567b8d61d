//! Accepts connections, within the bounds of the process and of each client, and serves each until
//! it closes.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use socket2::SockRef;
use tidegate_identity::client;
use tidegate_rules::snapshot::{ListenerRules, Snapshot};
use tidegate_tls::SelectedCertificate;
use tidegate_upstream::{PeerAddress, ProxiedClient};
use tokio::net::{TcpListener, TcpStream};

use super::{ConnectionOrigin, ListenerId, Worker};
use crate::connection::{
    self, AcceptedConnection, ClientHttp2Connection, Connection, ConnectionStart, Handshake,
    HandshakeError, RequestSenders,
};
use crate::metrics::{ConnectionProtocol, OpeningFailure, WorkerMetrics};
use crate::{ConnectionPermit, ListenerPurpose, Peer};

/// Unsent bytes of a client connection at which the kernel accepts no more (`TCP_NOTSENT_LOWAT`).
const MAX_UNSENT: u32 = 128 * 1024;

/// Delay after a failed accept, for example without a free file descriptor. Also the interval at
/// which `max_connections` is read again while it is reached, because a reload may have raised it.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

impl Worker {
    pub(super) async fn accept(self: Rc<Self>, origin: ConnectionOrigin, listener: TcpListener) {
        let drain = self.shutdown.drain.clone();
        while let Some(accepted) = drain.run_until_cancelled(listener.accept()).await {
            match accepted {
                Ok((socket, address)) => self.handle_accepted(origin, socket, address).await,
                Err(error) if is_connection_error(&error) => {}
                Err(error) => {
                    // For example no free file descriptor. The error persists, so its warning is
                    // rate-limited.
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
        origin: ConnectionOrigin,
        socket: TcpStream,
        address: SocketAddr,
        permit: ConnectionPermit,
    ) {
        let serve = self.clone().serve(origin, socket, address, permit);
        tokio::task::spawn_local(self.tasks.track_future(serve));
    }

    /// Waits for a permit, then serves the connection in a task of its own. If the worker begins to
    /// drain first, returns at once, and the task waits for the permit instead.
    async fn handle_accepted(
        self: &Rc<Self>,
        origin: ConnectionOrigin,
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
                tracing::warn!(
                    open,
                    "the maximum number of connections is open: further ones wait until others close"
                );
            });
            // A reload may raise the bound while no permit is released.
            let _ = self.shared.clock.timeout(ACCEPT_RETRY_DELAY, limit.wait_for_release()).await;
        }
    }

    /// Counts the connection for its client. Returns false if the client already has the maximum
    /// number.
    fn admit_client(
        &self,
        entry: AcceptRules<'_>,
        permit: &mut ConnectionPermit,
        ip: IpAddr,
    ) -> bool {
        let AcceptRules { snapshot, purpose } = entry;
        let identity = &snapshot.identity;
        // A trusted proxy is not bounded: its connections carry many clients.
        let bound = snapshot.http.max_connections_per_client;
        let Some(bound) = bound.filter(|_| !identity.trusted_proxies.contains(ip)) else {
            return true;
        };
        let bound = self.shared.connection_limit.client_share().min(bound.into());
        let masked = client::mask_address(ip, identity.ipv6_prefix);
        if permit.assign_client(self.shared.client_table(purpose).usage(masked), bound) {
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

    /// Serves an accepted connection until it closes.
    async fn serve(
        self: Rc<Self>,
        origin: ConnectionOrigin,
        socket: TcpStream,
        address: SocketAddr,
        mut permit: ConnectionPermit,
    ) {
        let peer = client::canonical_address(address.ip());
        // Read once: a reload meanwhile must not mix two configurations.
        let snapshot = self.shared.live.snapshot();
        let rules = listener_rules(&snapshot, origin.listener);
        let http = snapshot.http;
        let purpose = match origin.listener {
            ListenerId::Client(_) => ListenerPurpose::Routes,
            ListenerId::RateLimitService => ListenerPurpose::RateLimits,
        };
        let entry = AcceptRules { snapshot: &snapshot, purpose };
        // Behind a load balancer, the client is known only after the PROXY protocol's header.
        let is_balancer = rules.proxy_protocol.as_ref().is_some_and(|from| from.contains(peer));
        if !is_balancer && !self.admit_client(entry, &mut permit, peer) {
            return;
        }
        tune(&socket);
        let _open = OpenConnection::new(self.gateway.metrics());
        let accepted_at = self.coarse_clock.now();
        let destination = local_address(&socket, origin.address);
        let opened = if rules.is_plain_http1() {
            AcceptedConnection::plain(socket)
        } else {
            let handshake = Handshake::new(self.coarse_clock.clone(), &self.shared.acme.challenges);
            self.register(&handshake);
            let admit = is_balancer.then_some(|ip| {
                self.admit_client(entry, &mut permit, client::canonical_address(ip))
            });
            match Box::pin(handshake.open(socket, admit, &rules)).await {
                Ok(opened) => opened,
                Err(error) => return self.count_handshake_error(peer, &error),
            }
        };
        let AcceptedConnection {
            transport,
            already_read,
            is_http2,
            proxied,
            certificate,
            client_certificate,
        } = opened;
        let is_tls = certificate.is_some();
        self.gateway.metrics().count_opened(ConnectionProtocol { is_http2, is_tls });
        let addresses = proxied.unwrap_or(ProxiedClient { source: address, destination });
        let peer = self.peer(entry, addresses, certificate, &rules);
        let peer = Peer { client_certificate, ..peer };
        let is_proxy = purpose == ListenerPurpose::RateLimits
            || snapshot.identity.trusted_proxies.contains(peer.address);
        // A connection may outlive many configurations.
        drop((rules, snapshot));
        let senders =
            if is_proxy { RequestSenders::ManyClients } else { RequestSenders::OneClient };
        let start = ConnectionStart {
            peer,
            senders,
            coarse_clock: self.coarse_clock.clone(),
            accepted_at,
            bounds: http.head,
            max_requests: http.max_requests_per_connection,
        };
        if is_http2 {
            let connection = ClientHttp2Connection::new(start);
            self.register(&connection);
            Box::pin(connection.serve(transport, already_read, &self.gateway)).await;
        } else {
            let connection = Connection::new(transport, already_read, start);
            self.register(&connection);
            connection::serve(connection, &self.gateway).await;
        }
    }

    /// The client of a connection with these addresses.
    fn peer(
        &self,
        entry: AcceptRules<'_>,
        mut addresses: ProxiedClient,
        certificate: Option<SelectedCertificate>,
        rules: &ListenerRules,
    ) -> Peer {
        let ip = client::canonical_address(addresses.source.ip());
        addresses.source.set_ip(ip);
        let masked = client::mask_address(ip, entry.snapshot.identity.ipv6_prefix);
        Peer {
            address: ip,
            usage: self.shared.client_table(entry.purpose).usage(masked).into(),
            proxied: addresses,
            forwarding: PeerAddress::new(ip, if certificate.is_some() { "https" } else { "http" }),
            certificate,
            client_certificate: None,
            redirect_https: rules.redirect_https,
            purpose: entry.purpose,
        }
    }

    /// Counts and logs a connection that ended before HTTP.
    fn count_handshake_error(&self, peer: IpAddr, error: &HandshakeError) {
        let failure = match error {
            HandshakeError::ProxyProtocol => OpeningFailure::ProxyProtocol,
            HandshakeError::NotTls | HandshakeError::Tls(_) => OpeningFailure::Tls,
            HandshakeError::Timeout => OpeningFailure::Timeout,
            HandshakeError::Closed(_) => OpeningFailure::Closed,
            // `admit_client` counts refusals; a stop and a challenge are no failures.
            HandshakeError::Refused | HandshakeError::Stopping | HandshakeError::AcmeChallenge => {
                return;
            }
        };
        self.gateway.metrics().count_opening_failure(failure);
        tracing::debug!(client = %peer, %error, "a connection ended before its first request");
    }
}

/// The rules and the purpose by which a connection is accepted.
#[derive(Clone, Copy)]
struct AcceptRules<'s> {
    snapshot: &'s Snapshot,
    purpose: ListenerPurpose,
}

/// The rules of a listener, which apply to its new connections.
fn listener_rules(snapshot: &Snapshot, listener: ListenerId) -> Arc<ListenerRules> {
    let rules = match listener {
        ListenerId::Client(index) => snapshot.listeners.get(index),
        ListenerId::RateLimitService => {
            snapshot.rate_limit_service.as_ref().map(|service| &service.listener)
        }
    };
    rules.cloned().unwrap_or_default()
}

/// Registers a socket that was accepted with the standard library.
fn into_tokio(socket: std::net::TcpStream) -> io::Result<TcpStream> {
    socket.set_nonblocking(true)?;
    TcpStream::from_std(socket)
}

/// True if an accept failed because of the connection itself, so that the next one may succeed.
fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// Sets the options of a client's socket.
fn tune(socket: &TcpStream) {
    // If this fails, responses may be slower, but they are correct.
    let _ = socket.set_nodelay(true);
    // Otherwise a client that stops reading takes megabytes of kernel memory.
    let _ = SockRef::from(socket).set_tcp_notsent_lowat(MAX_UNSENT);
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

/// The address that the client connected to. `listener` is the listener's address, which may be a
/// wildcard.
fn local_address(socket: &TcpStream, listener: SocketAddr) -> SocketAddr {
    if !listener.ip().is_unspecified() {
        return listener;
    }
    let mut address = socket.local_addr().unwrap_or(listener);
    address.set_ip(client::canonical_address(address.ip()));
    address
}
