//! A worker thread: accepts and serves connections, checks their deadlines, and drains at the end.
//!
//! A worker has its own runtime, listeners (the kernel spreads connections over them:
//! `SO_REUSEPORT`), upstream connections and counters, so that requests need no locks.
//!
//! | file | content |
//! |---|---|
//! | `worker` | the life of a worker: start, drain |
//! | `listen` | opens the listeners |
//! | `accept` | accepts connections within the bounds of the process and of each client, and serves each |
//! | `sweep` | the periodic work, ten times a second |

mod accept;
mod listen;
mod sweep;

use std::{
    cell::{Cell, RefCell},
    io,
    net::SocketAddr,
    rc::{Rc, Weak},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
    time::Duration,
};

use tokio::{net::TcpListener, runtime::LocalOptions};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::listen::{ensure_unused, listen};
use tidegate_base::time::{CoarseTime, Millis};
use tidegate_system::clock::CoarseClock;
use tidegate_transport::connection_state::CloseMode;

use crate::connection::Sweepable;
use crate::{Gateway, Shared};

/// Time after the stop during which idle connections may still send a request.
const DRAIN_GRACE: Duration = Duration::from_millis(100);
/// Timeout of a stopping worker's pending calls to the store, and the minimum timeout for returning
/// leased units.
const STORE_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Minimum interval between two warnings of a worker.
const WARNING_INTERVAL: Millis = Millis::from_secs(1);

/// A listener for clients.
#[derive(Debug)]
pub struct ClientListener {
    /// Which of the configuration's it is.
    pub id: ListenerId,
    /// The socket, nonblocking.
    pub socket: std::net::TcpListener,
}

/// A listener of the configuration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ListenerId {
    /// The one with this index in `listen`.
    Client(usize),
    /// That of the rate limit service.
    RateLimitService,
}

/// When and how a worker stops.
#[derive(Clone, Debug)]
pub struct Shutdown {
    /// Cancelled when the worker must stop accepting connections.
    pub drain: CancellationToken,
    /// Time that requests in flight then have to finish.
    pub drain_timeout: Duration,
    /// True if a successor process has the listeners. It then serves the connections that wait in
    /// them.
    pub is_handed_over: Arc<AtomicBool>,
}

/// Serves on `listeners` until `shutdown`, and then drains. Drops `failure` once it accepts
/// connections; if it cannot, sends the error there.
pub fn run(
    shared: Arc<Shared>,
    listeners: Vec<ClientListener>,
    shutdown: Shutdown,
    failure: Sender<io::Error>,
) {
    let mut failure = Some(failure);
    let served = serve(shared, listeners, shutdown, || failure = None);
    if let (Err(error), Some(failure)) = (served, failure) {
        // There is no receiver if another worker has failed first.
        let _ = failure.send(error);
    }
}

/// As [`run`], but calls `on_ready` once it accepts connections, and returns the error.
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
        for ClientListener { id, socket } in listeners {
            let listener = TcpListener::from_std(socket)?;
            let origin = ConnectionOrigin { listener: id, address: listener.local_addr()? };
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
            // Aborts the requests, which returns leaky buckets' slots and concurrency permits.
            worker.close_connections(CloseMode::Immediate);
        }
        // Before the runtime ends: calls to Redis go over this worker's connection.
        let _ = clock.timeout(STORE_DRAIN_TIMEOUT, worker.gateway.charger.drain()).await;
        let left = deadline.saturating_sub(clock.uptime());
        worker.gateway.charger.return_leased_units(left.max(STORE_DRAIN_TIMEOUT)).await;
        worker.gateway.charger.close();
        sweeping.abort();
        Ok(())
    });
    // Does not wait for DNS lookups in progress.
    runtime.shutdown_background();
    served
}

/// The listener that accepted a connection.
#[derive(Clone, Copy)]
struct ConnectionOrigin {
    listener: ListenerId,
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

    /// Closes every connection after its current request, and idle connections after
    /// [`DRAIN_GRACE`], so that a request on its way is still answered. If a successor process
    /// serves, idle connections get half of the drain timeout: most send another request by then,
    /// and its response announces the close.
    async fn drain(&self) {
        self.close_connections(CloseMode::AfterRequest);
        let is_handed_over = self.shutdown.is_handed_over.load(Ordering::Acquire);
        let grace = if is_handed_over { self.shutdown.drain_timeout / 2 } else { DRAIN_GRACE };
        let _ = self.shared.clock.timeout(grace, self.tasks.wait()).await;
        self.close_connections(CloseMode::WhenIdle);
        self.tasks.wait().await;
    }

    /// Calls `warn`, at most once per [`WARNING_INTERVAL`].
    fn warn(&self, warn: impl FnOnce()) {
        let now = self.coarse_clock.now();
        if self.warned_at.get().is_none_or(|at| now.since(at) >= WARNING_INTERVAL) {
            self.warned_at.set(Some(now));
            warn();
        }
    }
}
