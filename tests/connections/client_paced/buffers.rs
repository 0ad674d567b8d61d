//! Buffers free places from the client's pace, and pass bodies on unchanged.

use std::{io::Write, time::Duration};

use bytes::Bytes;
use h2::server::Builder;
use testkit::{
    client::Client,
    gateway::Gateway,
    http2_client::{Http2Client, request},
    http2_upstream::Http2Upstream,
    protocol::Protocol,
    upstream::Upstream,
    wait::{eventually, sleep},
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime};

use super::{ATTACKER, BUFFER, Origin, PROTOCOLS, connect_narrow, start};

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
        let gateway = start(
            &origin,
            "
            client: {trusted_proxies: [127.0.0.1/32]}
            upstreams: {origin: {protocol: {protocol}, targets: [{target}], max_requests: 1}}
            routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
            ",
        );
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

/// Responses that are read ahead are passed on unchanged: long bodies, trailers, compression.
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
        let gateway = start(&origin, &fill("
            client: {trusted_proxies: [127.0.0.1/32]}
            upstreams: {origin: {protocol: {protocol}, targets: [{target}], max_requests: 9, response_buffer: {buffer}}}
            routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
            ", [("buffer", buffer)]));
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

const TWO_REQUESTS: &str = "
client: {trusted_proxies: [127.0.0.1/32]}
upstreams: {origin: {targets: [{target}], max_requests: 2}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
";

const TWO_CONNECTIONS: &str = "
client: {trusted_proxies: [127.0.0.1/32]}
upstreams: {origin: {targets: [{target}], max_connections: 2}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
";

const UNBOUNDED: &str = "
client: {trusted_proxies: [127.0.0.1/32]}
upstreams: {origin: {targets: [{target}], retries: 1}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
";

#[test]
fn a_long_upload_streams() {
    for (is_bounded, yaml) in [(true, TWO_REQUESTS), (true, TWO_CONNECTIONS), (false, UNBOUNDED)] {
        let upstream = Upstream::hello();
        let gateway = Gateway::start(&fill(yaml, [("target", upstream.target())]));
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
        if is_bounded {
            sleep(Duration::from_millis(50));
            assert_eq!(upstream.received_bytes().len(), begun);
        } else {
            eventually("it arrives", || upstream.received_bytes().ends_with(b"\r\n\r\na"));
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
            let end = request.windows(4).position(|end| end == b"\r\n\r\n").expect("a head");
            let body = &request[end + 4..];
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            socket.write_all(&[head.as_bytes(), body].concat()).is_ok()
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
            let gateway = start(&origin, &fill("
                client: {trusted_proxies: [127.0.0.1/32]}
                upstreams: {origin: {protocol: {protocol}, targets: [{target}], max_requests: 9, request_buffer: {buffer}}}
                routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
                ", [("buffer", buffer)]));
            for protocol in PROTOCOLS {
                let mut client = protocol.connect(&gateway);
                for length in [1, 1000, BUFFER - 1, BUFFER, BUFFER + 1, 3 * BUFFER] {
                    let body: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
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
    let yaml = fill(
        "
        workers: 1
        http: {body_timeout: 1s}
        client: {trusted_proxies: [127.0.0.1/32]}
        upstreams: {origin: {targets: [{target}], max_requests: 2}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin, max_body: 1KiB}]
        ",
        [("target", upstream.target())],
    );
    let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
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
    let status = gateway.assert_times_out(Duration::from_secs(1), || late.read_response().status);
    assert_eq!(status, 408);
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
        let gateway = start(
            &origin,
            "
            client: {trusted_proxies: [127.0.0.1/32]}
            upstreams: {origin: {protocol: {protocol}, targets: [{target}], max_requests: 1}}
            routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
            ",
        );
        let mut client = protocol.connect(&gateway);
        client.start("POST", "/", "Expect: 100-continue\r\nContent-Length: 4\r\n", true);
        assert_eq!(client.read_interim().status, 100);
        assert_eq!(gateway.metric("tidegate_target_requests_total"), 0);
        client.send("body", true);
        assert_eq!(client.read_response().status, 200);
        assert_eq!(origin.request_count(), 1);
    }
}

#[test]
fn a_buffered_body_goes_to_the_next_target_after_a_failed_connect() {
    for upstream in PROTOCOLS {
        let origin = Origin::start(upstream);
        let gateway = start(
            &origin,
            "
            client: {trusted_proxies: [127.0.0.1/32]}
            upstreams:
              origin:
                protocol: {protocol}
                targets: ['http://127.0.0.1:1', {target}]
                max_requests: 9
                balance: round_robin
            routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
            ",
        );
        for _ in 0..4 {
            let mut client = Client::connect(gateway.address());
            client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbo");
            client.send("dy");
            assert_eq!(client.read_response().status, 200);
        }
        assert_eq!(origin.request_count(), 4);
    }
}
