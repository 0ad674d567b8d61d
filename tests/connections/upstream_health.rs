//! Ejection of failing targets, and upstreams of which all targets are down.

/// Servers with a short queue of connections.
mod busy;
/// Clients whose requests fail at every target.
mod clients;
/// What operators see of the health of targets.
mod operator;
/// The reasons for which targets go out of service.
mod reasons;
/// Retries on other targets.
mod retries;
/// Targets that take long to connect to.
mod slow_connect;

use std::{
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use testkit::{
    client::{Client, get},
    gateway::Gateway,
    port::free_address,
    protocol::on_every_protocol,
    upstream::{Upstream, read_until_closed},
    wait::eventually,
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime};

const START: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

/// A target's address that refuses connections.
fn refusing() -> String {
    format!("http://{}", free_address())
}

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Runs `send`, which sends one request to either of two targets, and waits until it is there. True
/// if it is at the first target, whose connections or requests are counted; the clock stands until
/// then.
fn is_sent_to_first(first: impl Fn() -> usize, second: &Upstream, send: impl FnOnce()) -> bool {
    let (at_first, at_second) = (first(), second.request_count());
    send();
    eventually("the request is at a target", || {
        first() > at_first || second.request_count() > at_second
    });
    first() > at_first
}

#[test]
fn a_target_that_refuses_connections_is_ejected_for_all_workers() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&fill(
        "
        workers: 4
        upstreams:
          origin: {targets: ['{refusing}', '{working}'], balance: round_robin, retries: 1}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
        ",
        [("refusing", refusing()), ("working", upstream.target())],
    ));
    for _ in 0..40 {
        assert_eq!(get(gateway.address(), "/", "").status, 200);
    }
    // Each worker may have met it before the first ejection, no more.
    let refused = gateway.metric("tidegate_target_failures_total{upstream=\"origin\"");
    assert!((1..=4).contains(&refused), "{refused}");
    assert_eq!(gateway.metric("tidegate_target_ejections_total"), 1);
    assert_eq!(gateway.metric("tidegate_target_healthy"), 1);
    assert_eq!(upstream.request_count(), 40);
}

#[test]
fn all_down_is_a_503_at_once_and_the_first_response_ends_it() {
    let is_up = Arc::new(AtomicBool::new(false));
    let answers = Arc::clone(&is_up);
    let upstream = Upstream::with_handler(move |_, socket| {
        let response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        answers.load(Ordering::SeqCst) && socket.write_all(response).is_ok()
    });
    let gateway = Gateway::start_at(
        &fill(
            "
            workers: 1
            upstreams:
              origin: {targets: ['{target}'], retries: 0}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: origin}
            ",
            [("target", upstream.target())],
        ),
        Clock::simulated(START),
    );
    // One client does not eject the only target.
    for number in 0..5 {
        let mut client = Client::connect_from([127, 0, 0, 2 + number % 2], gateway.address());
        assert_eq!(client.get("/", "").status, 502);
    }
    let response = get(gateway.address(), "/", "");
    assert_eq!(response.status, 503);
    assert_eq!(response.json()["type"], "urn:tidegate:problem:upstreams-down");
    // While all targets are down, each is tried once a second.
    assert_eq!(response.number("retry-after"), 1);
    assert_eq!(response.json()["retry-after"], 1);
    assert_eq!(upstream.request_count(), 5, "the sixth was not sent");
    assert_eq!(
        gateway.metric("tidegate_upstream_refused_total{upstream=\"origin\",reason=\"down\""),
        1
    );
    is_up.store(true, Ordering::SeqCst);
    gateway.clock.advance(Duration::from_millis(900));
    assert_eq!(get(gateway.address(), "/", "").status, 503, "too early");
    gateway.clock.advance(Duration::from_millis(100));
    assert_eq!(get(gateway.address(), "/", "").status, 200);
    assert_eq!(get(gateway.address(), "/", "").status, 200);
}

#[test]
fn a_grpc_call_to_an_upstream_that_is_down_is_unavailable() {
    let yaml = fill(
        "
        upstreams:
          origin: {targets: ['{refusing}'], retries: 0, ejection: {failures: 1}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
        ",
        [("refusing", refusing())],
    );
    let gateway = Gateway::for_every_protocol_at(&yaml, Clock::simulated(START));
    get(gateway.address(), "/", "");
    on_every_protocol(|protocol| {
        let response = protocol.get(&gateway, "/", "content-type: application/grpc\r\n");
        if protocol.is_http2() {
            assert_eq!((response.status, response.header("grpc-status")), (200, Some("14")));
        } else {
            assert_eq!(response.status, 503);
        }
        assert_eq!(response.number("retry-after"), 1);
    });
}

/// Only their bodies fail: the heads are successes.
#[test]
fn a_target_that_breaks_off_five_bodies_in_a_row_is_ejected() {
    let is_whole = Arc::new(AtomicBool::new(false));
    let whole = Arc::clone(&is_whole);
    let cutting = Upstream::with_handler(move |_, socket| {
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
        let is_whole = whole.load(Ordering::SeqCst);
        is_whole && socket.write_all(b" more").is_ok()
    });
    let working = Upstream::hello();
    let gateway = Gateway::start_at(
        &fill(
            "
            workers: 1
            upstreams:
              origin: {targets: ['{cutting}', '{working}'], balance: round_robin, slow_start: 0s}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: origin}
            ",
            [("cutting", cutting.target()), ("working", working.target())],
        ),
        Clock::simulated(START),
    );
    let is_cut = || {
        let mut client = Client::connect(gateway.address());
        client.send(GET).try_read_response().is_none()
    };
    let count_cut = |requests: usize| (0..requests).filter(|_| is_cut()).count();
    assert_eq!(count_cut(8), 4);
    is_whole.store(true, Ordering::SeqCst);
    assert_eq!(count_cut(2), 0, "a whole one begins another row");
    is_whole.store(false, Ordering::SeqCst);
    assert_eq!(count_cut(8), 4);
    assert_eq!(gateway.metric("tidegate_target_ejections_total"), 0);
    assert_eq!(count_cut(40), 1, "the fifth in a row ejects it");
    assert_eq!(gateway.metric("tidegate_target_ejections_total"), 1);
    assert_eq!(gateway.metric("tidegate_target_failures_total"), 9);
}

/// Sends 16 GETs in turn to a target that stalls and to one that works; returns how many responses
/// were cut, and the number of ejections.
fn count_stalled(stalling: &Upstream) -> (usize, u64) {
    const IDLE_TIMEOUT: Duration = Duration::from_millis(100);
    let working = Upstream::hello();
    let gateway = Gateway::start_at(
        &fill(
            "
            workers: 1
            upstreams:
              origin: {targets: ['{stalling}', '{working}'], balance: round_robin, slow_start: 0s}
            routes:
              - name: all
                match: {path: '/{*rest}'}
                upstream: origin
                response_idle_timeout: 100ms
            ",
            [("stalling", stalling.target()), ("working", working.target())],
        ),
        Clock::simulated(START),
    );
    let cut = (0..16).filter(|_| {
        let mut client = Client::connect(gateway.address());
        let stalls = is_sent_to_first(
            || stalling.request_count(),
            &working,
            || {
                client.send(GET);
            },
        );
        let mut is_cut = || client.try_read_response().is_none();
        if stalls { gateway.assert_times_out(IDLE_TIMEOUT, is_cut) } else { is_cut() }
    });
    (cut.count(), gateway.metric("tidegate_target_ejections_total"))
}

fn stalling_after(response: &'static str) -> Upstream {
    Upstream::with_handler(move |_, socket| {
        let _ = socket.write_all(response.as_bytes());
        read_until_closed(socket);
        false
    })
}

#[test]
fn a_target_that_stalls_within_a_declared_length_is_ejected() {
    let stalling = stalling_after("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
    assert_eq!(count_stalled(&stalling), (5, 1));
}

/// A stream may be silent for a reason.
#[test]
fn a_target_that_stalls_within_chunks_is_not_ejected() {
    let stalling =
        stalling_after("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n");
    assert_eq!(count_stalled(&stalling), (8, 0));
}

#[test]
fn a_silent_target_is_ejected_by_the_timeout_of_its_requests() {
    const REQUEST_TIMEOUT: Duration = Duration::from_millis(200);
    let (silent, working) = (Upstream::silent(), Upstream::hello());
    let gateway = Gateway::start_at(
        &fill(
            "
            workers: 1
            upstreams: {origin: {targets: ['{silent}', '{working}'], balance: round_robin}}
            routes: [{name: all, upstream: origin, request_timeout: 200ms}]
            ",
            [("silent", silent.target()), ("working", working.target())],
        ),
        Clock::simulated(START),
    );
    let mut timeouts = 0;
    for _ in 0..10 {
        let mut client = Client::connect(gateway.address());
        let is_silent = is_sent_to_first(
            || silent.connections(),
            &working,
            || {
                client.send(GET);
            },
        );
        if is_silent {
            gateway.assert_times_out(REQUEST_TIMEOUT, || {
                assert_eq!(client.read_response().status, 504);
            });
            timeouts += 1;
        } else {
            assert_eq!(client.read_response().status, 200);
        }
    }
    assert_eq!(timeouts, 5);
    assert_eq!(gateway.metric("tidegate_target_ejections_total"), 1);
    // The clock stands: the silent target gets none of them.
    for _ in 0..10 {
        assert_eq!(get(gateway.address(), "/", "").status, 200);
    }
}

#[test]
fn an_ejection_outlives_a_reload() {
    let (working, refusing) = (Upstream::hello(), refusing());
    let with_retries = fill(
        "
        upstreams: {origin: {targets: ['{refusing}', '{working}'], balance: round_robin}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("refusing", &refusing), ("working", &working.target())],
    );
    let without_retries = fill(
        "
        upstreams: {origin: {targets: ['{refusing}', '{working}'], balance: round_robin, retries: 0}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("refusing", &refusing), ("working", &working.target())],
    );
    let without_the_target = fill(
        "
        upstreams: {origin: {targets: ['{working}']}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("working", working.target())],
    );
    let gateway = Gateway::start(&with_retries);
    for _ in 0..8 {
        assert_eq!(get(gateway.address(), "/", "").status, 200);
    }
    assert_eq!(gateway.metric("tidegate_target_ejections_total"), 1);
    gateway.reload(&without_retries).expect("it succeeds");
    for _ in 0..20 {
        assert_eq!(get(gateway.address(), "/", "").status, 200, "it is not tried again");
    }
    assert_eq!(gateway.metric("tidegate_target_healthy"), 1);
    // Its metrics end with it.
    gateway.reload(&without_the_target).expect("it succeeds");
    assert_eq!(gateway.metric("tidegate_target_ejections_total"), 0);
}

/// Fails every `fails_every`th request, within its body or before its head; answers the others with
/// their path.
fn echo_that_fails(fails_every: usize) -> Upstream {
    let count = AtomicUsize::new(1);
    Upstream::with_handler(move |request, socket| {
        let path = request.split(|byte| *byte == b' ').nth(1).unwrap_or_default().to_vec();
        let is_failing = count.fetch_add(1, Ordering::SeqCst).is_multiple_of(fails_every);
        let length = path.len() + usize::from(is_failing);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        let cut = if length.is_multiple_of(2) { &path[..0] } else { &path[..] };
        if is_failing && cut.is_empty() {
            return false;
        }
        let written = socket.write_all(&[head.as_bytes(), cut].concat()).is_ok();
        let rest = &path[cut.len()..];
        written && socket.write_all(rest).is_ok() && !is_failing
    })
}

#[test]
fn failing_targets_mix_no_bodies_and_leave_no_place_taken() {
    let (sound, poor, better) =
        (echo_that_fails(usize::MAX), echo_that_fails(3), echo_that_fails(7));
    let gateway = Gateway::start(&fill(
        "
        upstreams:
          origin:
            targets: ['{sound}', '{poor}', '{better}']
            max_requests: 3
            max_pending: 4
            ejection: {failures: 2, duration: 100ms}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
        ",
        [("sound", sound.target()), ("poor", poor.target()), ("better", better.target())],
    ));
    std::thread::scope(|scope| {
        for thread in 0..12 {
            let gateway = &gateway;
            scope.spawn(move || {
                for number in 0..60 {
                    let path = format!("/{thread}/{}", 10_usize.pow(number % 7));
                    let mut client = Client::connect(gateway.address());
                    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
                    if number % 9 == 0 {
                        continue;
                    }
                    // `None`: cut off, as the upstream's was.
                    let Some(response) = client.try_read_response() else { continue };
                    match response.status {
                        200 => assert_eq!(response.text(), path),
                        status => assert!(matches!(status, 502 | 503), "{status}"),
                    }
                }
            });
        }
    });
    gateway.wait_for_metric("tidegate_target_in_flight", 0);
    gateway.wait_for_metric("tidegate_upstream_pending", 0);
}
