//! [`Server`]: starts and stops a complete gateway, as the binary and the tests do.
//!
//! Its threads: one for each worker; one for control, with the admin API, the store's maintenance
//! and the configuration watch; and one for the throttle, if it is configured.
//!
//! `open_store` reads the secrets that the store needs and opens it.

mod open_store;

use std::{
    io,
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::{Arc, atomic::AtomicU64, mpsc},
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use self::open_store::open_store;
use crate::{
    admin::{self, AllowedHosts},
    clock::Clock,
    config::{self, Config, EnvLookup, Fault, Faults},
    gateway::{ConnectionLimit, DelayQueues, Shared, Via},
    live::LiveSnapshot,
    metrics::Metrics,
    reload::Reloader,
    snapshot::{LoadError, Snapshot},
    store::SetupError,
    telemetry::{AccessLog, AccessLogGuard, Destination},
    throttle::{Throttle, redis::RedisFilterStore},
    upstream::{UpstreamRegistry, names, probes},
    worker::{self, Shutdown},
};

/// Interval at which certificates that expire soon are logged.
const CERTIFICATE_CHECK_INTERVAL: Duration = Duration::from_hours(24);

/// Longest time that the start waits until the names of upstreams have been resolved for the first time.
const FIRST_RESOLUTION: Duration = Duration::from_secs(2);

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
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The configured address.
        address: SocketAddr,
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
    /// The address of the admin API, if there is one.
    pub admin: Option<SocketAddr>,
    /// The state that all threads share.
    pub shared: Arc<Shared>,
    /// Reloads the configuration.
    pub reloader: Arc<Reloader>,
    /// Cancelled to drain the workers.
    drain: CancellationToken,
    /// Cancelled to end the control threads, after the workers.
    stop: CancellationToken,
    workers: Mutex<Vec<thread::JoinHandle<()>>>,
    /// The control thread and the throttle's.
    control: Mutex<Vec<thread::JoinHandle<()>>>,
    _access_log: Option<AccessLogGuard>,
}

/// The open listeners, before any thread runs.
struct Listeners {
    /// The listeners of each worker, in the configuration's order.
    workers: Vec<Vec<TcpListener>>,
    addresses: Vec<SocketAddr>,
    admin: Option<TcpListener>,
}

impl Server {
    /// Starts a gateway with the configuration file at `path`, which a reload reads again. Returns
    /// when every worker accepts connections. If a part cannot start, those that run are stopped.
    ///
    /// # Errors
    ///
    /// [`StartError`] says which part cannot start.
    pub fn start(path: &Path, clock: Clock) -> Result<Self, StartError> {
        Self::start_with(path, clock, &|_| None)
    }

    /// Like [`Self::start`], with secrets from the environment `variables`.
    ///
    /// # Errors
    ///
    /// [`StartError`] says which part cannot start.
    pub fn start_with(
        path: &Path,
        clock: Clock,
        variables: EnvLookup<'_>,
    ) -> Result<Self, StartError> {
        let (loaded, snapshot) = Snapshot::load_bytes(path, &read_configuration(path)?)?;
        snapshot.log_notes();
        snapshot.log_certificates(clock.now());
        let config = &loaded.config;
        let listeners = open_listeners(config)?;
        let (access_log, access_log_guard) = open_access_log(config)?.unzip();
        let settings = snapshot.throttle.clone();
        let store = open_store(&loaded, clock.clone(), variables)?;
        let throttle = settings.map(|settings| {
            let shared = config.store.redis.is_some();
            Throttle::new(settings, store.shared_secret(), shared, clock.now())
        });
        let upstreams = UpstreamRegistry::new(clock.clone());
        upstreams.apply(&snapshot.upstreams);
        let shared = Arc::new(Shared {
            upstreams: Arc::new(upstreams),
            live: LiveSnapshot::new(snapshot),
            store,
            throttle,
            metrics: Metrics::default(),
            clock,
            access_log,
            delay_queues: DelayQueues::default(),
            accepting_workers: AtomicU64::new(0),
            connection_limit: connection_limit(config).into(),
            via: Via::default(),
        });
        let reloader = Arc::new(Reloader::new(path.to_owned(), &loaded, shared.clone()));
        let admin = listeners.admin.as_ref().and_then(|admin| admin.local_addr().ok());
        let admin_api = listeners.admin.zip(config.admin.as_ref().map(allowed_hosts));
        let server = Self {
            addresses: listeners.addresses,
            admin,
            shared,
            reloader,
            drain: CancellationToken::new(),
            stop: CancellationToken::new(),
            workers: Mutex::default(),
            control: Mutex::default(),
            _access_log: access_log_guard,
        };
        // A failure drops the server, which ends the threads that run by then.
        server.start_control(admin_api).map_err(StartError::Thread)?;
        let drain_timeout = config.drain_timeout.0;
        server.start_workers(listeners.workers, drain_timeout).map_err(StartError::Thread)?;
        Ok(server)
    }

    /// Starts the control thread, and the throttle's if it is configured.
    fn start_control(&self, admin: Option<(TcpListener, AllowedHosts)>) -> io::Result<()> {
        let (shared, stop) = (&self.shared, &self.stop);
        let (resolved, is_resolved) = mpsc::channel();
        let control = spawn_control(shared, &self.reloader, admin, stop, resolved)?;
        self.control.lock().push(control);
        // Without an answer the server starts, too: its upstreams are down until there is one.
        let _ = is_resolved.recv_timeout(FIRST_RESOLUTION);
        if let Some(throttle) = &shared.throttle {
            let filter_store = shared.store.connector().map(|connector| {
                let (clock, stats) = (shared.clock.clone(), throttle.stats.clone());
                RedisFilterStore::new(connector, "throttle", clock, stats)
            });
            let clock = shared.clock.clone();
            let ticker = spawn_throttle(throttle.clone(), filter_store, clock, stop.clone())?;
            self.control.lock().push(ticker);
        }
        Ok(())
    }

    /// Starts a worker for each element of `listeners`. Returns when all of them accept connections, or
    /// with the first failure.
    fn start_workers(
        &self,
        listeners: Vec<Vec<TcpListener>>,
        drain_timeout: Duration,
    ) -> io::Result<()> {
        let (failure, failures) = mpsc::channel();
        for (index, listeners) in listeners.into_iter().enumerate() {
            let (shared, failure) = (self.shared.clone(), failure.clone());
            let shutdown = Shutdown { drain: self.drain.clone(), drain_timeout };
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

    /// Stops accepting, lets requests in flight finish for at most `drain_timeout`, and ends all
    /// threads. Blocks until then.
    pub fn stop(&self) {
        self.drain.cancel();
        for worker in self.workers.lock().drain(..) {
            // A worker that panicked has nothing left to finish.
            let _ = worker.join();
        }
        self.stop.cancel();
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

/// The configuration file's content; a pipe such as `/dev/stdin` is read to its end.
fn read_configuration(path: &Path) -> Result<Vec<u8>, Faults> {
    let file = path.to_owned();
    let read = move || config::read_file(&file, config::MAX_READ);
    config::read_within(config::READ_TIMEOUT, read)
        .map_err(|error| config::unreadable(path, &error))
}

/// Starts the control thread, which runs everything that must not delay requests.
fn spawn_control(
    shared: &Arc<Shared>,
    reloader: &Arc<Reloader>,
    admin: Option<(TcpListener, AllowedHosts)>,
    stop: &CancellationToken,
    resolved: mpsc::Sender<()>,
) -> io::Result<thread::JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (shared, reloader, stop) = (shared.clone(), reloader.clone(), stop.clone());
    thread::Builder::new().name("control".to_owned()).spawn(move || {
        runtime.block_on(async move {
            let maintenance = tokio::spawn(shared.store.clone().run(stop.clone()));
            let watch = tokio::spawn(reloader.clone().watch(stop.clone()));
            let certificates = tokio::spawn(log_certificates(shared.clone()));
            let names = tokio::spawn(names::resolve(shared.upstreams.clone(), resolved));
            let probes = tokio::spawn(probes::run(shared.upstreams.clone()));
            let admin_api = admin.map(|(listener, hosts)| {
                let router = admin::router(shared.clone(), reloader.clone(), hosts);
                tokio::spawn(admin::serve(listener, router, stop.clone()))
            });
            let _ = maintenance.await;
            watch.abort();
            certificates.abort();
            names.abort();
            probes.abort();
            if let Some(admin_api) = admin_api {
                let _ = admin_api.await;
            }
        });
    })
}

/// Logs the certificates that expire soon, once a day.
async fn log_certificates(shared: Arc<Shared>) {
    loop {
        shared.clock.sleep(CERTIFICATE_CHECK_INTERVAL).await;
        shared.live.snapshot().log_certificates(shared.clock.now());
    }
}

/// The values of `Host` that the admin API accepts.
fn allowed_hosts(admin: &config::Admin) -> AllowedHosts {
    AllowedHosts::new(admin.address.0.ip(), admin.hosts.iter().map(|name| name.0.clone()))
}

/// Starts the thread that runs the throttle's periodic work.
fn spawn_throttle(
    throttle: Arc<Throttle>,
    filter_store: Option<RedisFilterStore>,
    clock: Clock,
    stop: CancellationToken,
) -> io::Result<thread::JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let name = "throttle".to_owned();
    let run = move || runtime.block_on(throttle.run(filter_store, clock, stop));
    thread::Builder::new().name(name).spawn(run)
}

/// Opens a listener on every address for every worker. For port 0 all workers share the port that
/// the system chose for the first.
fn open_listeners(config: &Config) -> Result<Listeners, StartError> {
    let open =
        |address| worker::listen(address).map_err(|error| StartError::Listen { address, error });
    // All addresses are checked before the first is opened: two of them, such as `[::]` and
    // `0.0.0.0`, may share a port, and with one open the check of the other would fail.
    for listener in &config.listen {
        let address = listener.address.0;
        worker::ensure_unused(address).map_err(|error| StartError::Listen { address, error })?;
    }
    let mut addresses = Vec::new();
    let mut workers: Vec<Vec<_>> = (0..worker_count(config)).map(|_| Vec::new()).collect();
    for listener in &config.listen {
        let mut address = listener.address.0;
        for worker in &mut workers {
            let socket = open(address)?;
            address = socket.local_addr().unwrap_or(address);
            worker.push(socket);
        }
        addresses.push(address);
    }
    let admin = config.admin.as_ref().map(|admin| {
        let address = admin.address.0;
        admin::listen(address).map_err(|error| StartError::Listen { address, error })
    });
    Ok(Listeners { workers, addresses, admin: admin.transpose()? })
}

/// The bound on client connections that the limit of open files sets.
fn connection_limit(config: &Config) -> ConnectionLimit {
    use rustix::process::{Resource, getrlimit};
    let open_files = getrlimit(Resource::Nofile).current;
    let limit = ConnectionLimit::for_open_files(open_files);
    let (configured, allowed) = (config.http.max_connections, limit.max());
    if allowed < configured as usize {
        tracing::warn!(
            configured,
            allowed,
            open_files,
            "the limit of open files allows fewer client connections than http.max_connections"
        );
    }
    limit
}

fn worker_count(config: &Config) -> usize {
    match config.workers {
        0 => thread::available_parallelism().map_or(1, usize::from),
        workers => workers,
    }
}

fn open_access_log(config: &Config) -> Result<Option<(AccessLog, AccessLogGuard)>, StartError> {
    let destination = match &config.access_log {
        config::AccessLog::Off => return Ok(None),
        config::AccessLog::Stderr => Destination::Stderr,
        config::AccessLog::Stdout => Destination::Stdout,
        config::AccessLog::File(path) => Destination::File(path),
    };
    AccessLog::open(&destination).map(Some).map_err(|error| {
        let path = match &destination {
            Destination::File(path) => path.display().to_string(),
            Destination::Stderr | Destination::Stdout => String::new(),
        };
        StartError::AccessLog { path, error }
    })
}

#[cfg(test)]
mod tests;
