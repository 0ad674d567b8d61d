use std::{
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use h2::{Reason, client, server};
use testkit::{
    client::Client,
    gateway::Gateway,
    http2_client::{Http2Client, request},
    http2_frames::{END_HEADERS, Outcome, RawHttp2, block, kind, request as fields},
    http2_upstream::Http2Upstream,
    upstream::{ResponseGate, Upstream},
    wait::{eventually, sleep},
};
use tidegate::clock::Clock;

use crate::http2::LISTEN;

/// The shortest and longest wait for a timeout of 1 s of the gateway's clock, as in `deadlines.rs`.
const MIN_WAIT: Duration = Duration::from_millis(500);
const MAX_WAIT: Duration = Duration::from_secs(9);

fn start_at(clock: Clock, more: &str, upstream: &str, route: &str) -> Gateway {
    let yaml = format!(
        "{LISTEN}{more}
upstreams:
  origin: {{{upstream}}}
  hello: {{respond: {{body: hi}}}}
routes:
  - {{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin{route}}}
  - {{name: hello, match: {{path: /hello}}, upstream: hello}}"
    );
    Gateway::start_at(&yaml, clock)
}

/// A gateway on a simulated clock.
fn start(http: &str, upstream: &str, route: &str) -> Gateway {
    let http = format!("http: {{{http}}}");
    start_at(Clock::simulated(1_700_000_000_000), &http, upstream, route)
}

fn assert_times_out<T>(gateway: &Gateway, act: impl FnOnce() -> T) -> T {
    let (value, took) = gateway.while_time_passes(act);
    assert!(took >= MIN_WAIT && took < MAX_WAIT, "{took:?}");
    value
}

#[test]
fn a_connection_without_a_request_is_closed() {
    let gateway = start("head_timeout: 1s", "respond: {body: hi}", "");
    // Half a header block: the rest never comes.
    let half = |raw: &mut RawHttp2| {
        raw.frame(kind::HEADERS, 0, 1, &block(&fields("GET", "/")));
    };
    let pings = |raw: &mut RawHttp2| {
        raw.frame(kind::PING, 0, 0, &[0; 8]);
    };
    for act in [None, Some(&half as &dyn Fn(&mut RawHttp2)), Some(&pings)] {
        assert_times_out(&gateway, || {
            let mut raw = RawHttp2::connect(gateway.address());
            // The acknowledgement must not come between the frames of a head.
            raw.read_until(kind::SETTINGS).expect("settings");
            if let Some(act) = act {
                act(&mut raw);
            }
            assert_eq!(raw.read_until(kind::GOAWAY).expect("an orderly end").payload[4..8], [0; 4]);
            assert!(raw.is_ended());
        });
    }
}

#[test]
fn an_idle_connection_is_closed() {
    let gateway = start("idle_timeout: 1s", "respond: {body: hi}", "");
    let mut client = Http2Client::connect(gateway.address());
    assert_eq!(client.get("/", "").status, 200);
    assert_times_out(&gateway, || {
        assert_eq!(client.get("/", "").status, 200);
        client.wait_closed().expect("an orderly end");
    });
}

#[test]
fn a_stalled_body_is_a_408_and_other_streams_go_on() {
    let upstream = Upstream::hello();
    let target = format!("targets: [{}]", upstream.target());
    let gateway = start("body_timeout: 1s", &target, "");
    let mut client = Http2Client::connect(gateway.address());
    for headers in ["Content-Length: 10\r\n", ""] {
        let response = assert_times_out(&gateway, || {
            let mut exchange =
                client.start(request("POST", "/", headers), false).expect("a stream");
            exchange.send(b"12345", false).expect("sent");
            assert_eq!(client.get("/hello", "").status, 200);
            exchange.finish().expect("a whole response")
        });
        assert_eq!(response.status, 408);
        assert_eq!(response.json()["title"], "Request Timeout");
    }
    assert_eq!(upstream.request_count(), 0);
    assert_eq!(client.get("/hello", "").status, 200, "the connection is kept");
    assert_eq!(gateway.metric("tidegate_upstream_failures_total{upstream=\"origin\""), 0);
}

#[test]
fn an_upstream_that_never_answers_is_a_504() {
    let silent = Upstream::silent();
    let target = format!("targets: [{}], response_timeout: 30s", silent.target());
    let gateway = start("", &target, ", request_timeout: 1s");
    let mut client = Http2Client::connect(gateway.address());
    let response = assert_times_out(&gateway, || client.get("/", ""));
    assert_eq!(response.status, 504);
    assert_eq!(client.get("/hello", "").status, 200, "the connection is kept");
}

#[test]
fn a_response_that_stops_is_reset_never_ended() {
    let half = Upstream::with_handler(|_, socket| {
        let _ =
            socket.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n");
        // Until the gateway gives up.
        testkit::upstream::read_until_closed(socket);
        false
    });
    let target = format!("targets: [{}]", half.target());
    for bound in ["response_idle_timeout: 1s", "response_body_timeout: 1s"] {
        let gateway = start("", &target, &format!(", {bound}"));
        let mut client = Http2Client::connect(gateway.address());
        let error = assert_times_out(&gateway, || {
            let mut exchange = client.start(request("GET", "/", ""), true).expect("a stream");
            exchange.finish().expect_err("cut")
        });
        assert_eq!(error.reason(), Some(Reason::CANCEL), "{bound}: {error}");
        assert_eq!(client.get("/hello", "").status, 200, "the connection is kept");
    }
}

#[test]
fn a_stalled_reader_is_reset_after_the_body_timeout() {
    let upstream = Upstream::with_handler(|_, socket| {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n";
        socket.write_all(head.as_bytes()).is_ok()
            && (0..100).all(|_| socket.write_all(&vec![b'x'; 1_000_000]).is_ok())
    });
    let target = format!("targets: [{}]", upstream.target());
    let gateway = start("body_timeout: 1s", &target, "");
    // No window at all, one of a byte, and the default one that is never opened again.
    for window in [0, 1, 65_535] {
        let mut builder = client::Builder::new();
        builder.initial_window_size(window);
        let mut client = Http2Client::connect_with(gateway.address(), builder);
        let mut exchange = client.start(request("GET", "/", ""), true).expect("a stream");
        exchange.head().expect("a response");
        assert_times_out(&gateway, || {
            let reason = exchange.wait_reset();
            assert_eq!(reason, Reason::CANCEL, "window {window}");
        });
        // The connection goes on. Its window may be used up.
        assert_eq!(client.ask("HEAD", "/hello", "", b"").status, 200);
    }
}

/// A server of HTTP/2 whose responses are endless, and the number of bytes that they have so far.
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

/// Waits until `counter` stands still; its value.
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
    let target = format!("targets: [{}], protocol: http2", upstream.target());
    let gateway = start_at(Clock::system(), "workers: 1", &target, "");
    let mut client = Http2Client::connect(gateway.address());
    let mut exchange = client.start(request("GET", "/", ""), true).expect("a stream");
    exchange.head().expect("a response");
    let ahead = settled(&sent);
    // The windows of both connections, the gateway's send buffer, and what is in hand.
    assert!(ahead > 0 && ahead <= 400 * 1024, "{ahead} bytes");
    while sent.load(SeqCst) < 4 << 20 {
        exchange.read().expect("the response goes on").expect("more");
    }
    // Other clients share the connection to the server, and are not held up.
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
    let target = format!("targets: [{}], protocol: http2", upstream.target());
    let gateway = start_at(Clock::system(), "workers: 1", &target, "");
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
    let more = "http: {max_requests_per_connection: 3}";
    let gateway = start_at(Clock::system(), more, "respond: {body: hi}", "");
    let mut client = Http2Client::connect(gateway.address());
    for _ in 0..3 {
        assert_eq!(client.get("/", "").status, 200);
    }
    client.wait_closed().expect("an orderly end");
    assert!(client.start(request("GET", "/", ""), true).is_err());
}

#[test]
fn a_client_that_ignores_a_goaway_is_refused_after_a_second() {
    let clock = Clock::simulated(1_700_000_000_000);
    let more = "workers: 1\nhttp: {max_requests_per_connection: 1}";
    let gateway = start_at(clock, more, "respond: {body: hi}", "");
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
    let target = format!("targets: [{}]", upstream.target());
    let clock = Clock::simulated(1_700_000_000_000);
    let more = "workers: 1\nhttp: {max_requests_per_connection: 1}";
    let gateway = start_at(clock, more, &target, "");
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
fn requests_in_flight_are_finished_while_stopping() {
    let gate = ResponseGate::default();
    let held = gate.clone();
    let upstream = Upstream::with_handler(move |_, socket| {
        held.wait();
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n");
        socket.write_all(&[b'x'; 10_000]).is_ok()
    });
    let target = format!("targets: [{}]", upstream.target());
    let gateway = Arc::new(start_at(Clock::system(), "drain_timeout: 20s", &target, ""));
    let mut idle = Http2Client::connect(gateway.address());
    assert_eq!(idle.get("/hello", "").status, 200);
    let mut busy = Http2Client::connect(gateway.address());
    let mut exchanges: Vec<_> =
        (0..5).map(|_| busy.start(request("GET", "/", ""), true).expect("a stream")).collect();
    eventually("all are at the upstream", || upstream.request_count() == 5);
    let stopping = thread::spawn({
        let gateway = gateway.clone();
        move || gateway.stop()
    });
    idle.wait_closed().expect("an orderly end");
    assert!(!busy.is_closed() && !stopping.is_finished());
    gate.open();
    for exchange in &mut exchanges {
        assert_eq!(exchange.finish().expect("a whole response").body.len(), 10_000);
    }
    busy.wait_closed().expect("an orderly end");
    stopping.join().expect("it stops");
}

#[test]
fn a_stream_that_was_opened_before_the_goaway_arrived_is_served() {
    let clock = Clock::simulated(1_700_000_000_000);
    let gateway = Arc::new(start_at(clock, "workers: 1", "respond: {body: hi}", ""));
    let mut raw = RawHttp2::connect(gateway.address());
    raw.headers(1, &fields("GET", "/"), true);
    assert_eq!(raw.outcome(1), Outcome::Status(200));
    let mut idle = Client::connect(gateway.address());
    assert_eq!(idle.get("/", "").status, 200);
    let stopping = thread::spawn({
        let gateway = gateway.clone();
        move || gateway.server.stop()
    });
    raw.read_until(kind::GOAWAY).expect("the gateway stops");
    // Not yet acknowledged when the gateway closes what is idle.
    let ping = raw.read_until(kind::PING).expect("a ping");
    gateway.clock.advance(Duration::from_millis(300));
    assert!(idle.is_closed());
    raw.headers(3, &fields("GET", "/"), true);
    assert_eq!(raw.read_until(kind::HEADERS).expect("a response").stream, 3);
    let is_acknowledgement = 1;
    raw.frame(kind::PING, is_acknowledgement, 0, &ping.payload);
    let last = raw.read_until(kind::GOAWAY).expect("an orderly end").payload;
    assert_eq!(last[..8], [0, 0, 0, 3, 0, 0, 0, 0]);
    gateway.while_time_passes(|| stopping.join().expect("it stops"));
}

#[test]
fn a_client_that_does_not_acknowledge_delays_the_stop_by_a_second() {
    let gateway = start("", "respond: {body: hi}", "");
    let mut raw = RawHttp2::connect(gateway.address());
    raw.headers(1, &fields("GET", "/"), true);
    assert_eq!(raw.outcome(1), Outcome::Status(200));
    let reading = thread::spawn(move || raw.is_ended());
    assert_times_out(&gateway, || gateway.server.stop());
    assert!(reading.join().expect("no panic"));
}

#[test]
fn no_request_is_lost_while_stopping() {
    for _ in 0..5 {
        let upstream = Upstream::hello();
        let target = format!("targets: [{}]", upstream.target());
        let gateway = Arc::new(start_at(Clock::system(), "drain_timeout: 20s", &target, ""));
        let answered = Arc::new(AtomicUsize::new(0));
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let (answered, address) = (answered.clone(), gateway.address());
                thread::spawn(move || {
                    let mut client = Http2Client::connect(address);
                    loop {
                        let Ok(mut exchange) = client.start(request("GET", "/", ""), true) else {
                            return;
                        };
                        match exchange.finish() {
                            Ok(response) => assert_eq!(response.status, 200),
                            // The client knows that it was not processed: its stream is above the
                            // last one of the GOAWAY.
                            Err(error) => {
                                assert!(error.is_go_away() && error.is_remote(), "{error}");
                                assert_eq!(error.reason(), Some(Reason::NO_ERROR), "{error}");
                                return;
                            }
                        }
                        answered.fetch_add(1, SeqCst);
                    }
                })
            })
            .collect();
        eventually("responses arrive", || answered.load(SeqCst) >= 100);
        gateway.stop();
        for client in clients {
            client.join().expect("no request is lost");
        }
        assert_eq!(upstream.request_count(), answered.load(SeqCst), "each was answered");
    }
}

#[test]
fn responses_past_the_drain_timeout_are_cut() {
    let (done, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let upstream = Upstream::with_handler(move |_, _| {
        let _ = wait.lock().expect("no panic").recv();
        false
    });
    let target = format!("targets: [{}]", upstream.target());
    let gateway = start_at(Clock::system(), "drain_timeout: 300ms", &target, "");
    let mut client = Http2Client::connect(gateway.address());
    let mut exchange = client.start(request("GET", "/", ""), true).expect("a stream");
    eventually("the request is at the upstream", || upstream.request_count() == 1);
    gateway.stop();
    assert!(exchange.finish().is_err());
    drop(done);
}

#[test]
fn a_head_over_the_bounds_is_a_431() {
    let gateway = start_at(Clock::system(), "", "respond: {body: hi}", "");
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
