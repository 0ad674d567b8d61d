//! [`Server`]: starts and stops a complete gateway, as the binary and the tests do.
//!
//! Its threads: one for each worker; one for control, with the admin API, the store's maintenance
//! and the configuration watch; and one for the throttle, if it is configured.
//!
//! `listeners` opens the listening sockets; `open_store` reads the secrets of the store and opens it;
//! `open_access_log` opens the log; `open_files` divides the limit of open files; `token_watch` warns if no request
//! carries a token.

mod listeners;
mod open_access_log;
mod open_files;
mod open_store;
mod token_watch;

use std::{
    ffi::OsString,
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

pub use self::open_store::shared_secret;
use self::{open_access_log::open_access_log, open_files::FileBudget, open_store::open_store};
use crate::{
    admin::{self, AdminAccess, AdminListener, AdminToken, AllowedHosts, BoundAddress},
    clock::Clock,
    config::{self, EnvLookup, Environment, Fault, Faults, LoadedConfig},
    file,
    gateway::{ConnectionLimit, DelayQueues, Shared},
    handover::{PassedSockets, Successor},
    live::LiveSnapshot,
    metrics::Metrics,
    plan::Via,
    reload::Reloader,
    secret,
    snapshot::{LoadError, Snapshot},
    store::SetupError,
    telemetry::AccessLogGuard,
    throttle::{Throttle, redis::RedisFilterStore},
    trace::{self, TraceQueue},
    upstream::{ConnectionBudget, UpstreamRegistry, names, probes},
    worker::{self, ClientListener, Shutdown},
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

/// What an operator does about an address that cannot be listened on.
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
    /// The address of the admin API, if there is one.
    pub admin: Option<BoundAddress>,
    /// The state that all threads share.
    pub shared: Arc<Shared>,
    /// Reloads the configuration.
    pub reloader: Arc<Reloader>,
    /// Cancelled to drain the workers.
    drain: CancellationToken,
    /// Cancelled to end the control threads, after the workers.
    stop: CancellationToken,
    workers: Mutex<Vec<thread::JoinHandle<()>>>,
    /// A copy of each listening socket, for a successor.
    sockets: Mutex<Vec<OwnedFd>>,
    /// Whether the files of unix sockets among them belong to a service manager.
    keeps_socket_files: bool,
    /// Whether a successor has them.
    is_handed_over: Arc<AtomicBool>,
    /// Cancelled when the admin API's listener is another process's.
    leave_admin: CancellationToken,
    /// The control thread and the throttle's.
    control: Mutex<Vec<thread::JoinHandle<()>>>,
    _access_log: Option<AccessLogGuard>,
}

impl Server {
    /// Starts a gateway with the configuration file at `path`, which a reload reads again. Returns
    /// when every worker accepts connections. If a part cannot start, those that run are stopped.
    ///
    /// # Errors
    ///
    /// [`StartError`] says which part cannot start.
    pub fn start(path: &Path, clock: Clock) -> Result<Self, StartError> {
        Self::start_with(path, clock, &(Arc::new(|_: &str| None) as Environment))
    }

    /// Like [`Self::start`], with environment variables from `env`.
    ///
    /// # Errors
    ///
    /// [`StartError`] says which part cannot start.
    pub fn start_with(path: &Path, clock: Clock, env: &Environment) -> Result<Self, StartError> {
        Self::start_on(path, clock, env, PassedSockets::default())
    }

    /// Like [`Self::start_with`], on the sockets that were passed to the process for its addresses.
    ///
    /// # Errors
    ///
    /// [`StartError`] says which part cannot start.
    pub fn start_on(
        path: &Path,
        clock: Clock,
        env: &Environment,
        passed: PassedSockets,
    ) -> Result<Self, StartError> {
        let bytes = read_configuration(path)?;
        Self::start_configured(path, &bytes, clock, (env, passed), |reloader| reloader)
    }

    /// Like [`Self::start_on`], with the configuration `text`, which is called `name` in messages and cannot
    /// be reloaded.
    ///
    /// # Errors
    ///
    /// [`StartError`] says which part cannot start.
    pub fn start_text(
        name: &str,
        text: &str,
        clock: Clock,
        env: &Environment,
        passed: PassedSockets,
    ) -> Result<Self, StartError> {
        let bytes = text.as_bytes();
        Self::start_configured(name.as_ref(), bytes, clock, (env, passed), Reloader::without_file)
    }

    /// Starts a gateway with the content of the file at `path`.
    fn start_configured(
        path: &Path,
        bytes: &[u8],
        clock: Clock,
        (env, passed): (&Environment, PassedSockets),
        adapt: fn(Reloader) -> Reloader,
    ) -> Result<Self, StartError> {
        let (loaded, snapshot) = Snapshot::load_bytes(path, bytes, &**env)?;
        snapshot.log_notes();
        snapshot.log_certificates(clock.now());
        let config = &loaded.config;
        let is_handed_over = Arc::default();
        let keeps_socket_files = passed.keeps_files();
        let listeners = listeners::open(config, passed, &is_handed_over)?;
        let (access_log, access_log_guard) = open_access_log(&config.access_log, &**env)?.unzip();
        let settings = snapshot.throttle.clone();
        let store = open_store(&loaded, clock.clone(), &**env)?;
        let throttle = settings.map(|settings| {
            let shared = config.store.redis.is_some();
            Throttle::new(settings, store.shared_secret(), shared, clock.now())
        });
        let files = FileBudget::of_process(config);
        let connections = ConnectionBudget::new(files.upstreams);
        let upstreams = UpstreamRegistry::new(clock.clone(), connections);
        upstreams.apply(&snapshot.upstreams);
        let traces = Arc::new(TraceQueue::default());
        traces.configure(snapshot.export_settings(&loaded.source, &**env)?);
        let shared = Arc::new(Shared {
            traces,
            upstreams: Arc::new(upstreams),
            live: LiveSnapshot::new(snapshot),
            store,
            throttle,
            metrics: Metrics::default(),
            clock,
            access_log,
            delay_queues: DelayQueues::default(),
            accepting_workers: AtomicU64::new(0),
            connection_limit: ConnectionLimit::new(files.clients as usize).into(),
            clients: Arc::default(),
            compression: Arc::default(),
            via: Via::default(),
        });
        let reloader = Reloader::new(path.to_owned(), &loaded, shared.clone(), env.clone());
        let reloader = Arc::new(adapt(reloader));
        let admin = listeners.admin.as_ref().and_then(AdminListener::address);
        let access = config.admin.as_ref().map(|admin| admin_access(admin, &loaded, &**env));
        let admin_api = listeners.admin.zip(access.transpose()?);
        let server = Self {
            addresses: listeners.addresses,
            admin,
            shared,
            reloader,
            drain: CancellationToken::new(),
            stop: CancellationToken::new(),
            sockets: Mutex::new(listeners.sockets),
            keeps_socket_files,
            is_handed_over,
            leave_admin: CancellationToken::new(),
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
    fn start_control(&self, admin: Option<(AdminListener, AdminAccess)>) -> io::Result<()> {
        let (shared, stop) = (&self.shared, &self.stop);
        let (resolved, is_resolved) = mpsc::channel();
        let stops = (stop, &self.leave_admin);
        let control = spawn_control(shared, &self.reloader, admin, stops, resolved)?;
        self.control.lock().push(control);
        // Without an answer the server starts, too: its upstreams are down until there is one.
        let _ = is_resolved.recv_timeout(FIRST_RESOLUTION);
        if let Some(throttle) = &shared.throttle {
            let filter_store = shared.store.connector().map(|connector| {
                let (clock, stats) = (shared.clock.clone(), throttle.stats.clone());
                RedisFilterStore::new(connector, "throttle", clock, stats)
            });
            let ticker = spawn_throttle(shared, throttle.clone(), filter_store, stop.clone())?;
            self.control.lock().push(ticker);
        }
        Ok(())
    }

    /// Starts a worker for each element of `listeners`. Returns when all of them accept connections, or
    /// with the first failure.
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

    /// Starts the program of `arguments` again, which is to take over the listening sockets.
    ///
    /// # Errors
    ///
    /// The program cannot be started, or does not take the sockets.
    pub fn start_successor(&self, arguments: &[OsString]) -> io::Result<Successor> {
        Successor::start(arguments, &self.sockets.lock(), self.keeps_socket_files)
    }

    /// Leaves the listening sockets to a successor that accepts on them; [`Self::stop`] is next.
    pub fn hand_over(&self) {
        self.is_handed_over.store(true, Ordering::Release);
        self.leave_admin.cancel();
    }

    /// Stops accepting, lets requests in flight finish for at most `drain_timeout`, and ends all
    /// threads. Blocks until then.
    pub fn stop(&self) {
        // A copy that stays open would take connections that are never accepted.
        self.sockets.lock().clear();
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
    let owned = path.to_owned();
    let read = move || file::read(&owned, config::MAX_READ);
    file::read_within(file::READ_TIMEOUT, read).map_err(|error| config::unreadable(path, &error))
}

/// Starts the control thread, which runs everything that must not delay requests.
fn spawn_control(
    shared: &Arc<Shared>,
    reloader: &Arc<Reloader>,
    admin: Option<(AdminListener, AdminAccess)>,
    (stop, leave_admin): (&CancellationToken, &CancellationToken),
    resolved: mpsc::Sender<()>,
) -> io::Result<thread::JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (shared, reloader) = (shared.clone(), reloader.clone());
    let (stop, leave_admin) = (stop.clone(), leave_admin.clone());
    thread::Builder::new().name("control".to_owned()).spawn(move || {
        runtime.block_on(async move {
            let maintenance = tokio::spawn(shared.store.clone().run(stop.clone()));
            let watch = tokio::spawn(reloader.clone().watch(stop.clone()));
            let certificates = tokio::spawn(log_certificates(shared.clone()));
            let names = tokio::spawn(names::resolve(shared.upstreams.clone(), resolved));
            let traces = trace::export(shared.traces.clone(), shared.clock.clone(), stop.clone());
            let traces = tokio::spawn(traces);
            let probes = tokio::spawn(probes::run(shared.upstreams.clone()));
            let admin_api = admin.map(|(listener, access)| {
                let router = admin::router(shared.clone(), reloader.clone(), access);
                tokio::spawn(admin::serve(listener, router, shared.clone(), (stop, leave_admin)))
            });
            let _ = maintenance.await;
            watch.abort();
            certificates.abort();
            names.abort();
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

/// Logs the certificates that expire soon, once a day.
async fn log_certificates(shared: Arc<Shared>) {
    loop {
        shared.clock.sleep(CERTIFICATE_CHECK_INTERVAL).await;
        shared.live.snapshot().log_certificates(shared.clock.now());
    }
}

/// Which requests the admin API answers: with which `Host`, and with the token that is read here.
fn admin_access(
    admin: &config::Admin,
    loaded: &LoadedConfig,
    variables: EnvLookup<'_>,
) -> Result<AdminAccess, StartError> {
    let hosts = admin.hosts.iter().map(|name| name.0.clone());
    let hosts = AllowedHosts::new(admin.address.is_local(), hosts);
    let Some(reference) = &admin.token else {
        return Ok(AdminAccess { hosts, token: AdminToken::none() });
    };
    let fault = |what: String, expected: &str| {
        StartError::Faults(loaded.source.fault("admin.token", what, expected).into())
    };
    let text = reference.reveal_at_least(secret::MIN_LEN, variables).map_err(|error| {
        fault(error.to_string(), "a token that the gateway can read when it starts")
    })?;
    let token = AdminToken::new(text.trim()).map_err(|error| {
        fault(
            error.to_string(),
            "visible ASCII without spaces, such as `openssl rand -hex 32` prints",
        )
    })?;
    Ok(AdminAccess { hosts, token })
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
