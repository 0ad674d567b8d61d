//! The gateway under test, on a core of its own.

use std::{fs, net::SocketAddr};

use tempfile::TempDir;
use testkit::{
    load::cpu,
    port::free_port,
    process::{Process, gateway_command},
    redis_server::RedisServer,
};

const RULES: &str = "
listen: [{address: '127.0.0.1:0'}]
admin: {address: '127.0.0.1:0'}
workers: 1
rate_limit_service:
  address: 127.0.0.1:{service}
  domains: {edge: {limits: [per-user]}}
http: {max_connections_per_client: 8000}
limits:
  per-user: {quota: 4000000, window: 1h, key: ['descriptor:user']{reserve}}
  address: {quota: 4000000000, window: 1h}
upstreams: {app: {targets: ['http://{target}']}}
routes: [{name: all, upstream: app, limits: [address]}]
";

const STORE: &str =
    "store: {redis: {shards: [{primary: '{url}'}], connect_timeout: 5s, response_timeout: 5s}}\n";

/// Where the counters are.
#[derive(Clone, Copy)]
pub(crate) enum Store {
    Memory,
    Redis,
    /// In Redis, with units reserved in advance.
    Leases,
}

impl Store {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis => "Redis",
            Self::Leases => "Redis, leases",
        }
    }
}

pub(crate) struct Gateway {
    pub(crate) process: Process,
    pub(crate) service: SocketAddr,
    redis: Option<RedisServer>,
    _directory: TempDir,
}

impl Gateway {
    pub(crate) fn start(store: Store) -> Self {
        Self::before(store, SocketAddr::from(([127, 0, 0, 1], 1)))
    }

    /// Starts it before an application.
    pub(crate) fn before(store: Store, target: SocketAddr) -> Self {
        let service = SocketAddr::from(([127, 0, 0, 1], free_port()));
        // The load spins on its core, so Redis would wait there for its time slices.
        cpu::pin(cpu::TESTED_CPU);
        let redis = match store {
            Store::Memory => None,
            Store::Redis | Store::Leases => Some(RedisServer::start()),
        };
        let reserve = if matches!(store, Store::Leases) { ", reserve: auto" } else { "" };
        let mut yaml = RULES
            .replace("{service}", &service.port().to_string())
            .replace("{target}", &target.to_string())
            .replace("{reserve}", reserve);
        if let Some(redis) = &redis {
            yaml += &STORE.replace("{url}", &redis.url());
        }
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("t.yaml"), yaml).expect("a file");
        let binary = env!("CARGO_BIN_EXE_tidegate");
        let process =
            Process::start(gateway_command(binary, directory.path(), &["serve", "t.yaml"]));
        cpu::pin(cpu::LOAD_CPU);
        Self { process, service, redis, _directory: directory }
    }

    /// The calls of scripts in Redis so far; 0 without Redis.
    pub(crate) fn redis_calls(&self) -> u64 {
        self.redis.as_ref().map_or(0, RedisServer::script_calls)
    }
}
