//! HTTP/2 towards upstreams: requests and responses, and responses before the end of the request.

use std::{
    net::TcpStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use h2::server::Builder;
use http::HeaderMap;
use testkit::{
    client::Client,
    gateway::Gateway,
    http2_client::{Http2Client, request},
    http2_frames::{END_HEADERS, END_STREAM, Frame, RawHttp2, frame, kind},
    http2_upstream::Http2Upstream,
    upstream::Upstream,
    yaml::fill,
};
use tidegate::clock::Clock;

/// Servers that break off, do not speak HTTP/2, or flood.
mod hostile;
/// Streams and connections.
mod streams;

fn start(target: &str, yaml: &str) -> Gateway {
    start_at(Clock::system(), target, yaml)
}

const ORIGIN: &str = "
listen: [{address: '127.0.0.1:0', http2: true}]
workers: 1
upstreams:
  origin: {targets: [{target}], protocol: http2}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: origin, max_body: 100MiB}
";

const NO_RETRIES: &str = "
listen: [{address: '127.0.0.1:0', http2: true}]
workers: 1
upstreams:
  origin: {targets: [{target}], protocol: http2, retries: 0}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: origin, max_body: 100MiB}
";

const ONE_RETRY: &str = "
listen: [{address: '127.0.0.1:0', http2: true}]
workers: 1
upstreams:
  origin: {targets: [{target}], protocol: http2, retries: 1}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: origin, max_body: 100MiB}
";

fn start_at(clock: Clock, target: &str, yaml: &str) -> Gateway {
    Gateway::start_at(&fill(yaml, [("target", target)]), clock)
}

/// Ends a response on a stream.
type End = fn(&mut RawHttp2, u32);

/// A server whose frames are written by hand. `serve` gets each connection with its number, from 0.
fn raw_upstream(serve: impl Fn(&mut RawHttp2, usize) + Send + Sync + 'static) -> Upstream {
    let count = AtomicUsize::new(0);
    Upstream::on_connection(move |socket: &mut TcpStream| {
        let number = count.fetch_add(1, SeqCst);
        let socket = socket.try_clone().expect("a socket");
        if let Some(mut raw) = RawHttp2::accept(socket, &[]) {
            serve(&mut raw, number);
        }
    })
}

/// Reads frames until a request has arrived to its end; its stream.
fn read_request(raw: &mut RawHttp2) -> Option<u32> {
    loop {
        let Frame { kind, flags, stream, .. } = raw.read_frame()?;
        if matches!(kind, kind::HEADERS | kind::DATA) && flags & END_STREAM != 0 {
            return Some(stream);
        }
    }
}

/// Answers with 200 and `body`.
fn answer(raw: &mut RawHttp2, stream: u32, body: &[u8]) {
    raw.frame(kind::HEADERS, END_HEADERS, stream, &[0x88]);
    raw.frame(kind::DATA, END_STREAM, stream, body);
}

#[test]
fn a_request_reaches_the_upstream_as_http2() {
    let upstream = Http2Upstream::hello();
    let gateway = start(&upstream.target(), ORIGIN);
    let mut client = Client::connect(gateway.address());
    let response =
        client.get("/a//b?c=1", "X-Own: 1\r\nConnection: X-Hop\r\nX-Hop: 1\r\nTE: trailers\r\n");
    assert_eq!((response.status, response.text().as_str()), (200, "hello"));
    let text = upstream.request_texts()[0].clone();
    assert!(text.starts_with("GET http://gateway.test/a/b?c=1\n"), "{text}");
    for line in
        ["x-own: 1", "te: trailers", "x-forwarded-for: 127.0.0.1", "x-forwarded-host: gateway.test"]
    {
        assert!(text.contains(&format!("\n{line}\n")), "{line}: {text}");
    }
    for absent in ["x-hop", "connection", "\nhost:", "transfer-encoding"] {
        assert!(!text.contains(absent), "{absent}: {text}");
    }
    let response = client.get("/", "");
    assert!(!response.head.to_ascii_lowercase().contains(":status"), "{}", response.head);
}

#[test]
fn bodies_and_trailers_are_passed_in_both_directions() {
    let upstream = Http2Upstream::with_handler(Builder::new(), |mut exchange| async move {
        let Ok((body, trailers)) = exchange.read_body().await else { return };
        let trailer = trailers.and_then(|map| map.get("x-sum").cloned());
        let mut stream = exchange.start(200, &[("x-length", &body.len().to_string())]);
        let _ = stream.send_data(body.into(), false);
        let mut map = HeaderMap::new();
        map.insert("x-back", trailer.unwrap_or_else(|| "none".parse().expect("a value")));
        map.insert("content-length", "7".parse().expect("a value"));
        let _ = stream.send_trailers(map);
    });
    let gateway = start(&upstream.target(), ORIGIN);
    let mut http1 = Client::connect(gateway.address());
    http1.send(
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 9\r\n\
         Host: evil\r\n\r\n",
    );
    let (status, head) = http1.read_head().expect("a response");
    assert!(status == 200 && head.contains("x-length: 5\r\n"), "{head}");
    let (body, trailers) = http1.read_chunked().expect("a whole body");
    assert_eq!((&body[..], trailers.as_str()), (&b"hello"[..], "x-back: 9\r\n"));
    let mut http2 = Http2Client::connect(gateway.address());
    for length in [1, 100_000, 3_000_000] {
        let mut exchange = http2.start(request("POST", "/", ""), false).expect("a stream");
        let body = vec![b'x'; length];
        exchange.send(&body, false).expect("sent");
        exchange.send_trailers(&[("x-sum", "7")]).expect("sent");
        assert_eq!(exchange.finish().expect("a response").body.len(), length);
        assert_eq!(exchange.trailers.expect("trailers")["x-back"], "7");
    }
    for body in ["", "hello"] {
        let length = format!("Content-Length: {}\r\n", body.len());
        let mut exchange = http2.start(request("POST", "/", &length), false).expect("a stream");
        exchange.send(body.as_bytes(), false).expect("sent");
        exchange.send_trailers(&[("x-sum", "7")]).expect("sent");
        assert_eq!(exchange.finish().expect("a response").text(), body);
        assert_eq!(exchange.trailers.expect("trailers")["x-back"], "7", "{length}");
    }
}

/// Envoy resets a stream, and loses its response, if the response is complete before the request
/// is.
#[test]
fn the_end_of_a_body_is_sent_with_its_last_bytes() {
    const INITIAL_WINDOW_SIZE: u16 = 4;
    const WINDOW: u32 = 16 << 20;
    let flags = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&flags);
    let upstream = Upstream::on_connection(move |socket: &mut TcpStream| {
        let socket = socket.try_clone().expect("a socket");
        let Some(mut raw) = RawHttp2::accept(socket, &[(INITIAL_WINDOW_SIZE, WINDOW)]) else {
            return;
        };
        raw.frame(kind::WINDOW_UPDATE, 0, 0, &WINDOW.to_be_bytes());
        while let Some(Frame { kind, flags, stream, payload }) = raw.read_frame() {
            if kind == kind::DATA {
                seen.lock().expect("no panic").push((payload.len(), flags & END_STREAM != 0));
                if flags & END_STREAM != 0 {
                    answer(&mut raw, stream, b"");
                }
            }
        }
    });
    let gateway = start(&upstream.target(), ORIGIN);
    let mut client = Http2Client::connect(gateway.address());
    // The longer ones are read in several pieces, however the client sends them.
    for length in [1, 16_384, 30_000].into_iter().chain((0..20).map(|more| 300_000 + 9_000 * more))
    {
        let response = client.ask("POST", "/", "", &vec![7; length]);
        assert_eq!(response.status, 200, "{length}");
        let frames = std::mem::take(&mut *flags.lock().expect("no panic"));
        assert_eq!(frames.iter().map(|(length, _)| length).sum::<usize>(), length);
        let (last, ends) = frames[frames.len() - 1];
        assert!(last > 0 && ends, "{length}: {frames:?}");
    }
}

/// The library ends a connection at its 101st empty DATA frame, with all exchanges.
#[test]
fn empty_data_of_a_server_loses_no_response() {
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let upstream = raw_upstream(move |raw, number| {
        counted.fetch_max(number + 1, SeqCst);
        while let Some(stream) = read_request(raw) {
            raw.frame(kind::HEADERS, END_HEADERS, stream, &[0x88]);
            raw.frame(kind::DATA, 0, stream, b"").frame(kind::DATA, END_STREAM, stream, b"ok");
        }
    });
    let gateway = start(&upstream.target(), NO_RETRIES);
    let mut client = Http2Client::connect(gateway.address());
    for number in 0..300 {
        let response = client.ask("GET", "/", "", b"");
        assert_eq!((response.status, response.text().as_str()), (200, "ok"), "{number}");
    }
    assert!((6..8).contains(&connections.load(SeqCst)), "{connections:?}");
}

#[test]
fn responses_without_a_body_are_passed_on() {
    let upstream = Http2Upstream::with_handler(Builder::new(), |mut exchange| async move {
        let response = http::Response::builder();
        let response = match exchange.request.uri.path() {
            "/none" => response.status(204),
            "/same" => response.status(304).header("etag", "\"x\""),
            "/head" => response.header("content-length", "5"),
            _ => response,
        };
        let _ = exchange.respond.send_response(response.body(()).expect("valid"), true);
    });
    let gateway = start(&upstream.target(), ORIGIN);
    let mut client = Client::connect(gateway.address());
    for (path, status) in [("/none", 204), ("/same", 304)] {
        let response = client.get(path, "");
        assert_eq!((response.status, response.header("content-length")), (status, None), "{path}");
    }
    client.send("HEAD /head HTTP/1.1\r\nHost: a\r\n\r\n");
    let (status, head) = client.read_head().expect("a response");
    assert!(status == 200 && head.contains("content-length: 5\r\n"), "{head}");
    let response = client.get("/empty", "");
    assert_eq!((response.status, response.header("content-length")), (200, Some("0")));
}

#[test]
fn interim_responses_are_passed_on_but_never_a_101() {
    let upstream = Http2Upstream::with_handler(Builder::new(), |mut exchange| async move {
        let status = if exchange.request.uri.path() == "/hints" { 103 } else { 101 };
        let interim = http::Response::builder()
            .status(status)
            .header("link", "</a>")
            .header("content-length", "2");
        let _ = exchange.respond.send_informational(interim.body(()).expect("valid"));
        exchange.answer(200, "ok");
    });
    let gateway = start(&upstream.target(), ORIGIN);
    let mut client = Client::connect(gateway.address());
    let interim = client.get("/hints", "");
    assert_eq!((interim.status, interim.header("link")), (103, Some("</a>")));
    assert_eq!(interim.header("content-length"), None);
    assert_eq!(client.read_response().text(), "ok");
    let response = client.get("/switch", "");
    assert!(matches!(response.status, 200 | 502), "{}", response.head);
}

#[test]
fn an_early_response_is_whole() {
    // With the rest of the body unread, and after it the reset that RFC 9113, 8.1 has for it.
    for reset in [false, true] {
        let upstream =
            Http2Upstream::with_handler(Builder::new(), move |mut exchange| async move {
                if exchange.request.method == "GET" {
                    return exchange.answer(200, "hello");
                }
                let _ = exchange.body.data().await;
                exchange.answer(403, "no");
                // If it is dropped unread, the library resets the stream.
                if !reset {
                    while let Some(Ok(_)) = exchange.body.data().await {}
                }
            });
        let gateway = start(&upstream.target(), ORIGIN);
        let mut client = Http2Client::connect(gateway.address());
        let mut exchange = client.start(request("POST", "/", ""), false).expect("a stream");
        exchange.send(b"some", false).expect("sent");
        let response = exchange.finish().expect("a whole response");
        assert_eq!((response.status, response.text().as_str()), (403, "no"), "{reset}");
        assert_eq!(client.get("/", "").text(), "hello");
        let mut http1 = Client::connect(gateway.address());
        http1.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nsome");
        let response = http1.try_read_response().expect("a whole response");
        assert_eq!((response.status, response.text().as_str()), (403, "no"), "{reset}");
        assert_eq!(upstream.connections(), 1);
    }
}

#[test]
fn an_early_response_and_its_reset_may_arrive_together() {
    let upstream = raw_upstream(|raw, _| {
        while let Some(head) = raw.read_until(kind::HEADERS) {
            let mut bytes = frame(kind::HEADERS, END_HEADERS, head.stream, &[0x88]);
            bytes.extend(frame(kind::DATA, END_STREAM, head.stream, b"early"));
            bytes.extend(frame(kind::RST_STREAM, 0, head.stream, &[0; 4]));
            raw.send(bytes);
        }
    });
    let gateway = start(&upstream.target(), NO_RETRIES);
    let mut client = Client::connect(gateway.address());
    for _ in 0..3 {
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n1234");
        assert_eq!(client.read_response().text(), "early");
        client.send("5");
    }
    assert_eq!(upstream.connections(), 1);
}
