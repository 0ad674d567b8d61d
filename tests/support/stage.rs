//! The stores that a promise must hold on: this process's memory, and real Redis servers under two gateways.

use std::{
    cell::{Cell, RefCell},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    thread,
};

use tidegate::clock::Clock;

use crate::{
    client::{Client, Reply},
    gateway::Gateway,
    redis_server::RedisServer,
    redis_topology::{RedisCluster, SentinelTrio},
};

/// Where the counters are. Of servers, two gateways share them.
pub(crate) enum Stage {
    /// In the gateway.
    Memory,
    /// In this Redis.
    Redis(RedisServer),
    /// In two that know nothing of each other.
    Shards([RedisServer; 2]),
    /// In a Cluster of three primaries.
    Cluster(Shared<RedisCluster>),
    /// In the primary that Sentinels name.
    Sentinel(Shared<SentinelTrio>),
}

/// Servers that take long to start, so tests that run at the same time share them.
pub(crate) struct Shared<T> {
    servers: Arc<T>,
    /// Of this stage alone.
    namespace: String,
}

impl<T> Shared<T> {
    /// Those that are there, or new ones: they end with their last test.
    fn new(known: &Mutex<Weak<T>>, start: impl FnOnce() -> T) -> Self {
        static STAGES: AtomicU32 = AtomicU32::new(0);
        let mut known = known.lock().expect("they have started");
        let servers = known.upgrade().unwrap_or_else(|| {
            let started = Arc::new(start());
            *known = Arc::downgrade(&started);
            started
        });
        Self { servers, namespace: format!("stage-{}", STAGES.fetch_add(1, Relaxed)) }
    }
}

/// Runs one test body in memory and on one Redis.
pub(crate) fn on_every_store(test: impl Fn(&Stage)) {
    for stage in [Stage::Memory, Stage::Redis(RedisServer::start())] {
        test(&stage);
    }
}

/// Runs one test body on every store, in every topology that the configuration has, all at once.
pub(crate) fn on_every_topology(test: impl Fn(&Stage) + Sync) {
    static CLUSTER: Mutex<Weak<RedisCluster>> = Mutex::new(Weak::new());
    static SENTINEL: Mutex<Weak<SentinelTrio>> = Mutex::new(Weak::new());
    thread::scope(|scope| {
        scope.spawn(|| on_every_store(&test));
        scope.spawn(|| test(&Stage::Shards([RedisServer::start(), RedisServer::start()])));
        scope.spawn(|| test(&Stage::Cluster(Shared::new(&CLUSTER, RedisCluster::start))));
        scope.spawn(|| test(&Stage::Sentinel(Shared::new(&SENTINEL, SentinelTrio::start))));
    });
}

impl Stage {
    /// The gateways of this stage, all on `yaml` and one clock.
    pub(crate) fn start(&self, yaml: &str, clock: &Clock) -> Fleet {
        let count = if matches!(self, Self::Memory) { 1 } else { 2 };
        let store = self.section();
        let yaml = format!("{store}{yaml}");
        let gateways: Vec<_> =
            (0..count).map(|_| Gateway::start_at(&yaml, clock.clone())).collect();
        // Two connections each: they may meet both workers.
        let connect = |gateway: &Gateway| RefCell::new(Client::connect(gateway.address()));
        let clients = gateways.iter().chain(&gateways).map(connect).collect();
        Fleet { gateways, clients, next: Cell::new(0), store }
    }

    /// Whether records of one request may live at several places.
    pub(crate) fn has_places(&self) -> bool {
        matches!(self, Self::Shards(_) | Self::Cluster(_))
    }

    /// Its part of the configuration. Patient timeouts: a machine that is busy with other tests is no
    /// lost Redis.
    fn section(&self) -> String {
        let quoted = |url: &str| format!("\"{url}\"");
        let primary = |server: &RedisServer| format!("{{primary: {}}}", quoted(&server.url()));
        let servers = match self {
            Self::Memory => return String::new(),
            Self::Redis(redis) => format!("shards: [{}]", primary(redis)),
            Self::Shards([a, b]) => format!("shards: [{}, {}]", primary(a), primary(b)),
            Self::Cluster(Shared { servers, namespace }) => {
                let nodes: Vec<String> = servers.urls().iter().map(|url| quoted(url)).collect();
                format!("cluster: [{}], namespace: {namespace}", nodes.join(", "))
            }
            Self::Sentinel(Shared { servers, namespace }) => {
                let nodes = servers.sentinels.iter().map(|sentinel| quoted(&sentinel.url()));
                let nodes = nodes.collect::<Vec<_>>().join(", ");
                format!("sentinel: {{master: main, nodes: [{nodes}]}}, namespace: {namespace}")
            }
        };
        format!("store: {{redis: {{{servers}, connect_timeout: 5s, response_timeout: 5s}}}}\n")
    }
}

/// Gateways that count together. Requests go to one after the other.
pub(crate) struct Fleet {
    pub(crate) gateways: Vec<Gateway>,
    clients: Vec<RefCell<Client>>,
    next: Cell<usize>,
    store: String,
}

impl Fleet {
    /// Sends a GET to the next gateway. `headers` are whole lines, each with CR LF.
    pub(crate) fn get(&self, path: &str, headers: &str) -> Reply {
        let turn = self.next.get();
        self.next.set(turn + 1);
        self.clients[turn % self.clients.len()].borrow_mut().get(path, headers)
    }

    /// Sends a GET over one connection, so that what its last answer changed is there before it.
    pub(crate) fn get_in_order(&self, path: &str, headers: &str) -> Reply {
        self.clients[0].borrow_mut().get(path, headers)
    }

    /// Sends a GET with an access token.
    pub(crate) fn get_as(&self, token: &str, path: &str) -> Reply {
        self.get(path, &format!("Authorization: {token}\r\n"))
    }

    /// Replaces the rules of all gateways.
    ///
    /// # Panics
    ///
    /// If there is a fault in `yaml`.
    pub(crate) fn reload(&self, yaml: &str) {
        for gateway in &self.gateways {
            let reloaded = gateway.reload(&format!("{}{yaml}", self.store));
            reloaded.unwrap_or_else(|faults| panic!("{faults}"));
        }
    }
}
