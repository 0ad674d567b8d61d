//! The idle connections of one worker to one server.

use std::{
    cell::{Cell, RefCell},
    io,
    rc::Rc,
    time::Duration,
};

use tokio::{net::TcpStream, time::timeout};

use super::{Target, link::Link};

/// So many connections wait for their next use; one more is closed.
const MAX_IDLE: usize = 512;

/// The idle connections of one worker to one server; the last one used is the first one taken.
pub struct Pool {
    target: Target,
    #[expect(clippy::vec_box, reason = "a link is large, and is handed from owner to owner")]
    idle: RefCell<Vec<Box<Link>>>,
    clock: Rc<Cell<u64>>,
}

impl Pool {
    /// An empty pool. `clock` holds the worker's coarse time, in ms.
    pub fn new(target: Target, clock: Rc<Cell<u64>>) -> Rc<Self> {
        Rc::new(Self { target, idle: RefCell::default(), clock })
    }

    /// The server it leads to.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// An idle connection that was not closed, as far as is known.
    pub(super) fn take(&self) -> Option<Box<Link>> {
        let mut idle = self.idle.borrow_mut();
        loop {
            let link = idle.pop()?;
            if link.is_reusable() {
                return Some(link);
            }
        }
    }

    /// Makes a new connection.
    pub(super) async fn connect(&self, within: Duration) -> io::Result<Box<Link>> {
        let socket = timeout(within, TcpStream::connect((&*self.target.host, self.target.port)))
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        socket.set_nodelay(true)?;
        Ok(Link::new(socket))
    }

    pub(super) fn put(&self, mut link: Box<Link>) {
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
}
