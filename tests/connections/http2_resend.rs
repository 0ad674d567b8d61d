//! Requests end that HTTP/2 cannot carry, or that an HTTP/2 server refuses repeatedly.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

use testkit::{
    client::Client,
    gateway::Gateway,
    http2_frames::{END_HEADERS, END_STREAM, RawHttp2, frame, kind},
    http2_upstream::Http2Upstream,
    tls::{Authority, TlsUpstream},
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

/// A server that refuses the first stream, whose body it may have got, and answers the next one
/// with its body.
fn refusing_once(refuse: fn(&mut RawHttp2, u32)) -> Upstream {
    let is_first = AtomicBool::new(true);
    Upstream::on_connection(move |socket: &mut TcpStream| {
        let socket = socket.try_clone().expect("a socket");
        let Some(mut raw) = RawHttp2::accept(socket, &[]) else { return };
        let mut body = Vec::new();
        while let Some(frame) = raw.read_frame() {
            if frame.kind == kind::DATA {
                body.extend_from_slice(&frame.payload);
            }
            if !matches!(frame.kind, kind::HEADERS | kind::DATA) || frame.flags & END_STREAM == 0 {
                continue;
            }
            if is_first.swap(false, SeqCst) {
                refuse(&mut raw, frame.stream);
            } else {
                raw.frame(kind::HEADERS, END_HEADERS, frame.stream, &[0x88]);
                raw.frame(kind::DATA, END_STREAM, frame.stream, &body);
            }
            body.clear();
        }
    })
}

/// A gRPC call always has a body, which is read before the refusal arrives.
#[test]
fn a_body_that_is_at_hand_is_sent_again() {
    let refusals: [fn(&mut RawHttp2, u32); 2] = [
        |raw, stream| {
            raw.frame(kind::RST_STREAM, 0, stream, &7_u32.to_be_bytes());
        },
        |raw, _| {
            raw.frame(kind::GOAWAY, 0, 0, &[0; 8]);
        },
    ];
    for refuse in refusals {
        for framing in [
            "Content-Length: 5\r\n\r\nhello",
            "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        ] {
            let upstream = refusing_once(refuse);
            let gateway = start(&upstream.target());
            let mut client = Client::connect(gateway.address());
            client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}"));
            let response = client.read_response();
            assert_eq!((response.status, &*response.text()), (200, "hello"), "{framing:?}");
        }
    }
}

/// A server such as IIS with Windows authentication.
#[test]
fn a_server_that_requires_http1_gets_it() {
    // With a name of its own, or the one of each request.
    for name in ["app.test", "host"] {
        assert_gets_http1(name);
    }
}

/// Bytes of a body after which the server refuses it: more than the gateway keeps for a repetition.
const LONG_BODY: usize = 50_000;

/// A server that answers over HTTP/1.1, and refuses every request over HTTP/2: at its end, or
/// within a long body.
fn requiring_http1(authority: &Authority) -> TlsUpstream {
    let mut config = authority.issue(&["app.test"]).server();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsUpstream::start(config, |head, stream| {
        if !head.starts_with("PRI ") {
            let mut body = vec![0; 5 * usize::from(head.starts_with("POST"))];
            let is_read = stream.read_exact(&mut body).is_ok();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            return is_read && stream.write_all(&[head.as_bytes(), &body].concat()).is_ok();
        }
        let settings = frame(kind::SETTINGS, 0, 0, &[]);
        let (mut refused, mut received) = (0, 0);
        if stream.read_exact(&mut [0; 6]).is_err() || stream.write_all(&settings).is_err() {
            return false;
        }
        loop {
            let mut header = [0; 9];
            if stream.read_exact(&mut header).is_err() {
                return false;
            }
            let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
            let stream_id = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
            if stream.read_exact(&mut vec![0; length as usize]).is_err() {
                return false;
            }
            received += if header[3] == kind::DATA { length as usize } else { 0 };
            let ends =
                matches!(header[3], kind::HEADERS | kind::DATA) && header[4] & END_STREAM != 0;
            if (ends || received >= LONG_BODY) && stream_id > refused {
                refused = stream_id;
                // HTTP_1_1_REQUIRED
                let reset = frame(kind::RST_STREAM, 0, stream_id, &13_u32.to_be_bytes());
                if stream.write_all(&reset).is_err() {
                    return false;
                }
            }
        }
    })
}

/// A gateway in front of this server. `name` is the one that its certificate is verified for.
fn in_front_of(upstream: &TlsUpstream, authority: &Authority, name: &str) -> Gateway {
    let files = tempfile::tempdir().expect("a directory");
    let ca = authority.write(files.path(), "ca.pem");
    Gateway::start(&fill(
        "
        workers: 1
        upstreams: {app: {targets: ['https://{address}'], protocol: auto, tls: {ca: '{ca}', name: {name}}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: app}]
        ",
        [("address", upstream.address.to_string()), ("ca", ca.display().to_string()), ("name", name.to_owned())],
    ))
}

fn assert_gets_http1(name: &str) {
    let authority = Authority::new("ca");
    let upstream = requiring_http1(&authority);
    let gateway = in_front_of(&upstream, &authority, name);
    let mut client = Client::connect(gateway.address());
    client.send("POST / HTTP/1.1\r\nHost: app.test\r\nContent-Length: 5\r\n\r\nhello");
    let response = client.read_response();
    assert_eq!((response.status, &*response.text()), (200, "hello"));
    client.send("GET / HTTP/1.1\r\nHost: app.test\r\n\r\n");
    assert_eq!(client.read_response().status, 200);
    let asked = upstream.requests();
    assert_eq!(asked.iter().filter(|head| head.starts_with("PRI ")).count(), 1, "{asked:?}");
}

/// Such an upload cannot be repeated, but the requests after it need not be refused first.
#[test]
fn a_long_upload_tells_that_a_server_requires_http1() {
    let authority = Authority::new("ca");
    let upstream = requiring_http1(&authority);
    let gateway = in_front_of(&upstream, &authority, "app.test");
    let mut client = Client::connect(gateway.address());
    let head =
        format!("POST / HTTP/1.1\r\nHost: app.test\r\nContent-Length: {}\r\n\r\n", LONG_BODY * 2);
    client.send([head.into_bytes(), vec![b'a'; LONG_BODY * 2]].concat());
    assert_eq!(client.read_response().status, 502);
    let mut client = Client::connect(gateway.address());
    client.send("GET / HTTP/1.1\r\nHost: app.test\r\n\r\n");
    assert_eq!(client.read_response().status, 200);
    let asked = upstream.requests();
    assert_eq!(asked.iter().filter(|head| head.starts_with("PRI ")).count(), 1, "{asked:?}");
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
