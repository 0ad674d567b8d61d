//! One core's world: accept, serve, sweep, drain.
//!
//! A worker is a thread with its own runtime, its own listeners (the kernel spreads connections over
//! workers, `SO_REUSEPORT`), its own upstream connections and its own counters. TLS and HTTP/2 will
//! be chosen in `Worker::serve`, between the accept and the connection.

use std::{
    cell::{Cell, RefCell},
    io,
    net::SocketAddr,
    rc::{Rc, Weak},
    sync::{Arc, atomic::Ordering, mpsc::Sender},
    time::Duration,
};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::LocalOptions,
    time::{MissedTickBehavior, interval, sleep, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    clock,
    connection::{self, Connection},
    framing::state::Ending,
    gateway::{Gateway, Peer, Place, Shared},
    identity::client,
    metrics::Shard,
    upstream::Forwarding,
};

/// How often deadlines are looked at, and the coarse clock is set.
const SWEEP: Duration = Duration::from_millis(100);
/// How often idle upstream connections are looked at, in sweeps.
const POOL_SWEEP: u32 = 10;
/// After a failed accept, such as without a free file descriptor, so long until the next; and how often
/// the bound is read again, which a reload may have raised.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// After the stop, requests that were on their way are still taken for so long.
const GRACE: Duration = Duration::from_millis(100);
/// What is given back when a worker ends may take so long.
const FAREWELL: Duration = Duration::from_secs(1);
/// What lasts is warned of so often, in ms.
const WARNING_GAP: u64 = 1000;
const BACKLOG: i32 = 4096;

/// Fails where another process listens on `address` already: another gateway's listeners would otherwise
/// share it as willingly as the workers' do, and each would get a part of the connections.
pub fn claim(address: SocketAddr) -> io::Result<()> {
    bind(address, false).map(drop)
}

/// Opens a listener that other workers can share the address with.
pub fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = bind(address, true)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn bind(address: SocketAddr, shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        // `[::]` takes IPv4 clients too, as they expect.
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// When a worker stops.
#[derive(Clone, Debug)]
pub struct Stop {
    /// Cancelled when no further connection is to be accepted.
    pub drain: CancellationToken,
    /// How long requests in flight may take to finish after that.
    pub within: Duration,
}

/// Serves on `listeners` until `stop` says so and the last request is answered. Drops `starting` when
/// it accepts.
pub fn run(
    shared: Arc<Shared>,
    listeners: Vec<std::net::TcpListener>,
    stop: Stop,
    starting: Sender<()>,
) -> io::Result<()> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build_local(LocalOptions::default())?;
    let served = runtime.block_on(async move {
        let worker = Rc::new(Worker::new(shared, stop));
        let mut accepting = Vec::new();
        for listener in listeners {
            let listener = TcpListener::from_std(listener)?;
            accepting.push(tokio::task::spawn_local(worker.clone().accept(listener)));
        }
        worker.shared.serving.fetch_add(1, Ordering::AcqRel);
        drop(starting);
        let sweeping = tokio::task::spawn_local(worker.clone().sweep());
        for task in accepting {
            let _ = task.await;
        }
        worker.shared.serving.fetch_sub(1, Ordering::AcqRel);
        worker.serving.close();
        let over = clock::instant() + worker.stop.within;
        if timeout_at(over.into(), worker.drain()).await.is_err() {
            let left = worker.serving.len();
            tracing::warn!(left, "connections were cut off: drain_timeout has passed");
            // So that what they hold is given back.
            worker.end_connections(Ending::Now);
        }
        // What is given back to Redis goes over this worker's connection.
        let _ = timeout(FAREWELL, worker.gateway.settled()).await;
        let left = over.saturating_duration_since(clock::instant());
        worker.gateway.leave(left.max(FAREWELL)).await;
        worker.gateway.end();
        sweeping.abort();
        Ok(())
    });
    // A name that is still being looked up is not waited for.
    runtime.shutdown_background();
    served
}

struct Worker {
    shared: Arc<Shared>,
    gateway: Gateway,
    stop: Stop,
    /// Now, to the sweep's precision, in ms since an arbitrary start.
    clock: Rc<Cell<u64>>,
    connections: RefCell<Vec<Weak<Connection>>>,
    serving: TaskTracker,
    /// How far connections are asked to end.
    ending: Cell<Ending>,
    warned_at: Cell<Option<u64>>,
}

impl Worker {
    fn new(shared: Arc<Shared>, stop: Stop) -> Self {
        let clock = Rc::new(Cell::new(0));
        Self {
            gateway: Gateway::new(shared.clone(), clock.clone()),
            shared,
            stop,
            clock,
            connections: RefCell::default(),
            serving: TaskTracker::new(),
            ending: Cell::new(Ending::No),
            warned_at: Cell::new(None),
        }
    }

    /// Lets every connection end after the request that it is in. A request that was on its way when
    /// the stop came is still taken, so idle connections are closed a little later.
    async fn drain(&self) {
        self.end_connections(Ending::Soon);
        let _ = timeout(GRACE, self.serving.wait()).await;
        self.end_connections(Ending::WhenIdle);
        self.serving.wait().await;
    }

    fn end_connections(&self, ending: Ending) {
        self.ending.set(ending);
        let connections = self.connections.borrow();
        connections.iter().filter_map(Weak::upgrade).for_each(|open| open.state().end(ending));
    }

    async fn accept(self: Rc<Self>, listener: TcpListener) {
        let drain = self.stop.drain.clone();
        while let Some(accepted) = drain.run_until_cancelled(listener.accept()).await {
            let admitted = self.admit(accepted);
            if drain.run_until_cancelled(admitted).await.is_none() {
                break;
            }
        }
        // Who was accepted by the kernel before the stop is served, not reset. The system is asked
        // itself: the runtime may not have heard of the last ones yet.
        let Ok(listener) = listener.into_std() else { return };
        loop {
            let (socket, address) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if is_of_one_connection(&error) => continue,
                Err(_) => return,
            };
            // None waits for a place: the connections that have one end only after this.
            let bound = self.shared.live.snapshot().http.max_connections;
            if let (Ok(socket), Some(place)) = (adopt(socket), self.shared.places.take(bound)) {
                self.spawn(socket, address, place);
            }
        }
    }

    fn spawn(self: &Rc<Self>, socket: TcpStream, address: SocketAddr, place: Place) {
        let serve = self.clone().serve(socket, address, place);
        tokio::task::spawn_local(self.serving.track_future(serve));
    }

    async fn admit(self: &Rc<Self>, accepted: io::Result<(TcpStream, SocketAddr)>) {
        match accepted {
            Ok((socket, address)) => {
                let place = self.place().await;
                self.spawn(socket, address, place);
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                // Such as no free file descriptor: it lasts, and one line a second tells it.
                self.warn(|| tracing::warn!(%error, "a connection could not be accepted"));
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }

    /// A free place among all workers' connections; waits until there is one.
    async fn place(&self) -> Place {
        loop {
            let bound = self.shared.live.snapshot().http.max_connections;
            if let Some(place) = self.shared.places.take(bound) {
                return place;
            }
            self.warn(|| {
                tracing::warn!(bound, "http.max_connections are open: further ones wait");
            });
            // A reload may raise the bound without a place becoming free.
            let _ = timeout(ACCEPT_PAUSE, self.shared.places.freed()).await;
        }
    }

    /// Warns, once in a while.
    fn warn(&self, warn: impl FnOnce()) {
        let now = self.clock.get();
        if self.warned_at.get().is_none_or(|at| now.saturating_sub(at) >= WARNING_GAP) {
            self.warned_at.set(Some(now));
            warn();
        }
    }

    async fn serve(self: Rc<Self>, socket: TcpStream, address: SocketAddr, mut place: Place) {
        let ip = client::canonical(address.ip());
        let snapshot = self.shared.live.snapshot();
        let (rules, identity) = (snapshot.http, &snapshot.identity);
        let own =
            rules.max_connections_per_client.filter(|_| !identity.trusted_proxies.contains(ip));
        if let Some(bound) = own
            && !place.admit(client::counted(ip, identity.ipv6_prefix), bound)
        {
            self.gateway.shard().connections_refused.add(1);
            self.warn(|| {
                tracing::warn!(client = %ip, bound, "a client has http.max_connections_per_client open");
            });
            return;
        }
        drop(snapshot);
        // Without it answers are only later, not wrong.
        let _ = socket.set_nodelay(true);
        let peer = Peer { address: ip, forwarding: Forwarding::new(ip) };
        let requests = rules.max_requests_per_connection;
        let connection = Connection::new(socket, peer, self.clock.clone(), rules.head, requests);
        connection.state().end(self.ending.get());
        self.connections.borrow_mut().push(Rc::downgrade(&connection));
        let _open = Open::new(self.gateway.shard());
        connection::serve(connection, &self.gateway).await;
    }

    /// Sets the coarse clock and ends what has waited too long.
    async fn sweep(self: Rc<Self>) {
        let start = clock::instant();
        let mut ticks = interval(SWEEP);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        for count in 1_u32.. {
            ticks.tick().await;
            let now = clock::instant().saturating_duration_since(start).as_millis() as u64;
            self.clock.set(now);
            let deadlines = self.shared.live.snapshot().http.deadlines;
            self.connections.borrow_mut().retain(|connection| {
                let Some(connection) = connection.upgrade() else { return false };
                let state = connection.state();
                if let Some(timeout) = state.get().overdue(now, &deadlines) {
                    state.expire(timeout);
                } else if connection.must_look() {
                    state.wake();
                }
                true
            });
            self.gateway.renew();
            self.gateway.flush_log();
            if count % POOL_SWEEP == 0 {
                self.gateway.sweep();
            }
        }
    }
}

/// One open connection, counted; however it ends, also in a panic.
struct Open<'a>(&'a Shard);

impl<'a> Open<'a> {
    fn new(shard: &'a Shard) -> Self {
        shard.accepted.add(1);
        shard.connections.add(1);
        Self(shard)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.connections.take();
    }
}

/// Brings a socket that was accepted without the runtime into it.
fn adopt(socket: std::net::TcpStream) -> io::Result<TcpStream> {
    socket.set_nonblocking(true)?;
    TcpStream::from_std(socket)
}

/// Whether an accept failed because of the connection that was to be accepted.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}
