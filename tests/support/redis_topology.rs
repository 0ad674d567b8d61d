//! Several real Redis servers that work together: a Cluster, and a primary that Sentinel watches.
#![allow(dead_code, reason = "a kit: no suite uses all of it")]

use tempfile::TempDir;

use crate::redis_server::{RedisServer, free_port, wait_until};

/// What makes a replica follow at once.
const QUICK: [&str; 4] = ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"];

/// A replica of `primary`, in step with it.
pub(crate) fn replica_of(primary: &RedisServer) -> RedisServer {
    let replica = RedisServer::start_with(&QUICK);
    replicate(&replica, primary);
    replica
}

/// A server that replicas follow at once.
pub(crate) fn primary() -> RedisServer {
    RedisServer::start_with(&QUICK)
}

/// Makes a server the replica of another, and waits until it is in step.
pub(crate) fn replicate(replica: &RedisServer, primary: &RedisServer) {
    let port = primary.port().to_string();
    let _: String = replica.command(&["REPLICAOF", "127.0.0.1", &port]);
    in_step(replica);
    // It may say so of the data that it had, and be about to replace them.
    let online = format!("port={},state=online", replica.port());
    wait_until("the primary sends it what changes", || {
        primary.command::<String>(&["INFO", "replication"]).contains(&online)
    });
    in_step(replica);
}

fn in_step(replica: &RedisServer) {
    wait_until("a replica is in step", || {
        replica.command::<String>(&["INFO", "replication"]).contains("master_link_status:up")
    });
}

/// Three primaries, and a replica of each: nodes 3 to 5 are those of 0 to 2.
pub(crate) struct RedisCluster {
    pub(crate) nodes: Vec<RedisServer>,
    ids: Vec<String>,
    _folder: TempDir,
}

impl RedisCluster {
    /// Starts all six, and waits until every slot is served and every replica in step.
    pub(crate) fn start() -> Self {
        let folder = TempDir::new().expect("a folder");
        // By itself a node would take its own port and 10000, which nobody has kept for it.
        let buses: Vec<String> = (0..6).map(|_| free_port().to_string()).collect();
        let mut nodes = Vec::new();
        for (at, bus) in buses.iter().enumerate() {
            let (dir, file) = (folder.path().to_str().expect("a path"), format!("nodes-{at}.conf"));
            let mut arguments = vec!["--cluster-enabled", "yes", "--cluster-port", bus];
            arguments.extend(["--cluster-node-timeout", "800", "--cluster-config-file", &file]);
            arguments.extend(["--dir", dir, "--cluster-replica-validity-factor", "0"]);
            arguments.extend(QUICK);
            let mut node = RedisServer::absent_with(&arguments);
            node.spawn();
            nodes.push(node);
        }
        nodes.iter().for_each(RedisServer::answers);
        let ids = nodes.iter().map(|node| node.command(&["CLUSTER", "MYID"])).collect();
        let cluster = Self { nodes, ids, _folder: folder };
        cluster.join(&buses);
        cluster
    }

    fn join(&self, buses: &[String]) {
        for (at, node) in self.nodes.iter().enumerate() {
            let epoch = (at + 1).to_string();
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
        let known = |node: &RedisServer| {
            let nodes = node.command::<String>(&["CLUSTER", "NODES"]);
            self.ids.iter().all(|id| nodes.contains(id.as_str())) && !nodes.contains("handshake")
        };
        wait_until("all know each other", || self.nodes.iter().all(known));
        for at in 3..6 {
            let _: String =
                self.nodes[at].command(&["CLUSTER", "REPLICATE", self.ids[at - 3].as_str()]);
        }
        self.nodes[3..].iter().for_each(in_step);
        let is_well = |node: &RedisServer| {
            node.command::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
        };
        wait_until("every slot is served", || self.nodes.iter().all(is_well));
    }

    /// Where three of them are.
    pub(crate) fn urls(&self) -> Vec<Box<str>> {
        self.nodes[..3].iter().map(|node| node.url().into()).collect()
    }

    /// The slot of a tag, and which of the first three serves it at the start.
    pub(crate) fn home(&self, tag: &str) -> (String, usize) {
        let slot: u16 = self.nodes[0].command(&["CLUSTER", "KEYSLOT", tag]);
        (slot.to_string(), usize::from(slot > 5460) + usize::from(slot > 10_922))
    }

    /// Says of a slot that it is on its way.
    pub(crate) fn begin_move(&self, slot: &str, from: usize, to: usize) {
        let _: String = self.nodes[to].command(&[
            "CLUSTER",
            "SETSLOT",
            slot,
            "IMPORTING",
            self.ids[from].as_str(),
        ]);
        let _: String = self.nodes[from].command(&[
            "CLUSTER",
            "SETSLOT",
            slot,
            "MIGRATING",
            self.ids[to].as_str(),
        ]);
    }

    /// Moves the keys of a slot.
    pub(crate) fn move_keys(&self, slot: &str, from: usize, to: usize) {
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

    /// Says where a slot is now.
    pub(crate) fn end_move(&self, slot: &str, to: usize) {
        for at in [to, 0, 1, 2] {
            let _: String = self.nodes[at].command(&[
                "CLUSTER",
                "SETSLOT",
                slot,
                "NODE",
                self.ids[to].as_str(),
            ]);
        }
    }
}

/// A primary, its replica, and three sentinels that call it `main`.
pub(crate) struct SentinelTrio {
    /// Whichever of the two is the primary now.
    pub(crate) servers: [RedisServer; 2],
    pub(crate) sentinels: Vec<RedisServer>,
    _folder: TempDir,
}

impl SentinelTrio {
    /// Starts all five, and waits until the sentinels know all of them.
    pub(crate) fn start() -> Self {
        let folder = TempDir::new().expect("a folder");
        let first = primary();
        let second = replica_of(&first);
        let mut sentinels = Vec::new();
        for at in 0..3 {
            let file = folder.path().join(format!("sentinel-{at}.conf"));
            let port = first.port();
            let rules = format!(
                "sentinel monitor main 127.0.0.1 {port} 2\n\
                 sentinel down-after-milliseconds main 600\n\
                 sentinel failover-timeout main 3000\n"
            );
            std::fs::write(&file, rules).expect("a file");
            let mut sentinel = RedisServer::sentinel(&file);
            sentinel.spawn();
            sentinels.push(sentinel);
        }
        let trio = Self { servers: [first, second], sentinels, _folder: folder };
        trio.sentinels.iter().for_each(RedisServer::answers);
        trio.whole();
        trio
    }

    /// Waits until the sentinels know each other, and a replica that has all of the primary's data
    /// and could take over.
    pub(crate) fn whole(&self) {
        let knows_all = |sentinel: &RedisServer| {
            let known: Vec<String> = sentinel.command(&["SENTINEL", "MASTER", "main"]);
            let told = |name: &str, value: &str| {
                known.chunks(2).any(|pair| pair[0] == name && pair[1] == value)
            };
            told("num-other-sentinels", "2") && told("num-slaves", "1") && told("flags", "master")
        };
        wait_until("the sentinels know all", || self.sentinels.iter().all(knows_all));
        wait_until("the replica is in sync", || {
            let primary = self.primary().map(|index| &self.servers[index]);
            primary.is_some_and(|primary| {
                primary.command::<String>(&["INFO", "replication"]).contains("state=online")
            })
        });
    }

    /// Which of the two the sentinels call the primary; `None` while they do not agree.
    pub(crate) fn primary(&self) -> Option<usize> {
        let named = |sentinel: &RedisServer| {
            let address: Vec<String> =
                sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]);
            self.servers.iter().position(|server| server.port().to_string() == address[1])
        };
        let first = named(&self.sentinels[0]);
        first.filter(|_| self.sentinels.iter().all(|sentinel| named(sentinel) == first))
    }
}
