//! Places at a target of an upstream with bounds: a client that does not send or read cannot keep
//! others out.

use std::{io::Write, net::SocketAddr, sync::LazyLock, time::Duration};

use bytes::Bytes;
use h2::server::Builder;
use socket2::{Domain, Socket, Type};
use testkit::{
    client::Client,
    gateway::Gateway,
    http2_client::{Http2Client, Http2Exchange, request},
    http2_upstream::Http2Upstream,
    protocol::Protocol,
    upstream::Upstream,
    wait::{eventually, sleep},
    yaml::fill,
};

/// Buffered bodies arrive unchanged.
mod buffers;
/// Requests that wait for a place.
mod queue;
/// Streams in both directions, tunnels, and the minimum rate.
mod streams;

const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
/// Longer than all buffers between the target and a client that does not read.
const LONG: usize = 5 << 20;
const BUFFER: usize = 64 * 1024;
const ATTACKER: &str = "X-Forwarded-For: 192.0.2.1\r\n";
const OTHER: &str = "X-Forwarded-For: 192.0.2.2\r\n";
const PLACES: usize = 50;
const PROTOCOLS: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

static LONG_BODY: LazyLock<Bytes> = LazyLock::new(|| vec![b'x'; LONG].into());

/// A target that answers `hello`, and [`LONG`] bytes on `/long`, over HTTP/1.1 or HTTP/2.
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
                    let _ = body.send_data(LONG_BODY.clone(), true);
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
            socket.write_all(head.as_bytes()).is_ok() && socket.write_all(&LONG_BODY).is_ok()
        }))
    }

    /// The configuration `yaml` with this origin as `{target}`, and its `{protocol}`.
    fn fill(&self, yaml: &str) -> String {
        let (protocol, target) = match self {
            Self::Http1(upstream) => ("http1", upstream.target()),
            Self::Http2(upstream) => ("http2", upstream.target()),
        };
        fill(yaml, [("protocol", protocol), ("target", &target)])
    }

    fn request_count(&self) -> usize {
        match self {
            Self::Http1(upstream) => upstream.request_count(),
            Self::Http2(upstream) => upstream.request_count(),
        }
    }
}

fn start(origin: &Origin, yaml: &str) -> Gateway {
    Gateway::for_every_protocol(&origin.fill(yaml))
}

const MAX_REQUESTS: &str = "
client: {trusted_proxies: [127.0.0.1/32]}
upstreams: {origin: {protocol: {protocol}, targets: [{target}], connect_timeout: 10m, max_requests: 50}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
";

const ADAPTIVE_CONCURRENCY: &str = "
client: {trusted_proxies: [127.0.0.1/32]}
upstreams: {origin: {protocol: {protocol}, targets: [{target}], adaptive_concurrency: {min: 50, max: 50}}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
";

const MAX_PENDING: &str = "
client: {trusted_proxies: [127.0.0.1/32]}
upstreams: {origin: {protocol: {protocol}, targets: [{target}], max_requests: 50, max_pending: 20}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
";

const MAX_CONNECTIONS: &str = "
client: {trusted_proxies: [127.0.0.1/32]}
upstreams: {origin: {protocol: {protocol}, targets: [{target}], connect_timeout: 10m, max_connections: 50}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
";

/// Each bounds the requests at a target to [`PLACES`].
const BOUNDS: [&str; 3] = [MAX_REQUESTS, ADAPTIVE_CONCURRENCY, MAX_PENDING];

fn on_every_combination(test: impl Fn(Protocol, &Origin, &str)) {
    for client in PROTOCOLS {
        for upstream in PROTOCOLS {
            for bounds in BOUNDS {
                test(client, &Origin::start(upstream), bounds);
            }
        }
    }
}

/// Requests of one client, which it neither completes nor reads the responses to.
#[derive(Default)]
struct Attack {
    http1: Vec<Client>,
    http2: Vec<(Http2Client, Vec<Http2Exchange>)>,
}

/// A socket with a small buffer, so that unread bytes stay with the gateway.
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
            let gateway = start(&origin, MAX_REQUESTS);
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
        let gateway = start(&origin, MAX_CONNECTIONS);
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
