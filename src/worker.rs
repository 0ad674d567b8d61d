//! One core's world: accept, serve, sweep, drain.
//!
//! A worker is a thread with its own runtime, its own listeners (the kernel spreads connections over
//! workers, `SO_REUSEPORT`), its own upstream connections and its own counters. TLS and HTTP/2 will
//! be chosen in `Worker::serve`, between the accept and the connection.

use std::{
    cell::{Cell, RefCell},
    io,
    net::SocketAddr,
    pin::Pin,
    rc::{Rc, Weak},
    sync::{Arc, atomic::Ordering, mpsc::Sender},
    task::Poll,
    time::Duration,
};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
    runtime::LocalOptions,
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    clock,
    framing::{Inbound, Phase, Tap, Wire},
    gateway::{Gateway, Peer, Shared},
    metrics::Shard,
    snapshot::HttpRules,
    upstream::headers::Forwarding,
};

/// How often deadlines are looked at, and the coarse clock is set.
const SWEEP: Duration = Duration::from_millis(100);
/// How often idle upstream connections are looked at, in sweeps.
const POOL_SWEEP: u32 = 10;
/// After a failed accept, such as without a free file descriptor, so long until the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A connection that is closed with bytes still coming takes them in for so long at the most.
const LINGER: Duration = Duration::from_secs(1);
/// After the stop, requests that were on their way are still taken for so long.
const GRACE: Duration = Duration::from_millis(100);
const BACKLOG: i32 = 4096;
/// The HTTP library's own buffer, where a head may not be larger than this anyway.
const BUFFER: usize = 64 * 1024;

/// Fails where somebody listens on `address` already: another gateway's listeners would otherwise
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
    runtime.block_on(async move {
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
        worker.connections.close();
        if timeout(worker.stop.within, worker.drain()).await.is_err() {
            let left = worker.connections.len();
            tracing::warn!(left, "connections were cut off: drain_timeout has passed");
            // So that what they hold is given back.
            worker.each_wire(|wire| wire.expire(Phase::Busy));
        }
        // What is given back to Redis goes over this worker's connection.
        let _ = timeout(LINGER, worker.gateway.settled()).await;
        worker.gateway.leave().await;
        worker.gateway.end();
        sweeping.abort();
        Ok(())
    })
}

struct Worker {
    shared: Arc<Shared>,
    gateway: Gateway,
    stop: Stop,
    /// Now, to the sweep's precision, in ms since an arbitrary start.
    clock: Rc<Cell<u64>>,
    wires: RefCell<Vec<Weak<Wire>>>,
    connections: TaskTracker,
    draining: Cell<bool>,
    warned_at: Cell<u64>,
    /// Set a little later than `draining`: connections that wait for a request are closed.
    closing: Cell<bool>,
}

impl Worker {
    fn new(shared: Arc<Shared>, stop: Stop) -> Self {
        let clock = Rc::new(Cell::new(0));
        Self {
            gateway: Gateway::new(shared.clone(), clock.clone()),
            shared,
            stop,
            clock,
            wires: RefCell::default(),
            connections: TaskTracker::new(),
            draining: Cell::new(false),
            warned_at: Cell::new(0),
            closing: Cell::new(false),
        }
    }

    /// Lets every connection end after the request that it is in. A request that was on its way when
    /// the stop came is still taken, so idle connections are closed a little later.
    async fn drain(&self) {
        self.draining.set(true);
        self.each_wire(|wire| wire.end_soon());
        let _ = timeout(GRACE, self.connections.wait()).await;
        self.closing.set(true);
        self.each_wire(|wire| wire.wake());
        self.connections.wait().await;
    }

    fn each_wire(&self, tell: impl FnMut(Rc<Wire>)) {
        self.wires.borrow().iter().filter_map(Weak::upgrade).for_each(tell);
    }

    async fn accept(self: Rc<Self>, listener: TcpListener) {
        let drain = self.stop.drain.clone();
        while let Some(accepted) = drain.run_until_cancelled(self.accept_one(&listener)).await {
            self.admit(accepted).await;
        }
        // Who was accepted by the kernel before the stop is served, not reset. The system is asked
        // itself: the runtime may not have heard of the last ones yet.
        let Ok(listener) = listener.into_std() else { return };
        loop {
            let accepted = match listener.accept() {
                Ok((socket, address)) => adopt(socket).map(|socket| (socket, address)),
                Err(error) if is_of_one_connection(&error) => continue,
                Err(_) => return,
            };
            self.admit(accepted).await;
        }
    }

    async fn accept_one(&self, listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
        let workers = self.shared.serving.load(Ordering::Relaxed).max(1) as usize;
        let share = self.shared.live.snapshot().http.max_connections.div_ceil(workers);
        while self.connections.len() >= share {
            sleep(ACCEPT_PAUSE).await;
        }
        listener.accept().await
    }

    async fn admit(self: &Rc<Self>, accepted: io::Result<(TcpStream, SocketAddr)>) {
        match accepted {
            Ok((socket, address)) => {
                let connection = self.clone().serve(socket, address);
                tokio::task::spawn_local(self.connections.track_future(connection));
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                // Such as no free file descriptor: it lasts, and one line a second tells it.
                if self.clock.get().saturating_sub(self.warned_at.get()) >= 1000 {
                    self.warned_at.set(self.clock.get());
                    tracing::warn!(%error, "a connection could not be accepted");
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }

    /// One connection, from its first byte to its last.
    async fn serve(self: Rc<Self>, socket: TcpStream, address: SocketAddr) {
        // Without it answers are only later, not wrong.
        let _ = socket.set_nodelay(true);
        let snapshot = self.shared.live.snapshot();
        let wire = Rc::new(Wire::new(self.clock.clone()));
        self.wires.borrow_mut().push(Rc::downgrade(&wire));
        if self.draining.get() {
            wire.end_soon();
        }
        let ip = crate::identity::client::canonical(address.ip());
        let forwarding = Forwarding::new(ip);
        let peer = Rc::new(Peer { wire: wire.clone(), address: ip, forwarding });
        let rules = snapshot.http;
        drop(snapshot);
        let open = Open::new(self.gateway.shard());
        let left = self.converse(socket, &wire, &peer, &rules).await;
        drop(open);
        if let Some(socket) = left.filter(|_| wire.lingers()) {
            let _ = timeout(LINGER, take_in(socket)).await;
        }
    }

    /// Lets the HTTP library converse until the connection is over; gives the socket back if it ended
    /// by itself.
    async fn converse(
        &self,
        socket: TcpStream,
        wire: &Rc<Wire>,
        peer: &Rc<Peer>,
        rules: &HttpRules,
    ) -> Option<TcpStream> {
        let tap = Tap::new(socket);
        let io = TokioIo::new(Inbound::new(tap.clone(), wire.clone(), rules.head));
        let gateway = &self.gateway;
        let service = service_fn(|request| {
            let peer = peer.clone();
            async move { Ok::<_, std::convert::Infallible>(gateway.handle(&peer, request).await) }
        });
        let mut builder = http1::Builder::new();
        builder.writev(false).max_buf_size(BUFFER.max(rules.head.bytes * 2));
        if rules.head.headers > 100 {
            builder.max_headers(rules.head.headers);
        }
        let mut connection = builder.serve_connection(io, service);
        let mut told = false;
        let ended = std::future::poll_fn(|cx| {
            wire.register(cx.waker());
            if matches!(wire.expired(), Some(Phase::Busy | Phase::Write | Phase::Idle)) {
                return Poll::Ready(false);
            }
            if self.closing.get() && !std::mem::replace(&mut told, true) {
                Pin::new(&mut connection).graceful_shutdown();
            }
            let polled = Pin::new(&mut connection).poll(cx).map(|_| true);
            // Nobody reads what follows a head before its turn has come, so nobody else notices.
            let gone = polled.is_pending() && wire.is_held_back() && tap.is_closed(cx);
            if gone { Poll::Ready(false) } else { polled }
        })
        .await;
        // What is left of the request ends here, and says whether a close would tell a lie.
        drop(connection.into_parts());
        let socket = tap.into_inner()?;
        if wire.is_broken() {
            let _ = SockRef::from(&socket).set_linger(Some(Duration::ZERO));
        }
        ended.then_some(socket)
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
            self.wires.borrow_mut().retain(|wire| {
                let Some(wire) = wire.upgrade() else { return false };
                if let Some(phase) = wire.overdue(now, &deadlines) {
                    wire.expire(phase);
                } else if wire.is_held_back() {
                    // It looks whether its client is still there.
                    wire.wake();
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

/// Reads what a client is still sending and throws it away: a close with bytes unread would reset the
/// connection and could destroy the answer on its way.
async fn take_in(mut socket: TcpStream) {
    let mut buffer = [0; 4096];
    while socket.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
}
