use std::{
    io::{Read, Write},
    net::TcpListener,
    sync::{Mutex, mpsc},
    thread,
    time::Duration,
};

use testkit::{
    client::Client,
    gateway::Gateway,
    protocol::{Protocol, on_every_protocol},
    upstream::{Upstream, read_until_closed},
    wait::{eventually, sleep},
};
use tidegate::clock::Clock;

/// The shortest permitted wait. Every measured timeout is 1 s of the gateway's clock, which the test
/// advances; it may start before the measurement, and workers check timeouts every 100 ms.
const MIN_WAIT: Duration = Duration::from_millis(500);

/// Below every default timeout, which is 10 s or more.
const MAX_WAIT: Duration = Duration::from_secs(9);

fn start(http: &str, upstream: &str, route: &str) -> Gateway {
    let yaml = format!(
        "http: {{{http}}}
upstreams:
  origin: {{{upstream}}}
  hello: {{respond: {{body: hi}}}}
routes:
  - {{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin{route}}}
  - {{name: hello, match: {{path: /hello}}, upstream: hello}}"
    );
    Gateway::for_every_protocol_at(&yaml, Clock::simulated(1_700_000_000_000))
}

/// Runs `act` and asserts that a timeout of about 1 s ended it.
fn assert_times_out<T>(gateway: &Gateway, act: impl FnOnce() -> T) -> T {
    let (value, took) = gateway.while_time_passes(act);
    assert!(took >= MIN_WAIT && took < MAX_WAIT, "{took:?}");
    value
}

#[test]
fn a_silent_connection_is_closed() {
    let gateway = start("head_timeout: 1s", "respond: {body: hi}", "");
    for bytes in ["", "\r\n\r\n"] {
        assert_times_out(&gateway, || {
            let mut client = Client::connect(gateway.address());
            assert!(client.send(bytes).is_closed(), "{bytes:?}");
        });
    }
}

#[test]
fn a_slow_head_is_a_408() {
    let upstream = Upstream::hello();
    let target = format!("targets: [{}]", upstream.target());
    let gateway = start("head_timeout: 1s", &target, "");
    for (before, bytes) in
        [(0, "GET / HTTP/1.1\r\nHo"), (0, "G"), (1, "GET / HTTP/1.1\r\nHost: a\r\n")]
    {
        let (mut client, response) = assert_times_out(&gateway, || {
            let mut client = Client::connect(gateway.address());
            for _ in 0..before {
                assert_eq!(client.get("/hello", "").status, 200);
            }
            let response = client.send(bytes).read_response();
            (client, response)
        });
        assert_eq!((response.status, response.header("connection")), (408, Some("close")));
        assert_eq!(response.json()["title"], "Request Timeout");
        assert!(client.is_closed());
    }
    assert_eq!(upstream.received_bytes(), b"");
}

#[test]
fn a_head_in_single_bytes_is_a_408() {
    let gateway = start("head_timeout: 1s", "respond: {body: hi}", "");
    let response = assert_times_out(&gateway, || {
        let mut client = Client::connect(gateway.address());
        client.send("GET / HTTP/1.1\r\nX: ");
        client.socket.set_read_timeout(Some(Duration::from_millis(30))).expect("a timeout");
        // Until a response or the end of the connection can be read.
        while client.socket.peek(&mut [0]).is_err() {
            let _ = client.socket.write_all(b"y");
        }
        client.socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        client.read_response()
    });
    assert_eq!(response.status, 408);
}

#[test]
fn a_stalled_body_is_a_408_and_no_upstream_failure() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let target = format!("targets: [{}], response_timeout: 30s", upstream.target());
        let gateway = start("body_timeout: 1s", &target, "");
        for length in ["Content-Length: 10\r\n", ""] {
            let (mut client, response) = assert_times_out(&gateway, || {
                let mut client = protocol.connect(&gateway);
                let response =
                    client.start("POST", "/", length, true).send("12345", false).read_response();
                (client, response)
            });
            assert_eq!(
                (response.status, &response.json()["title"]),
                (408, &"Request Timeout".into())
            );
            if protocol.is_http2() {
                assert_eq!(client.get("/hello", "").status, 200, "only the stream ends");
            } else {
                assert_eq!(response.header("connection"), Some("close"));
                assert!(client.is_closed_or_reset());
            }
        }
        assert_eq!(upstream.request_count(), 0);
        assert_eq!(gateway.metric("tidegate_upstream_failures_total{upstream=\"origin\""), 0);
    });
}

#[test]
fn a_slow_upstream_is_not_a_client_timeout() {
    on_every_protocol(|protocol| {
        // The upstream does not read for 2.5 s: the body exceeds every buffer on the way.
        let (read, may_read) = mpsc::channel::<()>();
        let may_read = Mutex::new(may_read);
        let upstream = Upstream::on_connection(move |socket| {
            let _ = may_read.lock().expect("no panic").recv();
            let (mut all, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
            while !all.ends_with(b"END") {
                match socket.read(&mut buffer) {
                    Ok(count) if count > 0 => all.extend_from_slice(&buffer[..count]),
                    _ => return,
                }
            }
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            read_until_closed(socket);
        });
        let target = format!("targets: [{}], response_timeout: 30s", upstream.target());
        let gateway = start("body_timeout: 900ms", &target, ", max_body: 100MiB");
        let mut client = protocol.connect(&gateway);
        let mut body = vec![b'x'; 20_000_000];
        body.extend(b"END");
        thread::scope(|scope| {
            let status = scope.spawn(move || {
                let length = body.len();
                client.start("POST", "/", format!("Content-Length: {length}\r\n"), true);
                client.send(&body, true).read_response().status
            });
            eventually("the upstream is connected", || upstream.connections() == 1);
            for _ in 0..25 {
                gateway.clock.advance(Duration::from_millis(100));
                sleep(Duration::from_millis(20));
            }
            read.send(()).expect("the upstream waits");
            assert_eq!(status.join().expect("no panic"), 200);
        });
    });
}

#[test]
fn idle_connections_are_closed() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let target = format!(
        "targets: ['http://{}'], response_timeout: 200ms, ejection: {{max_share: 0}}",
        silent.local_addr().expect("an address")
    );
    let gateway = start("idle_timeout: 1s", &target, "");
    on_every_protocol(|protocol| {
        for (path, status) in [("/hello", 200), ("//", 504)] {
            let mut client = protocol.connect(&gateway);
            assert_eq!(gateway.while_time_passes(|| client.get(path, "").status).0, status);
            assert_times_out(&gateway, || {
                assert_eq!(client.get(path, "").status, status);
                assert!(client.is_closed(), "after {status}");
            });
        }
    });
}

#[test]
fn slow_requests_within_the_timeouts_are_served() {
    let gateway = start(
        "idle_timeout: 1500ms, head_timeout: 1500ms, body_timeout: 1500ms",
        "respond: {body: hi}",
        "",
    );
    on_every_protocol(|protocol| {
        let mut client = protocol.connect(&gateway);
        // In total they take longer than the timeout.
        for _ in 0..10 {
            gateway.clock.advance(Duration::from_millis(200));
            client.start("POST", "/", "Content-Length: 2\r\n", true);
            gateway.clock.advance(Duration::from_millis(100));
            client.send("1", false);
            gateway.clock.advance(Duration::from_millis(100));
            client.send("2", true);
            assert_eq!(client.read_response().status, 200);
        }
    });
    let mut client = Client::connect(gateway.address());
    for _ in 0..6 {
        gateway.clock.advance(Duration::from_millis(200));
        client.send("POST / HTTP/1.1\r\nHost: a\r\n");
        gateway.clock.advance(Duration::from_millis(100));
        client.send("Content-Length: 2\r\n\r\n12");
        assert_eq!(client.read_response().status, 200);
    }
}

#[test]
fn a_stalled_reader_is_cut() {
    let upstream = Upstream::with_handler(|_, socket| {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n";
        socket.write_all(head.as_bytes()).is_ok()
            && (0..100).all(|_| socket.write_all(&vec![b'x'; 1_000_000]).is_ok())
    });
    let target = format!("targets: [{}]", upstream.target());
    on_every_protocol(|protocol| {
        let gateway = start("body_timeout: 300ms", &target, "");
        let mut client = protocol.connect(&gateway);
        assert_eq!(client.start_get("/").read_head().status, 200);
        gateway.while_time_passes(|| {
            if protocol.is_http2() {
                client.wait_reset();
            } else {
                gateway.wait_for_metric("tidegate_connections", 0);
            }
        });
        let rest = client.read_rest();
        assert!(rest.is_none_or(|rest| rest.len() < 100_000_000), "not complete");
    });
}

#[test]
fn an_upstream_that_never_answers_is_a_504() {
    let silent = Upstream::silent();
    let half = Upstream::on_connection(|socket| {
        let _ = socket.read(&mut [0; 4096]);
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-");
        read_until_closed(socket);
    });
    let interim = Upstream::on_connection(|socket| {
        let _ = socket.read(&mut [0; 4096]);
        let _ = socket.write_all(b"HTTP/1.1 103 Early Hints\r\n\r\n");
        read_until_closed(socket);
    });
    thread::scope(|scope| {
        for upstream in [silent, half, interim] {
            scope.spawn(move || {
                on_every_protocol(|protocol| assert_response_timeouts(&upstream, protocol));
            });
        }
    });
}

/// Sends two requests over one connection to an `upstream` that never responds.
fn assert_response_timeouts(upstream: &Upstream, protocol: Protocol) {
    let target = format!("targets: [{}], response_timeout: 1s", upstream.target());
    let gateway = start("", &target, "");
    let mut client = protocol.connect(&gateway);
    for (method, body) in [("GET", ""), ("POST", "hi")] {
        let response = assert_times_out(&gateway, || {
            let first = client.ask(method, "/", "", body);
            if first.status == 103 { client.read_response() } else { first }
        });
        assert_eq!(response.status, 504, "{}", response.text());
        assert_eq!(response.json()["title"], "Gateway Timeout");
    }
    assert_eq!(client.get("/hello", "").status, 200, "the connection is kept");
    let timeouts = "tidegate_upstream_failures_total{upstream=\"origin\",kind=\"timeout\"}";
    assert_eq!(gateway.metric(timeouts), 2);
}

#[test]
fn an_active_request_body_defers_the_response_timeout() {
    let upstream = Upstream::hello();
    let target = format!("targets: [{}], response_timeout: 1s", upstream.target());
    let gateway = start("", &target, "");
    on_every_protocol(|protocol| {
        let mut client = protocol.connect(&gateway);
        client.start("POST", "/", "Content-Length: 10\r\n", true);
        for sent in 1..=10 {
            gateway.clock.advance(Duration::from_millis(150));
            client.send("x", sent == 10);
        }
        assert_eq!(client.read_response().status, 200);
    });
}

#[test]
fn an_upstream_that_cannot_be_reached_is_a_502() {
    on_every_protocol(|protocol| {
        // A port on which nothing listens.
        let gateway = start("", "targets: ['http://127.0.0.1:1']", "");
        let mut client = protocol.connect(&gateway);
        let response = client.get("/", "");
        assert_eq!(
            (response.status, response.json()["title"].as_str()),
            (502, Some("Bad Gateway"))
        );
        assert!(!response.text().contains("127.0.0.1"), "{}", response.text());
        assert_eq!(client.get("/", "").status, 502);
        let failures = "tidegate_upstream_failures_total{upstream=\"origin\",kind=\"connect\"}";
        assert_eq!(gateway.metric(failures), 2);
        // One reachable server is enough.
        let upstream = Upstream::hello();
        let target = format!("targets: ['http://127.0.0.1:1', {}]", upstream.target());
        let gateway = start("", &target, "");
        for _ in 0..4 {
            assert_eq!(protocol.get(&gateway, "/", "").status, 200);
        }
    });
}

#[test]
fn the_request_timeout_covers_the_whole_request() {
    let silent = Upstream::silent();
    let target = format!("targets: [{}], response_timeout: 30s", silent.target());
    let gateway = start("", &target, ", request_timeout: 1s");
    let ask = |gateway: &Gateway, protocol: Protocol| {
        protocol.connect(gateway).start_get("/").try_read_response()
    };
    on_every_protocol(|protocol| {
        let response = assert_times_out(&gateway, || ask(&gateway, protocol));
        assert_eq!(response.map(|response| response.status), Some(504));
    });
    // Once the response has begun, only `response_body_timeout` applies, if it is set. The status is already
    // sent, so the response is truncated.
    let endless = Upstream::on_connection(|socket| {
        let _ = socket.read(&mut [0; 4096]);
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        while socket.write_all(b"1\r\nx\r\n").is_ok() {
            sleep(Duration::from_millis(1));
        }
    });
    let target = format!("targets: [{}]", endless.target());
    let gateway = start("", &target, ", request_timeout: 1s, response_body_timeout: 1s");
    on_every_protocol(|protocol| {
        assert!(assert_times_out(&gateway, || ask(&gateway, protocol)).is_none());
    });
    let mut client = Client::connect(gateway.address());
    client.send("GET / HTTP/1.0\r\nHost: a\r\n\r\n");
    assert!(
        gateway.while_time_passes(|| client.read_to_end()).0.is_err(),
        "an orderly close would look like the end of the response"
    );
}
