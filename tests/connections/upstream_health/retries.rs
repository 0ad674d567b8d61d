//! Requests that a target fails, and that go to another one: which, how often, and within what
//! budget.

use std::{
    collections::HashSet,
    io::{Read, Write},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use testkit::{
    client::{Client, get},
    gateway::Gateway,
    protocol::on_every_protocol,
    upstream::Upstream,
    yaml::fill,
};
use tidegate::clock::{Clock, instant};

use super::{START, is_sent_to_first, refusing};

/// Answers every request with 503.
fn unavailable() -> Upstream {
    Upstream::with_response("HTTP/1.1 503 X\r\nContent-Length: 5\r\n\r\nfails")
}

/// Sends two requests with each of GET and POST in turn to a target that answers 503, and to one
/// that works; asserts the worse status of the GETs. No POST is sent twice.
fn assert_worse_status(yaml: &str, expected: u16) {
    let (failing, working) = (unavailable(), Upstream::hello());
    let gateway =
        Gateway::start(&fill(yaml, [("failing", failing.target()), ("working", working.target())]));
    let mut client = Client::connect(gateway.address());
    let mut statuses = [client.get("/", "").status, client.get("/", "").status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, expected]);
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
    let statuses = [client.read_response().status, client.read_response().status];
    assert!(statuses.contains(&503), "a POST is not sent again: {statuses:?}");
    let sent = failing.request_texts().into_iter().chain(working.request_texts());
    assert_eq!(sent.filter(|request| request.starts_with("POST")).count(), 2);
}

#[test]
fn a_status_in_retry_on_is_retried_on_another_target() {
    let yaml = "
        workers: 1
        upstreams:
          origin:
            targets: ['{failing}', '{working}']
            balance: round_robin
            retry_on: [503]
            ejection: {max_share: 0}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
        ";
    assert_worse_status(yaml, 200);
}

#[test]
fn a_failing_status_is_not_retried_by_default() {
    let yaml = "
        workers: 1
        upstreams:
          origin:
            targets: ['{failing}', '{working}']
            balance: round_robin
            ejection: {max_share: 0}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
        ";
    assert_worse_status(yaml, 503);
}

#[test]
fn another_status_in_retry_on_retries_nothing() {
    let yaml = "
        workers: 1
        upstreams:
          origin:
            targets: ['{failing}', '{working}']
            balance: round_robin
            retry_on: [502]
            ejection: {max_share: 0}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
        ";
    assert_worse_status(yaml, 503);
}

/// The client has nothing of such a response, so the request may go to another target.
#[test]
fn a_response_whose_head_breaks_off_is_retried_on_another_target() {
    for broken in ["HTTP/1.1 200 OK\r\nContent-Le", "HTTP/1.1 200 OK\r\nbad header\r\n\r\n"] {
        let failing = Upstream::with_handler(move |_, socket| {
            let _ = socket.write_all(broken.as_bytes());
            false
        });
        let working = Upstream::hello();
        let gateway = Gateway::start(&fill(
            "
            workers: 1
            upstreams:
              origin:
                targets: ['{failing}', '{working}']
                balance: round_robin
                ejection: {max_share: 0}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: origin}
            ",
            [("failing", failing.target()), ("working", working.target())],
        ));
        for _ in 0..4 {
            assert_eq!(get(gateway.address(), "/", "").status, 200, "{broken}");
        }
        assert_eq!(failing.request_count(), 2, "{broken}");
        let mut client = Client::connect(gateway.address());
        let post = |client: &mut Client| {
            client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
            client.read_response().status
        };
        let mut statuses = [post(&mut client), post(&mut client)];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 502], "{broken}: not sent twice");
    }
}

#[test]
fn a_silent_target_is_retried_on_another_one_after_its_timeout() {
    const TIMEOUT: Duration = Duration::from_millis(300);
    let (silent, working) = (Upstream::silent(), Upstream::hello());
    let gateway = Gateway::for_every_protocol_at(
        &fill(
            "
            workers: 1
            upstreams:
              origin:
                targets: ['{silent}', '{working}']
                balance: round_robin
                retry_on: [timeout]
                response_timeout: 300ms
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: origin}
            ",
            [("silent", silent.target()), ("working", working.target())],
        ),
        Clock::simulated(START),
    );
    on_every_protocol(|protocol| {
        for _ in 0..4 {
            let mut client = protocol.connect(&gateway);
            let is_silent = is_sent_to_first(
                || silent.connections(),
                &working,
                || {
                    client.start_get("/");
                },
            );
            let mut read = || assert_eq!(client.read_response().status, 200);
            if is_silent { gateway.assert_times_out(TIMEOUT, read) } else { read() }
        }
    });
    // It is ejected after five timeouts in a row.
    assert_eq!(gateway.metric("tidegate_target_failures_total{upstream=\"origin\",target"), 5);
    assert_eq!(gateway.metric("tidegate_target_ejections_total"), 1);
}

#[test]
fn retries_of_a_failing_upstream_stay_within_the_budget() {
    let (first, second) = (unavailable(), unavailable());
    let gateway = Gateway::start(&fill(
        "
        upstreams:
          origin:
            targets: ['{first}', '{second}']
            retries: 5
            retry_on: [503]
            ejection: {max_share: 0}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
        ",
        [("first", first.target()), ("second", second.target())],
    ));
    let started: Instant = instant();
    let mut client = Client::connect(gateway.address());
    for _ in 0..300 {
        assert_eq!(client.get("/", "").status, 503);
    }
    let received = first.request_count() + second.request_count();
    let elapsed = started.elapsed().as_secs_f64();
    // A fifth of 300, 10 at the start, and 10 a second.
    let allowed = 300.0 + 60.0 + 12.0 + 10.0 * elapsed;
    assert!(received as f64 <= allowed, "{received} of {allowed}");
    assert!(received > 320, "{received}");
    assert!(gateway.metric("tidegate_upstream_retry_budget_exhausted_total") > 0);
}

#[test]
fn failed_connects_are_retried_up_to_the_configured_retries() {
    for (retries, expected) in [(0, 1), (1, 2), (3, 4)] {
        for method in ["GET", "POST"] {
            let targets: Vec<_> = (0..8).map(|_| refusing()).collect();
            let gateway = Gateway::start(&fill(
                "
                workers: 1
                upstreams:
                  origin:
                    targets: {targets}
                    retries: {retries}
                    ejection: {max_share: 0}
                routes:
                  - {name: all, match: {path: '/{*rest}'}, upstream: origin}
                ",
                [("targets", format!("{targets:?}")), ("retries", retries.to_string())],
            ));
            let mut client = Client::connect(gateway.address());
            client.send(format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
            assert_eq!(client.read_response().status, 502);
            assert_eq!(gateway.metric("tidegate_target_requests_total"), expected, "{method}");
        }
    }
}

/// Answers the first request of each connection, and closes after it has read the second.
fn closing_after_one() -> Upstream {
    Upstream::on_connection(|socket| {
        let mut bytes = [0; 4096];
        if matches!(socket.read(&mut bytes), Ok(1..)) {
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            let _ = socket.read(&mut bytes);
        }
    })
}

#[test]
fn a_request_that_an_idle_connection_loses_is_repeated_or_counted() {
    let upstream = closing_after_one();
    let gateway = Gateway::start(&fill(
        "
        workers: 1
        upstreams: {origin: {targets: ['{target}']}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("target", upstream.target())],
    ));
    let mut client = Client::connect(gateway.address());
    // RFC 9112, 9.3.1: an idempotent request may be sent again on another connection.
    (0..10).for_each(|_| assert_eq!(client.get("/", "").status, 200));
    // A body that is still at hand is sent again with its head.
    for framing in [
        "Content-Length: 5\r\n\r\nhello",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ] {
        for _ in 0..10 {
            client.send(format!("PUT / HTTP/1.1\r\nHost: a\r\n{framing}"));
            assert_eq!(client.read_response().status, 200);
        }
    }
    assert_eq!(gateway.metric("tidegate_target_failures_total"), 0);
    let mut failed = 0;
    for _ in 0..10 {
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
        failed += u64::from(client.read_response().status == 502);
    }
    assert!(failed > 0);
    let counted = "tidegate_target_failures_total{upstream=\"origin\"";
    assert_eq!(gateway.metric(counted), failed);
    assert_eq!(gateway.metric("tidegate_upstream_failures_total"), failed);
}

/// The server closes each connection at its second request.
#[test]
fn a_repeated_request_has_its_body() {
    let seen = Mutex::new(HashSet::new());
    let upstream = Upstream::with_handler(move |_, socket| {
        let peer = socket.peer_addr().expect("an address");
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        seen.lock().expect("no panic").insert(peer) && socket.write_all(answer).is_ok()
    });
    let gateway = Gateway::for_every_protocol(&fill(
        "
        workers: 1
        upstreams: {origin: {targets: ['{target}']}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("target", upstream.target())],
    ));
    on_every_protocol(|protocol| {
        for _ in 0..5 {
            assert_eq!(protocol.connect(&gateway).ask("PUT", "/", "", "hello").status, 200);
        }
    });
    assert!(upstream.request_texts().iter().all(|text| text.contains("hello")));
    assert_eq!(upstream.request_count(), 2 * 20 - 1);
}

#[test]
fn requests_that_idle_connections_to_a_failing_target_lose_go_to_another_one() {
    let fails = Arc::new(AtomicBool::new(false));
    let failing = Arc::clone(&fails);
    let first = Upstream::with_handler(move |_, socket| {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        !failing.load(Ordering::SeqCst) && socket.write_all(answer).is_ok()
    });
    let second = Upstream::hello();
    let gateway = Gateway::start(&fill(
        "
        workers: 1
        upstreams:
          origin:
            targets: ['{first}', '{second}']
            balance: round_robin
            ejection: {max_share: 0}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
        ",
        [("first", first.target()), ("second", second.target())],
    ));
    let mut clients: Vec<_> = (0..8).map(|_| Client::connect(gateway.address())).collect();
    // Idle connections to both.
    for _ in 0..2 {
        for client in &mut clients {
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        }
        assert!(clients.iter_mut().all(|client| client.read_response().status == 200));
    }
    fails.store(true, Ordering::SeqCst);
    for client in &mut clients {
        assert_eq!(client.get("/", "").status, 200);
    }
}
