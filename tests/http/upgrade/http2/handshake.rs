//! The response to an extended CONNECT, from upstreams of either version: a tunnel, or an ordinary
//! response.

use testkit::{client::Client, protocol::HTTP1};

use super::*;

/// With a limit on `/few`.
const TO_HTTP1: &str = "
limits: {few: {quota: 2, window: 1h, key: []}}
upstreams: {app: {targets: ['{target}']}}
routes:
  - {name: few, match: {path: /few}, upstream: app, limits: [few]}
  - {name: all, match: {path: '/{*rest}'}, upstream: app}
";

/// [`TO_HTTP1`] with an upstream of the other version.
const TO_HTTP2: &str = "
limits: {few: {quota: 2, window: 1h, key: []}}
upstreams: {app: {targets: ['{target}'], protocol: http2}}
routes:
  - {name: few, match: {path: /few}, upstream: app, limits: [few]}
  - {name: all, match: {path: '/{*rest}'}, upstream: app}
";

#[test]
fn a_stream_becomes_a_tunnel_to_either_version() {
    on_protocols(&HTTP2, |protocol| {
        let http1 = accepting_upstream();
        let http2 = http2_upstream(ExtendedConnect::Allowed);
        for yaml in [
            fill(TO_HTTP1, [("target", http1.target())]),
            fill(TO_HTTP2, [("target", format!("http://{http2}"))]),
        ] {
            let gateway = Gateway::for_every_protocol(&yaml);
            run(async {
                let connection = connect(protocol, &gateway).await;
                let mut stream = ask(&connection, extended_connect("/few?x", "websocket")).await;
                assert_eq!(stream.status, 200);
                assert_eq!(stream.headers["x-ratelimit-remaining"], "1");
                for name in ["upgrade", "connection", "sec-websocket-accept", "content-length"] {
                    assert!(!stream.headers.contains_key(name), "{name}");
                }
                stream.assert_echoes("hello").await;
                stream.assert_echoes("again").await;
                // Another request on the same connection meanwhile.
                let other = ask(&connection, extended_connect("/few", "websocket")).await;
                assert_eq!(other.status, 200);
                stream.send.send_data("last".into(), true).expect("an open stream");
                assert_eq!(stream.receive(usize::MAX).await, b"last");
            });
            gateway.wait_for_metric("tidegate_tunnels", 0);
        }
    });
}

#[test]
fn a_response_that_begins_no_tunnel_is_a_501_or_502() {
    on_protocols(&HTTP2, |protocol| {
        let echo = echo_upstream();
        let gateway = Gateway::for_every_protocol(&fill(
            "
            upstreams:
              app: {targets: [{target}]}
              fixed: {respond: {body: hi}}
            routes:
              - {name: fixed, match: {path: /fixed}, upstream: fixed}
              - {name: all, match: {path: '/{*rest}'}, upstream: app}
            ",
            [("target", echo.target())],
        ));
        run(async {
            let connection = connect(protocol, &gateway).await;
            let stream = ask(&connection, extended_connect("/x", "websocket")).await;
            assert_eq!(stream.status, 502, "the answer to another key");
            // A 2xx would be the beginning of a tunnel.
            let stream = ask(&connection, extended_connect("/plain", "websocket")).await;
            assert_eq!(stream.status, 501);
            let stream = ask(&connection, extended_connect("/fixed", "websocket")).await;
            assert_eq!(stream.status, 501);
        });
        let sent = echo.request_texts()[0].to_ascii_lowercase();
        assert!(sent.starts_with("get /x http/1.1\r\n"), "{sent}");
        assert!(
            sent.contains("\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: ")
        );
        assert!(sent.contains("\r\nsec-websocket-version: 13\r\n"), "{sent}");
    });
}

/// A key, and what answers it.
const KEY: (&str, &str) = ("dGhlIHNhbXBsZSBub25jZQ==", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");

#[test]
fn a_key_on_a_stream_is_answered_by_either_version() {
    on_protocols(&HTTP2, |protocol| {
        let http1 = accepting_upstream();
        let http2 = http2_upstream(ExtendedConnect::Allowed);
        for (version, gateway, paths) in [
            ("HTTP/1", start(&http1), &["/x"][..]),
            // It answers the key itself, or does not.
            ("HTTP/2", start_to_http2(http2), &["/x", "/accepted"]),
        ] {
            run(async {
                let connection = connect(protocol, &gateway).await;
                for path in paths {
                    let request = extended_connect(path, "websocket");
                    let request = request.header("sec-websocket-key", KEY.0);
                    let mut stream = ask(&connection, request).await;
                    assert_eq!(stream.status, 200, "{version} {path}");
                    let accept: Vec<_> =
                        stream.headers.get_all("sec-websocket-accept").iter().collect();
                    assert_eq!(accept, [KEY.1], "{version} {path}");
                    stream.assert_echoes("hello").await;
                }
            });
        }
    });
}

#[test]
fn a_wrong_answer_to_a_key_is_a_502() {
    let http2 = http2_upstream(ExtendedConnect::Allowed);
    on_protocols(&HTTP2, |protocol| {
        // It answers the key of RFC 6455, whatever it received.
        let echo = echo_upstream();
        for (version, gateway, path) in
            [("HTTP/1", start(&echo), "/x"), ("HTTP/2", start_to_http2(http2), "/wrong")]
        {
            run(async {
                let connection = connect(protocol, &gateway).await;
                let request = || extended_connect(path, "websocket");
                for request in
                    [request(), request().header("sec-websocket-key", "AAAAAAAAAAAAAAAAAAAAAA==")]
                {
                    assert_eq!(ask(&connection, request).await.status, 502, "{version}");
                }
            });
        }
    });
    on_protocols(&HTTP1, |protocol| {
        let gateway = start_to_http2(http2);
        for (path, status) in [("/wrong", 502), ("/accepted", 101), ("/x", 101)] {
            let mut client = protocol.connect_http1(&gateway);
            let response = client.send(request(path)).read_response();
            assert_eq!(response.status, status, "{path}");
            let accept = response.header("sec-websocket-accept");
            assert_eq!(accept, (status == 101).then_some(KEY.1), "{path}");
        }
    });
}

#[test]
fn an_http1_client_reaches_an_http2_upstream() {
    on_protocols(&HTTP1, |protocol| {
        let gateway = start_to_http2(http2_upstream(ExtendedConnect::Allowed));
        let mut client = protocol.connect_http1(&gateway);
        let response = client.send(request("/x") + "early").read_response();
        assert_eq!((response.status, response.header("upgrade")), (101, Some("websocket")));
        assert_eq!(response.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        assert_eq!(response.header("x-protocol"), Some("websocket"));
        assert_eq!(response.header("x-method"), Some("CONNECT"));
        assert_eq!(response.header("x-got-sec-websocket-version"), Some("yes"));
        assert_eq!(response.header("x-got-sec-websocket-key"), Some("yes"));
        for name in ["x-got-upgrade", "x-got-connection"] {
            assert_eq!(response.header(name), None);
        }
        assert_eq!(client.read_exact(5).as_deref(), Some(&b"early"[..]));
        super::super::assert_echoes(&mut client, "hello");
        client.send("last").socket.half_close().expect("a half-close");
        assert_eq!(client.read_to_end().expect("an orderly end"), b"last");
        gateway.wait_for_metric("tidegate_tunnels", 0);

        let mut client = protocol.connect_http1(&gateway);
        let refused = client.send(request("/refused")).read_response();
        assert_eq!((refused.status, refused.text().as_str()), (403, "no"));
        // Without GET there is no extended CONNECT for it: an ordinary request.
        let post = request("/x").replacen("GET", "POST", 1);
        let response = client.send(post).read_response();
        assert_eq!((response.status, response.header("x-method")), (403, Some("POST")));
        assert_eq!(response.header("x-got-upgrade"), None);
    });
}

#[test]
fn an_upstream_without_extended_connect_is_a_501() {
    on_protocols(&HTTP2, |protocol| {
        let gateway = start_to_http2(http2_upstream(ExtendedConnect::Absent));
        let mut client = Client::connect(gateway.address());
        for _ in 0..2 {
            assert_eq!(client.send(request("/x")).read_response().status, 501);
        }
        assert_eq!(client.get("/x", "").status, 403, "other requests are answered");
        run(async {
            let connection = connect(protocol, &gateway).await;
            assert_eq!(ask(&connection, extended_connect("/x", "websocket")).await.status, 501);
        });
        assert_eq!(gateway.metric("tidegate_upstream_failures_total"), 0);
    });
}

#[test]
fn refusals_of_an_extended_connect_are_ordinary_responses() {
    on_protocols(&HTTP2, |protocol| {
        let upstream = accepting_upstream();
        let gateway = Gateway::for_every_protocol(&fill(TO_HTTP1, [("target", upstream.target())]));
        run(async {
            let connection = connect(protocol, &gateway).await;
            for expected in [200, 200, 429] {
                let stream = ask(&connection, extended_connect("/few", "websocket")).await;
                assert_eq!(stream.status, expected);
            }
            let grpc =
                extended_connect("/few", "websocket").header("content-type", "application/grpc");
            assert_eq!(ask(&connection, grpc).await.status, 429, "a 200 would begin a tunnel");
            for other in ["h2c", "HTTP/2.0", "tls"] {
                assert_eq!(ask(&connection, extended_connect("/x", other)).await.status, 405);
            }
            let plain = Request::builder().method(Method::CONNECT).uri("gateway.test:80");
            assert_eq!(ask(&connection, plain).await.status, 405);
            let trace = Request::builder().method(Method::TRACE).uri("http://gateway.test/x");
            assert_eq!(ask(&connection, trace).await.status, 405);
            let length = extended_connect("/x", "websocket").header("content-length", "0");
            assert_eq!(ask(&connection, length).await.status, 400);
            let mut stream = ask(&connection, extended_connect("/x", "websocket")).await;
            stream.assert_echoes("the connection is open").await;
        });
        assert_eq!(upstream.request_count(), 3);
    });
}
