//! Checks the `store` section; the connections are made in `crate::store`.

use std::collections::BTreeSet;

use super::check::Check;
use crate::config::{Redis, RedisUrl, Sentinel, Store};

pub(super) fn check(check: &mut Check<'_>, store: &Store) {
    check.ensure(store.memory.max_keys > 0, "store.memory.max_keys", "`0`", "at least 1");
    if let Some(redis) = &store.redis {
        check_redis(check, redis);
    }
}

fn check_redis(check: &mut Check<'_>, redis: &Redis) {
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
            let what = format!("both `{first}` and `{second}`");
            check.fault(&format!("store.redis.{second}"), what, "one of them");
        }
        (Some(_), None) => {}
    }
    let mut seen = BTreeSet::new();
    for (index, shard) in redis.shards.iter().enumerate() {
        let path = format!("store.redis.shards[{index}]");
        check_server(check, &mut seen, &format!("{path}.primary"), &shard.primary);
        for (index, replica) in shard.replicas.iter().enumerate() {
            check_server(check, &mut seen, &format!("{path}.replicas[{index}]"), replica);
        }
    }
    for (index, node) in redis.cluster.iter().enumerate() {
        let path = format!("store.redis.cluster[{index}]");
        check_server(check, &mut seen, &path, node);
        check_no_database(check, &path, node);
    }
    check_same_scheme(check, "store.redis.cluster", &redis.cluster);
    if let Some(sentinel) = &redis.sentinel {
        check_sentinel(check, &mut seen, sentinel);
    }
    check_username(check, redis);
    let servers =
        redis.shards.iter().flat_map(|shard| shard.replicas.iter().chain([&shard.primary]));
    let nodes = redis.sentinel.iter().flat_map(|sentinel| &sentinel.nodes);
    let mut all = servers.chain(&redis.cluster).chain(nodes);
    if redis.tls_ca.is_some() && !all.any(RedisUrl::is_tls) {
        check.fault("store.redis.tls_ca", "`tls_ca` without TLS", "a server with rediss://");
    }
    check.ensure_value_name("store.redis.namespace", &redis.namespace);
    if redis.secret.is_none() && !check.is_skipped("store.redis.secret") {
        let what = "no `secret`: anyone who can read this Redis can recover the addresses and tokens behind \
                    its keys by brute force";
        let expected =
            "`secret: env:NAME` or `file:PATH`, the same on all gateways that share counters";
        check.note("store.redis.secret", what, expected);
    }
    check.ensure_positive_duration("store.redis.connect_timeout", redis.connect_timeout);
    check.ensure_positive_duration("store.redis.response_timeout", redis.response_timeout);
}

fn check_sentinel(check: &mut Check<'_>, seen: &mut BTreeSet<String>, sentinel: &Sentinel) {
    check.ensure_value_name("store.redis.sentinel.master", &sentinel.master);
    if sentinel.nodes.is_empty() {
        check.fault("store.redis.sentinel.nodes", "no sentinel", "at least one");
    }
    for (index, node) in sentinel.nodes.iter().enumerate() {
        let path = format!("store.redis.sentinel.nodes[{index}]");
        check_server(check, seen, &path, node);
        check_no_database(check, &path, node);
    }
    check_same_scheme(check, "store.redis.sentinel.nodes", &sentinel.nodes);
    if sentinel.username.is_some() && sentinel.password.is_none() {
        check.fault("store.redis.sentinel.username", "`username` without `password`", "both");
    }
}

fn check_server(check: &mut Check<'_>, seen: &mut BTreeSet<String>, path: &str, url: &RedisUrl) {
    let address = url.address();
    let what = format!("duplicate server `{address}`");
    check.ensure(seen.insert(address), path, &what, "each server once");
}

fn check_no_database(check: &mut Check<'_>, path: &str, url: &RedisUrl) {
    let number = url.database();
    check.ensure(
        number == 0,
        path,
        &format!("database {number}"),
        "no database number: only database 0 exists",
    );
}

/// Discovered servers are connected to like the configured ones: all with TLS, or none.
fn check_same_scheme(check: &mut Check<'_>, path: &str, urls: &[RedisUrl]) {
    let is_mixed = urls.iter().any(RedisUrl::is_tls) && !urls.iter().all(RedisUrl::is_tls);
    check.ensure(!is_mixed, path, "both redis:// and rediss://", "one scheme for all");
}

fn check_username(check: &mut Check<'_>, redis: &Redis) {
    if redis.username.is_some() && redis.password.is_none() {
        check.fault("store.redis.username", "`username` without `password`", "both");
    }
}

#[cfg(test)]
mod tests {
    use crate::{config, snapshot::Snapshot};

    const GOOD: &str = "upstreams: {a: {respond: {body: hi}}}\n\
        routes: [{name: a, match: {path: /}, upstream: a}]\n";

    fn compile(text: &str) -> Result<(), Vec<String>> {
        let loaded = config::parse("t.yaml", text).unwrap_or_else(|faults| panic!("{faults}"));
        let compiled = Snapshot::compile(&loaded).map(drop);
        compiled.map_err(|faults| faults.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn contradictory_redis_settings_are_refused() {
        let cases = [
            (
                "shards: [{primary: 'redis://a'}], cluster: ['redis://b']",
                "both `shards` and `cluster`, expected one of them",
            ),
            (
                "cluster: ['redis://b'], sentinel: {master: m, nodes: ['redis://a']}",
                "both `cluster` and `sentinel`, expected one of them",
            ),
            (
                "shards: [{primary: 'redis://A'}, {primary: 'redis://u:p@a:6379/1'}]",
                "duplicate server `a:6379`, expected each server once",
            ),
            (
                "shards: [{primary: 'redis://a', replicas: ['redis://a:6379']}]",
                "duplicate server `a:6379`, expected each server once",
            ),
            (
                "cluster: ['redis://[::1]', 'redis://[::1]:6379']",
                "duplicate server `[::1]:6379`, expected each server once",
            ),
            (
                "cluster: ['redis://a/1']",
                "database 1, expected no database number: only database 0 exists",
            ),
            (
                "sentinel: {master: m, nodes: ['redis://a/2']}",
                "database 2, expected no database number: only database 0 exists",
            ),
            (
                "cluster: ['redis://a', 'rediss://b']",
                "both redis:// and rediss://, expected one scheme for all",
            ),
            ("sentinel: {master: m, nodes: []}", "no sentinel, expected at least one"),
            (
                "shards: [{primary: 'redis://a'}], tls_ca: x.pem",
                "`tls_ca` without TLS, expected a server with rediss://",
            ),
            (
                "shards: [{primary: 'redis://a'}], username: me",
                "`username` without `password`, expected both",
            ),
            (
                "sentinel: {master: m, nodes: ['redis://a'], username: me}",
                "`username` without `password`, expected both",
            ),
        ];
        for (keys, expected) in cases {
            let faults = compile(&format!("{GOOD}store: {{redis: {{{keys}}}}}\n")).unwrap_err();
            let [fault] = &faults[..] else { panic!("{keys}: {faults:#?}") };
            assert!(fault.contains(&format!(": {expected}\n")), "{fault}\n{expected}");
        }
        for keys in [
            "shards: [{primary: 'redis://a', replicas: ['redis://b']}, {primary: 'rediss://c'}]",
            "cluster: ['redis://a', 'redis://a:6380'], username: me, password: env:X",
            "sentinel: {master: m, nodes: ['rediss://a'], password: 'file:/x'}, tls_ca: x.pem",
        ] {
            compile(&format!("{GOOD}store: {{redis: {{{keys}}}}}\n")).unwrap();
        }
    }
}
