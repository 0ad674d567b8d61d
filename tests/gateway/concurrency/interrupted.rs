//! Calls that Redis answers late, or never hears of.

use std::{io::Write as _, time::Duration};

use super::{Doors, limited, taken};
use crate::{
    client::{Client, get},
    gateway::Gateway,
    redis_server::RedisServer,
    upstream::Upstream,
    wait::{eventually, pause},
};

fn store(redis: &RedisServer, timeout: &str, workers: u32) -> String {
    format!(
        "workers: {workers}\nhttp: {{max_connections_per_client: off}}\nstore: {{redis: {{shards: \
         [{{primary: \"{}\"}}], connect_timeout: 1s, response_timeout: {timeout}}}}}",
        redis.url()
    )
}

/// So many requests in flight, each with a slot.
fn in_flight(gateway: &Gateway, count: u64) -> Vec<Client> {
    eventually("Redis decides", || {
        get(gateway.address(), "/now", "").status == 200 && taken(gateway, "flying") == Some(0)
    });
    let mut clients: Vec<_> = (0..count).map(|_| Client::connect(gateway.address())).collect();
    for client in &mut clients {
        client.send("GET /long HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    eventually("all are in flight", || taken(gateway, "flying") == Some(count));
    clients
}

/// Redis hangs for less than a lease, and for more than one: renewals wait in its queue meanwhile. The
/// timeout is long enough for a busy machine: a charge that timed out would take its slot locally, and
/// Redis would never count twenty.
#[test]
fn a_redis_that_hangs_counts_no_slot_twice() {
    for (workers, hangs) in [(1, 1_500), (4, 1_500), (1, 5_000), (4, 5_000)] {
        let redis = RedisServer::start();
        let doors = Doors::default();
        let upstream = doors.upstream();
        let more = store(&redis, "1s", workers);
        let gateway = Gateway::start(&limited(&upstream, "quota: 60, window: 3s", &more));
        let mut clients = in_flight(&gateway, 20);
        redis.suspend();
        pause(Duration::from_millis(hangs));
        redis.resume();
        eventually("all are counted again", || taken(&gateway, "flying") == Some(20));
        for _ in 0..40 {
            pause(Duration::from_millis(50));
            let taken = taken(&gateway, "flying");
            assert_eq!(taken, Some(20), "{workers} workers, {hangs} ms");
        }
        doors.open("/long");
        assert!(clients.iter_mut().all(|client| client.reply().status == 200));
        eventually("every slot is free", || taken(&gateway, "flying") == Some(0));
    }
}

/// Answers a while after it was asked.
fn slow() -> Upstream {
    Upstream::with(|_, socket| {
        pause(Duration::from_millis(400));
        socket.write_all(b"HTTP/1.1 304 Not Modified\r\n\r\n").is_ok()
    })
}

/// One request after the other whose answer is refunded; `disturb` is done while each is under way.
fn refunds_are_made(timeout: &str, disturb: impl Fn(&RedisServer)) {
    let redis = RedisServer::start();
    let upstream = slow();
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
        eventually("Redis decides", || gateway.metric("tidegate_store_workers_without") == 0);
        let mut client = Client::connect(gateway.address());
        client.send("GET /304 HTTP/1.1\r\nHost: a\r\n\r\n");
        eventually("it is charged", || used("calls") == Some(1));
        disturb(&redis);
        assert_eq!(client.reply().status, 304);
        eventually(&what, || used("calls") == Some(0) && used("apart") == Some(0));
    }
}

#[test]
fn a_refund_over_a_connection_that_had_ended_is_made() {
    refunds_are_made("1s", |redis| {
        let _: u64 = redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    });
}

/// Redis is well all the time: none of these requests is decided without it.
#[test]
fn a_charge_over_a_connection_that_had_ended_is_made() {
    let redis = RedisServer::start();
    let upstream = Upstream::with(|_, socket| {
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
            let reply = client.get("/a", "");
            used += u64::from(reply.status == 200);
            reply.status == 200
        })
    });
    for turn in 0..4 {
        let _: u64 = redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        // The connections' ends arrive.
        pause(Duration::from_millis(50));
        for client in &mut clients {
            let reply = client.get("/a", "");
            used += 1;
            assert_eq!(reply.status, 200, "turn {turn}: {}", reply.text());
            assert_eq!(reply.number("x-ratelimit-used"), used);
        }
    }
}

#[test]
fn a_refund_while_redis_is_paused_is_made() {
    refunds_are_made("100ms", |redis| {
        let _: String = redis.command(&["CLIENT", "PAUSE", "900", "ALL"]);
    });
}
