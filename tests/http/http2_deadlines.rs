//! HTTP/2 timeouts: connections and streams, on a simulated clock.

use std::{io::Write, time::Duration};

use h2::{Reason, client};
use testkit::{
    gateway::Gateway,
    http2_client::{Http2Client, request},
    http2_frames::{RawHttp2, block, kind, request as fields},
    upstream::Upstream,
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime};

const SECOND: Duration = Duration::from_secs(1);

fn start(yaml: &str) -> Gateway {
    Gateway::start_at(yaml, Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)))
}

#[test]
fn a_connection_without_a_request_is_closed() {
    let gateway = start(
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        http: {head_timeout: 1s}
        upstreams: {hello: {respond: {body: hi}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
    );
    // Half a header block: the rest never comes.
    let half = |raw: &mut RawHttp2| {
        raw.frame(kind::HEADERS, 0, 1, &block(&fields("GET", "/")));
    };
    let pings = |raw: &mut RawHttp2| {
        raw.frame(kind::PING, 0, 0, &[0; 8]);
    };
    for act in [None, Some(&half as &dyn Fn(&mut RawHttp2)), Some(&pings)] {
        let mut raw = RawHttp2::connect(gateway.address());
        // The acknowledgement must not come between the frames of a head.
        raw.read_until(kind::SETTINGS).expect("settings");
        if let Some(act) = act {
            act(&mut raw);
        }
        gateway.assert_times_out(SECOND, || {
            assert_eq!(raw.read_until(kind::GOAWAY).expect("an orderly end").payload[4..8], [0; 4]);
            assert!(raw.is_ended());
        });
    }
}

#[test]
fn an_idle_connection_is_closed() {
    let gateway = start(
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        http: {idle_timeout: 1s}
        upstreams: {hello: {respond: {body: hi}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
    );
    let mut client = Http2Client::connect(gateway.address());
    assert_eq!(client.get("/", "").status, 200);
    gateway.assert_times_out(SECOND, || client.wait_closed().expect("an orderly end"));
}

#[test]
fn a_stalled_body_is_a_408_and_other_streams_go_on() {
    let upstream = Upstream::hello();
    let gateway = start(&fill(
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        http: {body_timeout: 1s}
        upstreams:
          origin: {targets: [{target}]}
          hello: {respond: {body: hi}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
          - {name: hello, match: {path: /hello}, upstream: hello}
        ",
        [("target", upstream.target())],
    ));
    let mut client = Http2Client::connect(gateway.address());
    for headers in ["Content-Length: 10\r\n", ""] {
        let mut exchange = client.start(request("POST", "/", headers), false).expect("a stream");
        exchange.send(b"12345", false).expect("sent");
        assert_eq!(client.get("/hello", "").status, 200);
        let response =
            gateway.assert_times_out(SECOND, || exchange.finish().expect("a whole response"));
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
    let gateway = start(&fill(
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        upstreams:
          origin: {targets: [{target}], response_timeout: 30s}
          hello: {respond: {body: hi}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, request_timeout: 1s}
          - {name: hello, match: {path: /hello}, upstream: hello}
        ",
        [("target", silent.target())],
    ));
    let mut client = Http2Client::connect(gateway.address());
    let mut exchange = client.start(request("GET", "/", ""), true).expect("a stream");
    let response = gateway.assert_times_out(SECOND, || exchange.finish().expect("a response"));
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
    for bound in ["response_idle_timeout: 1s", "response_body_timeout: 1s"] {
        let gateway = start(&fill(
            "
            listen: [{address: '127.0.0.1:0', http2: true}]
            upstreams:
              origin: {targets: [{target}]}
              hello: {respond: {body: hi}}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: origin, {bound}}
              - {name: hello, match: {path: /hello}, upstream: hello}
            ",
            [("target", half.target()), ("bound", bound.to_owned())],
        ));
        let mut client = Http2Client::connect(gateway.address());
        let mut exchange = client.start(request("GET", "/", ""), true).expect("a stream");
        let error = gateway.assert_times_out(SECOND, || exchange.finish().expect_err("cut"));
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
    let gateway = start(&fill(
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        http: {body_timeout: 1s}
        upstreams:
          origin: {targets: [{target}]}
          hello: {respond: {body: hi}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
          - {name: hello, match: {path: /hello}, upstream: hello}
        ",
        [("target", upstream.target())],
    ));
    // No window, a window of one byte, and the default window, which is never reopened.
    for window in [0, 1, 65_535] {
        let mut builder = client::Builder::new();
        builder.initial_window_size(window);
        let mut client = Http2Client::connect_with(gateway.address(), builder);
        let mut exchange = client.start(request("GET", "/", ""), true).expect("a stream");
        exchange.head().expect("a response");
        let reason = gateway.assert_times_out(SECOND, || exchange.wait_reset());
        assert_eq!(reason, Reason::CANCEL, "window {window}");
        // The connection goes on. Its window may be used up.
        assert_eq!(client.ask("HEAD", "/hello", "", b"").status, 200);
    }
}
