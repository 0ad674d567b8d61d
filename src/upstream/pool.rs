//! One worker's idle connections to one server, and the server's ejection (outlier detection).

use std::{
    cell::{Cell, RefCell},
    io,
    rc::Rc,
    time::Duration,
};

use tokio::{net::TcpStream, time::timeout};

use super::{ServerAddress, connection::UpstreamConnection};
use crate::framing::SharedSocket;

/// The maximum number of idle connections; a further one is closed.
const MAX_IDLE: usize = 512;
/// The number of failures without a response in between that ejects a server.
const MAX_FAILURES: u32 = 5;
/// The duration of the first ejection, in ms. It doubles with each further one.
const BASE_EJECTION: u64 = 10_000;
/// The longest duration of an ejection, in ms.
const MAX_EJECTION: u64 = 300_000;

/// One worker's connections to one server. The most recently used idle connection is taken first.
pub struct Pool {
    address: ServerAddress,
    authority: Box<str>,
    idle: RefCell<Vec<UpstreamConnection>>,
    coarse_clock: Rc<Cell<u64>>,
    /// Failures since the last response.
    failures: Cell<u32>,
    /// Ejections since the last response.
    ejections: Cell<u32>,
    /// The end of the ejection, in ms of the worker's coarse clock. An ejected server is picked only if no
    /// other one is left to try.
    ejected_until: Cell<u64>,
}

/// How a server failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Failure {
    /// The connect failed.
    Connect,
    /// The server sent no response, or a malformed one.
    Exchange,
}

impl Pool {
    /// An empty pool. `coarse_clock` is the worker's coarse clock, in ms.
    pub fn new(address: ServerAddress, coarse_clock: Rc<Cell<u64>>) -> Rc<Self> {
        let (authority, idle) = (address.authority().into(), RefCell::default());
        let (failures, ejections, ejected_until) = (Cell::new(0), Cell::new(0), Cell::new(0));
        Rc::new(Self { address, authority, idle, coarse_clock, failures, ejections, ejected_until })
    }

    /// The server's address.
    pub fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// The server's address as text: `host:port`.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Takes an idle connection. Connections that the server has closed are dropped.
    pub(super) fn take(&self) -> Option<UpstreamConnection> {
        let mut idle = self.idle.borrow_mut();
        loop {
            let connection = idle.pop()?;
            if connection.is_reusable() {
                return Some(connection);
            }
        }
    }

    /// Opens a connection within `connect_timeout`.
    pub(super) async fn connect(
        &self,
        connect_timeout: Duration,
    ) -> io::Result<UpstreamConnection> {
        let stream =
            timeout(connect_timeout, TcpStream::connect((&*self.address.host, self.address.port)))
                .await
                .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        stream.set_nodelay(true)?;
        Ok(UpstreamConnection::new(SharedSocket::new(stream)))
    }

    /// Returns a connection to the pool, or closes it if it cannot be reused.
    pub(super) fn put(&self, mut connection: UpstreamConnection) {
        let mut idle = self.idle.borrow_mut();
        if connection.is_reusable() && idle.len() < MAX_IDLE {
            connection.mark_idle(self.coarse_clock.get());
            idle.push(connection);
        }
    }

    /// Closes the connections that have been idle for longer than `limit` ms.
    pub fn sweep(&self, limit: u64) {
        let now = self.coarse_clock.get();
        self.idle
            .borrow_mut()
            .retain(|connection| now.saturating_sub(connection.idle_since) <= limit);
    }

    /// The number of idle connections.
    pub fn idle_count(&self) -> usize {
        self.idle.borrow().len()
    }

    /// Whether other servers are preferred to this one.
    pub(super) fn is_ejected(&self) -> bool {
        self.coarse_clock.get() < self.ejected_until.get()
    }

    /// Records a response, which ends an ejection.
    pub(super) fn record_success(&self) {
        self.failures.set(0);
        if self.ejections.replace(0) > 0 {
            self.ejected_until.set(0);
            tracing::info!(server = self.authority(), "upstream server responds again");
        }
    }

    /// Records a failure. A failed connect ejects the server at once; a failed exchange ejects it once there
    /// are [`MAX_FAILURES`] failures since the last response.
    pub(super) fn record_failure(&self, failure: Failure) {
        let failures = self.failures.get() + 1;
        self.failures.set(failures);
        if self.is_ejected() || (failure == Failure::Exchange && failures < MAX_FAILURES) {
            return;
        }
        let earlier = self.ejections.replace(self.ejections.get().saturating_add(1));
        let duration = BASE_EJECTION.saturating_mul(1 << earlier.min(5)).min(MAX_EJECTION);
        self.ejected_until.set(self.coarse_clock.get() + duration);
        let reason = match failure {
            Failure::Connect => "connect",
            Failure::Exchange => "no_response",
        };
        tracing::warn!(
            server = self.authority(),
            reason,
            ejected_ms = duration,
            "upstream server ejected: other servers of the upstream are preferred"
        );
    }
}
