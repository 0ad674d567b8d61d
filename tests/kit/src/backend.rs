//! The stores that a test body runs on: one gateway's memory, and every Redis topology, shared by
//! two gateways. The clients speak every protocol: one after another in memory, in turn on Redis.

use std::{
    cell::{Cell, RefCell},
    slice,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    thread,
};

use tidegate::clock::Clock;

use crate::{
    client::Response,
    gateway::Gateway,
    protocol::{AnyClient, NameOnPanic, PROTOCOLS, Protocol},
    redis_server::RedisServer,
    redis_topology::{RedisCluster, SentinelTopology},
};

/// Where the counters are.
pub enum Backend {
    /// In the one gateway's memory. The clients speak these protocols.
    Memory(&'static [Protocol]),
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

/// Runs a test body in memory, with each protocol, and on one Redis.
pub fn on_every_store(test: impl Fn(&Backend)) {
    for protocol in &PROTOCOLS {
        let _name = NameOnPanic(*protocol);
        test(&Backend::Memory(slice::from_ref(protocol)));
    }
    if !is_memory_only() {
        test(&Backend::Redis(RedisServer::start()));
    }
}

/// [`on_every_store`] for a slow test body: in memory, too, the clients speak the protocols in turn.
pub fn on_every_store_once(test: impl Fn(&Backend)) {
    test(&Backend::Memory(&PROTOCOLS));
    if !is_memory_only() {
        test(&Backend::Redis(RedisServer::start()));
    }
}

/// Runs a test body in memory, with each protocol, and on every Redis topology, concurrently.
pub fn on_every_topology(test: impl Fn(&Backend) + Sync) {
    thread::scope(|scope| {
        for protocol in &PROTOCOLS {
            let test = &test;
            scope.spawn(move || {
                let _name = NameOnPanic(*protocol);
                test(&Backend::Memory(slice::from_ref(protocol)));
            });
        }
        on_redis_topologies(&test);
    });
}

/// [`on_every_topology`] for a slow test body: in memory, too, the clients speak the protocols in turn.
pub fn on_every_topology_once(test: impl Fn(&Backend) + Sync) {
    thread::scope(|scope| {
        scope.spawn(|| test(&Backend::Memory(&PROTOCOLS)));
        on_redis_topologies(&test);
    });
}

fn on_redis_topologies(test: &(impl Fn(&Backend) + Sync)) {
    static CLUSTER: Mutex<Weak<RedisCluster>> = Mutex::new(Weak::new());
    static SENTINEL: Mutex<Weak<SentinelTopology>> = Mutex::new(Weak::new());
    if is_memory_only() {
        return;
    }
    thread::scope(|scope| {
        scope.spawn(|| test(&Backend::Redis(RedisServer::start())));
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
        let count = if self.is_memory() { 1 } else { 2 };
        let store = self.store_section();
        let yaml = format!("{store}{yaml}");
        let start = |_| Gateway::for_every_protocol_at(&yaml, clock.clone());
        let gateways: Vec<_> = (0..count).map(start).collect();
        let protocols = self.protocols();
        let clients = (0..gateways.len() * protocols.len()).map(|_| RefCell::default()).collect();
        Fleet { gateways, protocols, clients, next: Cell::new(0), store }
    }

    /// What the clients speak. The first speaks another protocol on each topology.
    fn protocols(&self) -> Vec<Protocol> {
        let mut all = PROTOCOLS;
        match self {
            // Two connections at least: the gateway has two workers.
            Self::Memory(protocols) => return [*protocols, *protocols].concat(),
            Self::Redis(_) => all.rotate_left(3),
            Self::Shards(_) => all.rotate_left(2),
            Self::Cluster(_) => all.rotate_left(1),
            Self::Sentinel(_) => {}
        }
        all.to_vec()
    }

    /// Whether the counters are in the gateway's memory.
    pub fn is_memory(&self) -> bool {
        matches!(self, Self::Memory(_))
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
            Self::Memory(_) => return String::new(),
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
    protocols: Vec<Protocol>,
    /// Connected at the first request: each gateway in turn for each protocol.
    clients: Vec<RefCell<Option<AnyClient>>>,
    next: Cell<usize>,
    store: String,
}

impl Fleet {
    /// A further connection: of a test's clients, number `n`. They take the gateways and the protocols in turn.
    pub fn connect(&self, n: usize) -> AnyClient {
        let gateway = &self.gateways[n % self.gateways.len()];
        AnyClient::connect(self.protocols[n % self.protocols.len()], gateway)
    }

    /// Sends a GET to the next gateway, on the next of its connections. `headers` are whole lines, each with
    /// CR LF.
    pub fn get(&self, path: &str, headers: &str) -> Response {
        let turn = self.next.get();
        self.next.set(turn + 1);
        self.get_on(turn % self.clients.len(), path, headers)
    }

    /// Sends a GET over the same connection each time, so that each is processed after the previous
    /// response and its effects.
    pub fn get_in_order(&self, path: &str, headers: &str) -> Response {
        self.get_on(0, path, headers)
    }

    fn get_on(&self, at: usize, path: &str, headers: &str) -> Response {
        let (turn, gateway) = (at / self.gateways.len(), at % self.gateways.len());
        let connect = || AnyClient::connect(self.protocols[turn], &self.gateways[gateway]);
        self.clients[at].borrow_mut().get_or_insert_with(connect).get(path, headers)
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
