//! Leases of units and the deny cache: requests that Redis does not see, and units that come back
//! to it.

use std::fs;

use rustix::process::Signal;
use testkit::{
    client::{Client, Response, get},
    gateway::{Gateway, wait_for_first_reports},
    process::Process,
    redis_server::RedisServer,
    wait::eventually,
    yaml::fill,
};
use tidegate::clock::Clock;

use crate::{
    policies::{NOW, status_upstream},
    tidegate_command,
};

const LEASED: &str = "
store: {redis: {shards: [{primary: '{redis}'}], connect_timeout: 5s, response_timeout: 5s}}
upstreams: {hello: {respond: {body: hello}}}
limits: {calls: {quota: {quota}, window: 1h, key: [], reserve: {reserve}}}
routes: [{name: a, match: {path: /a}, upstream: hello, limits: [calls]}]
";

fn start(yaml: &str) -> Gateway {
    Gateway::start_at(yaml, Clock::manual(NOW))
}

/// The number of scripts that Redis has run, heartbeats of gateways included.
fn script_calls(redis: &RedisServer) -> u64 {
    let stats: String = redis.command(&["INFO", "commandstats"]);
    let of = |line: &str| {
        let rest = line.strip_prefix("cmdstat_evalsha:calls=");
        let rest = rest.or_else(|| line.strip_prefix("cmdstat_eval:calls="));
        rest.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok())
    };
    stats.lines().filter_map(of).sum()
}

fn redis_calls(gateway: &Gateway) -> u64 {
    gateway.metric("tidegate_store_redis_calls_total")
}

/// The usage of a limit with an empty key, by the admin API.
fn used(gateway: &Gateway, limit: &str) -> u64 {
    let response = get(gateway.admin(), &format!("/api/limits/{limit}"), "");
    response.json()["used"].as_u64().unwrap_or_else(|| panic!("{}", response.text()))
}

fn ask(gateway: &Gateway) -> Response {
    get(gateway.address(), "/a", "Connection: close\r\n")
}

#[test]
fn remaining_is_exact_with_one_gateway() {
    let redis = RedisServer::start();
    let gateway = start(&fill(
        "
        store: {redis: {shards: [{primary: '{redis}'}], connect_timeout: 5s, response_timeout: 5s}}
        upstreams: {hello: {respond: {body: hello}}}
        limits: {calls: {quota: 5000, window: 1h, key: [], reserve: 100}}
        routes: [{name: a, match: {path: /a}, upstream: hello, limits: [calls]}]
        ",
        [("redis", redis.url())],
    ));
    let mut clients: Vec<_> = (0..4).map(|_| Client::connect(gateway.address())).collect();
    let mut reset = 0;
    for sent in 1..=1_000 {
        let response = clients[sent as usize % 4].get("/a", "");
        assert_eq!((response.status, response.number("X-RateLimit-Limit")), (200, 5_000));
        assert_eq!(response.number("X-RateLimit-Remaining"), 5_000 - sent);
        assert_eq!(response.number("X-RateLimit-Used"), sent);
        assert!(response.number("X-RateLimit-Reset") >= reset);
        reset = response.number("X-RateLimit-Reset");
    }
    assert!(redis_calls(&gateway) <= 12, "{} calls for 1000 requests", redis_calls(&gateway));
    let metric = |name: &str| gateway.metric(&format!("tidegate_store_{name}"));
    assert_eq!(metric("requests_total"), 1_000);
    assert_eq!(metric("leased_charges_total"), 1_000 - redis_calls(&gateway));
    let (granted, outstanding) = (metric("tokens_granted_total"), metric("tokens_outstanding"));
    assert_eq!(granted, 1_000 + outstanding + metric("tokens_returned_total"));
    assert_eq!(metric("tokens_lost_total"), 0);
    assert_eq!(metric("failures_total"), 0);
}

#[test]
fn refunds_within_a_lease_need_no_redis_call() {
    let (redis, upstream) = (RedisServer::start(), status_upstream());
    let yaml = fill(
        "
        store: {redis: {shards: [{primary: '{redis}'}], connect_timeout: 5s, response_timeout: 5s}}
        upstreams: {app: {targets: ['{target}'], retries: 0}}
        limits: {calls: {quota: 1000, window: 1h, key: [], refund: [304], reserve: 100}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}]
        ",
        [("redis", redis.url()), ("target", upstream.target())],
    );
    let gateway = start(&yaml);
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.get("/200", "").number("X-RateLimit-Remaining"), 999);
    let before = (redis_calls(&gateway), script_calls(&redis));
    for _ in 0..300 {
        let response = client.get("/304", "");
        assert_eq!((response.status, response.number("X-RateLimit-Remaining")), (304, 999));
    }
    assert_eq!(client.get("/404", "").number("X-RateLimit-Remaining"), 998);
    assert_eq!(redis_calls(&gateway), before.0);
    assert!(script_calls(&redis) < before.1 + 50, "the refunds were sent to Redis");
    gateway.stop();
    let other = start(&yaml);
    assert_eq!(used(&other, "calls"), 2);
}

#[test]
fn a_blocked_flood_is_refused_without_redis() {
    let redis = RedisServer::start();
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("access.log");
    let gateway = start(&fill(
        "
        access_log: '{log}'
        store: {redis: {shards: [{primary: '{redis}'}], connect_timeout: 5s, response_timeout: 5s}}
        upstreams: {hello: {respond: {body: hello}}}
        limits:
          small: {quota: 3, window: 1h, key: []}
          many: {quota: 1000, window: 1h, key: []}
        routes: [{name: a, match: {path: /a}, upstream: hello, limits: [many, small]}]
        ",
        [("log", log.display().to_string()), ("redis", redis.url())],
    ));
    wait_for_first_reports(&redis, &[&gateway]);
    let mut clients: Vec<_> = (0..4).map(|_| Client::connect(gateway.address())).collect();
    let first = (0..4).map(|_| ask(&gateway)).last().expect("one");
    assert_eq!(first.status, 429);
    let before = (redis_calls(&gateway), script_calls(&redis));
    for sent in 0..500 {
        let response = clients[sent % 4].get("/a", "");
        assert_eq!((response.status, response.number("X-RateLimit-Remaining")), (429, 0));
        assert_eq!(response.number("Retry-After"), first.number("Retry-After"));
        assert_eq!(response.json()["violated-policies"], serde_json::json!(["small"]));
    }
    assert_eq!(redis_calls(&gateway), before.0);
    assert!(script_calls(&redis) < before.1 + 50, "the refusals called Redis");
    let metric = |name: &str| gateway.metric(&format!("tidegate_{name}"));
    assert_eq!(metric("store_deny_cache_hits_total"), 500);
    assert_eq!(metric("store_deny_cache_entries "), 1);
    let decided = |limit: &str, decision: &str| {
        let labels = format!("{{route=\"a\",limit=\"{limit}\",decision=\"{decision}\"}}");
        metric(&format!("limit_decisions_total{labels}"))
    };
    assert_eq!((decided("small", "refused"), decided("small", "admitted")), (501, 3));
    assert_eq!(decided("small", "unknown") + decided("many", "unknown"), 0);
    assert_eq!(used(&gateway, "many"), 3, "a refused request is charged nowhere");
    let lines = || fs::read_to_string(&log).unwrap_or_default();
    let logged_as = |word: &str| lines().matches(&format!("\"limit\":\"{word}\"")).count();
    // Each worker writes its own.
    eventually("all are logged", || lines().lines().count() == 504);
    let logged = ["refused", "admitted", "unknown"].map(logged_as);
    assert_eq!(logged, [501, 3, 0], "{}", lines());
}

#[test]
fn a_reset_or_a_larger_quota_admits_a_blocked_caller_at_once() {
    // A lease has at most the whole quota.
    for reserve in ["off", "quota"] {
        let redis = RedisServer::start();
        let yaml = |quota: u64| {
            let reserve = reserve.replace("quota", &quota.to_string());
            let values =
                [("redis", redis.url()), ("quota", quota.to_string()), ("reserve", reserve)];
            fill(LEASED, values)
        };
        let gateway = start(&yaml(3));
        let is_blocked = || (0..8).all(|_| ask(&gateway).status == 429);
        let admitted = (0..8).filter(|_| ask(&gateway).status == 200).count();
        assert!(admitted == 3 && is_blocked(), "{reserve}");

        let mut operator = Client::connect(gateway.admin());
        operator.send("DELETE /api/limits/calls HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(operator.read_response().status, 204);
        assert_eq!(ask(&gateway).number("X-RateLimit-Remaining"), 2, "{reserve}");
        assert_eq!((0..8).filter(|_| ask(&gateway).status == 200).count(), 2, "{reserve}");
        assert!(is_blocked(), "{reserve}");

        gateway.reload(&yaml(4)).expect("no fault");
        assert_eq!(ask(&gateway).number("X-RateLimit-Used"), 4, "{reserve}");
        assert!(is_blocked(), "{reserve}");
        gateway.reload(&yaml(2)).expect("no fault");
        assert!(is_blocked(), "{reserve}");
    }
}

#[test]
fn a_stopped_gateway_returns_unspent_units() {
    for reserve in ["auto", "100"] {
        let redis = RedisServer::start();
        let yaml = fill(
            "
            store: {redis: {shards: [{primary: '{redis}'}], connect_timeout: 5s, response_timeout: 5s}}
            upstreams: {hello: {respond: {body: hello}}}
            limits:
              calls: {quota: 1000, window: 1h, key: [], reserve: {reserve}}
              more: {quota: 2000, window: 1h, key: [], reserve: {reserve}}
            routes: [{name: a, match: {path: /a}, upstream: hello, limits: [calls, more]}]
            ",
            [("redis", redis.url()), ("reserve", reserve.to_owned())],
        );
        let gateway = start(&yaml);
        let mut clients: Vec<_> = (0..4).map(|_| Client::connect(gateway.address())).collect();
        for sent in 0..90 {
            assert_eq!(clients[sent % 4].get("/a", "").status, 200);
        }
        let outstanding = gateway.metric("tidegate_store_tokens_outstanding");
        assert!(outstanding > 0 || reserve == "auto", "{outstanding}");
        gateway.stop();
        let other = start(&yaml);
        assert_eq!((used(&other, "calls"), used(&other, "more")), (90, 90), "{reserve}");
    }
}

#[test]
fn two_gateways_with_leases_admit_exactly_the_quota() {
    let redis = RedisServer::start();
    let yaml = fill(
        "
        store: {redis: {shards: [{primary: '{redis}'}], connect_timeout: 5s, response_timeout: 5s}}
        upstreams: {hello: {respond: {body: hello}}}
        limits: {calls: {quota: 300, window: 1h, key: [], reserve: 40}}
        routes: [{name: a, match: {path: /a}, upstream: hello, limits: [calls]}]
        ",
        [("redis", redis.url())],
    );
    let gateways = [0, 1].map(|_| start(&yaml));
    let admitted: u32 = std::thread::scope(|scope| {
        let load = |number: usize| {
            let address = gateways[number % 2].address();
            scope.spawn(move || {
                let mut client = Client::connect(address);
                (0..100).map(|_| u32::from(client.get("/a", "").status == 200)).sum::<u32>()
            })
        };
        let clients: Vec<_> = (0..8).map(load).collect();
        clients.into_iter().map(|client| client.join().expect("no panic")).sum()
    });
    assert_eq!(admitted, 300);
}

/// Starts a process and sends 20 requests, so that it may hold leased units.
pub(crate) fn start_process(yaml: &str) -> Process {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("own.yaml"), yaml).expect("a file");
    let process =
        Process::start(tidegate_command(directory.path(), &["serve", "--config", "own.yaml"]));
    for _ in 0..20 {
        assert_eq!(get(process.address, "/a", "Connection: close\r\n").status, 200);
    }
    process
}

#[test]
fn sigterm_returns_unspent_units() {
    let redis = RedisServer::start();
    let yaml = fill(
        "
        listen: [{address: '127.0.0.1:0'}]
        admin: {address: '127.0.0.1:0', hosts: [gateway.test]}
        workers: 2
        access_log: off
        store: {redis: {shards: [{primary: '{redis}'}], connect_timeout: 5s, response_timeout: 5s}}
        upstreams: {hello: {respond: {body: hello}}}
        limits: {calls: {quota: 1000, window: 24h, resolution: 1, key: [], reserve: 100}}
        routes: [{name: a, match: {path: /a}, upstream: hello, limits: [calls]}]
        ",
        [("redis", redis.url())],
    );
    let mut process = start_process(&yaml);
    process.signal(Signal::TERM);
    assert_eq!(process.wait_exit().code(), Some(0));
    assert_eq!(used(&Gateway::start(&yaml), "calls"), 20);
}
