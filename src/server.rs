//! [`Server`]: starts and stops a complete gateway, as the binary and the tests do.
//!
//! Its threads: one for each worker; one for control, with the admin API, the store's maintenance
//! and the configuration watch; and one for the throttle, if it is configured.

use std::{
    io,
    net::SocketAddr,
    path::Path,
    sync::{Arc, atomic::AtomicU64},
    thread,
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{
    admin::{self, AllowedHosts},
    clock::Clock,
    config::{self, Config, EnvLookup, Fault, Faults, SecretError},
    gateway::{DelayQueues, Shared, Via},
    live::LiveSnapshot,
    metrics::Metrics,
    reload::Reloader,
    secret::{self, SharedSecret},
    snapshot::{LoadError, Snapshot},
    store::{CounterStore, Credentials, RedisOptions, SetupError, ShardUrls, Topology},
    telemetry::{AccessLog, AccessLogGuard, Destination},
    throttle::{Throttle, redis::RedisFilterStore},
    worker::{self, Shutdown},
};

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
    /// A secret in the configuration cannot be read.
    #[error("{0}")]
    Secret(#[from] SecretError),
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
    workers: Vec<Vec<std::net::TcpListener>>,
    addresses: Vec<SocketAddr>,
    admin: Option<std::net::TcpListener>,
}

impl Server {
    /// Starts a gateway with the configuration file at `path`, which a reload reads again. Returns
    /// when every worker accepts connections or has failed. A worker's failure is only logged.
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
        let (loaded, snapshot) = Snapshot::load(path)?;
        snapshot.log_notes();
        let config = &loaded.config;
        let listeners = open_listeners(config)?;
        let (access_log, access_log_guard) = open_access_log(config)?.unzip();
        let settings = snapshot.throttle.clone();
        let stores = open_store(config, clock.clone(), variables)?;
        let throttle = settings.map(|settings| {
            let shared = config.store.redis.is_some();
            Throttle::new(settings, stores.shared_secret(), shared, clock.now())
        });
        let shared = Arc::new(Shared {
            live: LiveSnapshot::new(snapshot),
            store: stores,
            throttle,
            metrics: Metrics::default(),
            clock,
            access_log,
            delay_queues: DelayQueues::default(),
            accepting_workers: AtomicU64::new(0),
            connection_limit: Arc::default(),
            via: Via::default(),
        });
        let reloader = Arc::new(Reloader::new(path.to_owned(), &loaded, shared.clone()));
        let (drain, stop) = (CancellationToken::new(), CancellationToken::new());
        let admin = listeners.admin.as_ref().and_then(|admin| admin.local_addr().ok());
        let admin_api = listeners.admin.zip(config.admin.as_ref().map(allowed_hosts));
        let mut control =
            vec![spawn_control(&shared, &reloader, admin_api, &stop).map_err(StartError::Thread)?];
        if let Some(throttle) = &shared.throttle {
            let filter_store = shared.store.connector().map(|connector| {
                let (clock, stats) = (shared.clock.clone(), throttle.stats.clone());
                RedisFilterStore::new(connector, "throttle", clock, stats)
            });
            let ticker =
                spawn_throttle(throttle.clone(), filter_store, shared.clock.clone(), stop.clone());
            control.push(ticker.map_err(StartError::Thread)?);
        }
        let drain_timeout = config.drain_timeout.0;
        let (ready, all_ready) = std::sync::mpsc::channel();
        let workers = listeners.workers.into_iter().enumerate().map(|(index, listeners)| {
            let ready = ready.clone();
            let (shared, shutdown) =
                (shared.clone(), Shutdown { drain: drain.clone(), drain_timeout });
            thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
                if let Err(error) = worker::run(shared, listeners, shutdown, ready) {
                    tracing::error!(%error, "a worker cannot start");
                }
            })
        });
        let workers = workers.collect::<io::Result<Vec<_>>>().map_err(StartError::Thread)?;
        drop(ready);
        // No message is ever sent: it returns when the last worker has dropped its sender.
        let _ = all_ready.recv();
        Ok(Self {
            addresses: listeners.addresses,
            admin,
            shared,
            reloader,
            drain,
            stop,
            workers: Mutex::new(workers),
            control: Mutex::new(control),
            _access_log: access_log_guard,
        })
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

/// Starts the control thread, which runs everything that must not delay requests.
fn spawn_control(
    shared: &Arc<Shared>,
    reloader: &Arc<Reloader>,
    admin: Option<(std::net::TcpListener, AllowedHosts)>,
    stop: &CancellationToken,
) -> io::Result<thread::JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (shared, reloader, stop) = (shared.clone(), reloader.clone(), stop.clone());
    thread::Builder::new().name("control".to_owned()).spawn(move || {
        runtime.block_on(async move {
            let maintenance = tokio::spawn(shared.store.clone().run(stop.clone()));
            let watch = tokio::spawn(reloader.clone().watch(stop.clone()));
            let admin_api = admin.map(|(listener, hosts)| {
                let router = admin::router(shared.clone(), reloader.clone(), hosts);
                tokio::spawn(admin::serve(listener, router, stop.clone()))
            });
            let _ = maintenance.await;
            watch.abort();
            if let Some(admin_api) = admin_api {
                let _ = admin_api.await;
            }
        });
    })
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
        if !address.ip().is_loopback() {
            tracing::warn!(%address, "the admin API is unauthenticated and not on loopback");
        }
        admin::listen(address).map_err(|error| StartError::Listen { address, error })
    });
    Ok(Listeners { workers, addresses, admin: admin.transpose()? })
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

fn open_store(
    config: &Config,
    clock: Clock,
    variables: EnvLookup<'_>,
) -> Result<Arc<CounterStore>, StartError> {
    let max_keys = usize::try_from(config.store.memory.max_keys).unwrap_or(usize::MAX);
    Ok(match &config.store.redis {
        Some(redis) => CounterStore::redis(redis_options(redis, variables)?, clock, max_keys)?,
        None => CounterStore::memory(clock, max_keys)?,
    })
}

fn redis_options(
    redis: &config::Redis,
    variables: EnvLookup<'_>,
) -> Result<RedisOptions, StartError> {
    let url = |url: &config::RedisUrl| Box::<str>::from(url.expose_secret());
    let credentials = |username: &Option<String>, password: &Option<config::Secret>| {
        let password = password.as_ref().map(|password| password.reveal(variables)).transpose()?;
        Ok::<_, SecretError>(Credentials { username: username.as_deref().map(Box::from), password })
    };
    let shard = |shard: &config::Shard| ShardUrls {
        primary: url(&shard.primary),
        replicas: shard.replicas.iter().map(url).collect(),
    };
    let topology = match &redis.sentinel {
        Some(sentinel) => Topology::Sentinel {
            master: sentinel.master.as_str().into(),
            nodes: sentinel.nodes.iter().map(url).collect(),
            credentials: credentials(&sentinel.username, &sentinel.password)?,
        },
        None if redis.cluster.is_empty() => {
            Topology::Shards(redis.shards.iter().map(shard).collect())
        }
        None => Topology::Cluster(redis.cluster.iter().map(url).collect()),
    };
    let tls_ca = redis.tls_ca.as_ref().map(|path| {
        let read = std::fs::read(path).map(Vec::into_boxed_slice);
        read.map_err(|error| StartError::Certificates { path: path.display().to_string(), error })
    });
    Ok(RedisOptions {
        topology,
        credentials: credentials(&redis.username, &redis.password)?,
        tls_ca: tls_ca.transpose()?,
        namespace: redis.namespace.as_str().into(),
        secret: shared_secret(redis, variables)?,
        connect_timeout: redis.connect_timeout.0,
        response_timeout: redis.response_timeout.0,
    })
}

/// The secret that keys are hashed with: the configured one, or one derived from the namespace.
fn shared_secret(
    redis: &config::Redis,
    variables: EnvLookup<'_>,
) -> Result<SharedSecret, SecretError> {
    let Some(configured) = &redis.secret else {
        return Ok(SharedSecret::from_namespace(&redis.namespace));
    };
    let text = configured.reveal_at_least(secret::MIN_LEN, variables)?;
    Ok(SharedSecret::from_text(&text, &redis.namespace))
}

#[cfg(test)]
mod tests;
