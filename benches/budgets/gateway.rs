//! The gateway under test, on a core of its own.

use std::{fs, net::SocketAddr};

use tempfile::TempDir;
use testkit::{
    load::cpu,
    process::{Process, gateway_command},
    redis_server::RedisServer,
    upstream::Upstream,
    wait::eventually,
};

use crate::upstream;

const RULES: &str = "
listen: [{address: '127.0.0.1:0'}]
admin: {address: '127.0.0.1:0'}
workers: 1
http: {max_requests_per_client: 100000, max_connections_per_client: 5000}
limits:
  flat: {quota: 4000000000, window: 1h, key: ['header:x-caller']}
  usage:
    quota: 4000000000
    window: 1h
    key: ['header:x-caller']
    cost: {estimate: 5, actual: 'json:usage.total_tokens'}
upstreams: {model: {targets: ['http://{target}']}}
routes:
  - {name: rate-limit, match: {path: /rate_limit}, status: [usage]}
  - {name: flat, match: {path: '/flat/{*rest}'}, upstream: model, limits: [flat]}
  - {name: usage, match: {path: '/usage/{*rest}'}, upstream: model, limits: [usage]}
";

const STORE: &str =
    "store: {redis: {shards: [{primary: '{url}'}], connect_timeout: 5s, response_timeout: 5s}}\n";

/// Where the counters are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Store {
    Memory,
    Redis,
}

pub(crate) struct Gateway {
    pub(crate) process: Process,
    redis: Option<RedisServer>,
    _upstream: Upstream,
    _directory: TempDir,
}

impl Gateway {
    pub(crate) fn start(store: Store) -> Self {
        let upstream = upstream::start();
        let redis = match store {
            Store::Memory => None,
            Store::Redis => Some(RedisServer::start()),
        };
        let mut yaml = RULES.replace("{target}", &upstream.address.to_string());
        if let Some(redis) = &redis {
            yaml += &STORE.replace("{url}", &redis.url());
        }
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("t.yaml"), yaml).expect("a file");
        let binary = env!("CARGO_BIN_EXE_tidegate");
        cpu::pin(cpu::TESTED_CPU);
        let process =
            Process::start(gateway_command(binary, directory.path(), &["serve", "t.yaml"]));
        cpu::pin(cpu::LOAD_CPU);
        Self { process, redis, _upstream: upstream, _directory: directory }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.process.address
    }

    /// The calls of scripts in Redis, once no more arrive.
    pub(crate) fn settled_calls(&self) -> u64 {
        let mut calls = self.calls();
        eventually("no more calls arrive", || calls == std::mem::replace(&mut calls, self.calls()));
        calls
    }

    fn calls(&self) -> u64 {
        self.redis.as_ref().expect("a store in Redis").script_calls()
    }
}
