//! Places at a target of an upstream with bounds: one client that does not send or read keeps no other out.

use std::{io::Write, net::SocketAddr, sync::mpsc, thread, time::Duration};

use bytes::Bytes;
use h2::server::Builder;
use socket2::{Domain, Socket, Type};
use testkit::{
    client::Client,
    gateway::Gateway,
    http2_client::{Http2Client, Http2Exchange, request},
    http2_upstream::Http2Upstream,
    protocol::Protocol,
    upstream::{ResponseGate, Upstream},
    wait::{eventually, sleep},
};
use tidegate::clock::Clock;

use crate::observability::read_lines;

const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
/// Longer than all buffers between the target and a client that does not read.
const LONG: usize = 5 << 20;
const BUFFER: usize = 64 * 1024;
const ATTACKER: &str = "X-Forwarded-For: 192.0.2.1\r\n";
const OTHER: &str = "X-Forwarded-For: 192.0.2.2\r\n";
const PLACES: usize = 50;
const PROTOCOLS: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];
const BOUNDS: [&str; 3] = [
    "max_requests: 50",
    "adaptive_concurrency: {min: 50, max: 50}",
    "max_requests: 50, max_pending: 20",
];

fn long() -> Vec<u8> {
    vec![b'x'; LONG]
}

/// A target that answers `hello`, and on `/long` [`LONG`] bytes, in either version of HTTP.
enum Origin {
    Http1(Upstream),
    Http2(Http2Upstream),
}

impl Origin {
    fn start(protocol: Protocol) -> Self {
        if protocol.is_http2() {
            let upstream = Http2Upstream::with_handler(Builder::new(), |mut exchange| async move {
                if exchange.read_body().await.is_err() {
                    return;
                }
                if exchange.request.uri.path() == "/long" {
                    let mut body = exchange.start(200, &[]);
                    let _ = body.send_data(long().into(), true);
                } else {
                    exchange.answer(200, "hello");
                }
            });
            return Self::Http2(upstream);
        }
        Self::Http1(Upstream::with_handler(|request, socket| {
            if !request.starts_with(b"GET /long") {
                return socket.write_all(HELLO).is_ok();
            }
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LONG}\r\n\r\n");
            socket.write_all(head.as_bytes()).is_ok() && socket.write_all(&long()).is_ok()
        }))
    }

    fn upstream(&self) -> String {
        match self {
            Self::Http1(upstream) => format!("targets: ['{}']", upstream.target()),
            Self::Http2(upstream) => format!("protocol: http2, targets: ['{}']", upstream.target()),
        }
    }

    fn request_count(&self) -> usize {
        match self {
            Self::Http1(upstream) => upstream.request_count(),
            Self::Http2(upstream) => upstream.request_count(),
        }
    }
}

fn yaml(upstream: &str, bounds: &str, more: &str) -> String {
    format!(
        "client: {{trusted_proxies: [127.0.0.1/32]}}
{more}
upstreams: {{origin: {{{upstream}, {bounds}}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin}}]"
    )
}

fn start(origin: &Origin, bounds: &str) -> Gateway {
    Gateway::for_every_protocol(&yaml(&origin.upstream(), bounds, ""))
}

fn on_every_combination(test: impl Fn(Protocol, &Origin, &str)) {
    for client in PROTOCOLS {
        for upstream in PROTOCOLS {
            for bounds in BOUNDS {
                test(client, &Origin::start(upstream), bounds);
            }
        }
    }
}

/// Requests of one client that it neither completes nor reads the responses of.
#[derive(Default)]
struct Attack {
    http1: Vec<Client>,
    http2: Vec<(Http2Client, Vec<Http2Exchange>)>,
}

/// A socket with a small buffer: what is not read stays with the gateway.
fn connect_narrow(address: SocketAddr) -> Client {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a buffer");
    socket.connect(&address.into()).expect("a connection");
    Client::from_socket(socket.into())
}

impl Attack {
    /// Sixty requests, each with `headers` and the first bytes of its body.
    fn start(
        gateway: &Gateway,
        protocol: Protocol,
        request_line: &str,
        headers: &str,
        body: &[u8],
    ) -> Self {
        let headers = format!("{ATTACKER}{headers}");
        let (method, path) = request_line.split_once(' ').expect("a method and a path");
        let mut attack = Self::default();
        if protocol.is_http2() {
            let mut client = Http2Client::connect(protocol.address(gateway));
            let exchanges = (0..60).map(|_| {
                let ends = body.is_empty();
                let mut exchange =
                    client.start(request(method, path, &headers), ends).expect("a stream");
                for piece in body.chunks(16 * 1024) {
                    exchange.upload.reserve_capacity(piece.len());
                    exchange.upload.send_data(Bytes::copy_from_slice(piece), false).expect("sent");
                }
                exchange
            });
            let exchanges = exchanges.collect();
            attack.http2.push((client, exchanges));
            return attack;
        }
        for _ in 0..60 {
            let mut client = connect_narrow(protocol.address(gateway));
            client.send(format!("{method} {path} HTTP/1.1\r\nHost: gateway.test\r\n{headers}\r\n"));
            let _ = client.socket.write_all(body);
            attack.http1.push(client);
        }
        attack
    }
}

/// Another client's requests are all served.
fn assert_served(gateway: &Gateway, protocol: Protocol, what: &str) {
    let mut client = protocol.connect(gateway);
    for number in 0..50 {
        let response = client.get("/", OTHER);
        assert_eq!(response.status, 200, "request {number}, {what}: {}", response.text());
    }
    assert_eq!(client.ask("POST", "/", OTHER, "body").status, 200, "{what}");
}

fn paced(gateway: &Gateway) -> u64 {
    gateway.metric("tidegate_target_client_paced")
}

#[test]
fn unsent_bodies_take_no_place() {
    on_every_combination(|protocol, origin, bounds| {
        let gateway = start(origin, bounds);
        let attack = Attack::start(&gateway, protocol, "POST /", "Content-Length: 100\r\n", b"x");
        sleep(Duration::from_millis(50));
        assert_served(&gateway, protocol, bounds);
        assert_eq!((origin.request_count(), paced(&gateway)), (51, 0), "{bounds}");
        drop(attack);
    });
}

#[test]
fn bodies_of_unknown_length_that_pause_hold_a_share() {
    for upstream in PROTOCOLS {
        for protocol in PROTOCOLS {
            let origin = Origin::start(upstream);
            let gateway = start(&origin, "max_requests: 50");
            let (headers, body): (_, &[u8]) = if protocol.is_http2() {
                ("", b"x")
            } else {
                ("Transfer-Encoding: chunked\r\n", b"1\r\nx\r\n")
            };
            let attack = Attack::start(&gateway, protocol, "POST /", headers, body);
            assert_served(&gateway, protocol, "before the pause");
            gateway.wait_for_metric("tidegate_target_client_paced", PLACES as u64 / 2);
            assert_served(&gateway, protocol, "after the pause");
            assert_eq!(paced(&gateway), PLACES as u64 / 2);
            drop(attack);
            gateway.wait_for_metric("tidegate_target_client_paced", 0);
            gateway.wait_for_metric("tidegate_target_in_flight", 0);
        }
    }
}

#[test]
fn bodies_longer_than_the_buffer_hold_a_share() {
    on_every_combination(|protocol, origin, bounds| {
        let gateway = start(origin, bounds);
        let body = vec![b'x'; 2 * BUFFER];
        let headers = "Content-Length: 10000000\r\n";
        let attack = Attack::start(&gateway, protocol, "POST /", headers, &body);
        eventually("places are held", || paced(&gateway) > 0);
        assert_served(&gateway, protocol, bounds);
        assert!(paced(&gateway) <= PLACES as u64 / 2, "{bounds}: {}", paced(&gateway));
        drop(attack);
        gateway.wait_for_metric("tidegate_target_in_flight", 0);
    });
}

#[test]
fn unread_responses_hold_a_share() {
    on_every_combination(|protocol, origin, bounds| {
        let gateway = start(origin, bounds);
        let attack = Attack::start(&gateway, protocol, "GET /long", "", b"");
        eventually("places are held", || paced(&gateway) as usize > PLACES / 2);
        assert_served(&gateway, protocol, bounds);
        // What exceeds the share is cut after 2 s, even if no other request waits.
        eventually("the excess is cut", || paced(&gateway) as usize <= PLACES / 2);
        assert!(paced(&gateway) > 0, "the share stays");
        drop(attack);
        gateway.wait_for_metric("tidegate_target_in_flight", 0);
    });
}

#[test]
fn connections_are_places() {
    for protocol in PROTOCOLS {
        let origin = Origin::start(Protocol::Http1);
        let gateway = start(&origin, "max_connections: 50");
        for (request_line, headers, body, held) in [
            ("POST /", "Content-Length: 100\r\n", vec![b'x'], 0),
            ("POST /", "Content-Length: 10000000\r\n", vec![b'x'; 2 * BUFFER], PLACES / 2),
            ("GET /long", "", Vec::new(), PLACES / 2 + 1),
        ] {
            let attack = Attack::start(&gateway, protocol, request_line, headers, &body);
            eventually("places are held", || paced(&gateway) as usize >= held);
            assert_served(&gateway, protocol, request_line);
            drop(attack);
            gateway.wait_for_metric("tidegate_target_in_flight", 0);
        }
    }
}

/// Responses up to the buffer free their place, whatever the client's window is.
#[test]
fn a_response_that_fits_the_buffer_needs_no_reader() {
    static BODY: [u8; BUFFER - 1] = [b'y'; BUFFER - 1];
    let http1 = Upstream::with_handler(|_, socket| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", BODY.len());
        socket.write_all(head.as_bytes()).is_ok() && socket.write_all(&BODY).is_ok()
    });
    let http2 = Http2Upstream::with_handler(Builder::new(), |mut exchange| async move {
        let mut body = exchange.start(200, &[]);
        let _ = body.send_data(Bytes::from_static(&BODY), true);
    });
    for origin in [Origin::Http1(http1), Origin::Http2(http2)] {
        let gateway = start(&origin, "max_requests: 1");
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(100);
        let mut client = Http2Client::connect_with(gateway.address(), builder);
        let mut exchanges: Vec<_> = (0..5)
            .map(|_| {
                let mut exchange = client.start(request("GET", "/", ATTACKER), true).expect("sent");
                assert_eq!(exchange.head().expect("a head").status(), 200);
                gateway.wait_for_metric("tidegate_target_in_flight", 0);
                exchange
            })
            .collect();
        for exchange in &mut exchanges {
            let (body, _) = exchange.rest().expect("a whole body");
            assert!(body == BODY, "{} bytes", body.len());
        }
    }
}

/// What is read ahead is passed on unchanged: long bodies, trailers, compression.
#[test]
fn a_late_reader_gets_the_whole_response() {
    let piece = b"0123456789abcdef".repeat(2500);
    let sent = piece.clone();
    let upstream = Upstream::with_handler(move |_, socket| {
        let head =
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n";
        let mut written = socket.write_all(head.as_bytes()).is_ok();
        for _ in 0..20 {
            let chunk = [format!("{:x}\r\n", sent.len()).as_bytes(), &sent, b"\r\n"].concat();
            written = written && socket.write_all(&chunk).is_ok();
        }
        written && socket.write_all(b"0\r\nX-Sum: 7\r\n\r\n").is_ok()
    });
    let origin = Origin::Http1(upstream);
    for buffer in ["0B", "1KiB", "64KiB", "16MiB"] {
        let gateway = start(&origin, &format!("max_requests: 9, response_buffer: {buffer}"));
        let mut client = connect_narrow(gateway.address());
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(100);
        let mut http2 = Http2Client::connect_with(gateway.address(), builder);
        let mut exchange = http2.start(request("GET", "/", ""), true).expect("sent");
        sleep(Duration::from_millis(100));
        assert_eq!(client.read_head().expect("a head").0, 200);
        let read = client.read_chunked().expect("a whole body");
        assert!(read.0 == piece.repeat(20), "{buffer}: {} bytes", read.0.len());
        assert!(read.1.to_ascii_lowercase().contains("x-sum: 7"), "{buffer}: {}", read.1);
        exchange.head().expect("a head");
        let read = exchange.rest().expect("a whole body");
        assert!(read.0 == piece.repeat(20) && read.1.contains("x-sum: 7"), "{buffer}: {}", read.1);
        gateway.wait_for_metric("tidegate_target_in_flight", 0);
    }
}

#[test]
fn a_client_slower_than_the_rate_loses_its_place() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("access.log");
    let origin = Origin::start(Protocol::Http1);
    let more = format!("access_log: {}\nworkers: 1", file.display());
    let yaml = yaml(&origin.upstream(), "max_requests: 9, min_rate: 1KiB", &more);
    let yaml = yaml.replace("upstream: origin}", "upstream: origin, request_timeout: off}");
    let clock = Clock::simulated(1_700_000_000_000);
    let gateway = Gateway::for_every_protocol_at(&yaml, clock);
    let mut reader = connect_narrow(gateway.address());
    reader.send(format!("GET /long HTTP/1.1\r\nHost: a\r\n{ATTACKER}\r\n"));
    gateway.wait_for_metric("tidegate_target_client_paced", 1);
    let ((), time) = gateway.while_time_passes(|| {
        gateway.wait_for_metric("tidegate_target_client_slow_total", 1);
    });
    assert!(time >= Duration::from_secs(9), "{time:?}");
    let (lines, _) = gateway.while_time_passes(|| read_lines(&file, 1));
    assert!(lines.contains("client_slow"), "{lines}");
    let mut sender = Client::connect(gateway.address());
    sender.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n{ATTACKER}\r\n"));
    sender.send(vec![b'x'; 2 * BUFFER]);
    gateway.wait_for_metric("tidegate_target_client_paced", 1);
    let (status, time) = gateway.while_time_passes(|| sender.read_response().status);
    assert_eq!(status, 408);
    assert!(time >= Duration::from_secs(9) && time < Duration::from_secs(25), "{time:?}");
    assert_eq!(gateway.metric("tidegate_target_client_slow_total"), 2);
    gateway.wait_for_metric("tidegate_target_in_flight", 0);
    // The target is not at fault.
    assert_eq!(gateway.metric("tidegate_target_failures_total"), 0);
}

#[test]
fn a_long_upload_streams() {
    for bounds in ["max_requests: 2", "max_connections: 2", "retries: 1"] {
        let upstream = Upstream::hello();
        let target = format!("targets: ['{}']", upstream.target());
        let gateway = Gateway::start(&yaml(&target, bounds, ""));
        let mut client = Client::connect(gateway.address());
        let length = 40 * BUFFER;
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"));
        client.send(vec![b'x'; length / 2]);
        eventually("half of it arrives", || upstream.received_bytes().len() > length / 2);
        client.send(vec![b'x'; length / 2]);
        assert_eq!(client.read_response().status, 200);
        assert!(upstream.received_bytes().len() > length);
        // Without bounds nothing is held back.
        let begun = upstream.received_bytes().len();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na");
        if bounds.starts_with("retries") {
            eventually("it arrives", || upstream.received_bytes().ends_with(b"\r\n\r\na"));
        } else {
            sleep(Duration::from_millis(50));
            assert_eq!(upstream.received_bytes().len(), begun);
        }
        client.send("b");
        assert_eq!(client.read_response().status, 200);
    }
}

/// Bodies of every length around the buffer arrive as they were sent.
#[test]
fn buffered_bodies_arrive_unchanged() {
    for upstream in PROTOCOLS {
        let echo = Upstream::with_handler(|request, socket| {
            let at = request.windows(4).position(|end| end == b"\r\n\r\n").expect("a head") + 4;
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", request.len() - at);
            socket.write_all(&[head.as_bytes(), &request[at..]].concat()).is_ok()
        });
        let echo_http2 = Http2Upstream::with_handler(Builder::new(), |mut exchange| async move {
            if let Ok((body, _)) = exchange.read_body().await {
                let mut stream = exchange.start(200, &[]);
                let _ = stream.send_data(body.into(), true);
            }
        });
        let origin =
            if upstream.is_http2() { Origin::Http2(echo_http2) } else { Origin::Http1(echo) };
        for buffer in ["0B", "64KiB", "1MiB"] {
            let gateway = start(&origin, &format!("max_requests: 9, request_buffer: {buffer}"));
            for protocol in PROTOCOLS {
                let mut client = protocol.connect(&gateway);
                for length in [1, 1000, BUFFER - 1, BUFFER, BUFFER + 1, 3 * BUFFER] {
                    let body: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
                    let response = client.ask("POST", "/", "", &body);
                    assert_eq!(response.status, 200, "{protocol:?} {buffer} {length}");
                    assert!(response.body == body, "{protocol:?} {buffer} {length}");
                }
            }
        }
    }
}

#[test]
fn a_body_that_fails_while_it_is_buffered_does_not_touch_the_target() {
    let upstream = Upstream::hello();
    let target = format!("targets: ['{}']", upstream.target());
    let yaml = yaml(&target, "max_requests: 2", "workers: 1")
        .replace("upstream: origin}", "upstream: origin, max_body: 1KiB}");
    let clock = Clock::simulated(1_700_000_000_000);
    let gateway = Gateway::for_every_protocol_at(&yaml, clock);
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let long = format!("800\r\n{}\r\n0\r\n\r\n", "x".repeat(0x800));
    for (body, status) in [(&*long, 413), ("3\r\nabcX", 400), ("zz\r\n", 400)] {
        let mut client = Client::connect(gateway.address());
        client.send(chunked).send(body);
        assert_eq!(client.read_response().status, status, "{body}");
    }
    let mut late = Client::connect(gateway.address());
    late.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc");
    let (response, _) = gateway.while_time_passes(|| late.read_response().status);
    assert_eq!(response, 408);
    let mut gone = Client::connect(gateway.address());
    gone.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc");
    drop(gone);
    let mut http2 = Http2Client::connect(gateway.address());
    let mut reset = http2.start(request("POST", "/", ""), false).expect("sent");
    reset.send(b"abc", false).expect("sent");
    reset.reset();
    assert_eq!(http2.get("/", "").status, 200);
    assert_eq!(upstream.request_count(), 1);
    assert_eq!(gateway.metric("tidegate_target_requests_total"), 1);
}

#[test]
fn an_expected_continue_is_sent_before_the_place_is_taken() {
    for protocol in PROTOCOLS {
        let origin = Origin::start(Protocol::Http1);
        let gateway = start(&origin, "max_requests: 1");
        let mut client = protocol.connect(&gateway);
        client.start("POST", "/", "Expect: 100-continue\r\nContent-Length: 4\r\n", true);
        assert_eq!(client.read_interim().status, 100);
        assert_eq!(gateway.metric("tidegate_target_requests_total"), 0);
        client.send("body", true);
        assert_eq!(client.read_response().status, 200);
        assert_eq!(origin.request_count(), 1);
    }
}

/// The target answers before the end of the request.
fn conversation() -> Http2Upstream {
    Http2Upstream::with_handler(Builder::new(), |mut exchange| async move {
        let mut stream = exchange.start(200, &[("content-type", "application/grpc")]);
        while let Some(Ok(data)) = exchange.body.data().await {
            let _ = exchange.body.flow_control().release_capacity(data.len());
            let _ = stream.send_data(data, false);
        }
        let _ = stream.send_data(Bytes::new(), true);
    })
}

#[test]
fn streams_in_both_directions_work_within_the_share() {
    let origin = Origin::Http2(conversation());
    let gateway = start(&origin, "max_requests: 4");
    for headers in ["Content-Type: application/grpc\r\nTE: trailers\r\n", "Content-Type: a/b\r\n"] {
        let headers = format!("{ATTACKER}{headers}");
        let mut client = Http2Client::connect(gateway.address());
        let mut streams: Vec<_> = (0..2)
            .map(|_| {
                let mut stream = client.start(request("POST", "/", &headers), false).expect("sent");
                // The client waits for the head before it sends.
                assert_eq!(stream.head().expect("a head").status(), 200);
                stream.send(b"ping", false).expect("sent");
                assert_eq!(stream.read().expect("an echo").expect("data"), "ping");
                stream
            })
            .collect();
        assert_eq!(paced(&gateway), 2);
        assert_served(&gateway, Protocol::Http2, "beside two streams");
        if headers.contains("grpc") {
            let third = client.start(request("POST", "/", &headers), false).expect("sent").head();
            let third = third.expect("a head");
            assert_eq!(third.headers().get("grpc-status").expect("a status"), "14");
            let unary = client.ask(
                "POST",
                "/",
                &format!("{OTHER}Content-Type: application/grpc\r\n"),
                b"x",
            );
            assert_eq!((unary.status, unary.text().as_str()), (200, "x"));
        }
        for stream in &mut streams {
            stream.send(b"", true).expect("sent");
            assert!(stream.rest().expect("the end").0.is_empty());
        }
        gateway.wait_for_metric("tidegate_target_client_paced", 0);
        gateway.wait_for_metric("tidegate_target_in_flight", 0);
    }
}

#[test]
fn tunnels_are_held_within_the_share() {
    let upstream = Upstream::on_connection(|socket| {
        let answer =
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: own\r\n\r\n";
        let _ = socket.write_all(answer.as_bytes());
        testkit::upstream::read_until_closed(socket);
    });
    let target = format!("targets: ['{}']", upstream.target());
    let gateway = Gateway::start(&yaml(&target, "max_requests: 4", ""));
    let open = |client: &str| {
        let mut tunnel = Client::connect(gateway.address());
        tunnel.send(format!(
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: own\r\n{client}\r\n"
        ));
        let (status, _) = tunnel.read_head().expect("a head");
        (status, tunnel)
    };
    let tunnels = [open(ATTACKER), open(ATTACKER)];
    assert_eq!((tunnels[0].0, tunnels[1].0), (101, 101));
    assert_eq!(open(ATTACKER).0, 503);
    assert_eq!((open(OTHER).0, paced(&gateway)), (101, 3));
    drop(tunnels);
    gateway.wait_for_metric("tidegate_target_client_paced", 0);
}

#[test]
fn a_buffered_body_goes_to_the_next_target_after_a_failed_connect() {
    for upstream in PROTOCOLS {
        let (origin, dead) = (Origin::start(upstream), "'http://127.0.0.1:1'");
        let targets = origin.upstream().replace("targets: [", &format!("targets: [{dead}, "));
        let gateway = Gateway::start(&yaml(&targets, "max_requests: 9, balance: round_robin", ""));
        for _ in 0..4 {
            let mut client = Client::connect(gateway.address());
            client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbo");
            client.send("dy");
            assert_eq!(client.read_response().status, 200);
        }
        assert_eq!(origin.request_count(), 4);
    }
}

#[test]
fn no_client_fills_the_queue_of_those_that_wait() {
    let gate = ResponseGate::default();
    let waits = gate.clone();
    let upstream = Upstream::with_handler(move |_, socket| {
        waits.wait();
        socket.write_all(HELLO).is_ok()
    });
    let target = format!("targets: ['{}']", upstream.target());
    let gateway = Gateway::start(&yaml(&target, "max_requests: 1, max_pending: 4", ""));
    let send = |client: &str| {
        let mut sent = Client::connect(gateway.address());
        sent.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{client}\r\n"));
        sent
    };
    let mut first = send(ATTACKER);
    eventually("one is in flight", || upstream.request_count() == 1);
    let mut greedy: Vec<Client> = (1..=4)
        .map(|waiting| {
            let sent = send(ATTACKER);
            gateway.wait_for_metric("tidegate_upstream_pending", waiting);
            sent
        })
        .collect();
    let mut others = [send(OTHER), send(OTHER)];
    for displaced in &mut greedy[2..] {
        assert_eq!(displaced.read_response().status, 503);
    }
    gate.open();
    for served in greedy[..2].iter_mut().chain(&mut others).chain([&mut first]) {
        assert_eq!(served.read_response().status, 200);
    }
}

/// The attack and the requests begin at the same time.
#[test]
fn others_are_served_while_an_attack_begins() {
    for (protocol, upstream) in PROTOCOLS.into_iter().zip(PROTOCOLS.into_iter().rev()) {
        let origin = Origin::start(upstream);
        for bounds in ["max_requests: 50", "max_requests: 50, max_pending: 50"] {
            serve_while_an_attack_begins(&start(&origin, bounds), protocol);
        }
    }
}

fn serve_while_an_attack_begins(gateway: &Gateway, protocol: Protocol) {
    let (end, ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let _attack = Attack::start(gateway, protocol, "GET /long", "", b"");
            let _ = ended.recv();
        });
        let _end = end;
        let mut client = protocol.connect(gateway);
        let mut served = 0;
        // The attack may begin late.
        while served < 200 || paced(gateway) == 0 {
            let response = client.get("/", OTHER);
            assert_eq!(response.status, 200, "request {served}: {}", response.text());
            served += 1;
        }
        assert_served(gateway, protocol, "beside the attack");
    });
}

/// Downloads that end before the gateway waits for their client, again and again.
#[test]
fn a_loop_of_short_downloads_keeps_no_other_out() {
    for (protocol, bounds) in PROTOCOLS.into_iter().zip(["max_requests: 50", "max_connections: 50"])
    {
        let origin = Origin::start(Protocol::Http1);
        for bounds in ["max_requests: 50", bounds] {
            let gateway = start(&origin, bounds);
            let (end, ended) = mpsc::channel::<()>();
            thread::scope(|scope| {
                let attacked = &gateway;
                scope.spawn(move || {
                    let pause = Duration::from_millis(50);
                    let mut end = Err(mpsc::RecvTimeoutError::Timeout);
                    while end == Err(mpsc::RecvTimeoutError::Timeout) {
                        let _attack = Attack::start(attacked, protocol, "GET /long", "", b"");
                        end = ended.recv_timeout(pause);
                    }
                });
                let _end = end;
                let mut client = protocol.connect(&gateway);
                let served = (0..75).filter(|_| {
                    sleep(Duration::from_millis(20));
                    client.get("/", OTHER).status == 200
                });
                let served = served.count();
                assert_eq!(served, 75, "{protocol:?} {bounds}");
            });
        }
    }
}

/// Requests of the client that hold places at a target which does not answer yet.
fn hold(gateway: &Gateway, client: &str, count: usize) -> Vec<Client> {
    let before = gateway.metric("tidegate_target_in_flight");
    let held = (0..count).map(|_| {
        let mut held = Client::connect(gateway.address());
        held.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{client}\r\n"));
        held
    });
    let held = held.collect();
    gateway.wait_for_metric("tidegate_target_in_flight", before + count as u64);
    held
}

#[test]
fn others_wait_for_an_address_beyond_its_share() {
    let gate = ResponseGate::default();
    let waits = gate.clone();
    let upstream = Upstream::with_handler(move |_, socket| {
        waits.wait();
        socket.write_all(HELLO).is_ok()
    });
    let target = format!("targets: ['{}']", upstream.target());
    // While the clock stands, one that waits gets no response.
    let start = || {
        let clock = Clock::simulated(1_700_000_000_000);
        Gateway::for_every_protocol_at(&yaml(&target, "max_requests: 4", "workers: 1"), clock)
    };
    let third = "X-Forwarded-For: 192.0.2.3\r\n";
    let ask =
        |gateway: &Gateway, client| Client::connect(gateway.address()).get("/", client).status;
    let gateway = start();
    let _shares = (hold(&gateway, ATTACKER, 2), hold(&gateway, OTHER, 2));
    assert_eq!(ask(&gateway, third), 503, "no address is beyond its share");

    let gateway = start();
    let _greedy = hold(&gateway, ATTACKER, 4);
    assert_eq!(ask(&gateway, ATTACKER), 503, "it holds all");
    let mut other = Client::connect(gateway.address());
    other.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{OTHER}\r\n"));
    gateway.wait_for_metric("tidegate_upstream_pending", 1);
    let (status, time) = gateway.while_time_passes(|| other.read_response().status);
    assert_eq!(status, 503);
    assert!(time >= Duration::from_millis(250) && time < Duration::from_secs(1), "{time:?}");

    let mut others = [(OTHER, 1), (third, 2)].map(|(client, waiting)| {
        let mut other = Client::connect(gateway.address());
        other.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{client}\r\n"));
        gateway.wait_for_metric("tidegate_upstream_pending", waiting);
        other
    });
    assert_eq!(ask(&gateway, OTHER), 503, "two places are beyond the share");
    assert_eq!(ask(&gateway, ATTACKER), 503, "others wait");
    gate.open();
    for other in &mut others {
        assert_eq!(other.read_response().status, 200);
    }
}
