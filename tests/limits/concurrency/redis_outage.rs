//! Calls that Redis answers late or never receives.

use std::{
    io::Write as _,
    sync::{Mutex, mpsc},
    time::Duration,
};

use testkit::{
    client::{Client, get},
    gateway::Gateway,
    protocol::{PROTOCOLS, on_every_protocol},
    redis_server::RedisServer,
    upstream::{ResponseLatch, Upstream},
    wait::{eventually, sleep},
    yaml::fill,
};
use tidegate::clock::Clock;

use super::{NOW, latched_upstream, permits_in_use};

#[test]
fn a_client_that_disconnects_during_the_charge_holds_no_permit() {
    let redis = RedisServer::start();
    let latch = ResponseLatch::default();
    let upstream = latched_upstream(&latch);
    let gateway = Gateway::for_every_protocol(&fill(
        "
        store:
          redis: {shards: [{primary: '{redis}'}], connect_timeout: 5s, response_timeout: 5s}
        upstreams:
          app: {targets: ['{upstream}'], retries: 0}
        limits:
          in_flight: {algorithm: concurrency, quota: 2, window: 300s, key: []}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [in_flight]}
        ",
        [("redis", redis.url()), ("upstream", upstream.target())],
    ));
    on_every_protocol(|protocol| {
        let connect = || {
            let mut client = protocol.connect(&gateway);
            assert_eq!(client.get("/now", "").status, 200);
            client
        };
        let mut clients: Vec<_> = (0..2).map(|_| connect()).collect();
        eventually("both are free", || permits_in_use(&gateway, "in_flight") == Some(0));
        let calls = gateway.metric("tidegate_store_requests_total");
        redis.suspend();
        for client in &mut clients {
            client.start_get("/never");
        }
        gateway.wait_for_metric("tidegate_store_requests_total", calls + 2);
        drop(clients);
        gateway.wait_for_metric("tidegate_connections ", 0);
        redis.resume();
        eventually("both are free", || permits_in_use(&gateway, "in_flight") == Some(0));
    });
    assert!(upstream.request_texts().iter().all(|text| !text.contains("/never")));
}

/// Redis hangs while requests end: their permits are released when it recovers, long before their
/// leases expire.
#[test]
fn unsent_releases_are_made_after_an_outage() {
    let redis = RedisServer::start();
    let latch = ResponseLatch::default();
    let upstream = latched_upstream(&latch);
    let gateway = Gateway::for_every_protocol(&fill(
        "
        workers: 1
        store:
          redis: {shards: [{primary: '{redis}'}], connect_timeout: 5s, response_timeout: 500ms}
        upstreams:
          app: {targets: ['{upstream}'], retries: 0}
        limits:
          in_flight: {algorithm: concurrency, quota: 9, window: 300s, key: []}
          other: {algorithm: concurrency, quota: 5, window: 300s, key: []}
        routes:
          - {name: other, match: {path: /other}, upstream: app, limits: [other]}
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [in_flight]}
        ",
        [("redis", redis.url()), ("upstream", upstream.target())],
    ));
    let mut clients = PROTOCOLS.map(|protocol| protocol.connect(&gateway));
    eventually("Redis decides", || {
        clients[0].get("/now", "").status == 200 && permits_in_use(&gateway, "in_flight") == Some(0)
    });
    for client in &mut clients {
        client.start_get("/long");
    }
    eventually("all are in flight", || permits_in_use(&gateway, "in_flight") == Some(4));
    redis.suspend();
    let breaker_open = "tidegate_store_failures_total{kind=\"open\"}";
    eventually("the breaker is open", || {
        get(gateway.address(), "/other", "").status == 200 && gateway.metric(breaker_open) > 0
    });
    latch.release("/long");
    assert!(clients.iter_mut().all(|client| client.read_response().status == 200));
    redis.resume();
    for limit in ["in_flight", "other"] {
        eventually("every permit is free", || permits_in_use(&gateway, limit) == Some(0));
    }
}

/// Sends `count` requests that stay in flight, each with a permit.
fn send_in_flight(gateway: &Gateway, count: u64) -> Vec<Client> {
    eventually("Redis decides", || {
        get(gateway.address(), "/now", "").status == 200
            && permits_in_use(gateway, "in_flight") == Some(0)
    });
    let mut clients: Vec<_> = (0..count).map(|_| Client::connect(gateway.address())).collect();
    for client in &mut clients {
        client.send("GET /long HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    eventually("all are in flight", || permits_in_use(gateway, "in_flight") == Some(count));
    clients
}

/// Redis hangs for less than a lease, then for more: renewals queue up meanwhile. The timeout is
/// generous: a charge that timed out would take its permit locally, and Redis would never count
/// twenty.
#[test]
fn a_hung_redis_counts_no_permit_twice() {
    for (workers, hangs) in [(1, 1_500), (4, 1_500), (1, 5_000), (4, 5_000)] {
        let redis = RedisServer::start();
        let latch = ResponseLatch::default();
        let upstream = latched_upstream(&latch);
        let clock = Clock::simulated(NOW);
        let yaml = fill(
            "
            workers: {workers}
            store:
              redis: {shards: [{primary: '{redis}'}], connect_timeout: 1s, response_timeout: 1s}
            upstreams:
              app: {targets: ['{upstream}'], retries: 0}
            limits:
              in_flight: {algorithm: concurrency, quota: 60, window: 3s, key: []}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [in_flight]}
            ",
            [
                ("workers", workers.to_string()),
                ("redis", redis.url()),
                ("upstream", upstream.target()),
            ],
        );
        let gateway = Gateway::start_at(&yaml, clock.clone());
        let mut clients = send_in_flight(&gateway, 20);
        redis.suspend();
        // Longer than the response timeout. The pauses are for the workers, whose calls the clock
        // times out.
        for _ in 0..12 {
            clock.advance(Duration::from_millis(hangs / 12));
            sleep(Duration::from_millis(10));
        }
        redis.resume();
        gateway.while_time_passes(|| {
            eventually("every permit is counted again", || {
                permits_in_use(&gateway, "in_flight") == Some(20)
            });
        });
        for _ in 0..40 {
            clock.advance(Duration::from_millis(50));
            // Fewer while workers that the machine keeps waiting are late to renew.
            let taken = permits_in_use(&gateway, "in_flight");
            assert!(taken <= Some(20), "{workers} workers, {hangs} ms: {taken:?}");
        }
        gateway.while_time_passes(|| {
            eventually("every permit is still counted", || {
                permits_in_use(&gateway, "in_flight") == Some(20)
            });
        });
        latch.release("/long");
        assert!(clients.iter_mut().all(|client| client.read_response().status == 200));
        eventually("every permit is free", || permits_in_use(&gateway, "in_flight") == Some(0));
    }
}

/// An upstream that sends each response after a message.
fn waiting_upstream() -> (Upstream, mpsc::Sender<()>) {
    let (release, wait) = mpsc::channel();
    let wait = Mutex::new(wait);
    let upstream = Upstream::with_handler(move |_, socket| {
        let _ = wait.lock().expect("not poisoned").recv();
        socket.write_all(b"HTTP/1.1 304 Not Modified\r\n\r\n").is_ok()
    });
    (upstream, release)
}

/// Asserts that refunds are made although `disturb` runs during each request.
fn assert_refunds_made(response_timeout: &str, disturb: impl Fn(&RedisServer)) {
    let redis = RedisServer::start();
    let (upstream, release) = waiting_upstream();
    let yaml = fill(
        "
        workers: 1
        store:
          redis: {shards: [{primary: '{redis}'}], connect_timeout: 1s, response_timeout: {timeout}}
        upstreams:
          app: {targets: ['{upstream}'], retries: 0}
        limits:
          calls: {algorithm: fixed_window, quota: 9, window: 1h, key: [], refund: [304]}
          apart: {algorithm: fixed_window, quota: 9, window: 1h, key: [client_ip], refund: [304]}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls, apart]}
        ",
        [("redis", &*redis.url()), ("upstream", &upstream.target()), ("timeout", response_timeout)],
    );
    let gateway = Gateway::start(&yaml);
    let used = |limit: &str| {
        let key = if limit == "apart" { "?key=127.0.0.1" } else { "" };
        get(gateway.admin(), &format!("/api/limits/{limit}{key}"), "").json()["used"].as_u64()
    };
    for turn in 0..4 {
        let what = format!("nothing is used, turn {turn}");
        eventually(&what, || used("calls") == Some(0) && used("apart") == Some(0));
        eventually("Redis decides", || gateway.metric("tidegate_store_workers_without_redis") == 0);
        let mut client = Client::connect(gateway.address());
        client.send("GET /304 HTTP/1.1\r\nHost: a\r\n\r\n");
        eventually("it is charged", || used("calls") == Some(1));
        disturb(&redis);
        release.send(()).expect("the upstream waits");
        assert_eq!(client.read_response().status, 304);
        eventually(&what, || used("calls") == Some(0) && used("apart") == Some(0));
    }
}

#[test]
fn a_refund_survives_a_closed_connection() {
    assert_refunds_made("1s", |redis| {
        let _: u64 = redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    });
}

/// Redis is healthy throughout: none of these requests is decided without it.
#[test]
fn a_charge_survives_a_closed_connection() {
    let redis = RedisServer::start();
    let upstream = Upstream::with_handler(|_, socket| {
        socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_ok()
    });
    let yaml = fill(
        "
        workers: 4
        store:
          redis: {shards: [{primary: '{redis}'}], connect_timeout: 1s, response_timeout: 5s}
        upstreams:
          app: {targets: ['{upstream}']}
        limits:
          calls: {quota: 100, window: 1h, key: [], on_failure: closed}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
        ",
        [("redis", redis.url()), ("upstream", upstream.target())],
    );
    let gateway = Gateway::start(&yaml);
    let mut clients: Vec<_> = (0..8).map(|_| Client::connect(gateway.address())).collect();
    let mut used = 0;
    eventually("every worker is connected", || {
        clients.iter_mut().all(|client| {
            let response = client.get("/a", "");
            used += u64::from(response.status == 200);
            response.status == 200
        })
    });
    for turn in 0..4 {
        let _: u64 = redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        // Time for the closes to arrive.
        sleep(Duration::from_millis(50));
        for client in &mut clients {
            let response = client.get("/a", "");
            used += 1;
            assert_eq!(response.status, 200, "turn {turn}: {}", response.text());
            assert_eq!(response.number("x-ratelimit-used"), used);
        }
    }
}

#[test]
fn a_refund_survives_a_paused_redis() {
    assert_refunds_made("100ms", |redis| {
        let _: String = redis.command(&["CLIENT", "PAUSE", "900", "ALL"]);
    });
}
