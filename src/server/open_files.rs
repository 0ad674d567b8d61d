//! [`FileBudget`]: the division of the process's limit of open files.
//!
//! A part is reserved for the process itself, with the connections to Redis and of the admin port.
//! The rest is split in halves: a proxied request takes two descriptors, its client's and its
//! upstream's connection.

use super::listeners::worker_count;
use crate::config::{Config, RedisUrl};

/// Descriptors of the process as a whole: standard streams, logs, runtimes of the other threads,
/// the configuration watch, and short-lived ones of reloads, DNS, the trace collector and a
/// successor.
const PROCESS_FILES: u64 = 64;
/// Connections of the admin port.
const ADMIN_FILES: u64 = crate::admin::MAX_CONNECTIONS as u64 + 1;
/// Descriptors of a worker's runtime.
const RUNTIME_FILES: u64 = 4;
/// Descriptors of one listener in one worker: the socket, its copy for a successor, and a
/// connection that waits for a permit.
const LISTENER_FILES: u64 = 3;
/// Connections to each Redis server apart from the workers': reports, probes, the throttle, its
/// waiting room, overrides, the admin API.
const SERVER_FILES: u64 = 8;
/// The assumed number of servers of a Cluster, unless the configuration names more.
const CLUSTER_SERVERS: usize = 6;
/// Most health checks to count. Each takes a descriptor for a moment.
const MAX_CHECKS: usize = 256;

/// The division of the limit of open files.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct FileBudget {
    /// Descriptors that client and upstream connections must not take.
    pub(super) reserved: u64,
    /// Maximum number of client connections.
    pub(super) clients: u64,
    /// Maximum number of upstream connections.
    pub(super) upstreams: u64,
}

impl FileBudget {
    /// Divides `open_files`; `None`: unlimited. If the process needs more than half, half is
    /// reserved.
    pub(super) fn new(open_files: Option<u64>, config: &Config) -> Self {
        let needed = needed_files(config);
        let Some(open_files) = open_files else {
            return Self { reserved: needed, clients: u64::MAX, upstreams: u64::MAX };
        };
        let reserved = needed.min(open_files / 2);
        let free = open_files - reserved;
        let clients = (free / 2).max(1);
        Self { reserved, clients, upstreams: free.saturating_sub(clients).max(1) }
    }

    /// The division of this process's limit.
    pub(super) fn of_process(config: &Config) -> Self {
        use rustix::process::{Resource, getrlimit};
        let open_files = getrlimit(Resource::Nofile).current;
        let budget = Self::new(open_files, config);
        let (needed, configured) = (needed_files(config), u64::from(config.http.max_connections));
        let Self { reserved, clients: allowed, .. } = budget;
        if reserved < needed {
            tracing::warn!(
                open_files,
                needed,
                "the limit of open files is too low: without a request, the process needs more than half of it"
            );
        } else if allowed < configured {
            tracing::warn!(
                configured,
                allowed,
                open_files,
                "the limit of open files allows fewer client connections than http.max_connections"
            );
        }
        budget
    }
}

/// The descriptors that the process needs besides client and upstream connections.
fn needed_files(config: &Config) -> u64 {
    let workers = worker_count(config) as u64;
    let redis = redis_servers(config) as u64;
    let listeners = config.listen.len() + usize::from(config.rate_limit_service.is_some());
    let worker = RUNTIME_FILES + LISTENER_FILES * listeners as u64 + redis;
    let checked = config.upstreams.values().filter(|upstream| upstream.health.is_some());
    let checks = checked.map(|upstream| upstream.targets.len()).sum::<usize>().min(MAX_CHECKS);
    PROCESS_FILES + ADMIN_FILES + workers * worker + SERVER_FILES * redis + checks as u64
}

/// The number of Redis servers that the process connects to, as far as the configuration shows.
fn redis_servers(config: &Config) -> usize {
    let Some(redis) = &config.store.redis else { return 0 };
    let named = |urls: &[RedisUrl]| urls.len();
    let replicas: usize = redis.shards.iter().map(|shard| shard.replicas.len()).sum();
    let sentinels = redis.sentinel.as_ref().map_or(0, |sentinel| 1 + named(&sentinel.nodes));
    let cluster = match named(&redis.cluster) {
        0 => 0,
        nodes => nodes.max(CLUSTER_SERVERS),
    };
    redis.shards.len() + replicas + sentinels + cluster
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn config(more: &str) -> Config {
        let none = if more.contains("upstreams:") { "" } else { "upstreams: {}\n" };
        let text = format!("workers: 2\nroutes: []\n{none}{more}");
        config::parse("t.yaml", &text).unwrap().config
    }

    #[test]
    fn clients_and_upstreams_share_what_the_process_leaves() {
        let plain = config("");
        for (open_files, clients) in [(1_024, 440), (4_096, 1_976), (20_000, 9_928)] {
            let budget = FileBudget::new(Some(open_files), &plain);
            let expected = FileBudget { reserved: 143, clients, upstreams: clients + 1 };
            assert_eq!(budget, expected, "{open_files}");
            assert!(budget.reserved + budget.clients + budget.upstreams <= open_files);
        }
        let unlimited = FileBudget::new(None, &plain);
        assert_eq!((unlimited.clients, unlimited.upstreams), (u64::MAX, u64::MAX));
        let tiny = FileBudget::new(Some(64), &plain);
        assert_eq!((tiny.reserved, tiny.clients, tiny.upstreams), (32, 16, 16));
    }

    #[test]
    fn redis_servers_checks_and_workers_are_reserved_for() {
        let reserved = |more: &str| FileBudget::new(Some(20_000), &config(more)).reserved;
        let none = reserved("");
        let shards = "store: {redis: {shards: [{primary: 'redis://a', replicas: ['redis://b']}]}}";
        assert_eq!(reserved(shards) - none, 2 * 2 + 2 * SERVER_FILES);
        let cluster = "store: {redis: {cluster: ['redis://a']}}";
        assert_eq!(reserved(cluster) - none, 6 * 2 + 6 * SERVER_FILES);
        let checked = "upstreams: {a: {targets: ['http://a', 'http://b'], health: {path: /}}}";
        assert_eq!(reserved(checked) - none, 2);
        let listeners = "listen: [{address: '127.0.0.1:1'}, {address: '127.0.0.1:2'}]";
        assert_eq!(reserved(listeners) - none, 2 * LISTENER_FILES);
    }
}
