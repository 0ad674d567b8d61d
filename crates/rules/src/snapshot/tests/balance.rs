//! Balancing, health checks and bounds of an upstream: faults, and the compiled settings.

use tidegate_balance::Policy;
use tidegate_base::status::StatusSet;
use tidegate_upstream::{Pacing, UpstreamKind};

use super::{GOOD, compile};

fn with(keys: &str) -> String {
    GOOD.replace("app: {targets: [http://h:1]}", &format!("app: {{{keys}}}"))
}

#[test]
fn settings_without_an_effect_are_refused() {
    for (keys, fault) in [
        (
            "targets: [{url: 'http://h:1', weight: 0}]",
            "the weights of all targets are 0, expected at least one target with a weight of 1 or more",
        ),
        (
            "targets: [{url: 'http://h:1', weight: 1001}]",
            "`1001`, expected a whole number from 0 to 1000",
        ),
        (
            "targets: ['http://h:1'], balance: hash",
            "`hash` without `hash_key`, expected `hash_key` with the parts of a request to choose by, such as [client_ip]",
        ),
        (
            "targets: ['http://h:1'], hash_key: [client_ip]",
            "`hash_key` without `balance: hash`, expected both or none",
        ),
        (
            "targets: ['http://h:1'], balance: hash, hash_key: ['path:id']",
            "`app` chooses a target by `path:id`, which `/a` does not have, expected a path with `{id}`",
        ),
        (
            "targets: ['http://h:1'], ejection: {duration: 10m}",
            "`duration` 10m is longer than `max_duration` 5m, expected at most `max_duration`",
        ),
        (
            "targets: ['http://h:1'], health: {path: healthz}",
            "`healthz`, expected a path such as /healthz",
        ),
        (
            "targets: ['http://h:1'], health: {timeout: 6s}",
            "`timeout` 6s is longer than `interval` 5s, expected at most `interval`",
        ),
        (
            "targets: ['http://h:1'], health: {status: []}",
            "no status, expected at least one, such as 200-299",
        ),
        (
            "targets: ['http://h:1'], health: {host: 'a b'}",
            "`a b`, expected a host such as app.internal, with or without a port",
        ),
        (
            "targets: ['http://h:1'], max_pending: 5",
            "`max_pending` without a bound to wait for, expected `max_requests`, `max_connections` or `adaptive_concurrency`",
        ),
        (
            "targets: ['http://h:1'], client_share: 60",
            "`client_share` without a bound of the target's places, expected `max_requests`, `max_connections` or `adaptive_concurrency`",
        ),
        (
            "respond: {body: hi}, min_rate: 1KiB",
            "`min_rate` with `respond`, which connects to no server, expected `targets`, or no such key",
        ),
        (
            "targets: ['http://h:1'], adaptive_concurrency: {min: 9, max: 8}",
            "`min` 9 is more than `max` 8, expected at most `max`",
        ),
        (
            "targets: ['srv://_http._tcp.h', 'srvs://_http._tcp.h']",
            "targets with and without https in one upstream, expected the same for all targets",
        ),
        (
            "respond: {body: hi}, balance: round_robin",
            "`balance` with `respond`, which connects to no server, expected `targets`, or no such key",
        ),
        (
            "respond: {body: hi}, max_requests: 5",
            "`max_requests` with `respond`, which connects to no server, expected `targets`, or no such key",
        ),
    ] {
        let faults = compile(&with(keys)).map(|_| ()).unwrap_err();
        assert!(faults.len() == 1 && faults[0].ends_with(fault), "{keys}: {faults:#?}");
    }
}

#[test]
fn the_settings_reach_the_upstream() {
    let keys = "targets: ['http://h:1', {url: 'http://10.0.0.1:2', weight: 3}], balance: hash, \
        hash_key: [client_ip], retry_on: [timeout, 503], max_requests: 7, max_pending: 9, \
        request_buffer: 0B, response_buffer: 1MiB, client_share: 30, min_rate: 2KiB, \
        health: {path: '/up?x=1', status: [200, 300-304]}";
    let snapshot = compile(&with(keys)).unwrap();
    let UpstreamKind::Servers(servers) = &snapshot.upstreams[0].kind else { panic!("servers") };
    assert_eq!(servers.policy, Policy::Hash);
    assert_eq!(servers.targets.iter().map(|target| target.weight).collect::<Vec<_>>(), [1, 3]);
    let needs: Vec<_> =
        servers.targets.iter().map(|entry| entry.target.needs_resolving()).collect();
    assert_eq!(needs, [true, false]);
    let retry_on = &servers.retry_on;
    assert!(retry_on.timeout && !retry_on.connect && !retry_on.reset);
    assert_eq!(retry_on.statuses, StatusSet::of([503..=503]));
    assert_eq!((servers.bounds.max_requests, servers.bounds.max_pending), (Some(7), 9));
    let pacing =
        Pacing { request_buffer: 0, response_buffer: 1 << 20, client_share: 30, min_rate: 2048 };
    assert_eq!(servers.bounds.pacing, pacing);
    let check = servers.check.as_ref().unwrap();
    assert_eq!(&*check.path, "/up?x=1");
    assert_eq!(check.statuses, StatusSet::of([200..=200, 300..=304]));
    assert!(snapshot.routes[0].hash_key.is_some() && snapshot.routes[1].hash_key.is_none());
}

#[test]
fn the_default_is_least_requests_with_passive_health() {
    let snapshot = compile(GOOD).unwrap();
    let UpstreamKind::Servers(servers) = &snapshot.upstreams[0].kind else { panic!("servers") };
    assert_eq!(servers.policy, Policy::LeastRequests);
    assert_eq!((servers.health.failures, servers.health.max_share), (5, 50));
    assert!(servers.check.is_none() && !servers.bounds.bounds_requests());
    assert!(servers.retry_on.connect && servers.retry_on.reset && !servers.retry_on.timeout);
}
