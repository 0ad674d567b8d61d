//! The status route and the admin API through reloads and outages; what they keep secret.

use std::fs;

use rustix::process::Signal;
use testkit::{
    client::get, gateway::Gateway, process::Process, redis_server::RedisServer, upstream::Upstream,
    wait::eventually, yaml::fill,
};
use tidegate::clock::Clock;

use super::{NOW, admin, admin_at, status_of};
use crate::tidegate_command;

#[test]
fn no_token_is_reported_or_logged() {
    let redis = RedisServer::start();
    let directory = tempfile::tempdir().expect("a directory");
    let yaml = fill(
        "
        listen: [{address: '127.0.0.1:0'}]
        admin: {address: '127.0.0.1:0', hosts: [gateway.test]}
        workers: 1
        store: {redis: {shards: [{primary: '{redis}'}], response_timeout: 5s}}
        upstreams: {hello: {respond: {body: hello}}}
        limits:
          calls: {quota: 3, window: 1h, key: [token]}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [calls]}
          - {name: rate-limit, match: {path: /rate_limit}, status: [calls]}
        ",
        [("redis", redis.url())],
    );
    fs::write(directory.path().join("t.yaml"), yaml).expect("a file");
    let mut process = Process::start(tidegate_command(
        directory.path(),
        &["--config", "t.yaml", "--log", "trace"],
    ));
    let mut texts = Vec::new();
    for path in ["/x", "/rate_limit?tok-77e1"] {
        let response = get(process.address, path, "Authorization: Bearer tok-77e1\r\n");
        assert_eq!(response.status, 200);
        texts.push(response.head.clone() + &response.text());
    }
    for (method, target, status) in [
        ("GET", "", 200),
        ("GET", "/calls?key=Bearer%20tok-77e1", 200),
        ("GET", "/calls?key=tok-77e1&key=tok-77e1", 400),
        ("GET", "/calls?tok-77e1=tok-77e1", 400),
        ("GET", "/calls?hash=tok-77e1", 400),
        ("GET", "/calls?key=&client_ip=tok-77e1", 400),
        ("GET", "/calls?key=a&tier=tok-77e1", 400),
        ("GET", "/tok-77e1", 404),
        ("DELETE", "/calls?key=Bearer%20tok-77e1", 204),
        ("DELETE", "/calls?key=tok-77e1&key=tok-77e1", 400),
    ] {
        let response = admin_at(process.admin, method, target, "");
        assert_eq!(response.status, status, "{method} {target}");
        texts.push(response.head.clone() + &response.text());
    }
    process.signal(Signal::TERM);
    assert!(process.wait_exit().success());
    assert!(process.log_line("a caller's counter was reset").is_some());
    texts.push(process.log());
    for text in texts {
        assert!(!text.contains("tok-77e1"), "{text}");
    }
}

#[test]
fn without_redis_the_status_follows_each_policy() {
    let mut redis = RedisServer::start();
    let gateway = Gateway::start(&fill(
        "
        store:
          redis: {shards: [{primary: '{redis}'}], connect_timeout: 5s, response_timeout: 5s}
        upstreams: {hello: {respond: {body: hello}}}
        limits:
          calls: {quota: 5, window: 24h, resolution: 1, key: [], on_failure: local}
          open: {quota: 5, window: 24h, resolution: 1, key: [], on_failure: open}
          closed: {quota: 5, window: 24h, resolution: 1, key: [], on_failure: closed}
        routes:
          - {name: all, match: {path: /x}, upstream: hello, limits: [calls, open]}
          - {name: numbers, match: {path: /numbers}, status: [calls, open]}
          - {name: closed, match: {path: /closed}, status: [calls, closed]}
        ",
        [("redis", redis.url())],
    ));
    assert_eq!(get(gateway.address(), "/closed", "").status, 200);
    redis.kill();
    eventually("every worker has an open breaker", || {
        get(gateway.address(), "/numbers", "");
        get(gateway.admin(), "/readyz", "").json()["store"]["workers_without_redis"] == 2
    });
    assert_eq!(status_of(&get(gateway.address(), "/numbers", ""))[..3], [5, 5, 0]);
    assert_eq!(get(gateway.address(), "/x", "").number("x-ratelimit-used"), 1);
    let response = get(gateway.address(), "/numbers", "");
    assert_eq!(status_of(&response)[..3], [5, 4, 1], "what this gateway has counted");
    assert!(
        response.json()["resources"]["open"].is_null(),
        "an `open` limit has no state without Redis"
    );
    let closed = get(gateway.address(), "/closed", "");
    assert_eq!((closed.status, closed.number("retry-after")), (503, 1));
    assert!(closed.text().contains("store-unavailable"));
    for method in ["GET", "DELETE"] {
        let response = admin(&gateway, method, "/calls", "");
        assert_eq!(response.status, 503, "{method}");
        assert!(response.json()["detail"].as_str().is_some_and(|text| text.contains("Redis")));
    }
    assert_eq!(status_of(&get(gateway.address(), "/numbers", ""))[2], 1, "nothing was reset here");
    let ready = get(gateway.admin(), "/readyz", "").json();
    assert_eq!(
        ready["store"]["workers_without_redis"], 2,
        "the admin API uses no worker's connection"
    );
    redis.restart();
    eventually("the admin API answers again", || {
        admin(&gateway, "GET", "/calls", "").status == 200
    });
}

#[test]
fn only_responses_of_servers_record_activity() {
    let upstream = Upstream::hello();
    let yaml = fill(
        "
        throttle: {max_active: 1, capacity: 1000}
        client: {trusted_proxies: [127.0.0.0/8]}
        upstreams:
          api: {targets: ['{target}']}
          hello: {respond: {body: hello}}
        limits:
          calls: {quota: 9, window: 1h}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: api, limits: [calls]}
          - {name: hello, match: {path: /hello}, upstream: hello}
          - {name: rate-limit, match: {path: /rate_limit}, status: [calls]}
        ",
        [("target", upstream.target())],
    );
    let gateway = Gateway::start_at(&yaml, Clock::manual(NOW));
    let as_one = "Authorization: one\r\n";
    let remembered = || gateway.metric("tidegate_throttle_recorded_total");
    for path in ["/rate_limit", "/hello"] {
        assert_eq!(get(gateway.address(), path, as_one).status, 200);
        assert_eq!(remembered(), 0, "{path}");
    }
    assert_eq!(get(gateway.address(), "/x", as_one).status, 200);
    assert_eq!(remembered(), 1);
}

#[test]
fn a_reload_changes_the_status() {
    const NINE: &str = "
        upstreams: {hello: {respond: {body: hello}}}
        limits:
          calls: {quota: 9, window: 1h, key: []}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [calls]}
          - {name: rate-limit, match: {path: /rate_limit}, status: [calls]}
        ";
    const FIVE: &str = "
        upstreams: {hello: {respond: {body: hello}}}
        limits:
          calls: {quota: 5, window: 1h, key: []}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [calls]}
          - {name: rate-limit, match: {path: /rate_limit}, status: [calls]}
        ";
    const WITHOUT_STATUS: &str = "
        upstreams: {hello: {respond: {body: hello}}}
        limits:
          calls: {quota: 9, window: 1h, key: []}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [calls]}
          - {name: rate-limit, match: {path: /rate_limit}, upstream: hello}
        ";
    let gateway = Gateway::start_at(NINE, Clock::manual(NOW));
    get(gateway.address(), "/x", "");
    assert_eq!(status_of(&get(gateway.address(), "/rate_limit", ""))[..3], [9, 8, 1]);
    gateway.reload(FIVE).expect("no fault");
    assert_eq!(status_of(&get(gateway.address(), "/rate_limit", ""))[..3], [5, 4, 1]);
    assert_eq!(admin(&gateway, "GET", "/calls", "").json()["limit"], 5);
    gateway.reload(WITHOUT_STATUS).expect("no fault");
    assert_eq!(get(gateway.address(), "/rate_limit", "").text(), "hello");
}
