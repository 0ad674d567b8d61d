//! The policies that choose a target, with weights.

use std::{collections::BTreeSet, io::Write as _, thread, time::Duration};

use h2::server::Builder;
use testkit::{
    client::get, gateway::Gateway, http2_upstream::Http2Upstream, upstream::Upstream, wait::sleep,
    yaml::fill,
};

fn counts(upstreams: &[Upstream]) -> Vec<usize> {
    upstreams.iter().map(Upstream::request_count).collect()
}

#[test]
fn the_rotation_follows_the_weights_exactly() {
    let upstreams = [Upstream::hello(), Upstream::hello(), Upstream::hello()];
    let gateway = Gateway::start(&fill(
        "
        workers: 1
        upstreams:
          origin:
            balance: round_robin
            targets:
              - {url: '{a}', weight: 3}
              - {url: '{b}', weight: 1}
              - {url: '{c}', weight: 0}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("a", upstreams[0].target()), ("b", upstreams[1].target()), ("c", upstreams[2].target())],
    ));
    for _ in 0..40 {
        assert_eq!(get(gateway.address(), "/", "").status, 200);
    }
    assert_eq!(counts(&upstreams), [30, 10, 0]);
}

#[test]
fn random_choices_follow_the_weights_roughly() {
    for balance in ["least_requests", "peak_ewma"] {
        let upstreams = [Upstream::hello(), Upstream::hello(), Upstream::hello()];
        let [a, b, c] = [0, 1, 2].map(|index| upstreams[index].target());
        let gateway = Gateway::start(&fill(
            "
            workers: 1
            upstreams:
              origin:
                balance: {balance}
                targets:
                  - {url: '{a}', weight: 2}
                  - {url: '{b}', weight: 2}
                  - {url: '{c}', weight: 0}
            routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
            ",
            [("balance", balance), ("a", &a), ("b", &b), ("c", &c)],
        ));
        for _ in 0..200 {
            assert_eq!(get(gateway.address(), "/", "").status, 200);
        }
        let counts = counts(&upstreams);
        assert_eq!(counts[2], 0, "{balance}: {counts:?}");
        // The latency of one may be much worse by chance.
        let least = if balance == "peak_ewma" { 1 } else { 20 };
        assert!(counts[0] >= least && counts[1] >= least, "{balance}: {counts:?}");
    }
}

#[test]
fn a_hash_sends_each_key_to_one_target() {
    let upstreams = [Upstream::hello(), Upstream::hello(), Upstream::hello()];
    let gateway = Gateway::start(&fill(
        "
        workers: 1
        upstreams:
          origin: {balance: hash, hash_key: ['header:x-user'], targets: ['{a}', '{b}', '{c}']}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("a", upstreams[0].target()), ("b", upstreams[1].target()), ("c", upstreams[2].target())],
    ));
    for user in 0..60 {
        for _ in 0..2 {
            let headers = format!("x-user: {user}\r\n");
            assert_eq!(get(gateway.address(), "/", &headers).status, 200);
        }
    }
    let mut seen = 0;
    for upstream in &upstreams {
        let users: BTreeSet<String> = upstream
            .request_texts()
            .iter()
            .filter_map(|text| Some(text.lines().find(|line| line.starts_with("x-user"))?.into()))
            .collect();
        assert!(users.len() >= 5, "{}", users.len());
        seen += users.len();
    }
    assert_eq!(seen, 60, "no user had two targets");
}

/// How long a target needs that works.
const LATENCY: Duration = Duration::from_millis(20);

/// Sends requests from several clients at once, and returns how many there were.
fn send_from_clients(gateway: &Gateway) -> usize {
    const CLIENTS: usize = 8;
    const REQUESTS: usize = 50;
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| (0..REQUESTS).for_each(|_| drop(get(gateway.address(), "/", ""))));
        }
    });
    CLIENTS * REQUESTS
}

/// A target that refuses at once must not draw the load of the others, even if nothing is retried.
#[test]
fn a_target_that_fails_fast_gets_a_small_share() {
    let slow = || {
        Upstream::with_handler(|_, socket| {
            sleep(LATENCY);
            socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_ok()
        })
    };
    let failing = Upstream::with_response("HTTP/1.1 503 Down\r\nContent-Length: 0\r\n\r\n");
    let upstreams = [slow(), slow(), slow(), failing];
    let [a, b, c, failing] = [0, 1, 2, 3].map(|index| upstreams[index].target());
    let gateway = Gateway::start(&fill(
        "
        workers: 1
        upstreams: {origin: {targets: ['{a}', '{b}', '{c}', '{failing}']}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("a", a), ("b", b), ("c", c), ("failing", failing)],
    ));
    let total = send_from_clients(&gateway);
    let failed = upstreams[3].request_count();
    assert!(failed > 0 && failed * 6 < total, "{failed} of {total} requests");
}

#[test]
fn a_target_that_fails_with_grpc_statuses_gets_a_small_share() {
    let slow = || {
        Http2Upstream::with_handler(Builder::new(), |mut exchange| async move {
            tokio::time::sleep(LATENCY).await;
            exchange.answer(200, "");
        })
    };
    let failing = Http2Upstream::with_handler(Builder::new(), |mut exchange| async move {
        let fields = [("content-type", "application/grpc"), ("grpc-status", "14")];
        let mut stream = exchange.start(200, &fields);
        let _ = stream.send_data(bytes::Bytes::new(), true);
    });
    let upstreams = [slow(), slow(), slow(), failing];
    let [a, b, c, failing] = [0, 1, 2, 3].map(|index| upstreams[index].target());
    let gateway = Gateway::start(&fill(
        "
        workers: 1
        upstreams: {origin: {targets: ['{a}', '{b}', '{c}', '{failing}'], protocol: http2}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("a", a), ("b", b), ("c", c), ("failing", failing)],
    ));
    let total = send_from_clients(&gateway);
    let failed = upstreams[3].request_count();
    assert!(failed > 0 && failed * 6 < total, "{failed} of {total} requests");
}
