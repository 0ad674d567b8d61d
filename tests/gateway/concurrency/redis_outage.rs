//! Calls that Redis answers late or never receives.

use std::{
    io::Write as _,
    sync::{Mutex, mpsc},
    time::Duration,
};

use testkit::{
    client::{Client, get},
    gateway::Gateway,
    redis_server::RedisServer,
    upstream::{ResponseLatch, Upstream},
    wait::{eventually, sleep},
};

use tidegate::clock::Clock;

use super::{NOW, latched_upstream, limited, permits_in_use};

fn store(redis: &RedisServer, timeout: &str, workers: u32) -> String {
    format!(
        "workers: {workers}\nhttp: {{max_connections_per_client: off}}\nstore: {{redis: {{shards: \
         [{{primary: \"{}\"}}], connect_timeout: 1s, response_timeout: {timeout}}}}}",
        redis.url()
    )
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

/// Redis hangs for less than a lease, then for more: renewals queue up meanwhile. The
/// timeout is generous: a charge that timed out would take its permit locally, and Redis would never
/// count twenty.
#[test]
fn a_hung_redis_counts_no_slot_twice() {
    for (workers, hangs) in [(1, 1_500), (4, 1_500), (1, 5_000), (4, 5_000)] {
        let redis = RedisServer::start();
        let latch = ResponseLatch::default();
        let upstream = latched_upstream(&latch);
        let more = store(&redis, "1s", workers);
        let clock = Clock::simulated(NOW);
        let yaml = limited(&upstream, "quota: 60, window: 3s", &more);
        let gateway = Gateway::start_at(&yaml, clock.clone());
        let mut clients = send_in_flight(&gateway, 20);
        redis.suspend();
        // Longer than the response timeout. The pauses are for the workers, whose calls the clock times out.
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
            let taken = permits_in_use(&gateway, "in_flight");
            assert_eq!(taken, Some(20), "{workers} workers, {hangs} ms");
        }
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
fn assert_refunds_made(timeout: &str, disturb: impl Fn(&RedisServer)) {
    let redis = RedisServer::start();
    let (upstream, release) = waiting_upstream();
    let yaml = format!(
        "{}
upstreams: {{app: {{targets: [\"{}\"], retries: 0}}}}
limits:
  calls: {{algorithm: fixed_window, quota: 9, window: 1h, key: [], refund: [304]}}
  apart: {{algorithm: fixed_window, quota: 9, window: 1h, key: [client_ip], refund: [304]}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: app, limits: [calls, apart]}}]",
        store(&redis, timeout, 1),
        upstream.target()
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
    let yaml = format!(
        "{}
upstreams: {{app: {{targets: [\"{}\"]}}}}
limits: {{calls: {{quota: 100, window: 1h, key: [], on_failure: closed}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: app, limits: [calls]}}]",
        store(&redis, "5s", 4),
        upstream.target()
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
