//! Checks the `store` section. `tidegate_store` and `tidegate_redis` use its settings.

use std::collections::BTreeSet;

use tidegate_config::{Redis, RedisUrl, Sentinel, Store};

use super::section::Section;

/// Memory of a counter, in bytes: 80 in a table that is at most three quarters full.
const COUNTER_BYTES: u64 = 107;

pub(super) fn check(section: &Section<'_>, store: &Store) {
    note_memory(&section.at("memory").at("max_keys"), store.memory.max_keys);
    if let Some(redis) = &store.redis {
        check_redis(&section.at("redis"), redis);
    }
}

/// Notes counters that this machine cannot hold: a flood of new keys would end the process.
fn note_memory(section: &Section<'_>, max_keys: u64) {
    let Some(available) = tidegate_throttle::machine_memory::usable() else { return };
    let needed = max_keys.saturating_mul(COUNTER_BYTES);
    if needed > available {
        let (needed, available) = (needed.div_ceil(1 << 20), available >> 20);
        let what = format!(
            "`{max_keys}` counters of {needed} MiB, more than the {available} MiB of this machine"
        );
        section.note(what, "a number of counters that its memory can hold");
    }
}

fn check_redis(section: &Section<'_>, redis: &Redis) {
    let kinds = [
        ("shards", !redis.shards.is_empty()),
        ("cluster", !redis.cluster.is_empty()),
        ("sentinel", redis.sentinel.is_some()),
    ];
    let mut given = kinds.into_iter().filter(|(_, given)| *given).map(|(name, _)| name);
    match (given.next(), given.next()) {
        (None, _) if section.can_read(&["shards", "cluster", "sentinel"]) => {
            let expected = "one of `shards`, `cluster` and `sentinel`";
            section.at("shards").fault("no server", expected);
        }
        (Some(first), Some(second)) => {
            let what = format!("both `{first}` and `{second}`");
            section.at(second).fault(what, "one of them");
        }
        _ => {}
    }
    let mut seen = BTreeSet::new();
    for (index, shard) in redis.shards.iter().enumerate() {
        let section = section.at("shards").index(index);
        check_server(&section.at("primary"), &mut seen, &shard.primary);
        for (index, replica) in shard.replicas.iter().enumerate() {
            check_server(&section.at("replicas").index(index), &mut seen, replica);
        }
    }
    for (index, node) in redis.cluster.iter().enumerate() {
        let section = section.at("cluster").index(index);
        check_server(&section, &mut seen, node);
        check_no_database(&section, node);
    }
    check_same_scheme(&section.at("cluster"), &redis.cluster);
    if let Some(sentinel) = &redis.sentinel {
        check_sentinel(&section.at("sentinel"), &mut seen, sentinel);
    }
    check_username(section, redis);
    let servers =
        redis.shards.iter().flat_map(|shard| shard.replicas.iter().chain([&shard.primary]));
    let nodes = redis.sentinel.iter().flat_map(|sentinel| &sentinel.nodes);
    let mut all = servers.chain(&redis.cluster).chain(nodes);
    let has_all = section.can_read(&["shards", "cluster", "sentinel"]);
    if redis.tls_ca.is_some() && !all.any(RedisUrl::is_tls) && has_all {
        section.at("tls_ca").fault("`tls_ca` without TLS", "a server with rediss://");
    }
    section.at("namespace").ensure_value_name(&redis.namespace);
    if redis.secret.is_none() {
        let what = "no `secret`: anyone who can read this Redis can recover the addresses and tokens behind \
                    its keys by brute force";
        let expected =
            "`secret: env:NAME` or `file:PATH`, the same on all gateways that share counters";
        section.at("secret").note(what, expected);
    }
}

fn check_sentinel(section: &Section<'_>, seen: &mut BTreeSet<String>, sentinel: &Sentinel) {
    section.at("master").ensure_value_name(&sentinel.master);
    if sentinel.nodes.is_empty() {
        section.at("nodes").fault("no sentinel", "at least one");
    }
    for (index, node) in sentinel.nodes.iter().enumerate() {
        let section = section.at("nodes").index(index);
        check_server(&section, seen, node);
        check_no_database(&section, node);
    }
    check_same_scheme(&section.at("nodes"), &sentinel.nodes);
    let has_password = sentinel.password.is_some();
    if sentinel.username.is_some() && !has_password && section.can_read(&["password"]) {
        section.at("username").fault("`username` without `password`", "both");
    }
}

fn check_server(section: &Section<'_>, seen: &mut BTreeSet<String>, url: &RedisUrl) {
    if !section.is_readable() {
        return;
    }
    let address = url.address();
    let what = format!("duplicate server `{address}`");
    section.ensure(seen.insert(address), &what, "each server once");
}

fn check_no_database(section: &Section<'_>, url: &RedisUrl) {
    let number = url.database();
    section.ensure(
        number == 0,
        &format!("database {number}"),
        "no database number: only database 0 exists",
    );
}

/// Connections to discovered servers use TLS if the configured ones do, so all must agree.
fn check_same_scheme(section: &Section<'_>, urls: &[RedisUrl]) {
    let other = urls.iter().position(|url| url.is_tls() != urls[0].is_tls());
    if let Some(index) = other {
        let section = section.index(index);
        section.fault("both redis:// and rediss://", "one scheme for all");
    }
}

fn check_username(section: &Section<'_>, redis: &Redis) {
    let has_password = redis.password.is_some();
    if redis.username.is_some() && !has_password && section.can_read(&["password"]) {
        section.at("username").fault("`username` without `password`", "both");
    }
}

#[cfg(test)]
mod tests {
    use tidegate_config as config;

    use crate::snapshot::{SecretReading, Snapshot};

    const GOOD: &str = "upstreams: {a: {respond: {body: hi}}}\n\
        routes: [{name: a, match: {path: /}, upstream: a}]\n";

    fn compile(text: &str) -> Result<(), Vec<String>> {
        let loaded = config::parse("t.yaml", text).unwrap_or_else(|faults| panic!("{faults}"));
        let compiled = Snapshot::compile(&loaded, SecretReading::Unread).map(drop);
        compiled.map_err(|faults| faults.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn counters_that_exceed_the_memory_of_the_machine_are_noted() {
        let notes = |max_keys: u64| {
            let text = format!("store: {{memory: {{max_keys: {max_keys}}}}}\n{GOOD}");
            let loaded = config::parse("t.yaml", &text).unwrap_or_else(|faults| panic!("{faults}"));
            let snapshot = Snapshot::compile(&loaded, SecretReading::Unread)
                .unwrap_or_else(|faults| panic!("{faults}"));
            snapshot.notes.iter().map(ToString::to_string).collect::<String>()
        };
        assert_eq!(notes(1_000_000), "");
        let note = notes(1_000_000_000_000);
        assert!(
            note.contains("`1000000000000` counters of 102043152 MiB, more than the"),
            "{note}"
        );
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
