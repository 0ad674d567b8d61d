//! The stores on which a test body runs: one gateway's memory, and every Redis topology, shared by
//! two gateways. The constants list the runs: each names its store and the protocols of its
//! clients.

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
    client::Response,
    gateway::Gateway,
    protocol::{
        AnyClient, NameOnPanic,
        Protocol::{self, Http1, Http1Tls, Http2, Http2Tls},
    },
    redis_server::RedisServer,
    redis_topology::{RedisCluster, SentinelTopology},
    yaml::without_indentation,
};

/// A kind of store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Store {
    /// The one gateway's memory.
    Memory,
    /// One Redis.
    Redis,
    /// Two independent Redis servers.
    Shards,
    /// A Cluster of three primaries.
    Cluster,
    /// The primary that sentinels report.
    Sentinel,
}

/// One run of a test body: a store, and a connection to each gateway for each of the protocols.
/// [`Fleet::get_in_order`] uses the first.
pub type Run = (Store, &'static [Protocol]);

/// Twice, because the gateway has two workers.
const OVER_HTTP1: Run = (Store::Memory, &[Http1, Http1]);
const OVER_HTTP1_TLS: Run = (Store::Memory, &[Http1Tls, Http1Tls]);
const OVER_HTTP2: Run = (Store::Memory, &[Http2, Http2]);
const OVER_HTTP2_TLS: Run = (Store::Memory, &[Http2Tls, Http2Tls]);
const OVER_ALL: Run =
    (Store::Memory, &[Http1, Http1Tls, Http2, Http2Tls, Http1, Http1Tls, Http2, Http2Tls]);

// Each topology begins with another protocol.
const REDIS: Run = (Store::Redis, &[Http2Tls, Http1, Http1Tls, Http2]);
const SHARDS: Run = (Store::Shards, &[Http2, Http2Tls, Http1, Http1Tls]);
const CLUSTER: Run = (Store::Cluster, &[Http1Tls, Http2, Http2Tls, Http1]);
const SENTINEL: Run = (Store::Sentinel, &[Http1, Http1Tls, Http2, Http2Tls]);

/// In memory over each protocol, and on one Redis over all of them in turn.
pub const MEMORY_BY_PROTOCOL_AND_REDIS: [Run; 5] =
    [OVER_HTTP1, OVER_HTTP1_TLS, OVER_HTTP2, OVER_HTTP2_TLS, REDIS];

/// In memory and on one Redis, over all protocols in turn: for a slow test body.
pub const MEMORY_AND_REDIS: [Run; 2] = [OVER_ALL, REDIS];

/// In memory over each protocol, and on every Redis topology over all of them in turn.
pub const MEMORY_BY_PROTOCOL_AND_TOPOLOGIES: [Run; 8] =
    [OVER_HTTP1, OVER_HTTP1_TLS, OVER_HTTP2, OVER_HTTP2_TLS, REDIS, SHARDS, CLUSTER, SENTINEL];

/// In memory and on every Redis topology, over all protocols in turn: for a slow test body.
pub const MEMORY_AND_TOPOLOGIES: [Run; 5] = [OVER_ALL, REDIS, SHARDS, CLUSTER, SENTINEL];

/// A running store, and the protocols of the clients.
pub struct Backend {
    servers: Servers,
    protocols: &'static [Protocol],
}

enum Servers {
    /// The counters are in the gateway's memory.
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
struct SharedServers<T> {
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

/// The environment variable that restricts [`on_each`] and [`on_all_at_once`]: `memory` leaves
/// Redis out. `scripts/test --fast` sets it.
const STORES_VARIABLE: &str = "TESTKIT_STORES";

#[expect(clippy::disallowed_methods, reason = "an input of the tests, not of the gateway")]
fn is_memory_only() -> bool {
    std::env::var(STORES_VARIABLE).is_ok_and(|stores| stores == "memory")
}

fn is_permitted(store: Store) -> bool {
    store == Store::Memory || !is_memory_only()
}

/// Runs a test body for each of `runs`, one after another. A failure names the run.
pub fn on_each(runs: &[Run], test: impl Fn(&Backend)) {
    for &run in runs {
        if is_permitted(run.0) {
            let _name = NameOnPanic(run);
            test(&Backend::start_store(run));
        }
    }
}

/// Runs a test body for all of `runs` at the same time. A failure names the run.
pub fn on_all_at_once(runs: &[Run], test: impl Fn(&Backend) + Sync) {
    let test = &test;
    thread::scope(|scope| {
        for &run in runs {
            if is_permitted(run.0) {
                scope.spawn(move || {
                    let _name = NameOnPanic(run);
                    test(&Backend::start_store(run));
                });
            }
        }
    });
}

impl Backend {
    fn start_store((store, protocols): Run) -> Self {
        static CLUSTER: Mutex<Weak<RedisCluster>> = Mutex::new(Weak::new());
        static SENTINEL: Mutex<Weak<SentinelTopology>> = Mutex::new(Weak::new());
        let servers = match store {
            Store::Memory => Servers::Memory,
            Store::Redis => Servers::Redis(RedisServer::start()),
            Store::Shards => Servers::Shards([RedisServer::start(), RedisServer::start()]),
            Store::Cluster => Servers::Cluster(SharedServers::new(&CLUSTER, RedisCluster::start)),
            Store::Sentinel => {
                Servers::Sentinel(SharedServers::new(&SENTINEL, SentinelTopology::start))
            }
        };
        Self { servers, protocols }
    }

    /// One Redis, as in [`MEMORY_AND_REDIS`].
    pub fn redis() -> Self {
        Self::start_store(REDIS)
    }

    /// The server, if it is one Redis.
    pub fn redis_server(&self) -> Option<&RedisServer> {
        match &self.servers {
            Servers::Redis(redis) => Some(redis),
            _ => None,
        }
    }

    /// Starts gateways with `yaml` and a common clock: one in memory, two on Redis.
    pub fn start(&self, yaml: &str, clock: &Clock) -> Fleet {
        let count = if self.is_memory() { 1 } else { 2 };
        let store = self.store_section();
        let yaml = format!("{store}{}", without_indentation(yaml));
        let start = |_| Gateway::for_every_protocol_at(&yaml, clock.clone());
        let gateways: Vec<_> = (0..count).map(start).collect();
        let protocols = self.protocols;
        let clients = (0..gateways.len() * protocols.len()).map(|_| RefCell::default()).collect();
        Fleet { gateways, protocols, clients, next: Cell::new(0), store }
    }

    /// True if the counters are in the gateway's memory.
    pub fn is_memory(&self) -> bool {
        matches!(self.servers, Servers::Memory)
    }

    /// True if the records of one request may be spread over several servers.
    pub fn is_sharded(&self) -> bool {
        matches!(self.servers, Servers::Shards(_) | Servers::Cluster(_))
    }

    /// The configuration's `store` section. Its timeouts are generous: a machine busy with other
    /// tests must not look like an outage of Redis.
    fn store_section(&self) -> String {
        let quoted = |url: &str| format!("\"{url}\"");
        let primary = |server: &RedisServer| format!("{{primary: {}}}", quoted(&server.url()));
        let servers = match &self.servers {
            Servers::Memory => return String::new(),
            Servers::Redis(redis) => format!("shards: [{}]", primary(redis)),
            Servers::Shards([a, b]) => format!("shards: [{}, {}]", primary(a), primary(b)),
            Servers::Cluster(SharedServers { servers, namespace }) => {
                let nodes: Vec<String> = servers.urls().iter().map(|url| quoted(url)).collect();
                format!("cluster: [{}], namespace: {namespace}", nodes.join(", "))
            }
            Servers::Sentinel(SharedServers { servers, namespace }) => {
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
    protocols: &'static [Protocol],
    /// Connected at the first request: each gateway in turn for each protocol.
    clients: Vec<RefCell<Option<AnyClient>>>,
    next: Cell<usize>,
    store: String,
}

impl Fleet {
    /// Opens a connection for a test's client number `n`. The numbers take the gateways and the
    /// protocols in turn.
    pub fn connect(&self, n: usize) -> AnyClient {
        let gateway = &self.gateways[n % self.gateways.len()];
        AnyClient::connect(self.protocols[n % self.protocols.len()], gateway)
    }

    /// Sends a GET to the next gateway, on the next of its connections. `headers` are whole lines,
    /// each with CR LF.
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

    fn get_on(&self, index: usize, path: &str, headers: &str) -> Response {
        let protocol = self.protocols[index / self.gateways.len()];
        let gateway = &self.gateways[index % self.gateways.len()];
        let connect = || AnyClient::connect(protocol, gateway);
        self.clients[index].borrow_mut().get_or_insert_with(connect).get(path, headers)
    }

    /// Sends a GET with an access token.
    pub fn get_as(&self, token: &str, path: &str) -> Response {
        self.get(path, &format!("Authorization: {token}\r\n"))
    }

    /// Replaces the configuration of all gateways. Panics if `yaml` has a fault.
    pub fn reload(&self, yaml: &str) {
        for gateway in &self.gateways {
            let reloaded = gateway.reload(&format!("{}{}", self.store, without_indentation(yaml)));
            reloaded.unwrap_or_else(|faults| panic!("{faults}"));
        }
    }
}
