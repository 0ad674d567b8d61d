use std::{
    io::{Read, Write},
    net::Shutdown,
    sync::{Mutex, mpsc},
    time::Duration,
};

use h2::server::Builder;
use testkit::{
    client::Client,
    gateway::Gateway,
    http2_upstream::Http2Upstream,
    protocol::{Protocol, on_every_protocol},
    upstream::Upstream,
};
use tidegate::clock::{Clock, StoreTime};

/// A route with a quota of one, one that accepts only short bodies, and one without limits.
fn start(upstream: &Upstream) -> Gateway {
    Gateway::for_every_protocol(&format!(
        "upstreams: {{origin: {{targets: [{}]}}}}
limits: {{once: {{algorithm: sliding_window, quota: 1, window: 1h, key: []}}}}
routes:
  - {{name: limited, match: {{path: /limited}}, upstream: origin, limits: [once]}}
  - {{name: short, match: {{path: /short}}, upstream: origin, max_body: 10B}}
  - {{name: open, match: {{path: /open}}, upstream: origin}}",
        upstream.target()
    ))
}

#[test]
fn a_short_unread_body_keeps_the_connection_in_sync() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.get("/limited", "").status, 200);
    // Request smuggling: a body that looks like a request.
    let body = "GET /open?smuggled HTTP/1.1\r\nHost: a\r\n\r\n".repeat(100);
    for (path, status) in [("/limited", 429), ("/nowhere", 404), ("/short", 413)] {
        for together in [true, false] {
            let head = format!(
                "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            if together {
                client.send(head + &body);
                assert_eq!(client.read_response().status, status);
            } else {
                client.send(head);
                let response = client.read_response();
                assert_eq!((response.status, response.header("connection")), (status, None));
                client.send(&body);
            }
            let response = client.get("/open?next", "");
            assert_eq!((response.status, response.text().as_str()), (200, "hello"), "{path}");
        }
    }
    assert!(upstream.request_texts().iter().all(|text| !text.contains("smuggled")));
    assert_eq!(upstream.request_count(), 1 + 6);
}

#[test]
fn a_long_unread_body_closes_the_connection() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    assert_eq!(Client::connect(gateway.address()).get("/limited", "").status, 200);
    for (path, status) in [("/limited", 429), ("/nowhere", 404)] {
        let mut client = Client::connect(gateway.address());
        let length = "Content-Length: 10000000";
        client.send(format!("POST {path} HTTP/1.1\r\nHost: a\r\n{length}\r\n\r\n"));
        client.send(vec![b'x'; 300_000]);
        // Bytes were unread when the gateway closed; a reset would destroy the response.
        let response = client.try_read_response().expect("the response survives the close");
        assert_eq!((response.status, response.header("connection")), (status, Some("close")));
        assert!(client.is_closed(), "an orderly close");

        // The length of chunks shows only at their end.
        let mut client = Client::connect(gateway.address());
        client
            .send(format!("POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"));
        client.send(format!("1000\r\n{}\r\n", "x".repeat(0x1000)).repeat(40));
        client.send("0\r\n\r\nGET /open?smuggled HTTP/1.1\r\nHost: a\r\n\r\n");
        let response = client.try_read_response().expect("the response survives the close");
        assert_eq!((response.status, response.header("connection")), (status, Some("close")));
        assert!(client.is_closed(), "an orderly close");
    }
    assert_eq!(upstream.request_count(), 1);
}

#[test]
fn a_client_that_keeps_sending_receives_the_refusal() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    assert_eq!(Protocol::Http1.get(&gateway, "/limited", "").status, 200);
    on_every_protocol(|protocol| {
        let mut client = protocol.connect(&gateway);
        client.start("POST", "/limited", "Content-Length: 4000000\r\n", true);
        let mut sent = 0;
        while sent < 4_000_000 && client.try_send([b'x'; 10_000], sent == 3_990_000) {
            sent += 10_000;
        }
        assert_eq!(client.try_read_response().map(|response| response.status), Some(429));
    });
    assert_eq!(upstream.request_count(), 1);
}

#[test]
fn refused_requests_get_no_100_continue() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    assert_eq!(Client::connect(gateway.address()).get("/limited", "").status, 200);
    on_every_protocol(|protocol| {
        for (path, status) in [("/limited", 429), ("/nowhere", 404), ("/short", 413)] {
            for length in ["Content-Length: 50", "Content-Length: 1000000"] {
                let mut client = protocol.connect(&gateway);
                client.start("POST", path, format!("{length}\r\nExpect: 100-continue\r\n"), true);
                let response = client.read_response();
                assert_eq!(response.status, status);
                if protocol.is_http2() {
                    assert_eq!(client.get("/nowhere", "").status, 404, "only the stream ends");
                } else {
                    assert_eq!(response.header("connection"), Some("close"));
                    assert!(client.is_closed());
                }
            }
        }
    });
    assert_eq!(upstream.request_count(), 1);
}

#[test]
fn continue_is_sent_once_and_the_connection_is_kept() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = start(&upstream);
        let mut client = protocol.connect(&gateway);
        for length in ["Content-Length: 5\r\n", ""] {
            client.start("POST", "/open", format!("Expect: 100-Continue\r\n{length}"), true);
            assert_eq!(client.read_interim().status, 100);
            assert_eq!(client.send("12345", true).read_response().status, 200);
        }
        let received = upstream.request_texts();
        assert!(received.iter().all(|text| text.contains("expect: 100-continue")), "{received:?}");
        assert!(received.iter().all(|text| text.contains("12345")));
        assert_eq!(received.len(), 2);
    });
}

#[test]
fn a_short_chunked_body_after_a_refusal_is_discarded() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.get("/limited", "").status, 200);
    for (path, status) in [("/limited", 429), ("/nowhere", 404)] {
        for chunks in [1, 15] {
            let smuggled = format!("{:x<4096}", "GET /open?smuggled HTTP/1.1\r\nHost: a\r\n\r\n");
            let body = format!("1000\r\n{smuggled}\r\n").repeat(chunks) + "0\r\nX-Sum: 1\r\n\r\n";
            let head =
                format!("POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
            client.send(head + &body + "GET /open?next HTTP/1.1\r\nHost: a\r\n\r\n");
            let response = client.read_response();
            assert_eq!((response.status, response.header("connection")), (status, None));
            assert_eq!(client.read_response().status, 200, "{path}, {chunks} chunks");
        }
    }
    assert!(upstream.request_texts().iter().all(|text| !text.contains("smuggled")));
    assert_eq!(upstream.request_count(), 1 + 4);
}

#[test]
fn a_malformed_chunk_after_a_refusal_closes_the_connection() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    let mut client = Client::connect(gateway.address());
    client.send(
        "POST /nowhere HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n\
         0\r\n\r\nGET /open HTTP/1.1\r\nHost: a\r\n\r\n",
    );
    assert_eq!(client.read_response().status, 404);
    assert!(client.is_closed_or_reset());
    assert_eq!(upstream.request_count(), 0);
}

#[test]
fn a_stalled_unread_body_closes_the_connection() {
    let upstream = Upstream::hello();
    let yaml = format!(
        "http: {{body_timeout: 300ms}}
upstreams: {{origin: {{targets: [{}]}}}}
routes: [{{name: open, match: {{path: /open}}, upstream: origin}}]",
        upstream.target()
    );
    let gateway =
        Gateway::start_at(&yaml, Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)));
    let mut client = Client::connect(gateway.address());
    client.send("POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\nhalf");
    assert_eq!(client.read_response().status, 404);
    assert!(gateway.while_time_passes(|| client.is_closed_or_reset()).0);
}

/// Sends half of a body, reads the response's head, and lets `fail` prevent the rest. The upstream
/// reports how its read of the body ends.
fn assert_upstream_learns(is_http2: bool, fail: fn(&mut Client)) {
    let (target, ended) = early_upstream(is_http2);
    let gateway = Gateway::start_at(
        &format!(
            "upstreams: {{origin: {{targets: ['{target}'], protocol: {}}}}}
routes: [{{name: open, match: {{path: /open}}, upstream: origin}}]",
            if is_http2 { "http2" } else { "http1" }
        ),
        Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)),
    );
    let mut client = Client::connect(gateway.address());
    client
        .send("POST /open HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
    let mut head = [0; 12];
    client.socket.read_exact(&mut head).expect("the response's head");
    assert_eq!(&head, b"HTTP/1.1 200");
    fail(&mut client);
    let is_whole = ended.recv_timeout(Duration::from_secs(10)).expect("the body's end");
    assert!(!is_whole, "the body is passed as whole");
}

/// An HTTP/1 or HTTP/2 upstream that responds before it reads the body, and waits for its end.
fn early_upstream(is_http2: bool) -> (String, mpsc::Receiver<bool>) {
    let (sender, ended) = mpsc::channel();
    if is_http2 {
        let upstream = Http2Upstream::with_handler(Builder::new(), move |mut exchange| {
            let sender = sender.clone();
            async move {
                let mut stream = exchange.start(200, &[]);
                let _ = stream.send_data("part".into(), false);
                let _ = sender.send(exchange.read_body().await.is_ok());
            }
        });
        return (upstream.target(), ended);
    }
    let sender = Mutex::new(sender);
    let upstream = Upstream::on_connection(move |socket| {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart";
        let _ = socket.write_all(head.as_bytes());
        let mut received = Vec::new();
        let _ = socket.read_to_end(&mut received);
        let _ = sender.lock().expect("no panic").send(received.ends_with(b"0\r\n\r\n"));
    });
    (upstream.target(), ended)
}

#[test]
fn an_upstream_that_answered_early_learns_that_the_body_failed() {
    for is_http2 in [false, true] {
        let malformed: fn(&mut Client) = |client| {
            client.send("no size\r\n");
        };
        let half_closed: fn(&mut Client) =
            |client| client.socket.shutdown(Shutdown::Write).expect("open");
        for fail in [malformed, half_closed] {
            assert_upstream_learns(is_http2, fail);
        }
    }
}
