//! Where the body of a response ends, and what follows it.

use std::io::{Read, Write};

use h2::server::Builder;
use http::{HeaderMap, HeaderName};
use testkit::{
    client::Client,
    gateway::Gateway,
    http2_upstream::Http2Upstream,
    protocol::on_every_protocol,
    upstream::{Upstream, read_until_closed},
    yaml::fill,
};

use super::start;

#[test]
fn bodyless_responses_keep_both_connections_in_sync() {
    let upstream = Upstream::with_handler(|request, socket| {
        let answer = match request {
            [b'H', ..] => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Kind: head\r\n\r\n",
            text if text.starts_with(b"GET /204") => "HTTP/1.1 204 No Content\r\nX: y\r\n\r\n",
            text if text.starts_with(b"GET /304") => {
                "HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\nContent-Length: 5\r\n\r\n"
            }
            _ => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        };
        socket.write_all(answer.as_bytes()).is_ok()
    });
    let gateway = start(&upstream);
    on_every_protocol(|protocol| {
        let mut client = protocol.connect(&gateway);
        for _ in 0..2 {
            let head = client.ask("HEAD", "/", "", "");
            assert_eq!((head.status, head.header("content-length")), (200, Some("5")));
            let response = client.get("/204", "");
            assert_eq!((response.status, response.header("content-length")), (204, None));
            let response = client.get("/304", "");
            assert_eq!((response.status, response.header("etag")), (304, Some("\"1\"")));
            assert_eq!(client.get("/", "").text(), "hello");
        }
    });
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn head_responses_keep_the_upstreams_length_headers() {
    for (length, expected) in
        [("Transfer-Encoding: chunked\r\n", ""), ("", ""), ("Content-Length: 7\r\n", "7")]
    {
        let upstream = Upstream::with_handler(move |_, socket| {
            let head = format!("HTTP/1.1 200 OK\r\n{length}\r\n");
            socket.write_all(head.as_bytes()).is_ok()
        });
        let gateway = start(&upstream);
        on_every_protocol(|protocol| {
            let mut client = protocol.connect(&gateway);
            for _ in 0..2 {
                let head = client.ask("HEAD", "/", "", "");
                let forwarded = head.header("content-length").unwrap_or_default();
                assert_eq!((head.status, forwarded), (200, expected), "{}", head.head);
            }
        });
        assert_eq!(upstream.connections(), 1);
    }
}

#[test]
fn the_body_of_a_204_is_not_forwarded() {
    on_every_protocol(|protocol| {
        let upstream =
            Upstream::with_response("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nHTTP/");
        let gateway = start(&upstream);
        let mut client = protocol.connect(&gateway);
        for _ in 0..3 {
            let response = client.get("/", "");
            assert_eq!((response.status, response.header("content-length")), (204, None));
        }
        // Also if the body arrives late: it would precede the next response.
        let upstream =
            Upstream::with_response("HTTP/1.1 204 No Content\r\nContent-Length: 38\r\n\r\n");
        let gateway = start(&upstream);
        let mut client = protocol.connect(&gateway);
        for connections in 1..=3 {
            assert_eq!(client.get("/", "").status, 204);
            assert_eq!(upstream.connections(), connections, "the connection is not reused");
        }
    });
}

#[test]
fn a_response_delimited_by_close_is_complete() {
    let upstream = Upstream::with_handler(|_, socket| {
        socket.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello").is_err()
    });
    let gateway = start(&upstream);
    on_every_protocol(|protocol| {
        let mut client = protocol.connect(&gateway);
        for _ in 0..2 {
            let response = client.get("/", "");
            assert_eq!((response.status, response.text().as_str()), (200, "hello"));
            assert_eq!(response.header("connection"), None, "the close concerns only the upstream");
        }
    });
    let mut client = Client::connect(gateway.address());
    client.send("GET / HTTP/1.0\r\n\r\n");
    let whole = client.read_to_end().expect("an orderly end");
    assert!(whole.ends_with(b"\r\n\r\nhello"));
    let host = format!("host: {}\r\n", upstream.address);
    assert!(upstream.request_texts()[8].contains(&host), "an HTTP/1.1 request has a Host");
}

#[test]
fn response_trailers_are_forwarded() {
    let upstream = Upstream::with_response(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum, Set-Cookie\r\n\r\n\
         5;x=y\r\nhello\r\n0\r\nX-Sum: 1\r\nSet-Cookie: a=b\r\n\r\n",
    );
    let gateway = start(&upstream);
    on_every_protocol(|protocol| {
        let mut client = protocol.connect(&gateway);
        for _ in 0..2 {
            client.start("GET", "/", "TE: trailers\r\nConnection: TE\r\n", false);
            assert_eq!(client.read_head().status, 200);
            let (body, trailers) = client.read_chunked().expect("a body");
            assert_eq!(body, b"hello");
            assert_eq!(trailers, "x-sum: 1\r\n", "a cookie in the trailers is removed");
        }
    });
    assert_eq!(upstream.connections(), 1);
}

/// gRPC sends the details of an error in trailers, often more than 8 KiB of them.
#[test]
fn trailers_of_a_response_may_be_as_long_as_its_head() {
    let http1 = Upstream::with_handler(|request, socket| {
        let value = "x".repeat(trailer_length(request));
        let response = format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Long: {value}\r\n\r\n"
        );
        socket.write_all(response.as_bytes()).is_ok()
    });
    let mut builder = Builder::new();
    builder.max_header_list_size(1 << 20);
    let http2 = Http2Upstream::with_handler(builder, |mut exchange| async move {
        let length = trailer_length(exchange.request.uri.path().as_bytes());
        let mut stream = exchange.start(200, &[]);
        let _ = stream.send_data("hello".into(), false);
        let value = "x".repeat(length).parse().expect("a value");
        let _ = stream
            .send_trailers(HeaderMap::from_iter([(HeaderName::from_static("x-long"), value)]));
    });
    for (target, version) in [(http1.target(), "http1"), (http2.target(), "http2")] {
        let gateway = Gateway::for_every_protocol(&fill(
            "
            upstreams: {origin: {targets: ['{target}'], protocol: {version}}}
            routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
            ",
            [("target", target.as_str()), ("version", version)],
        ));
        on_every_protocol(|protocol| {
            let mut client = protocol.connect(&gateway);
            client.start("GET", "/20000", "TE: trailers\r\nConnection: TE\r\n", false);
            assert_eq!(client.read_head().status, 200);
            let (body, trailers) = client.read_chunked().expect("a body");
            assert_eq!((&body[..], trailers.len()), (&b"hello"[..], "x-long: \r\n".len() + 20_000));
            let mut client = protocol.connect(&gateway);
            client.start("GET", "/70000", "TE: trailers\r\nConnection: TE\r\n", false);
            let status = client.read_head().status;
            assert!(status == 502 || client.read_chunked().is_none(), "{version}: it is cut");
        });
    }
}

/// The number in a request's path.
fn trailer_length(request: &[u8]) -> usize {
    let digits = request.iter().skip_while(|byte| !byte.is_ascii_digit());
    let digits = digits.take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |length, digit| length * 10 + usize::from(digit - b'0'))
}

/// Some servers and balancers write all sizes with the same number of characters.
#[test]
fn sizes_of_chunks_may_be_padded() {
    for (size, body) in
        [("5  ", Some("hello")), ("5\t;a=b", Some("hello")), ("5 x", None), (" 5", None)]
    {
        let upstream = Upstream::with_handler(move |_, socket| {
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            let response = format!("{head}{size}\r\nhello\r\n0   \r\n\r\n");
            socket.write_all(response.as_bytes()).is_ok()
        });
        let gateway = start(&upstream);
        on_every_protocol(|protocol| {
            let response = protocol.connect(&gateway).start_get("/").try_read_response();
            let read = response.filter(|read| read.status == 200).map(|read| read.text());
            assert_eq!(read.as_deref().filter(|read| !read.is_empty()), body, "{size:?}");
        });
    }
}

#[test]
fn bytes_after_a_response_are_discarded() {
    for (name, more) in [
        ("whole", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"),
        ("half a head", "HTTP/1.1 200 OK\r\nX-Evil: "),
        ("one byte", "H"),
        ("a line's end", "\r\n"),
    ] {
        for apart in [false, true] {
            let more = more.as_bytes();
            let (notify, all_sent) = std::sync::mpsc::channel();
            let upstream = Upstream::with_handler(move |_, socket| {
                let mut bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello".to_vec();
                if !apart {
                    bytes.extend(more);
                }
                let sent = socket.write_all(&bytes).is_ok();
                let sent = !apart || (sent && socket.write_all(more).is_ok());
                let _ = notify.send(());
                sent
            });
            let gateway = start(&upstream);
            on_every_protocol(|protocol| {
                let mut client = protocol.connect(&gateway);
                assert_eq!(client.get("/1", "").text(), "hello");
                all_sent.recv().expect("the upstream has sent everything");
                for _ in 0..5 {
                    // Gives the event loop time to process everything that the upstream has sent.
                    for _ in 0..3 {
                        assert_eq!(client.get("/../x", "").status, 400);
                    }
                    let response = client.get("/2", "");
                    // Bytes that arrive during a request may fail it; they must never alter its
                    // response.
                    assert!(matches!(response.status, 200 | 502), "{name}: {}", response.head);
                    assert!(
                        response.status == 502 || response.text() == "hello",
                        "{name}: {}",
                        response.text()
                    );
                    assert_eq!(response.header("x-evil"), None, "{name}");
                    all_sent.recv().expect("the upstream has sent everything");
                }
            });
        }
    }
}

#[test]
fn a_response_before_the_request_body_reaches_the_client() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::on_connection(|socket| {
            let _ = socket.read(&mut [0; 100]);
            let _ = socket.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno");
            read_until_closed(socket);
        });
        let gateway = start(&upstream);
        let mut client = protocol.connect(&gateway);
        client.start("POST", "/", "Content-Length: 1000000\r\n", true);
        // The response may be there already, and the request ended with it.
        client.try_send([b'x'; 1000], false);
        let response = client.read_response();
        assert_eq!((response.status, response.text().as_str()), (403, "no"));
        if !protocol.is_http2() {
            client.try_send(vec![b'x'; 100_000], false);
            assert!(client.is_closed_or_reset(), "a connection with an incomplete body is closed");
            client = protocol.connect(&gateway);
        }
        // The upstream connection carries half a request and is not reused.
        assert_eq!(client.get("/", "").status, 403);
        assert_eq!(upstream.connections(), 2);
    });
}

#[test]
fn http_1_0_clients_get_http_1_0_framing() {
    let upstream = Upstream::with_handler(|request, socket| {
        let answer = if request.starts_with(b"GET /chunked") {
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
        } else {
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
        };
        socket.write_all(answer.as_bytes()).is_ok()
    });
    let gateway = start(&upstream);
    let mut client = Client::connect(gateway.address());
    for _ in 0..2 {
        client.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        let response = client.read_response();
        assert_eq!((response.status, response.text().as_str()), (200, "hello"));
        assert_eq!(response.header("connection"), Some("keep-alive"));
    }
    client.send("GET /chunked HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    let response = client.read_response();
    assert_eq!((response.text().as_str(), response.header("transfer-encoding")), ("hello", None));
    assert!(client.is_closed(), "the close delimits the body");
    let mut client = Client::connect(gateway.address());
    client.send("GET / HTTP/1.0\r\nHost: a\r\n\r\nGET /next HTTP/1.0\r\nHost: a\r\n\r\n");
    assert_eq!(client.read_response().text(), "hello");
    assert!(client.is_closed(), "HTTP/1.0 closes unless asked not to");
    assert_eq!(upstream.request_count(), 4);
    assert_eq!(upstream.connections(), 1);
}
