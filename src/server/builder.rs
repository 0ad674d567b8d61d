//! [`ServerBuilder`]: starts a gateway.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicU64},
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{
    Server, StartError, listeners, open_access_log::open_access_log, open_files::FileBudget,
    open_store::open_store,
};
use crate::{
    acme::AcmeCertificates,
    admin::{AdminAccess, AdminListener, AdminToken, AllowedHosts, Stops},
    clock::Clock,
    config::{self, EnvLookup, Environment, Fault, Faults, LoadedConfig},
    consumer_store::ConsumerStore,
    file,
    gateway::{
        BlockedAddresses, ConnectionLimit, DelayQueues, KnownAdmissions, PasswordVerifier, Shared,
    },
    handover::PassedSockets,
    key_sets::KeySets,
    live::{LiveOverrides, LiveSnapshot},
    metrics::Metrics,
    overrides::{OverrideStore, OverridesContent, read_file},
    plan::Via,
    reload::{LoadedConsumers, Reloader},
    secret,
    snapshot::Snapshot,
    store::CounterStore,
    throttle::{FilterSharing, Throttle},
    trace::TraceQueue,
    upstream::{ConnectionBudget, UpstreamRegistry},
};

/// Starts a gateway, by default without environment variables or passed sockets.
pub struct ServerBuilder {
    clock: Clock,
    env: Environment,
    sockets: PassedSockets,
}

impl ServerBuilder {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, env: Arc::new(|_| None), sockets: PassedSockets::default() }
    }

    /// Reads environment variables from `env`.
    #[must_use]
    pub fn environment(self, env: Environment) -> Self {
        Self { env, ..self }
    }

    /// Uses passed sockets instead of new ones, for their addresses.
    #[must_use]
    pub fn sockets(self, sockets: PassedSockets) -> Self {
        Self { sockets, ..self }
    }

    /// Starts a gateway with the configuration file at `path`, which a reload reads again. Returns
    /// when every worker accepts connections. If a part cannot start, the running parts are
    /// stopped.
    ///
    /// # Errors
    ///
    /// [`StartError`] names the part that cannot start.
    pub fn start_file(self, path: &Path) -> Result<Server, StartError> {
        let bytes = read_configuration(path)?;
        self.start(path, &bytes, |reloader| reloader)
    }

    /// Like [`Self::start_file`], with the configuration `text`, which is called `name` in messages
    /// and cannot be reloaded.
    ///
    /// # Errors
    ///
    /// [`StartError`] names the part that cannot start.
    pub fn start_text(self, name: &str, text: &str) -> Result<Server, StartError> {
        self.start(name.as_ref(), text.as_bytes(), Reloader::without_file)
    }

    /// Starts a gateway with the content of the file at `path`.
    fn start(
        self,
        path: &Path,
        bytes: &[u8],
        adapt: fn(Reloader) -> Reloader,
    ) -> Result<Server, StartError> {
        let Self { clock, env, sockets: passed } = self;
        let (loaded, snapshot) = Snapshot::load_to_serve(path, bytes, &*env)?;
        snapshot.log_notes();
        snapshot.log_certificates(clock.store_time());
        let config = &loaded.config;
        let is_handed_over = Arc::default();
        let socket_files = passed.files();
        let listeners = listeners::open(config, passed, &is_handed_over)?;
        let (access_log, access_log_guard) = open_access_log(&config.access_log, &*env)?.unzip();
        let consumers = LoadedConsumers::read(&snapshot.consumers, file::READ_TIMEOUT)?;
        let settings = snapshot.throttle.clone();
        let overrides = read_overrides(snapshot.overrides_file.as_deref())
            .map_err(|faults| faults.of_named_file(&loaded.source, "overrides.file"))?;
        let store = open_store(&loaded, overrides.secret, clock.clone(), &*env)?;
        let override_store = override_store(snapshot.overrides_file.clone(), &store, &clock);
        let connector = store.connector();
        let consumer_store =
            connector.map(|connector| ConsumerStore::new(connector, clock.clone()));
        let throttle = settings.map(|settings| {
            let sharing = match config.store.redis {
                Some(_) => FilterSharing::Shared,
                None => FilterSharing::Local,
            };
            Throttle::new(settings, store.shared_secret(), sharing, clock.store_time())
        });
        let files = FileBudget::of_process(config);
        let connections = ConnectionBudget::new(files.upstreams);
        let upstreams = UpstreamRegistry::new(clock.clone(), connections);
        upstreams.apply(&snapshot.upstreams);
        let traces = Arc::new(TraceQueue::default());
        traces.configure(snapshot.export_settings(&loaded.source, &*env)?);
        let key_sets = Arc::new(KeySets::default());
        key_sets.apply(snapshot.jwt_methods());
        let acme = Arc::new(AcmeCertificates::new(store.connector(), clock.clone()));
        acme.apply(snapshot.acme_listeners());
        let shared = Arc::new(Shared {
            traces,
            upstreams: Arc::new(upstreams),
            live: LiveSnapshot::new(snapshot, Arc::clone(&consumers.table)),
            store,
            throttle,
            metrics: Metrics::default(),
            clock,
            access_log,
            delay_queues: DelayQueues::default(),
            accepting_workers: AtomicU64::new(0),
            leaving: CancellationToken::new(),
            connection_limit: ConnectionLimit::new(files.clients as usize).into(),
            clients: Arc::default(),
            callers: Arc::default(),
            compression: Arc::default(),
            inspected_bytes: Arc::default(),
            via: Via::default(),
            overrides: LiveOverrides::default(),
            override_store,
            key_sets,
            consumer_store,
            blocked_addresses: BlockedAddresses::default(),
            passwords: PasswordVerifier::default(),
            known_admissions: KnownAdmissions::default(),
            acme,
        });
        shared.overrides.replace(overrides.set, &shared.live);
        let reloader = Reloader::new(path.to_owned(), &loaded, shared.clone(), env.clone());
        let reloader = Arc::new(adapt(reloader.with_consumers(&consumers)));
        let admin = listeners.admin.as_ref().and_then(AdminListener::address);
        let access = config.admin.as_ref().map(|admin| admin_access(admin, &loaded, &*env));
        let admin_api = listeners.admin.zip(access.transpose()?);
        let server = Server {
            addresses: listeners.addresses,
            rate_limit_service: listeners.rate_limit_service,
            admin,
            shared,
            reloader,
            drain_delay: config.drain_delay.0,
            drain: CancellationToken::new(),
            stops: Stops::default(),
            sockets: Mutex::new(listeners.sockets),
            socket_files,
            is_handed_over,
            workers: Mutex::default(),
            control: Mutex::default(),
            _access_log: access_log_guard,
        };
        // A failure drops the server, which ends its threads.
        server.start_control(admin_api).map_err(StartError::Thread)?;
        let drain_timeout = config.drain_timeout.0;
        server.start_workers(listeners.workers, drain_timeout).map_err(StartError::Thread)?;
        Ok(server)
    }
}

/// The configuration file's content; a pipe such as `/dev/stdin` is read to its end.
fn read_configuration(path: &Path) -> Result<Vec<u8>, Faults> {
    let owned = path.to_owned();
    let read = move || file::read(&owned, config::MAX_READ);
    file::read_within(file::READ_TIMEOUT, read).map_err(|error| config::unreadable(path, &error))
}

/// The content of the file of overrides; empty without one.
///
/// # Errors
///
/// Its faults.
fn read_overrides(path: Option<&Path>) -> Result<OverridesContent, Faults> {
    let Some(path) = path else { return Ok(OverridesContent::default()) };
    let owned = path.to_owned();
    let read = file::read_within(file::READ_TIMEOUT, move || Ok(read_file(&owned)));
    read.unwrap_or_else(|error| {
        let name = path.display().to_string();
        Err(Fault::of_whole_file(&name, &error.to_string(), error.expected()).into())
    })
}

/// Where overrides are kept: in Redis, or else in the file at `path`.
fn override_store(path: Option<PathBuf>, store: &CounterStore, clock: &Clock) -> OverrideStore {
    let clock = clock.clone();
    match (store.connector(), path) {
        (Some(connector), _) => OverrideStore::redis(connector, clock),
        (None, Some(path)) => OverrideStore::file(path, *store.shared_secret(), clock),
        (None, None) => OverrideStore::nowhere(clock),
    }
}

/// The hosts and the token that requests to the admin API need. Reads the token.
fn admin_access(
    admin: &config::Admin,
    loaded: &LoadedConfig,
    variables: EnvLookup<'_>,
) -> Result<AdminAccess, StartError> {
    let hosts = admin.hosts.iter().map(|name| name.0.clone());
    let hosts = if admin.address.is_local() {
        AllowedHosts::of_local_port(hosts)
    } else {
        AllowedHosts::of_network_port(hosts)
    };
    let Some(reference) = &admin.token else {
        return Ok(AdminAccess { hosts, token: AdminToken::none() });
    };
    let fault = |what: String, expected: &str| {
        StartError::Faults(loaded.source.fault("admin.token", what, expected).into())
    };
    let text = reference
        .reveal_at_least(secret::MIN_LEN, variables)
        .map_err(|error| fault(error.to_string(), &error.expected()))?;
    let token = AdminToken::new(text.trim()).map_err(|error| {
        fault(
            error.to_string(),
            "visible ASCII without spaces, such as `openssl rand -hex 32` prints",
        )
    })?;
    Ok(AdminAccess { hosts, token })
}
