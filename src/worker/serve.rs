//! Serves one connection, from its accept to its close.

use std::{
    net::{IpAddr, SocketAddr},
    rc::Rc,
    sync::Arc,
};

use socket2::SockRef;
use tokio::net::TcpStream;

use super::{ConnectionOrigin, Worker};
use crate::{
    connection::{
        self, AcceptedConnection, ClientHttp2Connection, Connection, Handshake, HandshakeError,
    },
    gateway::{ConnectionPermit, Peer},
    identity::client,
    metrics::{ConnectionProtocol, OpeningFailure, WorkerMetrics},
    snapshot::ListenerRules,
    transport::PrefixedStream,
    upstream::{PeerAddress, ProxiedClient},
};

/// Unsent bytes of a client connection at which the kernel accepts no more (`TCP_NOTSENT_LOWAT`).
const MAX_UNSENT: u32 = 128 * 1024;

impl Worker {
    pub(super) async fn serve(
        self: Rc<Self>,
        origin: ConnectionOrigin,
        socket: TcpStream,
        address: SocketAddr,
        mut permit: ConnectionPermit,
    ) {
        let peer = client::canonical_address(address.ip());
        let rules = self.listener_rules(origin.listener);
        let http = self.shared.live.snapshot().http;
        // Behind a load balancer, the client is known only after the PROXY protocol's header.
        let is_balancer = rules.proxy_protocol.as_ref().is_some_and(|from| from.contains(peer));
        if !is_balancer && !self.admit_client(&mut permit, peer) {
            return;
        }
        // If this fails, responses may be slower, but they are correct.
        let _ = socket.set_nodelay(true);
        // Otherwise a client that stops reading takes megabytes of kernel memory.
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

    /// The rules by which a listener's connections begin.
    fn listener_rules(&self, listener: usize) -> Arc<ListenerRules> {
        self.shared.live.snapshot().listeners.get(listener).cloned().unwrap_or_default()
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

/// The address that the client connected to. `listener` is the listener's address, which may be a wildcard.
fn local_address(socket: &TcpStream, listener: SocketAddr) -> SocketAddr {
    if !listener.ip().is_unspecified() {
        return listener;
    }
    let mut address = socket.local_addr().unwrap_or(listener);
    address.set_ip(client::canonical_address(address.ip()));
    address
}
