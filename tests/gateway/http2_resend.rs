//! Requests end that HTTP/2 cannot carry, or that an HTTP/2 server refuses repeatedly.

use std::{
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use testkit::{
    client::Client,
    gateway::Gateway,
    http2_frames::{END_HEADERS, END_STREAM, RawHttp2, kind},
    http2_upstream::Http2Upstream,
    upstream::Upstream,
    yaml::fill,
};

const ONE_SERVER: &str = "
listen: [{address: '127.0.0.1:0'}]
workers: 1
upstreams:
  origin:
    targets: [{target}]
    protocol: http2
    retries: 0
    balance: round_robin
    ejection: {max_share: 0}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: origin}
";

fn start(target: &str) -> Gateway {
    Gateway::start(&fill(ONE_SERVER, [("target", target)]))
}

/// A server that answers the first `answered` requests and refuses the others; counts them.
fn refusing(answered: usize, count: &Arc<AtomicUsize>) -> Upstream {
    let count = Arc::clone(count);
    Upstream::on_connection(move |socket: &mut TcpStream| {
        let socket = socket.try_clone().expect("a socket");
        let Some(mut raw) = RawHttp2::accept(socket, &[]) else { return };
        while let Some(request) = raw.read_until(kind::HEADERS) {
            if count.fetch_add(1, SeqCst) < answered {
                raw.frame(kind::HEADERS, END_HEADERS | END_STREAM, request.stream, &[0x88]);
            } else {
                // REFUSED_STREAM
                raw.frame(kind::RST_STREAM, 0, request.stream, &7_u32.to_be_bytes());
            }
        }
    })
}

#[test]
fn characters_that_the_library_refuses_are_percent_encoded() {
    let upstream = Http2Upstream::hello();
    let gateway = start(&upstream.target());
    let mut client = Client::connect(gateway.address());
    for (target, sent) in [("/first", "/first"), ("/a`b`?`=1", "/a%60b%60?%60=1")] {
        assert_eq!(client.get(target, "").text(), "hello", "{target}");
        let text = upstream.request_texts().pop().expect("a request");
        assert!(text.starts_with(&format!("GET http://gateway.test{sent}\n")), "{text}");
    }
}

#[test]
fn a_target_that_is_too_long_for_http2_is_refused_once() {
    let upstream = Http2Upstream::hello();
    let gateway = Gateway::start(&fill(
        "
        listen: [{address: '127.0.0.1:0'}]
        workers: 1
        http: {max_head: 256KiB}
        upstreams:
          origin:
            targets: [{target}]
            protocol: http2
            retries: 0
            balance: round_robin
            ejection: {max_share: 0}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
        ",
        [("target", upstream.target())],
    ));
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.get("/", "").status, 200);
    assert_eq!(client.get(&format!("/{}", "a".repeat(70_000)), "").status, 414);
    assert_eq!(client.get("/", "").status, 200);
    assert_eq!((upstream.request_count(), upstream.connections()), (2, 1));
}

#[test]
fn a_server_that_refuses_everything_gets_a_request_three_times() {
    let count = Arc::new(AtomicUsize::new(0));
    let upstream = refusing(1, &count);
    let gateway = start(&upstream.target());
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.get("/", "").status, 200);
    for (method, requests) in [("GET", 4), ("POST", 7)] {
        client.send(format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(client.read_response().status, 502, "{method}");
        assert_eq!(count.load(SeqCst), requests, "{method}");
    }
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn a_server_may_end_a_connection_after_each_request() {
    let upstream = Upstream::on_connection(|socket: &mut TcpStream| {
        let socket = socket.try_clone().expect("a socket");
        let Some(mut raw) = RawHttp2::accept(socket, &[]) else { return };
        let Some(request) = raw.read_until(kind::HEADERS) else { return };
        raw.frame(kind::GOAWAY, 0, 0, &[request.stream.to_be_bytes(), [0; 4]].concat());
        raw.frame(kind::HEADERS, END_HEADERS | END_STREAM, request.stream, &[0x88]);
        while raw.read_frame().is_some() {}
    });
    let gateway = start(&upstream.target());
    // All at once: they share connections, each of which serves one request.
    let mut clients: Vec<Client> = (0..8).map(|_| Client::connect(gateway.address())).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.read_response().status, 200, "{number}");
    }
}

#[test]
fn a_refused_request_goes_to_another_server() {
    let (count, other_count) = (Arc::default(), Arc::default());
    let (upstream, other) = (refusing(1, &count), refusing(usize::MAX, &other_count));
    let gateway = Gateway::start(&fill(
        "
        listen: [{address: '127.0.0.1:0'}]
        workers: 1
        upstreams:
          origin:
            targets: [{target}, {other}]
            protocol: http2
            retries: 0
            balance: round_robin
            ejection: {max_share: 0}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
        ",
        [("target", upstream.target()), ("other", other.target())],
    ));
    let mut client = Client::connect(gateway.address());
    for n in 0..6 {
        client.send("POST / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.read_response().status, 200, "{n}");
    }
    assert_eq!((count.load(SeqCst), other_count.load(SeqCst)), (3, 5));
}
