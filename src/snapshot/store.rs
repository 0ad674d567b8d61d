//! Where counters are kept: checked here, connected by the store.

use std::collections::BTreeSet;

use super::check::Check;
use crate::config::{Redis, RedisUrl, Sentinel, Store};

pub(super) fn check(check: &mut Check<'_>, store: &Store) {
    check.ensure(store.memory.max_keys > 0, "store.memory.max_keys", "`0`", "at least 1");
    if let Some(redis) = &store.redis {
        self::redis(check, redis);
    }
}

fn redis(check: &mut Check<'_>, redis: &Redis) {
    let kinds = [
        ("shards", !redis.shards.is_empty()),
        ("cluster", !redis.cluster.is_empty()),
        ("sentinel", redis.sentinel.is_some()),
    ];
    let mut given = kinds.into_iter().filter(|(_, given)| *given).map(|(name, _)| name);
    match (given.next(), given.next()) {
        (None, _) => {
            let expected = "one of `shards`, `cluster` and `sentinel`";
            check.fault("store.redis.shards", "no server", expected);
        }
        (Some(first), Some(second)) => {
            let what = format!("`{second}` beside `{first}`");
            check.fault(&format!("store.redis.{second}"), what, "only one of them");
        }
        (Some(_), None) => {}
    }
    let mut seen = BTreeSet::new();
    for (index, shard) in redis.shards.iter().enumerate() {
        let path = format!("store.redis.shards[{index}]");
        server(check, &mut seen, &format!("{path}.primary"), &shard.primary);
        for (index, replica) in shard.replicas.iter().enumerate() {
            server(check, &mut seen, &format!("{path}.replicas[{index}]"), replica);
        }
    }
    for (index, node) in redis.cluster.iter().enumerate() {
        let path = format!("store.redis.cluster[{index}]");
        server(check, &mut seen, &path, node);
        no_database(check, &path, node);
    }
    same_scheme(check, "store.redis.cluster", &redis.cluster);
    if let Some(sentinel) = &redis.sentinel {
        self::sentinel(check, &mut seen, sentinel);
    }
    users(check, redis);
    let servers =
        redis.shards.iter().flat_map(|shard| shard.replicas.iter().chain([&shard.primary]));
    let nodes = redis.sentinel.iter().flat_map(|sentinel| &sentinel.nodes);
    let mut all = servers.chain(&redis.cluster).chain(nodes);
    if redis.tls_ca.is_some() && !all.any(RedisUrl::is_tls) {
        check.fault("store.redis.tls_ca", "`tls_ca` without TLS", "a server with rediss://");
    }
    check.value_name("store.redis.namespace", &redis.namespace);
    check.some_time("store.redis.connect_timeout", redis.connect_timeout);
    check.some_time("store.redis.response_timeout", redis.response_timeout);
}

fn sentinel(check: &mut Check<'_>, seen: &mut BTreeSet<String>, sentinel: &Sentinel) {
    check.value_name("store.redis.sentinel.master", &sentinel.master);
    if sentinel.nodes.is_empty() {
        check.fault("store.redis.sentinel.nodes", "no sentinel", "at least one");
    }
    for (index, node) in sentinel.nodes.iter().enumerate() {
        let path = format!("store.redis.sentinel.nodes[{index}]");
        server(check, seen, &path, node);
        no_database(check, &path, node);
    }
    same_scheme(check, "store.redis.sentinel.nodes", &sentinel.nodes);
    if sentinel.username.is_some() && sentinel.password.is_none() {
        check.fault("store.redis.sentinel.username", "`username` alone", "`password`, too");
    }
}

fn server(check: &mut Check<'_>, seen: &mut BTreeSet<String>, path: &str, url: &RedisUrl) {
    let address = url.address();
    let what = format!("`{address}` again");
    check.ensure(seen.insert(address), path, &what, "each server once");
}

fn no_database(check: &mut Check<'_>, path: &str, url: &RedisUrl) {
    let number = url.database();
    check.ensure(number == 0, path, &format!("database {number}"), "no number: there is only one");
}

/// What is discovered is asked as those that are named are: all with TLS, or none.
fn same_scheme(check: &mut Check<'_>, path: &str, urls: &[RedisUrl]) {
    let mixed = urls.iter().any(RedisUrl::is_tls) && !urls.iter().all(RedisUrl::is_tls);
    check.ensure(!mixed, path, "redis:// and rediss://", "one of the two for all");
}

fn users(check: &mut Check<'_>, redis: &Redis) {
    if redis.username.is_some() && redis.password.is_none() {
        check.fault("store.redis.username", "`username` alone", "`password`, too");
    }
}
