//! Timeouts that are off, that are long enough, and that end a request.

use std::{
    io::{Read, Write},
    sync::{Mutex, mpsc},
    thread,
    time::Duration,
};

use testkit::{
    client::{Client, get},
    gateway::Gateway,
    upstream::{Upstream, read_until_closed},
    wait::{sleep, timed},
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime};

use super::{start, start_at};

#[test]
fn disabled_timeouts_never_fire() {
    let upstream = Upstream::with_handler(|_, socket| {
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nh");
        read_until_closed(socket) == 0
    });
    let bounded = start(
        &upstream,
        "
        http: {head_timeout: 300ms, idle_timeout: 300ms, body_timeout: 300ms}
        upstreams:
          origin: {targets: [{target}]}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, response_idle_timeout: 300ms}
        ",
    );
    let endless = start(
        &upstream,
        "
        http: {head_timeout: off, idle_timeout: off, body_timeout: off}
        upstreams:
          origin: {targets: [{target}]}
        routes:
          - name: all
            match: {path: '/{*rest}'}
            upstream: origin
            response_idle_timeout: off
            request_timeout: off
        ",
    );
    let open = |gateway: &Gateway| {
        [
            "",
            "GET / HT",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n1",
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        ]
        .map(|sent| {
            let mut client = Client::connect(gateway.address());
            client.send(sent);
            client
        })
    };
    let mut on_endless = open(&endless);
    // When the bounded connections have ended, the endless ones have waited at least as long.
    for mut client in open(&bounded) {
        let _ = client.read_to_end();
    }
    for client in &mut on_endless {
        client.socket.set_read_timeout(Some(Duration::from_millis(1))).expect("a timeout");
        let mut buffer = [0; 4096];
        let end = loop {
            match client.socket.read(&mut buffer) {
                Ok(0) => break None,
                Ok(_) => {}
                Err(error) => break Some(error.kind()),
            }
        };
        let waits = [std::io::ErrorKind::WouldBlock, std::io::ErrorKind::TimedOut];
        assert!(end.is_some_and(|kind| waits.contains(&kind)), "{end:?}");
    }
}

#[test]
fn event_streams_may_outlast_the_request_timeout() {
    const EVENT: &[u8] = b"9\r\ndata: x\n\n\r\n";
    let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
    let (next, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let upstream = Upstream::with_handler(move |_, socket| {
        let _ = socket.write_all(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
        );
        let wait = wait.lock().expect("not poisoned");
        (0..12).all(|_| wait.recv().is_ok() && socket.write_all(EVENT).is_ok())
            && socket.write_all(b"0\r\n\r\n").is_ok()
    });
    let gateway = start_at(
        &upstream,
        "
        upstreams:
          origin: {targets: [{target}]}
        routes:
          - name: all
            match: {path: '/{*rest}'}
            upstream: origin
            request_timeout: 300ms
            response_idle_timeout: 900ms
        ",
        clock.clone(),
    );
    let mut client = Client::connect(gateway.address());
    client.send("GET / HTTP/1.1\r\nHost: gateway.test\r\n\r\n");
    assert_eq!(client.read_head().expect("a head").0, 200);
    for _ in 0..12 {
        clock.advance(Duration::from_millis(100));
        next.send(()).expect("the upstream waits");
        assert_eq!(client.read_exact(EVENT.len()).expect("an event"), EVENT);
    }
    assert_eq!(client.read_exact(5).expect("the end"), b"0\r\n\r\n");
    assert!(
        clock.uptime().as_duration() > Duration::from_secs(1),
        "longer than the request timeout"
    );
}

#[test]
fn a_stalled_response_is_cut() {
    let upstream = Upstream::with_handler(|_, socket| {
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
        read_until_closed(socket) == 0
    });
    let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
    let gateway = start_at(
        &upstream,
        "
        upstreams:
          origin: {targets: [{target}]}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, response_idle_timeout: 300ms}
        ",
        clock,
    );
    let mut client = Client::connect(gateway.address());
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.read_head().expect("a head").0, 200);
    let rest = gateway.assert_times_out(Duration::from_millis(300), || client.read_to_end());
    assert!(rest.is_err() || rest.is_ok_and(|rest| rest == b"hello"));
}

/// The URL of a listener with a full backlog, where connects time out, and the sockets that fill
/// it.
pub(crate) fn start_unreachable() -> (String, Vec<socket2::Socket>) {
    use socket2::{Domain, Socket, Type};
    let socket = || Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let listener = socket();
    listener.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    listener.listen(0).expect("a listener");
    let address = listener.local_addr().expect("an address");
    let mut sockets = vec![listener];
    for _ in 0..4 {
        let filling = socket();
        filling.set_nonblocking(true).expect("a socket");
        let _ = filling.connect(&address);
        sockets.push(filling);
    }
    let port = address.as_socket().expect("an address").port();
    (format!("http://127.0.0.1:{port}"), sockets)
}

#[test]
fn connects_and_retries_count_towards_the_request_timeout() {
    let (unreachable, _sockets) = start_unreachable();
    let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
    let upstream_clock = clock.clone();
    // Each attempt takes 600 ms of the gateway's clock, fails, and may be retried.
    let closing = Upstream::on_connection(move |socket| {
        let _ = socket.read(&mut [0; 4096]);
        let end = upstream_clock.uptime() + Duration::from_millis(600);
        while upstream_clock.uptime() < end {
            sleep(Duration::from_millis(1));
        }
    });
    for (yaml, target) in [
        (
            "
            upstreams: {origin: {targets: ['{target}'], connect_timeout: 30s}}
            routes: [{name: a, match: {path: /a}, upstream: origin, request_timeout: 1s}]
            ",
            unreachable,
        ),
        (
            "
            upstreams: {origin: {targets: ['{target}'], retries: 10}}
            routes: [{name: a, match: {path: /a}, upstream: origin, request_timeout: 1s}]
            ",
            closing.target(),
        ),
    ] {
        let gateway = Gateway::start_at(&fill(yaml, [("target", &target)]), clock.clone());
        let mut client = Client::connect(gateway.address());
        client.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
        let response = gateway.assert_times_out(Duration::from_secs(1), || client.read_response());
        assert_eq!(response.status, 504, "{target}");
    }
    // Ends the last attempt.
    clock.advance(Duration::from_secs(1));
}

#[test]
fn a_slow_body_past_the_request_timeout_is_a_client_error() {
    let upstream = Upstream::hello();
    let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
    let gateway = start_at(
        &upstream,
        "
        upstreams:
          origin: {targets: [{target}]}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, request_timeout: 1s}
        ",
        clock,
    );
    let mut client = Client::connect(gateway.address());
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
    let mut writer = client.socket.try_clone().expect("a socket");
    let trickling = thread::spawn(move || {
        while writer.write_all(b"x").is_ok() {
            sleep(Duration::from_millis(20));
        }
    });
    let response = gateway.assert_times_out(Duration::from_secs(1), || client.read_response());
    assert_eq!(response.status, 408);
    drop(client.socket.shutdown(std::net::Shutdown::Both));
    trickling.join().expect("it only writes");
    assert_eq!(gateway.metric("tidegate_upstream_failures_total{upstream=\"origin\""), 0);
}

#[test]
fn only_the_first_request_waits_for_an_unreachable_server() {
    let (unreachable, _sockets) = start_unreachable();
    for bad in [unreachable.as_str(), "http://127.0.0.1:1"] {
        let good = Upstream::hello();
        let gateway = Gateway::start(&fill(
            "
            workers: 1
            upstreams: {origin: {targets: ['{bad}', '{good}'], connect_timeout: 1s}}
            routes: [{name: a, match: {path: /a}, upstream: origin}]
            ",
            [("bad", bad), ("good", &good.target())],
        ));
        let mut slow = 0;
        for _ in 0..20 {
            let (response, took) = timed(|| get(gateway.address(), "/a", ""));
            assert_eq!(response.status, 200);
            slow += usize::from(took > Duration::from_millis(800));
        }
        assert!(slow <= 1, "{bad}: {slow} requests waited for it");
        let retries = gateway.metric("tidegate_upstream_retries_total{upstream=\"origin\"");
        assert_eq!(retries, 1, "{bad}: the retry is counted");
    }
}
