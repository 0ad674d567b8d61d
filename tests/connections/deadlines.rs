//! Timeouts of clients: of heads, bodies, idle connections and readers. All on a simulated clock.

use std::{
    io::{Read, Write},
    net::TcpListener,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use testkit::{
    client::Client,
    gateway::Gateway,
    protocol::{AnyClient, on_every_protocol},
    upstream::{Upstream, read_until_closed},
    wait::{eventually, sleep, until_unchanged},
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime};

/// Timeouts of upstreams and of whole requests.
mod upstream;

/// The value of most timeouts.
const SECOND: Duration = Duration::from_secs(1);

fn start(yaml: &str) -> Gateway {
    Gateway::for_every_protocol_at(
        yaml,
        Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)),
    )
}

const HEAD_TIMEOUT: &str = "
http: {head_timeout: 1s}
upstreams: {hello: {respond: {body: hi}}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
";

#[test]
fn a_silent_connection_is_closed() {
    let gateway = start(HEAD_TIMEOUT);
    for bytes in ["", "\r\n\r\n"] {
        let mut client = Client::connect(gateway.address());
        client.send(bytes);
        gateway.assert_times_out(SECOND, || assert!(client.is_closed(), "{bytes:?}"));
    }
}

#[test]
fn a_slow_head_is_a_408() {
    let upstream = Upstream::hello();
    let gateway = start(&fill(
        "
        http: {head_timeout: 1s}
        upstreams:
          origin: {targets: [{target}]}
          hello: {respond: {body: hi}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
          - {name: hello, match: {path: /hello}, upstream: hello}
        ",
        [("target", upstream.target())],
    ));
    for (requests_before, bytes) in
        [(0, "GET / HTTP/1.1\r\nHo"), (0, "G"), (1, "GET / HTTP/1.1\r\nHost: a\r\n")]
    {
        let mut client = Client::connect(gateway.address());
        for _ in 0..requests_before {
            assert_eq!(client.get("/hello", "").status, 200);
        }
        client.send(bytes);
        let response = gateway.assert_times_out(SECOND, || client.read_response());
        assert_eq!(response.status, 408);
        assert_eq!(response.header("connection"), Some("close"));
        assert_eq!(response.json()["title"], "Request Timeout");
        assert!(client.is_closed());
    }
    assert_eq!(upstream.received_bytes(), b"");
}

#[test]
fn a_head_in_single_bytes_is_a_408() {
    let gateway = start(HEAD_TIMEOUT);
    let mut client = Client::connect(gateway.address());
    client.send("GET / HTTP/1.1\r\nX: ");
    let response = gateway.assert_times_out(SECOND, || {
        client.socket.set_read_timeout(Some(Duration::from_millis(30))).expect("a timeout");
        // Sends until a response or the end of the connection can be read.
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
        let gateway = start(&fill(
            "
            http: {body_timeout: 1s}
            upstreams:
              origin: {targets: [{target}], response_timeout: 30s}
              hello: {respond: {body: hi}}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: origin}
              - {name: hello, match: {path: /hello}, upstream: hello}
            ",
            [("target", upstream.target())],
        ));
        for length in ["Content-Length: 10\r\n", ""] {
            let mut client = protocol.connect(&gateway);
            client.start("POST", "/", length, true).send("12345", false);
            let response = gateway.assert_times_out(SECOND, || client.read_response());
            assert_eq!(response.status, 408);
            assert_eq!(response.json()["title"], "Request Timeout");
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

/// A gateway whose requests have a second.
fn start_with_a_second(upstream: &Upstream) -> Gateway {
    start(&fill(
        "
        upstreams: {origin: {targets: [{target}]}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin, request_timeout: 1s}]
        ",
        [("target", upstream.target())],
    ))
}

/// Sends `piece` 20 times, one each 150 ms of the gateway's clock.
fn send_slowly(gateway: &Gateway, client: &mut AnyClient, piece: &[u8]) -> bool {
    let length = 20 * piece.len();
    client.start("POST", "/", format!("Content-Length: {length}\r\n"), true);
    (1..=20).all(|number| {
        // Real time: the bytes are on their way to a worker's thread.
        sleep(Duration::from_millis(20));
        gateway.clock.advance(Duration::from_millis(150));
        client.try_send(piece, number == 20)
    })
}

#[test]
fn a_body_that_flows_is_not_late() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = start_with_a_second(&upstream);
        let mut client = protocol.connect(&gateway);
        assert!(send_slowly(&gateway, &mut client, &[b'x'; 1024]), "the upload is not ended");
        assert_eq!(client.read_response().status, 200);
    });
}

#[test]
fn a_body_that_trickles_is_late() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = start_with_a_second(&upstream);
        let mut client = protocol.connect(&gateway);
        send_slowly(&gateway, &mut client, b"x");
        assert_eq!(client.read_response().status, 408);
        assert_eq!(upstream.request_count(), 0);
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
            let mut received = Vec::new();
            let mut buffer = vec![0; 1 << 16];
            while !received.ends_with(b"END") {
                match socket.read(&mut buffer) {
                    Ok(count) if count > 0 => received.extend_from_slice(&buffer[..count]),
                    _ => return,
                }
            }
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            read_until_closed(socket);
        });
        let gateway = start(&fill(
            "
            http: {body_timeout: 900ms}
            upstreams: {origin: {targets: [{target}], response_timeout: 30s}}
            routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin, max_body: 100MiB}]
            ",
            [("target", upstream.target())],
        ));
        let mut client = protocol.connect(&gateway);
        let sent = AtomicUsize::new(0);
        thread::scope(|scope| {
            let status = scope.spawn(|| {
                let piece = vec![b'x'; 1 << 16];
                let length = 300 * piece.len() + 3;
                client.start("POST", "/", format!("Content-Length: {length}\r\n"), true);
                for _ in 0..300 {
                    client.send(&piece, false);
                    sent.fetch_add(1, SeqCst);
                }
                client.send("END", true).read_response().status
            });
            // The clock stands until the client waits for the gateway, and not the other way round.
            eventually("the upstream is connected", || upstream.connections() == 1);
            until_unchanged("the pieces that were sent", || sent.load(SeqCst));
            assert!(sent.load(SeqCst) < 300, "the body exceeds every buffer");
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
    let gateway = start(&fill(
        "
        http: {idle_timeout: 1s}
        upstreams:
          silent:
            targets: ['http://{silent}']
            response_timeout: 200ms
            ejection: {max_share: 0}
          hello: {respond: {body: hi}}
        routes:
          - {name: hello, match: {path: /hello}, upstream: hello}
          - {name: all, match: {path: '/{*rest}'}, upstream: silent}
        ",
        [("silent", silent.local_addr().expect("an address"))],
    ));
    on_every_protocol(|protocol| {
        let mut client = protocol.connect(&gateway);
        assert_eq!(client.get("/hello", "").status, 200);
        gateway.assert_times_out(SECOND, || assert!(client.is_closed(), "after a 200"));
        // The response comes after 200 ms; then the connection is idle.
        let mut client = protocol.connect(&gateway);
        client.start_get("/");
        gateway.assert_times_out(Duration::from_millis(200) + SECOND, || {
            assert_eq!(client.read_response().status, 504);
            assert!(client.is_closed(), "after a 504");
        });
    });
}

#[test]
fn idle_connections_make_room_for_waiting_ones() {
    let gateway = start(
        "
        http: {max_connections: 1, idle_timeout: off}
        upstreams: {hello: {respond: {body: hi}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
    );
    on_every_protocol(|protocol| {
        let mut idle = protocol.connect(&gateway);
        assert_eq!(idle.get("/", "").status, 200);
        let mut waiting = Client::connect(gateway.address());
        waiting.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        gateway.assert_times_out(5 * SECOND, || {
            assert_eq!(waiting.read_response().status, 200);
            assert!(idle.is_closed());
        });
        // Otherwise the gateway would wait for the client's end of the connection.
        drop(waiting);
        gateway.wait_for_metric("tidegate_connections ", 0);
    });
}

#[test]
fn slow_requests_within_the_timeouts_are_served() {
    let gateway = start(
        "
        http: {idle_timeout: 1500ms, head_timeout: 1500ms, body_timeout: 1500ms}
        upstreams: {hello: {respond: {body: hi}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
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
    on_every_protocol(|protocol| {
        let gateway = start(&fill(
            "
            http: {body_timeout: 300ms}
            upstreams: {origin: {targets: [{target}]}}
            routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
            ",
            [("target", upstream.target())],
        ));
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
