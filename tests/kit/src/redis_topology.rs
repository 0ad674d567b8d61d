//! Real Redis topologies: a primary with replicas, a Cluster, and a primary under Sentinel.

use tempfile::TempDir;

use crate::{port::free_port, redis_server::RedisServer, wait::eventually};

/// Arguments that shorten replication delays.
const FAST_REPLICATION: [&str; 4] =
    ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"];

/// The name under which sentinels watch the primary.
const MASTER_NAME: &str = "main";

/// Starts a replica of `primary` and waits until it is in sync.
pub fn replica_of(primary: &RedisServer) -> RedisServer {
    let replica = RedisServer::start_with(&FAST_REPLICATION);
    replicate(&replica, primary);
    replica
}

/// Starts a server to which replicas sync without delay.
pub fn primary() -> RedisServer {
    RedisServer::start_with(&FAST_REPLICATION)
}

/// Makes a server the replica of another and waits until it is in sync.
pub fn replicate(replica: &RedisServer, primary: &RedisServer) {
    let port = primary.port().to_string();
    let _: String = replica.command(&["REPLICAOF", "127.0.0.1", &port]);
    wait_link_up(replica);
    // The link may be reported up before the full sync that replaces the replica's data.
    let online = format!("port={},state=online", replica.port());
    eventually("the primary streams to the replica", || {
        primary.command::<String>(&["INFO", "replication"]).contains(&online)
    });
    wait_link_up(replica);
}

fn wait_link_up(replica: &RedisServer) {
    eventually("the replica's link is up", || {
        replica.command::<String>(&["INFO", "replication"]).contains("master_link_status:up")
    });
}

/// A Cluster of three primaries (nodes 0 to 2), each with one replica (nodes 3 to 5).
pub struct RedisCluster {
    /// All six nodes.
    pub nodes: Vec<RedisServer>,
    ids: Vec<String>,
    _directory: TempDir,
}

impl RedisCluster {
    /// Starts all six and waits until every slot is served and every replica in sync.
    pub fn start() -> Self {
        let directory = TempDir::new().expect("a directory");
        // The default bus port, the node's port plus 10000, would not be reserved.
        let buses: Vec<String> = (0..6).map(|_| free_port().to_string()).collect();
        let mut nodes = Vec::new();
        for (index, bus) in buses.iter().enumerate() {
            let path = directory.path().to_str().expect("a path");
            let file = format!("nodes-{index}.conf");
            let mut arguments = vec!["--cluster-enabled", "yes", "--cluster-port", bus];
            arguments.extend(["--cluster-node-timeout", "800", "--cluster-config-file", &file]);
            arguments.extend(["--dir", path, "--cluster-replica-validity-factor", "0"]);
            arguments.extend(FAST_REPLICATION);
            let mut node = RedisServer::not_started_with(&arguments);
            node.spawn();
            nodes.push(node);
        }
        nodes.iter().for_each(RedisServer::wait_ready);
        let ids = nodes.iter().map(|node| node.command(&["CLUSTER", "MYID"])).collect();
        let cluster = Self { nodes, ids, _directory: directory };
        cluster.join(&buses);
        cluster
    }

    /// Forms the cluster: assigns the slots, then the replicas.
    fn join(&self, buses: &[String]) {
        for (index, node) in self.nodes.iter().enumerate() {
            let epoch = (index + 1).to_string();
            let _: String = node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
        }
        for (node, bus) in self.nodes.iter().zip(buses).skip(1) {
            let port = node.port().to_string();
            let _: String = self.nodes[0].command(&["CLUSTER", "MEET", "127.0.0.1", &port, bus]);
        }
        for (node, (first, last)) in
            self.nodes.iter().zip([("0", "5460"), ("5461", "10922"), ("10923", "16383")])
        {
            let _: String = node.command(&["CLUSTER", "ADDSLOTSRANGE", first, last]);
        }
        let has_met_all = |node: &RedisServer| {
            let nodes = node.command::<String>(&["CLUSTER", "NODES"]);
            self.ids.iter().all(|id| nodes.contains(id.as_str())) && !nodes.contains("handshake")
        };
        eventually("all nodes have met", || self.nodes.iter().all(has_met_all));
        for index in 3..6 {
            let primary = self.ids[index - 3].as_str();
            let _: String = self.nodes[index].command(&["CLUSTER", "REPLICATE", primary]);
        }
        self.nodes[3..].iter().for_each(wait_link_up);
        let is_ok = |node: &RedisServer| {
            node.command::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
        };
        eventually("every slot is served", || self.nodes.iter().all(is_ok));
    }

    /// The URLs of the three primaries at the start.
    pub fn urls(&self) -> Vec<Box<str>> {
        self.nodes[..3].iter().map(|node| node.url().into()).collect()
    }

    /// The slot of a hash tag, and the index of the node that serves it at the start.
    pub fn slot_of(&self, tag: &str) -> (String, usize) {
        let slot: u16 = self.nodes[0].command(&["CLUSTER", "KEYSLOT", tag]);
        (slot.to_string(), usize::from(slot > 5460) + usize::from(slot > 10_922))
    }

    /// Begins a slot's migration: `from` answers ASK for keys that it lacks.
    pub fn begin_migration(&self, slot: &str, from: usize, to: usize) {
        let (source, target) = (self.ids[from].as_str(), self.ids[to].as_str());
        let _: String = self.nodes[to].command(&["CLUSTER", "SETSLOT", slot, "IMPORTING", source]);
        let _: String =
            self.nodes[from].command(&["CLUSTER", "SETSLOT", slot, "MIGRATING", target]);
    }

    /// Migrates the keys of a slot.
    pub fn migrate_keys(&self, slot: &str, from: usize, to: usize) {
        let keys: Vec<String> =
            self.nodes[from].command(&["CLUSTER", "GETKEYSINSLOT", slot, "1000"]);
        let port = self.nodes[to].port().to_string();
        for key in keys {
            let _: String = self.nodes[from].command(&[
                "MIGRATE",
                "127.0.0.1",
                &port,
                &key,
                "0",
                "1000",
                "REPLACE",
            ]);
        }
    }

    /// Ends a slot's migration: every primary assigns the slot to `to`.
    pub fn end_migration(&self, slot: &str, to: usize) {
        for index in [to, 0, 1, 2] {
            let target = self.ids[to].as_str();
            let _: String =
                self.nodes[index].command(&["CLUSTER", "SETSLOT", slot, "NODE", target]);
        }
    }
}

/// A primary, its replica, and three sentinels that watch it under the name `main`.
pub struct SentinelTopology {
    /// The primary and the replica; a failover swaps their roles.
    pub servers: [RedisServer; 2],
    /// The sentinels.
    pub sentinels: Vec<RedisServer>,
    _directory: TempDir,
}

impl SentinelTopology {
    /// Starts all five and waits until a failover is possible.
    pub fn start() -> Self {
        let directory = TempDir::new().expect("a directory");
        let first = primary();
        let second = replica_of(&first);
        let mut sentinels = Vec::new();
        for index in 0..3 {
            let file = directory.path().join(format!("sentinel-{index}.conf"));
            let port = first.port();
            let configuration = format!(
                "sentinel monitor {MASTER_NAME} 127.0.0.1 {port} 2\n\
                 sentinel down-after-milliseconds {MASTER_NAME} 600\n\
                 sentinel failover-timeout {MASTER_NAME} 3000\n"
            );
            std::fs::write(&file, configuration).expect("a file");
            let mut sentinel = RedisServer::sentinel(&file);
            sentinel.spawn();
            sentinels.push(sentinel);
        }
        let topology = Self { servers: [first, second], sentinels, _directory: directory };
        topology.sentinels.iter().for_each(RedisServer::wait_ready);
        topology.wait_ready_for_failover();
        topology
    }

    /// Waits until the sentinels have found each other and a replica that is in sync.
    pub fn wait_ready_for_failover(&self) {
        let has_found_all = |sentinel: &RedisServer| {
            let state: Vec<String> = sentinel.command(&["SENTINEL", "MASTER", MASTER_NAME]);
            let field = |name: &str, value: &str| {
                state.chunks(2).any(|pair| pair[0] == name && pair[1] == value)
            };
            field("num-other-sentinels", "2")
                && field("num-slaves", "1")
                && field("flags", "master")
        };
        eventually("the sentinels see each other", || self.sentinels.iter().all(has_found_all));
        eventually("the replica is in sync", || {
            let primary = self.primary().map(|index| &self.servers[index]);
            primary.is_some_and(|primary| {
                primary.command::<String>(&["INFO", "replication"]).contains("state=online")
            })
        });
    }

    /// The index of the server that all sentinels report as the primary; `None` while they
    /// disagree.
    pub fn primary(&self) -> Option<usize> {
        let reported = |sentinel: &RedisServer| {
            let address: Vec<String> =
                sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME]);
            self.servers.iter().position(|server| server.port().to_string() == address[1])
        };
        let first = reported(&self.sentinels[0]);
        first.filter(|_| self.sentinels.iter().all(|sentinel| reported(sentinel) == first))
    }
}
