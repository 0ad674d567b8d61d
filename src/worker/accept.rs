//! Accepts connections, within the bounds of the process and of each client.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    sync::atomic::Ordering,
    time::Duration,
};

use tokio::net::{TcpListener, TcpStream};

use super::{ConnectionOrigin, Worker};
use crate::{gateway::ConnectionPermit, identity::client};

/// Delay after a failed accept, for example without a free file descriptor. Also the interval at which a reached
/// `max_connections` is read again, because a reload may have raised it.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

impl Worker {
    pub(super) async fn accept(self: Rc<Self>, origin: ConnectionOrigin, listener: TcpListener) {
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
        origin: ConnectionOrigin,
        socket: TcpStream,
        address: SocketAddr,
        permit: ConnectionPermit,
    ) {
        let serve = self.clone().serve(origin, socket, address, permit);
        tokio::task::spawn_local(self.tasks.track_future(serve));
    }

    /// Serves a connection when it has a permit. A drain ends further accepts without waiting for the permit, but the
    /// accepted connection still gets it.
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
                    "the maximum number of connections is open: further ones wait"
                );
            });
            // A reload may raise the bound while no permit is released.
            let _ = self.shared.clock.timeout(ACCEPT_RETRY_DELAY, limit.wait_for_release()).await;
        }
    }

    /// Counts the connection for its client. Returns false if the client already has the maximum number.
    pub(super) fn admit_client(&self, permit: &mut ConnectionPermit, ip: IpAddr) -> bool {
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
