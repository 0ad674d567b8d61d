//! Bounds on reading ahead over HTTP/2, on heads, and on requests on a connection.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use h2::server;
use testkit::{
    gateway::Gateway,
    http2_client::{Http2Client, request},
    http2_frames::{END_HEADERS, Outcome, RawHttp2, block, kind, request as fields},
    http2_upstream::Http2Upstream,
    upstream::{ResponseGate, Upstream},
    wait::{eventually, sleep},
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime};

fn start(yaml: &str) -> Gateway {
    Gateway::start_at(yaml, Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)))
}

/// An HTTP/2 server with endless responses, and the number of bytes that it has sent.
fn endless() -> (Http2Upstream, Arc<AtomicUsize>) {
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = sent.clone();
    let upstream = Http2Upstream::with_handler(server::Builder::new(), move |mut exchange| {
        let counter = counter.clone();
        async move {
            if exchange.request.uri.path() == "/short" {
                return exchange.answer(200, "short");
            }
            let mut stream = exchange.start(200, &[]);
            loop {
                stream.reserve_capacity(16 * 1024);
                let ready = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
                let Some(Ok(allowed)) = ready else { return };
                counter.fetch_add(allowed, SeqCst);
                if stream.send_data(vec![b'x'; allowed].into(), false).is_err() {
                    return;
                }
            }
        }
    });
    (upstream, sent)
}

/// Waits until `counter` stands still. Returns its value.
fn settled(counter: &AtomicUsize) -> usize {
    let mut last = usize::MAX;
    eventually("nothing more is read ahead", || {
        sleep(Duration::from_millis(50));
        let now = counter.load(SeqCst);
        std::mem::replace(&mut last, now) == now
    });
    last
}

#[test]
fn little_is_read_ahead_for_a_reader_that_stalls() {
    let (upstream, sent) = endless();
    let gateway = Gateway::start(&fill(
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        workers: 1
        upstreams:
          origin: {targets: [{target}], protocol: http2}
          hello: {respond: {body: hi}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
          - {name: hello, match: {path: /hello}, upstream: hello}
        ",
        [("target", upstream.target())],
    ));
    let mut client = Http2Client::connect(gateway.address());
    let mut exchange = client.start(request("GET", "/", ""), true).expect("a stream");
    exchange.head().expect("a response");
    let ahead = settled(&sent);
    // The windows of both connections, the gateway's send buffer, and the bytes being moved.
    assert!(ahead > 0 && ahead <= 400 * 1024, "{ahead} bytes");
    while sent.load(SeqCst) < 4 << 20 {
        exchange.read().expect("the response goes on").expect("more");
    }
    // Other clients share the connection to the server, and are not blocked.
    let stalled: Vec<_> = (0..40)
        .map(|_| {
            let mut client = Http2Client::connect(gateway.address());
            let mut exchange = client.start(request("GET", "/", ""), true).expect("a stream");
            exchange.head().expect("a response");
            (client, exchange)
        })
        .collect();
    let ahead = settled(&sent) - (4 << 20);
    assert!(ahead <= 41 * 400 * 1024, "{ahead} bytes");
    assert_eq!(Http2Client::connect(gateway.address()).get("/short", "").text(), "short");
    assert_eq!(upstream.connections(), 1);
    drop(stalled);
}

#[test]
fn little_is_read_of_a_body_that_the_upstream_does_not_read() {
    let gate = ResponseGate::default();
    let (held, release) = (gate.clone(), gate);
    let upstream = Http2Upstream::with_handler(server::Builder::new(), move |mut exchange| {
        let held = held.clone();
        async move {
            // The body is not read until then.
            let waiting = tokio::task::spawn_blocking(move || held.wait());
            let _ = waiting.await;
            let length = exchange.read_body().await.map_or(0, |(body, _)| body.len());
            exchange.answer(200, if length == 4 << 20 { "whole" } else { "cut" });
        }
    });
    let gateway = Gateway::start(&fill(
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        workers: 1
        upstreams:
          origin: {targets: [{target}], protocol: http2}
          hello: {respond: {body: hi}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
          - {name: hello, match: {path: /hello}, upstream: hello}
        ",
        [("target", upstream.target())],
    ));
    let mut client = Http2Client::connect(gateway.address());
    let mut exchange = client.start(request("POST", "/", ""), false).expect("a stream");
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = sent.clone();
    let sending = thread::spawn(move || {
        for part in 0..64 {
            exchange.send(&vec![b'x'; 64 * 1024], part == 63).expect("sent in the end");
            counter.fetch_add(64 * 1024, SeqCst);
        }
        exchange.finish().expect("a response")
    });
    let ahead = settled(&sent);
    assert!(ahead <= 400 * 1024, "{ahead} bytes");
    release.open();
    assert_eq!(sending.join().expect("no panic").text(), "whole");
}

#[test]
fn a_connection_ends_after_its_last_request() {
    let gateway = Gateway::start(
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        http: {max_requests_per_connection: 3}
        upstreams: {hello: {respond: {body: hi}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
    );
    let mut client = Http2Client::connect(gateway.address());
    for _ in 0..3 {
        assert_eq!(client.get("/", "").status, 200);
    }
    client.wait_closed().expect("an orderly end");
    assert!(client.start(request("GET", "/", ""), true).is_err());
}

#[test]
fn a_client_that_ignores_a_goaway_is_refused_after_a_second() {
    let gateway = start(
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        workers: 1
        http: {max_requests_per_connection: 1}
        upstreams: {hello: {respond: {body: hi}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
    );
    let mut raw = RawHttp2::connect(gateway.address());
    raw.headers(1, &fields("GET", "/"), true);
    raw.read_until(kind::GOAWAY).expect("no further requests");
    // It may have been sent before the GOAWAY was read.
    raw.headers(3, &fields("GET", "/"), true);
    while raw.read_until(kind::HEADERS).expect("a response").stream != 3 {}
    gateway.while_time_passes(|| {
        let end = raw.read_until(kind::GOAWAY).expect("an orderly end").payload;
        assert_eq!(end[..8], [0, 0, 0, 3, 0, 0, 0, 0]);
    });
}

#[test]
fn a_busy_client_that_ignores_a_goaway_is_refused_after_a_second() {
    let upstream = Upstream::silent();
    let gateway = start(&fill(
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        workers: 1
        http: {max_requests_per_connection: 1}
        upstreams:
          origin: {targets: [{target}]}
          hello: {respond: {body: hi}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
          - {name: hello, match: {path: /hello}, upstream: hello}
        ",
        [("target", upstream.target())],
    ));
    let mut raw = RawHttp2::connect(gateway.address());
    raw.headers(1, &fields("GET", "/slow"), true);
    raw.read_until(kind::GOAWAY).expect("no further requests");
    gateway.clock.advance(Duration::from_millis(1100));
    eventually("a new stream is refused", || {
        let stream = 3 + 2 * gateway.clock.uptime().as_duration().as_millis() as u32;
        gateway.clock.advance(Duration::from_millis(20));
        raw.headers(stream, &fields("GET", "/hello"), true);
        raw.outcome(stream) == Outcome::Reset(7)
    });
}

#[test]
fn a_head_over_the_bounds_is_a_431() {
    let gateway = Gateway::start(
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        upstreams: {hello: {respond: {body: hi}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
    );
    for (count, length) in [(101, 1), (3, 12_000), (1, 33_000), (2000, 100)] {
        let mut raw = RawHttp2::connect(gateway.address());
        let mut head = fields("GET", "/");
        for n in 0..count {
            head.push((format!("x-{n}").into_bytes(), vec![b'v'; length]));
        }
        let bytes = block(&head);
        let mut parts = bytes.chunks(16_000).peekable();
        let mut first = true;
        while let Some(part) = parts.next() {
            let kind = if first { kind::HEADERS } else { kind::CONTINUATION };
            let end = if parts.peek().is_none() { END_HEADERS } else { 0 };
            raw.frame(kind, end | u8::from(first), 1, part);
            first = false;
        }
        let outcome = raw.outcome(1);
        // Far beyond the bounds, the connection ends.
        let is_far = bytes.len() > 100_000;
        assert!(
            outcome == Outcome::Status(431) || is_far && matches!(outcome, Outcome::GoAway(_)),
            "{count} {length}: {outcome:?}"
        );
    }
}

/// Sends the head of an upload with a field of 1,000,000 bytes. True if the gateway resets the
/// stream with `REFUSED_STREAM`.
fn is_refused(raw: &mut RawHttp2) -> bool {
    let mut head = fields("POST", "/");
    head.push((b"x-a".to_vec(), vec![b'v'; 1_000_000]));
    let bytes = block(&head);
    let parts: Vec<_> = bytes.chunks(16_000).collect();
    for (n, part) in parts.iter().enumerate() {
        let kind = if n == 0 { kind::HEADERS } else { kind::CONTINUATION };
        let end = if n + 1 == parts.len() { END_HEADERS } else { 0 };
        raw.frame(kind, end, 1, part);
    }
    let mut is_refused = false;
    // The answer to the first PING may be written before the stream is driven.
    for _ in 0..2 {
        raw.frame(kind::PING, 0, 0, &[0; 8]);
        loop {
            let received = raw.read_frame().expect("an answer");
            match received.kind {
                kind::RST_STREAM => is_refused |= received.payload == [0, 0, 0, 7],
                kind::PING => break,
                _ => {}
            }
        }
    }
    is_refused
}

#[test]
fn heads_of_a_client_address_take_at_most_32_mib() {
    let yaml = "
        listen: [{address: '127.0.0.1:0', http2: true}]
        http: {max_head: 1MiB}
        client: {trusted_proxies: [{trusted}]}
        workers: 1
        upstreams: {app: {targets: [{target}]}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: app}]
        ";
    for (trusted, expected) in [("192.0.2.1/32", 33), ("127.0.0.1/32", 36)] {
        let upstream = Upstream::silent();
        let values = [("target", upstream.target()), ("trusted", trusted.to_owned())];
        let gateway = Gateway::start(&fill(yaml, values));
        let mut open: Vec<_> = (0..36).map(|_| RawHttp2::connect(gateway.address())).collect();
        let held = open.iter_mut().filter_map(|raw| (!is_refused(raw)).then_some(())).count();
        assert_eq!(held, expected, "{trusted}");
        let refused = gateway.metric("tidegate_http2_streams_refused_total");
        assert_eq!(refused, 36 - expected as u64, "{trusted}");
        open.clear();
        eventually("the heads are released", || {
            !is_refused(&mut RawHttp2::connect(gateway.address()))
        });
    }
}
