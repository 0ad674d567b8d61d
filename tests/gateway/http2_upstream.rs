use std::{
    net::TcpStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use h2::server::Builder;
use http::HeaderMap;
use testkit::{
    client::{Client, get},
    gateway::Gateway,
    http2_client::{Http2Client, request},
    http2_frames::{END_HEADERS, END_STREAM, Frame, RawHttp2, frame, kind},
    http2_upstream::Http2Upstream,
    upstream::Upstream,
    wait::eventually,
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime};

/// Servers that break off, do not speak HTTP/2, or flood.
mod hostile;

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
}

/// Envoy resets a stream, and loses its response, if the response is complete before the request is.
#[test]
fn the_end_of_a_body_is_sent_with_its_last_bytes() {
    let flags = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&flags);
    let upstream = raw_upstream(move |raw, _| {
        while let Some(Frame { kind, flags, stream, payload }) = raw.read_frame() {
            if kind == kind::DATA {
                seen.lock().expect("no panic").push((payload.len(), flags & END_STREAM != 0));
                if flags & END_STREAM != 0 {
                    answer(raw, stream, b"");
                }
            }
        }
    });
    let gateway = start(&upstream.target(), ORIGIN);
    let mut client = Http2Client::connect(gateway.address());
    for length in [1, 16_384, 40_000] {
        let response = client.ask("POST", "/", "", &vec![7; length]);
        assert_eq!(response.status, 200, "{length}");
        let frames = std::mem::take(&mut *flags.lock().expect("no panic"));
        assert_eq!(frames.iter().map(|(length, _)| length).sum::<usize>(), length);
        let (last, ends) = frames[frames.len() - 1];
        assert!(last > 0 && ends, "{length}: {frames:?}");
    }
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
fn requests_share_one_connection() {
    let (open, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, peak) = (open.clone(), most.clone());
    let upstream = Http2Upstream::with_handler(Builder::new(), move |mut exchange| {
        let (now, peak) = (now.clone(), peak.clone());
        async move {
            peak.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
            // Until all requests are here.
            while exchange.request.uri.path() == "/wait" && peak.load(SeqCst) < 30 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            exchange.answer(200, "hello");
        }
    });
    let gateway = start(&upstream.target(), ORIGIN);
    // They also connect at the same time.
    let clients: Vec<_> = (0..30)
        .map(|_| {
            let address = gateway.address();
            thread::spawn(move || get(address, "/wait", "").status)
        })
        .collect();
    for client in clients {
        assert_eq!(client.join().expect("no panic"), 200);
    }
    assert_eq!((upstream.connections(), most.load(SeqCst)), (1, 30));
}

#[test]
fn the_servers_bound_on_streams_is_respected() {
    let open = Arc::new(Mutex::new(Vec::new()));
    let seen = open.clone();
    let mut builder = Builder::new();
    builder.max_concurrent_streams(2);
    let upstream = Http2Upstream::with_handler(builder, move |mut exchange| {
        let seen = seen.clone();
        async move {
            seen.lock().expect("no panic").push(exchange.connection);
            while seen.lock().expect("no panic").len() < 7 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            exchange.answer(200, "hello");
        }
    });
    // No request waits behind one that is slow, and none is refused.
    let gateway = start(&upstream.target(), NO_RETRIES);
    let clients: Vec<_> = (0..7)
        .map(|_| {
            let address = gateway.address();
            thread::spawn(move || get(address, "/", "").status)
        })
        .collect();
    for client in clients {
        assert_eq!(client.join().expect("no panic"), 200);
    }
    let seen = open.lock().expect("no panic").clone();
    for connection in &seen {
        assert!(seen.iter().filter(|other| *other == connection).count() <= 2, "{seen:?}");
    }
}

#[test]
fn a_refused_stream_is_sent_again_and_the_connection_kept() {
    let upstream = raw_upstream(|raw, _| {
        let mut count = 0;
        while let Some(stream) = read_request(raw) {
            count += 1;
            if count % 2 == 1 {
                raw.frame(kind::RST_STREAM, 0, stream, &7_u32.to_be_bytes());
            } else {
                answer(raw, stream, b"hello");
            }
        }
    });
    let gateway = start(&upstream.target(), NO_RETRIES);
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.get("/", "").text(), "hello");
    // Safe for any method, while nothing of the body was read.
    client.send("POST / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.read_response().text(), "hello");
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn a_request_that_may_have_been_processed_is_not_sent_again() {
    let requests = Arc::new(AtomicUsize::new(0));
    let count = requests.clone();
    // INTERNAL_ERROR, CANCEL, and the end of the connection.
    for end in [Some(2_u32), Some(8), None] {
        let count = count.clone();
        let upstream = raw_upstream(move |raw, _| {
            while let Some(stream) = read_request(raw) {
                count.fetch_add(1, SeqCst);
                match end {
                    Some(code) => raw.frame(kind::RST_STREAM, 0, stream, &code.to_be_bytes()),
                    None => return,
                };
            }
        });
        let gateway = start(&upstream.target(), ONE_RETRY);
        let mut client = Client::connect(gateway.address());
        requests.store(0, SeqCst);
        for post in ["Content-Length: 2\r\n\r\nhi", "\r\n"] {
            client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{post}"));
            assert_eq!(client.read_response().status, 502, "{end:?}");
        }
        assert_eq!(requests.load(SeqCst), 2, "{end:?}");
        // A GET is.
        assert_eq!(client.get("/", "").status, 502);
        assert_eq!(requests.load(SeqCst), 4, "{end:?}");
    }
}

#[test]
fn a_goaway_loses_no_request() {
    // Answers two requests, and refuses what follows.
    let upstream = raw_upstream(|raw, _| {
        for _ in 0..2 {
            let Some(stream) = read_request(raw) else { return };
            answer(raw, stream, b"hello");
        }
        let Some(stream) = read_request(raw) else { return };
        let last = (stream - 2).to_be_bytes();
        raw.frame(kind::GOAWAY, 0, 0, &[last, [0; 4]].concat());
        while raw.read_frame().is_some() {}
    });
    let gateway = start(&upstream.target(), NO_RETRIES);
    let mut client = Client::connect(gateway.address());
    for n in 0..7 {
        client.send("POST / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.read_response().text(), "hello", "{n}");
    }
    assert_eq!(upstream.connections(), 4);
}

#[test]
fn a_connection_that_hangs_takes_no_further_requests() {
    let upstream = raw_upstream(|raw, number| {
        while let Some(stream) = read_request(raw) {
            if number > 0 {
                answer(raw, stream, b"hello");
            }
        }
    });
    let gateway = start_at(
        Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)),
        &upstream.target(),
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        workers: 1
        upstreams:
          origin: {targets: [{target}], protocol: http2, response_timeout: 1s, retries: 0}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, max_body: 100MiB}
        ",
    );
    let mut client = Client::connect(gateway.address());
    assert_eq!(gateway.while_time_passes(|| client.get("/", "").status).0, 504);
    assert_eq!(client.get("/", "").text(), "hello");
    assert_eq!(upstream.connections(), 2);
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

#[test]
fn idle_connections_are_closed_and_dead_ones_replaced() {
    let upstream = raw_upstream(|raw, _| {
        let Some(stream) = read_request(raw) else { return };
        answer(raw, stream, b"hello");
        // Closes after one response.
    });
    let gateway = start(&upstream.target(), ONE_RETRY);
    let mut client = Client::connect(gateway.address());
    for _ in 0..5 {
        assert_eq!(client.get("/", "").text(), "hello");
    }
    let upstream = Http2Upstream::hello();
    let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
    let gateway = start_at(
        clock,
        &upstream.target(),
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        workers: 1
        upstreams:
          origin: {targets: [{target}], protocol: http2, idle_timeout: 5s}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, max_body: 100MiB}
        ",
    );
    assert_eq!(get(gateway.address(), "/", "").text(), "hello");
    gateway.while_time_passes(|| {
        eventually("a new connection is opened", || {
            gateway.clock.advance(Duration::from_secs(1));
            let _ = get(gateway.address(), "/", "");
            testkit::wait::sleep(Duration::from_millis(5));
            gateway.clock.advance(Duration::from_secs(10));
            testkit::wait::sleep(Duration::from_millis(20));
            upstream.connections() > 1
        });
    });
}
