//! The bounds of client connections, and how they end.

/// Timeouts.
pub(crate) mod deadlines;
/// What a request may contain.
mod requests;

use std::{
    net::TcpStream,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use testkit::{
    client::Client,
    gateway::Gateway,
    upstream::{Upstream, read_until_closed},
    wait::eventually,
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime};

fn start(upstream: &Upstream, yaml: &str) -> Gateway {
    start_at(upstream, yaml, Clock::system())
}

const ORIGIN: &str = "
upstreams:
  origin: {targets: [{target}]}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: origin}
";

fn start_at(upstream: &Upstream, yaml: &str, clock: Clock) -> Gateway {
    Gateway::start_at(&fill(yaml, [("target", upstream.target())]), clock)
}

#[test]
fn connections_are_bounded_exactly_over_all_workers() {
    for workers in [2, 4] {
        let rules = fill(
            "
            workers: {workers}
            http: {max_connections: 5}
            upstreams: {hello: {respond: {body: hello}}}
            routes: [{name: a, match: {path: /a}, upstream: hello}]
            ",
            [("workers", workers)],
        );
        // Idle connections would make room for waiting ones after a time.
        let start = StoreTime::from_unix_ms(1_700_000_000_000);
        let gateway = Gateway::start_at(&rules, Clock::simulated(start));
        let connect = |_| {
            let mut client = Client::connect(gateway.address());
            client.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
            client.socket.set_nonblocking(true).expect("a socket");
            client
        };
        let mut waiting: Vec<_> = (0..13).map(connect).collect();
        let mut served: Vec<Client> = Vec::new();
        let has_answer = |client: &Client| client.socket.peek(&mut [0]).is_ok();
        for left in [8, 7, 6, 5, 4, 3, 2, 1, 0] {
            eventually("all permitted connections are open", || {
                waiting.iter().filter(|client| has_answer(client)).count() + served.len() >= 5
            });
            // The gauge counts the five accepted connections, not those in the backlog.
            let (now, later): (Vec<_>, Vec<_>) = waiting.into_iter().partition(has_answer);
            served.extend(now);
            waiting = later;
            assert_eq!((served.len(), waiting.len()), (5, left), "{workers} workers");
            assert_eq!(gateway.metric("tidegate_connections "), 5);
            drop(served.pop());
        }
    }
}

#[test]
fn connections_above_the_limit_per_client_are_closed_and_counted() {
    let gateway = Gateway::start(
        "
        http: {max_connections_per_client: 3}
        upstreams: {hello: {respond: {body: hello}}}
        routes: [{name: a, match: {path: /a}, upstream: hello}]
        ",
    );
    let refused = || gateway.metric("tidegate_connections_refused_total");
    let mut all: Vec<_> = (0..3).map(|_| Client::connect(gateway.address())).collect();
    assert!(all.iter_mut().all(|client| client.get("/a", "").status == 200));
    for count in 1..=4 {
        assert!(Client::connect(gateway.address()).is_closed_or_reset());
        assert_eq!(refused(), count);
    }
    assert!(all.iter_mut().all(|client| client.get("/a", "").status == 200));
    drop(all.pop());
    gateway.wait_for_metric("tidegate_connections ", 2);
    all.push(Client::connect(gateway.address()));
    assert_eq!(all[2].get("/a", "").status, 200);
    // A trusted proxy carries many clients.
    let gateway = Gateway::start(
        "
        http: {max_connections_per_client: 3}
        client: {trusted_proxies: [127.0.0.0/8]}
        upstreams: {hello: {respond: {body: hello}}}
        routes: [{name: a, match: {path: /a}, upstream: hello}]
        ",
    );
    let mut all: Vec<_> = (0..9).map(|_| Client::connect(gateway.address())).collect();
    assert!(all.iter_mut().all(|client| client.get("/a", "").status == 200));
}

#[test]
fn the_last_request_of_a_connection_gets_connection_close() {
    let gateway = Gateway::start(
        "
        http: {max_requests_per_connection: 3}
        upstreams: {hello: {respond: {body: hello}}}
        routes: [{name: a, match: {path: /a}, upstream: hello}]
        ",
    );
    let mut client = Client::connect(gateway.address());
    client.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n".repeat(5));
    for closes in [None, None, Some("close")] {
        assert_eq!(client.read_response().header("connection"), closes);
    }
    assert!(client.is_closed_or_reset());
}

#[test]
fn a_head_begun_before_the_drain_is_answered() {
    let gateway = Arc::new(Gateway::start(
        "
        drain_timeout: 20s
        upstreams: {hello: {respond: {body: hello}}}
        routes: [{name: a, match: {path: /a}, upstream: hello}]
        ",
    ));
    let mut client = Client::connect(gateway.address());
    client.send("GET /a HTTP/1.1\r\nHo");
    gateway.wait_for_metric("tidegate_connections ", 1);
    let stopping = thread::spawn({
        let gateway = gateway.clone();
        move || gateway.stop()
    });
    eventually("the listener is closed", || TcpStream::connect(gateway.address()).is_err());
    client.send("st: a\r\n\r\n");
    let response = client.read_response();
    assert_eq!((response.status, response.header("connection")), (200, Some("close")));
    assert!(client.is_closed());
    stopping.join().expect("it stops");
}

#[test]
fn a_slow_sender_receives_its_refusal() {
    let upstream = Upstream::hello();
    let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
    let gateway = start_at(
        &upstream,
        "
        upstreams:
          origin: {targets: [{target}]}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, max_body: 1KiB}
        ",
        clock.clone(),
    );
    let mut client = Client::connect(gateway.address());
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n");
    // More than the sockets' buffers hold, so that the clock is at most a few steps ahead of the
    // gateway's reads.
    let chunk = vec![b'x'; 1_000_000];
    for _ in 0..50 {
        client.send(&chunk);
        clock.advance(Duration::from_millis(100));
    }
    assert_eq!(client.read_response().status, 413);
    assert!(client.is_closed(), "an orderly close");
}

#[test]
fn a_disconnect_is_detected_behind_buffered_bytes() {
    let (notify, disconnected) = mpsc::channel();
    let notify = Mutex::new(notify);
    let upstream = Upstream::on_connection(move |socket| {
        read_until_closed(socket);
        let _ = notify.lock().expect("not poisoned").send(());
    });
    let gateway = start(&upstream, ORIGIN);
    for behind in ["", "GET /next HTTP/1.1\r\nHost: a\r\n\r\n", "GET /ne"] {
        let connections = upstream.connections();
        let mut client = Client::connect(gateway.address());
        client.send(format!("GET / HTTP/1.1\r\nHost: a\r\n\r\n{behind}"));
        eventually("the request is at the upstream", || upstream.connections() > connections);
        if !behind.is_empty() {
            // Also for bytes that arrive after the request was forwarded.
            client.send(behind);
        }
        drop(client);
        disconnected
            .recv_timeout(Duration::from_secs(5))
            .expect("the upstream connection is closed");
    }
    gateway.wait_for_metric("tidegate_connections ", 0);
}
