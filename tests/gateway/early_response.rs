use std::io::Write;

use testkit::{client::Client, gateway::Gateway, upstream::Upstream};
use tidegate::clock::Clock;

/// A route with a quota of one, one that accepts only short bodies, and one without limits.
fn start(upstream: &Upstream) -> Gateway {
    Gateway::start(&format!(
        "upstreams: {{origin: {{targets: [{}]}}}}
limits: {{once: {{algorithm: sliding_window, quota: 1, window: 1h, key: []}}}}
routes:
  - {{name: limited, match: {{path: /limited}}, upstream: origin, limits: [once]}}
  - {{name: short, match: {{path: /short}}, upstream: origin, max_body: 10B}}
  - {{name: open, match: {{path: /open}}, upstream: origin}}",
        upstream.target()
    ))
}

const CHUNKED: &str = "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";

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
fn a_long_or_chunked_unread_body_closes_the_connection() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    assert_eq!(Client::connect(gateway.address()).get("/limited", "").status, 200);
    for (path, status) in [("/limited", 429), ("/nowhere", 404)] {
        for (length, sent) in
            [("Content-Length: 10000000", 300_000), ("Transfer-Encoding: chunked", 0)]
        {
            let mut client = Client::connect(gateway.address());
            client.send(format!("POST {path} HTTP/1.1\r\nHost: a\r\n{length}\r\n\r\n"));
            client.send(vec![b'x'; sent]);
            if sent == 0 {
                client
                    .send("5\r\nhello\r\n0\r\n\r\nGET /open?smuggled HTTP/1.1\r\nHost: a\r\n\r\n");
            }
            // Bytes were unread when the gateway closed: a reset would destroy the response.
            let response = client.try_read_response().expect("the response survives the close");
            assert_eq!((response.status, response.header("connection")), (status, Some("close")));
            assert!(client.is_closed(), "an orderly close");
        }
    }
    assert_eq!(upstream.request_count(), 1);
}

#[test]
fn a_client_that_keeps_sending_receives_the_refusal() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    assert_eq!(Client::connect(gateway.address()).get("/limited", "").status, 200);
    let mut client = Client::connect(gateway.address());
    client.send("POST /limited HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\n\r\n");
    let mut sent = 0;
    while sent < 4_000_000 && client.socket.write_all(&[b'x'; 10_000]).is_ok() {
        sent += 10_000;
    }
    assert_eq!(client.try_read_response().map(|response| response.status), Some(429));
}

#[test]
fn refused_requests_get_no_100_continue() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    assert_eq!(Client::connect(gateway.address()).get("/limited", "").status, 200);
    for (path, status) in [("/limited", 429), ("/nowhere", 404), ("/short", 413)] {
        for length in ["Content-Length: 50", "Content-Length: 1000000"] {
            let mut client = Client::connect(gateway.address());
            client.send(format!(
                "POST {path} HTTP/1.1\r\nHost: a\r\n{length}\r\nExpect: 100-continue\r\n\r\n"
            ));
            let response = client.read_response();
            assert_eq!((response.status, response.header("connection")), (status, Some("close")));
            assert!(client.is_closed());
        }
    }
    assert_eq!(upstream.request_count(), 1);
}

#[test]
fn continue_is_sent_once_and_the_connection_is_kept() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    let mut client = Client::connect(gateway.address());
    for body in ["Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n"] {
        client
            .send(format!("POST /open HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\n{body}\r\n"));
        assert_eq!(client.read_response().status, 100);
        client.send(if body.starts_with('C') { "12345" } else { "5\r\n12345\r\n0\r\n\r\n" });
        assert_eq!(client.read_response().status, 200);
    }
    let received = upstream.request_texts();
    assert!(
        received.iter().all(|text| !text.to_ascii_lowercase().contains("expect:")),
        "{received:?}"
    );
    assert!(received.iter().all(|text| text.contains("12345")));
    assert_eq!(received.len(), 2);
}

#[test]
fn a_chunked_body_after_a_refusal_is_never_the_next_request() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    for _ in 0..20 {
        let mut client = Client::connect(gateway.address());
        client.send(format!("POST /nowhere HTTP/1.1\r\nHost: a\r\n{CHUNKED}"));
        assert_eq!(client.read_response().status, 404);
        let _ = client.socket.write_all(b"GET /open HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(client.try_read_response().is_none());
    }
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
    let gateway = Gateway::start_at(&yaml, Clock::simulated(1_700_000_000_000));
    let mut client = Client::connect(gateway.address());
    client.send("POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\nhalf");
    assert_eq!(client.read_response().status, 404);
    assert!(gateway.while_time_passes(|| client.is_closed_or_reset()).0);
}
