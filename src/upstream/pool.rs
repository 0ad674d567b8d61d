//! One worker's connections to one server, and what it knows of the server's health.

use std::{
    cell::{Cell, RefCell},
    io,
    rc::Rc,
    time::Duration,
};

use tokio::{net::TcpStream, time::timeout};

use super::{Target, link::Link};
use crate::framing::Socket;

/// So many connections wait for their next use; one more is closed.
const MAX_IDLE: usize = 512;
/// A server that gave no answer so often in a row is ejected.
const MAX_FAILURES: u32 = 5;
/// The first ejection lasts so long, in ms; each further one twice as long as the one before.
const EJECTION: u64 = 10_000;
/// No ejection lasts longer, in ms.
const MAX_EJECTION: u64 = 300_000;

/// One worker's connections to one server. Of those that are idle the last one used is taken first.
pub struct Pool {
    target: Target,
    authority: Box<str>,
    idle: RefCell<Vec<Link>>,
    clock: Rc<Cell<u64>>,
    /// Requests without an answer since the last one that had one.
    failures: Cell<u32>,
    ejections: Cell<u32>,
    /// Not chosen before, in ms of the worker's coarse clock, while another server can be.
    ejected_until: Cell<u64>,
}

/// What a failure says of a server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Failure {
    /// It cannot be connected to.
    Connect,
    /// It gave no answer, or a malformed one.
    Exchange,
}

impl Pool {
    /// An empty pool. `clock` holds the worker's coarse time, in ms.
    pub fn new(target: Target, clock: Rc<Cell<u64>>) -> Rc<Self> {
        let (authority, idle) = (target.authority().into(), RefCell::default());
        let (failures, ejections, ejected_until) = (Cell::new(0), Cell::new(0), Cell::new(0));
        Rc::new(Self { target, authority, idle, clock, failures, ejections, ejected_until })
    }

    /// The server it leads to.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The server as logs name it: `host:port`.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// An idle connection that was not closed, as far as is known.
    pub(super) fn take(&self) -> Option<Link> {
        let mut idle = self.idle.borrow_mut();
        loop {
            let link = idle.pop()?;
            if link.is_reusable() {
                return Some(link);
            }
        }
    }

    /// Makes a new connection.
    pub(super) async fn connect(&self, within: Duration) -> io::Result<Link> {
        let stream = timeout(within, TcpStream::connect((&*self.target.host, self.target.port)))
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        stream.set_nodelay(true)?;
        Ok(Link::new(Socket::new(stream)))
    }

    pub(super) fn put(&self, mut link: Link) {
        let mut idle = self.idle.borrow_mut();
        if link.is_reusable() && idle.len() < MAX_IDLE {
            link.rest(self.clock.get());
            idle.push(link);
        }
    }

    /// Closes what has been idle for longer than `limit` ms.
    pub fn sweep(&self, limit: u64) {
        let now = self.clock.get();
        self.idle.borrow_mut().retain(|link| now.saturating_sub(link.idle_since) <= limit);
    }

    /// How many connections wait for their next use.
    pub fn idle(&self) -> usize {
        self.idle.borrow().len()
    }

    /// Whether another server is to be chosen, where there is one.
    pub(super) fn is_ejected(&self) -> bool {
        self.clock.get() < self.ejected_until.get()
    }

    /// Notes that the server gave an answer.
    pub(super) fn succeed(&self) {
        self.failures.set(0);
        if self.ejections.replace(0) > 0 {
            self.ejected_until.set(0);
            tracing::info!(target_server = self.authority(), "an upstream server answers again");
        }
    }

    /// Notes that the server gave none. One that cannot be connected to is ejected at once.
    pub(super) fn fail(&self, failure: Failure) {
        let failures = self.failures.get() + 1;
        self.failures.set(failures);
        if self.is_ejected() || (failure == Failure::Exchange && failures < MAX_FAILURES) {
            return;
        }
        let before = self.ejections.replace(self.ejections.get().saturating_add(1));
        let lasts = EJECTION.saturating_mul(1 << before.min(5)).min(MAX_EJECTION);
        self.ejected_until.set(self.clock.get() + lasts);
        let reason = match failure {
            Failure::Connect => "connect",
            Failure::Exchange => "no_answer",
        };
        tracing::warn!(
            target_server = self.authority(),
            reason,
            ejected_ms = lasts,
            "an upstream server is ejected while another can be asked"
        );
    }
}
