//! The stores that a test body runs on: one gateway's memory, and every Redis topology, shared by
//! two gateways.

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
    client::{Client, Response},
    gateway::Gateway,
    redis_server::RedisServer,
    redis_topology::{RedisCluster, SentinelTopology},
};

/// Where the counters are.
pub enum Backend {
    /// In the one gateway's memory.
    Memory,
    /// In one Redis.
    Redis(RedisServer),
    /// In two independent Redis servers.
    Shards([RedisServer; 2]),
    /// In a Cluster of three primaries.
    Cluster(SharedServers<RedisCluster>),
    /// In the primary that sentinels report.
    Sentinel(SharedServers<SentinelTopology>),
}

/// Servers that are slow to start, shared by tests that run at the same time. Each test has a
/// namespace of its own.
pub struct SharedServers<T> {
    servers: Arc<T>,
    namespace: String,
}

impl<T> SharedServers<T> {
    /// Takes the running servers, or starts new ones. They stop with the last test that uses them.
    fn new(running: &Mutex<Weak<T>>, start: impl FnOnce() -> T) -> Self {
        static NAMESPACES: AtomicU32 = AtomicU32::new(0);
        let mut running = running.lock().expect("the servers started");
        let servers = running.upgrade().unwrap_or_else(|| {
            let started = Arc::new(start());
            *running = Arc::downgrade(&started);
            started
        });
        Self { servers, namespace: format!("test-{}", NAMESPACES.fetch_add(1, Relaxed)) }
    }
}

/// The environment variable that restricts [`on_every_store`] and [`on_every_topology`]: `memory`
/// leaves Redis out. `scripts/test --fast` sets it.
const STORES_VARIABLE: &str = "TESTKIT_STORES";

#[expect(clippy::disallowed_methods, reason = "an input of the tests, not of the gateway")]
fn is_memory_only() -> bool {
    std::env::var(STORES_VARIABLE).is_ok_and(|stores| stores == "memory")
}

/// Runs a test body in memory and on one Redis.
pub fn on_every_store(test: impl Fn(&Backend)) {
    test(&Backend::Memory);
    if !is_memory_only() {
        test(&Backend::Redis(RedisServer::start()));
    }
}

/// Runs a test body in memory and on every Redis topology, concurrently.
pub fn on_every_topology(test: impl Fn(&Backend) + Sync) {
    static CLUSTER: Mutex<Weak<RedisCluster>> = Mutex::new(Weak::new());
    static SENTINEL: Mutex<Weak<SentinelTopology>> = Mutex::new(Weak::new());
    if is_memory_only() {
        return test(&Backend::Memory);
    }
    thread::scope(|scope| {
        scope.spawn(|| on_every_store(&test));
        scope.spawn(|| test(&Backend::Shards([RedisServer::start(), RedisServer::start()])));
        scope.spawn(|| test(&Backend::Cluster(SharedServers::new(&CLUSTER, RedisCluster::start))));
        scope.spawn(|| {
            test(&Backend::Sentinel(SharedServers::new(&SENTINEL, SentinelTopology::start)));
        });
    });
}

impl Backend {
    /// Starts gateways with `yaml` and a common clock: one in memory, two on Redis.
    pub fn start(&self, yaml: &str, clock: &Clock) -> Fleet {
        let count = if matches!(self, Self::Memory) { 1 } else { 2 };
        let store = self.store_section();
        let yaml = format!("{store}{yaml}");
        let gateways: Vec<_> =
            (0..count).map(|_| Gateway::start_at(&yaml, clock.clone())).collect();
        // Two connections to each gateway, so that both of its workers may be used.
        let connect = |gateway: &Gateway| RefCell::new(Client::connect(gateway.address()));
        let clients = gateways.iter().chain(&gateways).map(connect).collect();
        Fleet { gateways, clients, next: Cell::new(0), store }
    }

    /// Whether the records of one request may be spread over several servers.
    pub fn is_sharded(&self) -> bool {
        matches!(self, Self::Shards(_) | Self::Cluster(_))
    }

    /// The configuration's `store` section. Its timeouts are generous: a machine busy with other
    /// tests must not look like an outage of Redis.
    fn store_section(&self) -> String {
        let quoted = |url: &str| format!("\"{url}\"");
        let primary = |server: &RedisServer| format!("{{primary: {}}}", quoted(&server.url()));
        let servers = match self {
            Self::Memory => return String::new(),
            Self::Redis(redis) => format!("shards: [{}]", primary(redis)),
            Self::Shards([a, b]) => format!("shards: [{}, {}]", primary(a), primary(b)),
            Self::Cluster(SharedServers { servers, namespace }) => {
                let nodes: Vec<String> = servers.urls().iter().map(|url| quoted(url)).collect();
                format!("cluster: [{}], namespace: {namespace}", nodes.join(", "))
            }
            Self::Sentinel(SharedServers { servers, namespace }) => {
                let nodes = servers.sentinels.iter().map(|sentinel| quoted(&sentinel.url()));
                let nodes = nodes.collect::<Vec<_>>().join(", ");
                format!("sentinel: {{master: main, nodes: [{nodes}]}}, namespace: {namespace}")
            }
        };
        format!("store: {{redis: {{{servers}, connect_timeout: 5s, response_timeout: 30s}}}}\n")
    }
}

/// Gateways that share their counters. Requests go to them in turn.
pub struct Fleet {
    /// The gateways.
    pub gateways: Vec<Gateway>,
    clients: Vec<RefCell<Client>>,
    next: Cell<usize>,
    store: String,
}

impl Fleet {
    /// Sends a GET to the next gateway. `headers` are whole lines, each with CR LF.
    pub fn get(&self, path: &str, headers: &str) -> Response {
        let turn = self.next.get();
        self.next.set(turn + 1);
        self.clients[turn % self.clients.len()].borrow_mut().get(path, headers)
    }

    /// Sends a GET over the same connection each time, so that each is processed after the previous
    /// response and its effects.
    pub fn get_in_order(&self, path: &str, headers: &str) -> Response {
        self.clients[0].borrow_mut().get(path, headers)
    }

    /// Sends a GET with an access token.
    pub fn get_as(&self, token: &str, path: &str) -> Response {
        self.get(path, &format!("Authorization: {token}\r\n"))
    }

    /// Replaces the configuration of all gateways. Panics if `yaml` has a fault.
    pub fn reload(&self, yaml: &str) {
        for gateway in &self.gateways {
            let reloaded = gateway.reload(&format!("{}{yaml}", self.store));
            reloaded.unwrap_or_else(|faults| panic!("{faults}"));
        }
    }
}
