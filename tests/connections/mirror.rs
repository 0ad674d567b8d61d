//! Copies of requests for another upstream.

use std::{io::Write, time::Duration};

use testkit::{
    client::{Client, get},
    gateway::Gateway,
    http2_upstream::Http2Upstream,
    protocol::on_every_protocol,
    upstream::{ResponseGate, Upstream},
    wait::{eventually, until_unchanged},
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime};

const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
const EMPTY: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";
const MAX_BODY: usize = 64 * 1024;

const MIRROR: &str = "
workers: 1
upstreams:
  origin: {targets: ['{origin}']}
  shadow: {targets: ['{shadow}']}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: origin, mirror: {upstream: shadow}}
";

/// The configuration `yaml` with `{origin}` and `{shadow}`.
fn between(origin: &Upstream, shadow: &Upstream, yaml: &str) -> String {
    fill(yaml, [("origin", origin.target()), ("shadow", shadow.target())])
}

fn outcome(name: &str) -> String {
    format!("tidegate_mirrored_requests_total{{route=\"all\",outcome=\"{name}\"")
}

/// A request without its framing fields, the only ones that differ between an original and its
/// copy.
fn lines(request: &str) -> Vec<String> {
    let is_framing =
        |line: &&str| line.starts_with("content-length") || line.starts_with("transfer-encoding");
    let mut lines: Vec<String> =
        request.lines().filter(|line| !is_framing(line)).map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn the_copy_equals_its_original_and_its_response_is_discarded() {
    let origin = Upstream::hello();
    let shadow =
        Upstream::with_response("HTTP/1.1 500 Oops\r\nX-Shadow: 1\r\nContent-Length: 3\r\n\r\nbad");
    let gateway = Gateway::for_every_protocol(&between(
        &origin,
        &shadow,
        "
        workers: 1
        upstreams:
          origin: {targets: ['{origin}']}
          shadow: {targets: ['{shadow}']}
        limits: {few: {quota: 1000, window: 1h}}
        routes:
          - name: all
            match: {path: '/{*rest}'}
            upstream: origin
            limits: [few]
            mirror: {upstream: shadow}
        ",
    ));
    on_every_protocol(|protocol| {
        let before = (origin.request_count(), shadow.request_count());
        let mut client = protocol.connect(&gateway);
        let response = client.get("/a?b=1", "X-Own: 7\r\n");
        assert_eq!((response.status, response.header("x-shadow")), (200, None));
        let body = "x".repeat(10_000);
        client.start("POST", "/post", format!("Content-Length: {}\r\n", body.len()), true);
        client.send(&body[..4_000], false);
        client.send(&body[4_000..], true);
        assert_eq!(client.read_response().status, 200);
        eventually("both are copied", || shadow.request_count() == before.1 + 2);
        let (originals, copies) = (origin.request_texts(), shadow.request_texts());
        let mut originals: Vec<_> = originals[before.0..].iter().map(|text| lines(text)).collect();
        let mut copies: Vec<_> = copies[before.1..].iter().map(|text| lines(text)).collect();
        originals.sort();
        copies.sort();
        assert_eq!(originals, copies);
    });
    gateway.wait_for_metric(&outcome("answered"), shadow.request_count() as u64);
    let admitted =
        "tidegate_limit_decisions_total{route=\"all\",limit=\"few\",decision=\"admitted\"";
    assert_eq!(gateway.metric(admitted), origin.request_count() as u64, "copies are not charged");
}

#[test]
fn bodies_in_chunks_are_copied_up_to_the_bound() {
    let (origin, shadow) = (Upstream::hello(), Upstream::hello());
    let gateway = Gateway::start(&between(&origin, &shadow, MIRROR));
    let mut client = Client::connect(gateway.address());
    for (length, answered, too_long) in
        [(MAX_BODY, 1, 0), (MAX_BODY + 1, 1, 1), (3 * MAX_BODY, 1, 2)]
    {
        client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        client.send(format!("{length:x}\r\n{}\r\n0\r\n\r\n", "y".repeat(length)));
        assert_eq!(client.read_response().status, 200);
        gateway.wait_for_metric(&outcome("answered"), answered);
        gateway.wait_for_metric(&outcome("too_long"), too_long);
    }
    let copies = shadow.request_texts();
    assert_eq!(copies.len(), 1);
    assert_eq!(copies[0].matches('y').count(), MAX_BODY);
    client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", MAX_BODY + 1));
    client.send("z".repeat(MAX_BODY + 1));
    assert_eq!(client.read_response().status, 200);
    gateway.wait_for_metric(&outcome("too_long"), 3);
    assert_eq!(origin.request_count(), 4);
}

#[test]
fn incomplete_requests_upgrades_and_grpc_calls_are_not_copied() {
    let (origin, shadow) = (Upstream::hello(), Upstream::hello());
    let gateway = Gateway::start(&between(&origin, &shadow, MIRROR));
    let mut client = Client::connect(gateway.address());
    client.send("POST /cut HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
    eventually("it is forwarded", || origin.connections() == 1);
    drop(client);
    gateway.wait_for_metric(&outcome("incomplete"), 1);
    for headers in [
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n",
        "Content-Type: application/grpc\r\nTE: trailers\r\n",
    ] {
        get(gateway.address(), "/", headers);
    }
    assert_eq!(get(gateway.address(), "/plain", "").status, 200);
    eventually("one is copied", || shadow.request_count() == 1);
    assert!(shadow.request_texts()[0].starts_with("GET /plain"));
    assert_eq!(gateway.metric(&outcome("incomplete")), 1);
}

/// More uploads pause than copies may be sent at a time.
#[test]
fn uploads_that_pause_keep_no_copies_out() {
    let (origin, shadow) = (Upstream::hello(), Upstream::hello());
    let gateway = Gateway::start(&between(&origin, &shadow, MIRROR));
    let mut slow: Vec<Client> = (0..100)
        .map(|_| {
            let mut client = Client::connect(gateway.address());
            client.send("POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\na");
            client
        })
        .collect();
    eventually("all are forwarded", || origin.connections() == 100);
    let mut client = Client::connect(gateway.address());
    for _ in 0..10 {
        client.send("POST /whole HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab");
        assert_eq!(client.read_response().status, 200);
    }
    eventually("they are copied", || shadow.request_count() == 10);
    assert_eq!(gateway.metric(&outcome("dropped")), 0);
    for client in &mut slow {
        client.send("123456789");
        assert_eq!(client.read_response().status, 200);
    }
    let ended = || gateway.metric("tidegate_mirrored_requests_total");
    eventually("each copy has ended", || ended() == 110);
}

/// One address gets an eighth of the memory for copies with incomplete bodies.
#[test]
fn incomplete_copies_of_one_client_are_bounded() {
    let (origin, shadow) = (Upstream::hello(), Upstream::hello());
    let gateway = Gateway::start(&between(
        &origin,
        &shadow,
        "
        workers: 1
        client: {trusted_proxies: [127.0.0.1/32]}
        upstreams:
          origin: {targets: ['{origin}']}
          shadow: {targets: ['{shadow}']}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, mirror: {upstream: shadow}}
        ",
    ));
    let begin = |client: u8| {
        let mut sent = Client::connect(gateway.address());
        let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 60001\r\n";
        sent.send(format!("{head}X-Forwarded-For: 192.0.2.{client}\r\n\r\n"));
        sent.send("x".repeat(60_000));
        sent
    };
    let _slow: Vec<Client> = (0..12).map(|_| begin(1)).collect();
    gateway.wait_for_metric(&outcome("dropped"), 4);
    let mut other = begin(2);
    other.send("x");
    assert_eq!(other.read_response().status, 200);
    eventually("it is copied", || shadow.request_count() == 1);
    assert_eq!(gateway.metric(&outcome("dropped")), 4);
}

#[test]
fn refused_requests_are_not_copied() {
    let (origin, shadow) = (Upstream::hello(), Upstream::hello());
    let gateway = Gateway::start(&between(
        &origin,
        &shadow,
        "
        workers: 1
        upstreams:
          origin: {targets: ['{origin}']}
          shadow: {targets: ['{shadow}']}
        limits: {few: {quota: 1, window: 1h}}
        routes:
          - name: all
            match: {path: '/{*rest}'}
            upstream: origin
            limits: [few]
            mirror: {upstream: shadow}
        ",
    ));
    assert_eq!(get(gateway.address(), "/1", "").status, 200);
    assert_eq!(get(gateway.address(), "/2", "").status, 429);
    gateway.wait_for_metric(&outcome("answered"), 1);
    assert_eq!(shadow.request_count(), 1);
}

#[test]
fn a_share_of_the_requests_is_copied() {
    let (origin, shadow) = (Upstream::hello(), Upstream::hello());
    let gateway = Gateway::start(&between(
        &origin,
        &shadow,
        "
        workers: 1
        upstreams:
          origin: {targets: ['{origin}']}
          shadow: {targets: ['{shadow}']}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, mirror: {upstream: shadow, share: 25}}
        ",
    ));
    let mut client = Client::connect(gateway.address());
    (0..800).for_each(|_| assert_eq!(client.get("/", "").status, 200));
    let chosen = || gateway.metric(&outcome("answered")) + gateway.metric(&outcome("dropped"));
    // Six standard deviations: sqrt(800 * 0.25 * 0.75) is 12.2.
    until_unchanged("the copies that have ended", chosen);
    assert!((127..=273).contains(&chosen()), "{}", chosen());
}

#[test]
fn a_silent_mirror_delays_nothing_and_is_bounded() {
    let origin = Upstream::hello();
    let gate = ResponseGate::default();
    let waits = gate.clone();
    let shadow = Upstream::with_handler(move |_, socket| {
        waits.wait();
        socket.write_all(HELLO).is_ok()
    });
    let gateway = Gateway::start(&between(
        &origin,
        &shadow,
        "
        workers: 1
        upstreams:
          origin: {targets: ['{origin}']}
          shadow: {targets: ['{shadow}'], response_timeout: 20s}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, mirror: {upstream: shadow}}
        ",
    ));
    let mut client = Client::connect(gateway.address());
    (0..100).for_each(|_| assert_eq!(client.get("/", "").status, 200));
    assert_eq!(gateway.metric(&outcome("dropped")), 36, "64 are under way");
    gate.open();
    gateway.wait_for_metric(&outcome("answered"), 64);
    assert_eq!(client.get("/", "").status, 200);
    gateway.wait_for_metric(&outcome("answered"), 65);
}

#[test]
fn a_mirror_that_fails_is_ejected_alone() {
    let origin = Upstream::hello();
    let broken = Upstream::on_connection(|_| {});
    let gateway = Gateway::start(&between(&origin, &broken, MIRROR));
    // The copies of one client's requests do not eject the only target.
    let connect = |last| Client::connect_from([127, 0, 0, last], gateway.address());
    let mut clients = [connect(2), connect(3)];
    for failed in 1..=20 {
        assert_eq!(clients[failed as usize % 2].get("/", "").status, 200);
        gateway.wait_for_metric(&outcome("failed"), failed);
    }
    assert!(broken.connections() < 20, "it is ejected");
    assert_eq!(gateway.metric("tidegate_target_healthy{upstream=\"origin\""), 1);
    assert_eq!(gateway.metric("tidegate_target_healthy{upstream=\"shadow\""), 0);
}

#[test]
fn a_mirror_that_times_out_is_counted_as_failed() {
    let (origin, silent) = (Upstream::hello(), Upstream::silent());
    let gateway = Gateway::start_at(
        &between(
            &origin,
            &silent,
            "
            workers: 1
            upstreams:
              origin: {targets: ['{origin}']}
              shadow: {targets: ['{shadow}'], response_timeout: 500ms}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: origin, mirror: {upstream: shadow}}
            ",
        ),
        Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)),
    );
    assert_eq!(get(gateway.address(), "/", "").status, 200);
    eventually("the copy is under way", || silent.connections() == 1);
    gateway.assert_times_out(Duration::from_millis(500), || {
        gateway.wait_for_metric(&outcome("failed"), 1);
    });
    assert_eq!(gateway.metric("tidegate_upstream_failures_total{upstream=\"origin\""), 0);
}

#[test]
fn endless_responses_are_closed() {
    let origin = Upstream::hello();
    let endless = Upstream::with_handler(|_, socket| {
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        let chunk = format!("4000\r\n{}\r\n", "e".repeat(0x4000));
        while socket.write_all(chunk.as_bytes()).is_ok() {}
        false
    });
    let gateway = Gateway::start(&between(&origin, &endless, MIRROR));
    for count in 1..=3 {
        assert_eq!(get(gateway.address(), "/", "").status, 200);
        gateway.wait_for_metric(&outcome("answered"), count);
    }
    gateway.wait_for_metric("tidegate_target_in_flight{upstream=\"shadow\"", 0);
}

#[test]
fn the_drain_does_not_wait_for_copies() {
    let (origin, silent) = (Upstream::hello(), Upstream::silent());
    let gateway = Gateway::start_at(
        &between(
            &origin,
            &silent,
            "
            workers: 1
            drain_timeout: 1h
            upstreams:
              origin: {targets: ['{origin}']}
              shadow: {targets: ['{shadow}'], response_timeout: 1h}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: origin, mirror: {upstream: shadow}}
            ",
        ),
        Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)),
    );
    assert_eq!(get(gateway.address(), "/", "").status, 200);
    eventually("the copy is under way", || silent.connections() == 1);
    // By the simulated clock, half a minute of real time is ten minutes.
    assert!(gateway.stop() < Duration::from_mins(10));
}

#[test]
fn copies_go_over_http2() {
    let origin = Upstream::with_handler(|_, socket| socket.write_all(EMPTY).is_ok());
    let shadow = Http2Upstream::hello();
    let gateway = Gateway::start(&fill(
        "
        workers: 1
        upstreams:
          origin: {targets: ['{origin}']}
          shadow: {targets: ['{shadow}'], protocol: http2}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, mirror: {upstream: shadow}}
        ",
        [("origin", origin.target()), ("shadow", shadow.target())],
    ));
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.get("/get", "").status, 204);
    client.send("POST /post HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
    assert_eq!(client.read_response().status, 204);
    gateway.wait_for_metric(&outcome("answered"), 2);
}
