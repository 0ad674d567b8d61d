//! [`Server`]: starts and stops a complete gateway, as the binary and the tests do.
//!
//! It starts these threads: one for each worker; one for control, with the admin API, the store's
//! maintenance and the configuration watch; and one for the throttle, if it is configured. The
//! Redis store and the logs start threads of their own.
//!
//! | file | content |
//! |---|---|
//! | `builder` | [`ServerBuilder`]: starts a gateway from a file or a text |
//! | `listeners` | opens the listening sockets |
//! | `open_files` | divides the limit of open files |
//! | `open_store` | reads the secrets of the store and opens it |
//! | `open_access_log` | opens the access log |
//! | `override_watch` | follows the overrides |
//! | `token_watch` | warns if no request carries a token |

mod builder;
mod listeners;
mod open_access_log;
mod open_files;
mod open_store;
mod override_watch;
mod token_watch;

use std::{
    ffi::OsString,
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

pub use self::{builder::ServerBuilder, open_store::shared_secret};
use crate::{
    admin::{self, AdminAccess, AdminListener, BoundAddress, Stops},
    clock::Clock,
    config::{Fault, Faults},
    gateway::Shared,
    handover::{SocketFiles, Successor},
    reload::Reloader,
    snapshot::LoadError,
    store::SetupError,
    telemetry::AccessLogGuard,
    throttle::{Throttle, redis::RedisFilterStore, waiting_room::RedisRoomStore},
    trace,
    upstream::{names, probes},
    worker::{self, ClientListener, Shutdown},
};

/// Interval at which certificates that expire soon are logged.
const CERTIFICATE_CHECK_INTERVAL: Duration = Duration::from_hours(24);

/// Longest wait, at the start, for the first resolution of upstreams' names.
const FIRST_RESOLUTION: Duration = Duration::from_secs(2);

/// Longest wait, at the start, for the first read of the overrides.
const FIRST_OVERRIDES: Duration = Duration::from_secs(2);

/// Longest wait, at the start, for the first key sets.
const FIRST_KEYS: Duration = Duration::from_secs(2);

/// Longest wait, at the start, for the first read of the certificates that gateways share.
const FIRST_CERTIFICATES: Duration = Duration::from_secs(2);

/// Dropped once the first results of background work are known.
struct FirstResults {
    /// The names of upstreams.
    resolved: mpsc::Sender<()>,
    /// The overrides.
    read: mpsc::Sender<()>,
    /// The key sets of servers.
    fetched: mpsc::Sender<()>,
    /// The certificates that gateways share.
    exchanged: mpsc::Sender<()>,
}

/// Why a gateway could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration has faults.
    #[error("{0}")]
    Faults(#[from] Faults),
    /// Reading or compiling the configuration panicked: a bug.
    #[error("{0}")]
    Panic(Fault),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {error}{}", listen_cure(.error))]
    Listen {
        /// The configured address.
        address: String,
        /// The system's error.
        error: io::Error,
    },
    /// The access log cannot be opened.
    #[error("cannot open the access log {path}: {error}")]
    AccessLog {
        /// The configured file; empty for a standard stream.
        path: String,
        /// The system's error.
        error: io::Error,
    },
    /// The CA certificates for Redis (`tls_ca`) cannot be read.
    #[error("cannot read the certificates in {path}: {error}")]
    Certificates {
        /// The configured file.
        path: String,
        /// The system's error.
        error: io::Error,
    },
    /// The counter store cannot be set up.
    #[error("{0}")]
    Store(#[from] SetupError),
    /// The process log cannot be started.
    #[error("cannot start the process log: {0}")]
    ProcessLog(io::Error),
    /// A thread or a runtime cannot be created.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Advice for an address that cannot be listened on.
fn listen_cure(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; another process listens there: end it, or choose another port in `listen` or `admin` (of `proxy`: --from, --admin)"
        }
        io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need CAP_NET_BIND_SERVICE, or a service manager that passes the socket"
        }
        _ => "",
    }
}

impl From<LoadError> for StartError {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Faults(faults) => Self::Faults(faults),
            LoadError::Panic(fault) => Self::Panic(fault),
        }
    }
}

/// A running gateway. Dropping it stops it.
pub struct Server {
    /// The addresses for clients, in the configuration's order, with the ports that the system
    /// chose.
    pub addresses: Vec<SocketAddr>,
    /// The address of the rate limit service, if there is one.
    pub rate_limit_service: Option<SocketAddr>,
    /// The address of the admin API, if there is one.
    pub admin: Option<BoundAddress>,
    /// The state that all threads share.
    pub shared: Arc<Shared>,
    /// Reloads the configuration.
    pub reloader: Arc<Reloader>,
    /// Time between [`Self::leave`] and [`Self::stop`].
    pub drain_delay: Duration,
    /// Cancelled to drain the workers.
    drain: CancellationToken,
    /// Cancelled after the workers have ended, to end the control threads; or to close only the
    /// admin listener.
    stops: Stops,
    workers: Mutex<Vec<thread::JoinHandle<()>>>,
    /// A copy of each listening socket, for a successor.
    sockets: Mutex<Vec<OwnedFd>>,
    /// The owner of the unix sockets' files.
    socket_files: SocketFiles,
    /// True if a successor has the sockets.
    is_handed_over: Arc<AtomicBool>,
    /// The control thread and the throttle's.
    control: Mutex<Vec<thread::JoinHandle<()>>>,
    _access_log: Option<AccessLogGuard>,
}

impl Server {
    /// A builder for a gateway whose waits and decisions use `clock`.
    pub fn builder(clock: Clock) -> ServerBuilder {
        ServerBuilder::new(clock)
    }

    /// Starts the control thread, and the throttle's if it is configured.
    fn start_control(&self, admin: Option<(AdminListener, AdminAccess)>) -> io::Result<()> {
        let shared = &self.shared;
        let (resolved, is_resolved) = mpsc::channel();
        let (read, is_read) = mpsc::channel();
        let (fetched, are_fetched) = mpsc::channel();
        let (exchanged, are_exchanged) = mpsc::channel();
        let first = FirstResults { resolved, read, fetched, exchanged };
        let control = self.spawn_control(admin, first)?;
        self.control.lock().push(control);
        // Starts even if DNS has not answered: the upstreams are down until it does.
        let _ = is_resolved.recv_timeout(FIRST_RESOLUTION);
        // Starts even if Redis does not reply: the configured quotas apply until it does.
        let _ = is_read.recv_timeout(FIRST_OVERRIDES);
        // Starts even if no server of keys answers: tokens get a 503 until it does.
        let _ = are_fetched.recv_timeout(FIRST_KEYS);
        // Starts even if Redis does not reply: clients get placeholders until it does.
        let _ = are_exchanged.recv_timeout(FIRST_CERTIFICATES);
        if let Some(throttle) = &shared.throttle {
            if let (Some(room), Some(connector)) = (&throttle.room, shared.store.connector()) {
                let store =
                    |connector| RedisRoomStore::new(connector, "throttle", shared.clock.clone());
                room.share([store(connector.clone()), store(connector)]);
            }
            let filter_store = shared.store.connector().map(|connector| {
                let (clock, stats) = (shared.clock.clone(), throttle.stats.clone());
                RedisFilterStore::new(connector, "throttle", clock, stats)
            });
            let ticker =
                spawn_throttle(shared, throttle.clone(), filter_store, self.stops.all.clone())?;
            self.control.lock().push(ticker);
        }
        Ok(())
    }

    /// Starts the control thread, for the work that must not delay requests.
    fn spawn_control(
        &self,
        admin: Option<(AdminListener, AdminAccess)>,
        first: FirstResults,
    ) -> io::Result<thread::JoinHandle<()>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let shared = self.shared.clone();
        let reloader = self.reloader.clone();
        let (stops, drain) = (self.stops.clone(), self.drain.clone());
        thread::Builder::new().name("control".to_owned()).spawn(move || {
            runtime.block_on(async move {
                let maintenance = tokio::spawn(shared.store.clone().run(stops.all.clone()));
                let watch = tokio::spawn(reloader.clone().watch(stops.all.clone()));
                let overrides = tokio::spawn(override_watch::run(
                    shared.clone(),
                    first.read,
                    stops.all.clone(),
                ));
                let consumers = tokio::spawn(read_consumers(shared.clone(), stops.all.clone()));
                let certificates = tokio::spawn(log_certificates(shared.clone()));
                let names = tokio::spawn(names::resolve(shared.upstreams.clone(), first.resolved));
                let key_sets = shared.key_sets.clone();
                let keys = tokio::spawn(key_sets.run(shared.clock.clone(), first.fetched));
                let acme = tokio::spawn(order_certificates(shared.clone(), drain));
                let shared_certificates = tokio::spawn(shared.acme.clone().follow(first.exchanged));
                let traces =
                    trace::export(shared.traces.clone(), shared.clock.clone(), stops.all.clone());
                let traces = tokio::spawn(traces);
                let probes = tokio::spawn(probes::run(shared.upstreams.clone()));
                let admin_api = admin.map(|(listener, access)| {
                    let router = admin::router(shared.clone(), reloader.clone(), access);
                    tokio::spawn(admin::serve(listener, router, shared.clone(), stops))
                });
                let _ = maintenance.await;
                watch.abort();
                overrides.abort();
                consumers.abort();
                certificates.abort();
                names.abort();
                keys.abort();
                // It leaves its orders to other gateways.
                let _ = acme.await;
                shared_certificates.abort();
                probes.abort();
                if let Some(admin_api) = admin_api {
                    let _ = admin_api.await;
                }
                let _ = traces.await;
            });
            // Does not wait for a lookup of the collector's name.
            runtime.shutdown_background();
        })
    }

    /// Starts a worker for each element of `listeners`. Returns when all of them accept
    /// connections, or with the first failure.
    fn start_workers(
        &self,
        listeners: Vec<Vec<ClientListener>>,
        drain_timeout: Duration,
    ) -> io::Result<()> {
        let (failure, failures) = mpsc::channel();
        for (index, listeners) in listeners.into_iter().enumerate() {
            let (shared, failure) = (self.shared.clone(), failure.clone());
            let is_handed_over = Arc::clone(&self.is_handed_over);
            let shutdown = Shutdown { drain: self.drain.clone(), drain_timeout, is_handed_over };
            let run = move || worker::run(shared, listeners, shutdown, failure);
            let worker = thread::Builder::new().name(format!("worker-{index}")).spawn(run)?;
            self.workers.lock().push(worker);
        }
        drop(failure);
        // Each worker drops its sender when it accepts connections.
        failures.recv().map_or(Ok(()), Err)
    }

    /// Reopens the access log's file, after a rotation. Returns at once; if the file cannot be
    /// opened, the old one stays in use and the error is in the process log.
    pub fn reopen_logs(&self) {
        self.shared.reopen_logs();
    }

    /// Starts the program again, with `arguments`, to take over the listening sockets.
    ///
    /// # Errors
    ///
    /// The program cannot be started, or does not take the sockets.
    pub fn start_successor(&self, arguments: &[OsString]) -> io::Result<Successor> {
        Successor::start(arguments, &self.sockets.lock(), self.socket_files)
    }

    /// Reports that the gateway is no longer ready. It goes on until [`Self::stop`].
    pub fn leave(&self) {
        self.shared.leaving.cancel();
    }

    /// Leaves the listening sockets to a successor that accepts on them. Call [`Self::stop`] next.
    pub fn hand_over(&self) {
        self.is_handed_over.store(true, Ordering::Release);
        self.stops.admin.cancel();
    }

    /// Stops accepting, lets requests in flight finish for at most `drain_timeout`, and ends all
    /// threads. Blocks until then.
    pub fn stop(&self) {
        // The kernel would queue connections on a copy that stays open.
        self.sockets.lock().clear();
        self.drain.cancel();
        for worker in self.workers.lock().drain(..) {
            // A worker that panicked has nothing left to finish.
            let _ = worker.join();
        }
        self.stops.all.cancel();
        for control in self.control.lock().drain(..) {
            let _ = control.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Reads consumers from Redis for the workers, if there is a Redis.
async fn read_consumers(shared: Arc<Shared>, stop: CancellationToken) {
    if let Some(store) = &shared.consumer_store {
        store.serve(stop).await;
    }
}

/// Orders and renews certificates until the gateway leaves or drains: a successor does the same
/// from then on.
async fn order_certificates(shared: Arc<Shared>, drain: CancellationToken) {
    let stop = async {
        tokio::select! {
            () = shared.leaving.cancelled() => {}
            () = drain.cancelled() => {}
        }
    };
    shared.acme.clone().run(stop).await;
}

/// Logs the certificates that expire soon, once a day.
async fn log_certificates(shared: Arc<Shared>) {
    loop {
        shared.clock.sleep(CERTIFICATE_CHECK_INTERVAL).await;
        shared.live.snapshot().log_certificates(shared.clock.store_time());
    }
}

/// Starts the thread that runs the throttle's periodic work.
fn spawn_throttle(
    shared: &Arc<Shared>,
    throttle: Arc<Throttle>,
    filter_store: Option<RedisFilterStore>,
    stop: CancellationToken,
) -> io::Result<thread::JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let name = "throttle".to_owned();
    let shared = Arc::clone(shared);
    let run = move || {
        runtime.block_on(async {
            let ticks = throttle.run(filter_store, shared.clock.clone(), stop);
            tokio::select! {
                () = ticks => {}
                () = token_watch::run(&shared) => {}
            }
        });
    };
    thread::Builder::new().name(name).spawn(run)
}

#[cfg(test)]
mod tests;
