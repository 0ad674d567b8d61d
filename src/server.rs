//! The whole gateway in one process: workers, control thread, admin. The binary starts it and tests do
//! the same.

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
    admin::{self, OwnHosts},
    clock::Clock,
    config::{self, Config, Fault, Faults, SecretError, Variables},
    gateway::{DelayQueues, Shared, Via},
    live::Live,
    metrics::Metrics,
    reload::Reloader,
    secret::{self, SharedSecret},
    snapshot::{LoadError, Snapshot},
    store::{Credentials, RedisOptions, SetupError, Shard, Stores, Topology},
    telemetry::{AccessLog, AccessLogGuard, Destination},
    throttle::{Throttle, redis::RedisLink},
    worker::{self, Stop},
};

/// Why a gateway did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration has faults.
    #[error("{0}")]
    Faults(#[from] Faults),
    /// The configuration brought out a bug.
    #[error("{0}")]
    Panic(Fault),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address as configured.
        address: SocketAddr,
        /// What the system says.
        error: io::Error,
    },
    /// The access log cannot be opened.
    #[error("cannot open the access log {path}: {error}")]
    AccessLog {
        /// The file as configured.
        path: String,
        /// What the system says.
        error: io::Error,
    },
    /// A secret that the configuration names cannot be read.
    #[error("{0}")]
    Secret(#[from] SecretError),
    /// The certificates that Redis' are to be checked against cannot be read.
    #[error("cannot read the certificates in {path}: {error}")]
    Certificates {
        /// The file as configured.
        path: String,
        /// What the system says.
        error: io::Error,
    },
    /// The limits' store cannot be made.
    #[error("{0}")]
    Store(#[from] SetupError),
    /// The process's own log cannot be started.
    #[error("cannot start the process log: {0}")]
    ProcessLog(io::Error),
    /// A thread or a runtime cannot be made.
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

/// A gateway that runs.
pub struct Server {
    /// Where clients connect, in the configuration's order.
    pub addresses: Vec<SocketAddr>,
    /// Where the operator connects, if anywhere.
    pub admin: Option<SocketAddr>,
    /// What its parts share.
    pub shared: Arc<Shared>,
    /// Replaces its rules.
    pub reloader: Arc<Reloader>,
    drain: CancellationToken,
    stop: CancellationToken,
    workers: Mutex<Vec<thread::JoinHandle<()>>>,
    /// The control thread, and the throttle's.
    control: Mutex<Vec<thread::JoinHandle<()>>>,
    _access_log: Option<AccessLogGuard>,
}

/// What is listened on before anything runs.
struct Listening {
    /// One list a worker, each in the configuration's order.
    workers: Vec<Vec<std::net::TcpListener>>,
    addresses: Vec<SocketAddr>,
    admin: Option<std::net::TcpListener>,
}

impl Server {
    /// Starts the configuration in the file at `path`, which reloads read again. Returns once every
    /// worker accepts.
    pub fn start(path: &Path, clock: Clock) -> Result<Self, StartError> {
        Self::start_with(path, clock, &|_| None)
    }

    /// The same where secrets may be in `variables` of the environment.
    pub fn start_with(
        path: &Path,
        clock: Clock,
        variables: Variables<'_>,
    ) -> Result<Self, StartError> {
        let (loaded, snapshot) = Snapshot::load(path)?;
        snapshot.log_notes();
        let config = &loaded.config;
        let listening = listen(config)?;
        let (access_log, access_log_guard) = open_access_log(config)?.unzip();
        let settings = snapshot.throttle.clone();
        let stores = stores(config, clock.clone(), variables)?;
        let throttle = settings.map(|settings| {
            let shared = config.store.redis.is_some();
            Throttle::new(settings, stores.shared_secret(), shared, clock.now())
        });
        let shared = Arc::new(Shared {
            live: Live::new(snapshot),
            stores,
            throttle,
            metrics: Metrics::default(),
            clock,
            access_log,
            delay_queues: DelayQueues::default(),
            serving: AtomicU64::new(0),
            places: Arc::default(),
            via: Via::default(),
        });
        let reloader = Arc::new(Reloader::new(path.to_owned(), &loaded, shared.clone()));
        let (drain, stop) = (CancellationToken::new(), CancellationToken::new());
        let admin = listening.admin.as_ref().and_then(|admin| admin.local_addr().ok());
        let operator = listening.admin.zip(config.admin.as_ref().map(own_hosts));
        let mut control =
            vec![control(&shared, &reloader, operator, &stop).map_err(StartError::Thread)?];
        if let Some(throttle) = &shared.throttle {
            let link = shared.stores.connector().map(|connector| {
                let (clock, stats) = (shared.clock.clone(), throttle.stats.clone());
                RedisLink::new(connector, "throttle", clock, stats)
            });
            let ticking = tick(throttle.clone(), link, shared.clock.clone(), stop.clone());
            control.push(ticking.map_err(StartError::Thread)?);
        }
        let within = config.drain_timeout.0;
        let (starting, started) = std::sync::mpsc::channel();
        let workers = listening.workers.into_iter().enumerate().map(|(index, listeners)| {
            let starting = starting.clone();
            let (shared, stop) = (shared.clone(), Stop { drain: drain.clone(), within });
            thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
                if let Err(error) = worker::run(shared, listeners, stop, starting) {
                    tracing::error!(%error, "a worker could not start");
                }
            })
        });
        let workers = workers.collect::<io::Result<Vec<_>>>().map_err(StartError::Thread)?;
        drop(starting);
        // Nobody says anything; the last worker's end of the channel is the word.
        let _ = started.recv();
        Ok(Self {
            addresses: listening.addresses,
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

    /// Opens the access log's file anew, as after a rotation. Returns at once; where the file cannot be
    /// opened, the old one stays and the process log has the error.
    pub fn reopen_logs(&self) {
        self.shared.reopen_logs();
    }

    /// Stops accepting, lets requests in flight finish, and ends the control thread. Blocks until all
    /// of that is done.
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

/// Starts the control thread: slow things live here.
fn control(
    shared: &Arc<Shared>,
    reloader: &Arc<Reloader>,
    admin: Option<(std::net::TcpListener, OwnHosts)>,
    stop: &CancellationToken,
) -> io::Result<thread::JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (shared, reloader, stop) = (shared.clone(), reloader.clone(), stop.clone());
    thread::Builder::new().name("control".to_owned()).spawn(move || {
        runtime.block_on(async move {
            let storing = tokio::spawn(shared.stores.clone().run(stop.clone()));
            let watching = tokio::spawn(reloader.clone().watch(stop.clone()));
            let serving = admin.map(|(listener, own)| {
                let router = admin::router(shared.clone(), reloader.clone(), own);
                tokio::spawn(admin::serve(listener, router, stop.clone()))
            });
            let _ = storing.await;
            watching.abort();
            if let Some(serving) = serving {
                let _ = serving.await;
            }
        });
    })
}

/// The hosts that the operator's port answers to.
fn own_hosts(admin: &config::Admin) -> OwnHosts {
    OwnHosts::new(admin.address.0.ip(), admin.hosts.iter().map(|name| name.0.clone()))
}

/// Starts the thread that the throttle ticks on.
fn tick(
    throttle: Arc<Throttle>,
    link: Option<RedisLink>,
    clock: Clock,
    stop: CancellationToken,
) -> io::Result<thread::JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let name = "throttle".to_owned();
    let ticking = move || runtime.block_on(throttle.run(link, clock, stop));
    thread::Builder::new().name(name).spawn(ticking)
}

/// Opens every address for every worker. Port 0 is chosen once and then shared.
fn listen(config: &Config) -> Result<Listening, StartError> {
    let open =
        |address| worker::listen(address).map_err(|error| StartError::Listen { address, error });
    // All of them before the first is taken: `[::]` and `0.0.0.0` may share a port here.
    for listener in &config.listen {
        let address = listener.address.0;
        worker::claim(address).map_err(|error| StartError::Listen { address, error })?;
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
    Ok(Listening { workers, addresses, admin: admin.transpose()? })
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

fn stores(
    config: &Config,
    clock: Clock,
    variables: Variables<'_>,
) -> Result<Arc<Stores>, StartError> {
    let max_keys = usize::try_from(config.store.memory.max_keys).unwrap_or(usize::MAX);
    Ok(match &config.store.redis {
        Some(redis) => Stores::redis(shared_store(redis, variables)?, clock, max_keys)?,
        None => Stores::memory(clock, max_keys)?,
    })
}

fn shared_store(
    redis: &config::Redis,
    variables: Variables<'_>,
) -> Result<RedisOptions, StartError> {
    let url = |url: &config::RedisUrl| Box::<str>::from(url.secret());
    let credentials = |username: &Option<String>, password: &Option<config::Secret>| {
        let password = password.as_ref().map(|password| password.reveal(variables)).transpose()?;
        Ok::<_, SecretError>(Credentials { username: username.as_deref().map(Box::from), password })
    };
    let shard = |shard: &config::Shard| Shard {
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

/// What the configuration says to hash under.
fn shared_secret(
    redis: &config::Redis,
    variables: Variables<'_>,
) -> Result<SharedSecret, SecretError> {
    let Some(place) = &redis.secret else {
        return Ok(SharedSecret::of_namespace(&redis.namespace));
    };
    let text = place.reveal_at_least(secret::MIN_LEN, variables)?;
    Ok(SharedSecret::configured(&text, &redis.namespace))
}

#[cfg(test)]
#[path = "server/tests.rs"]
mod tests;
