//! Invalid and incomplete responses of upstreams, interim responses, and bounds of heads.

/// Where a body ends.
mod bodies;

use std::io::Write;

use testkit::{
    client::Client,
    gateway::Gateway,
    protocol::{PROTOCOLS, on_every_protocol},
    upstream::Upstream,
    yaml::fill,
};

/// A gateway that forwards each request once.
fn start(upstream: &Upstream) -> Gateway {
    Gateway::for_every_protocol(&fill(
        "
        workers: 1
        upstreams: {origin: {targets: ['{target}'], retries: 0, ejection: {max_share: 0}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("target", upstream.target())],
    ))
}

/// RFC 9110, 15.5.22.
#[test]
fn a_426_says_which_protocol_the_server_demands() {
    let upstream = Upstream::with_response(
        "HTTP/1.1 426 Upgrade Required\r\nUpgrade: TLS/1.3, HTTP/2.0\r\nConnection: upgrade\r\nContent-Length: 0\r\n\r\n",
    );
    let gateway = start(&upstream);
    on_every_protocol(|protocol| {
        let response = protocol.get(&gateway, "/", "");
        assert_eq!(response.status, 426);
        let demanded = (!protocol.is_http2()).then_some("TLS/1.3, HTTP/2.0");
        assert_eq!(response.header("upgrade"), demanded);
        let connection = response.header("connection").map(str::to_ascii_lowercase);
        assert_eq!(connection.as_deref(), demanded.map(|_| "upgrade"));
    });
}

#[test]
fn an_ambiguous_response_is_a_502() {
    for answer in [
        "HTTP/1.1 200 OK\r\nX: y\nSet-Cookie: evil\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: y\r\n folded\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX : y\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: y\0\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/2 200 OK\r\n\r\n",
        "SSH-2.0-OpenSSH_9.9\r\n\r\n",
        "\0\0\0\0\n",
    ] {
        let upstream = Upstream::with_response(answer);
        let gateway = start(&upstream);
        for (turn, protocol) in (1..).zip(PROTOCOLS) {
            let mut client = protocol.connect(&gateway);
            let response = client.get("/", "");
            assert_eq!(response.status, 502, "{answer:?} over {protocol:?}");
            assert_eq!(response.header("content-type"), Some("application/problem+json"));
            assert_eq!(response.header("set-cookie"), None);
            assert!(
                !response.text().contains("127.0.0.1"),
                "a client does not learn which server failed"
            );
            assert_eq!(
                gateway.metric(
                    "tidegate_upstream_failures_total{upstream=\"origin\",kind=\"broken\"}"
                ),
                2 * turn - 1
            );
            assert_eq!(client.get("/", "").status, 502, "the client's connection is kept");
            assert_eq!(
                upstream.connections() as u64,
                2 * turn,
                "the upstream's connection is closed"
            );
        }
    }
}

#[test]
fn a_response_truncated_in_its_head_is_a_502() {
    for answer in ["", "HTTP/1.1 200 OK\r\nContent-Le", "HTTP/1.1 200 OK\r\nA: b\r\n"] {
        let upstream =
            Upstream::with_handler(move |_, socket| socket.write_all(answer.as_bytes()).is_err());
        let gateway = start(&upstream);
        on_every_protocol(|protocol| {
            assert_eq!(protocol.get(&gateway, "/", "").status, 502, "{answer:?}");
        });
    }
}

#[test]
fn a_response_truncated_in_its_body_is_never_delimited_as_complete() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nxyz\r\n",
    ] {
        let upstream =
            Upstream::with_handler(move |_, socket| socket.write_all(answer.as_bytes()).is_err());
        let gateway = start(&upstream);
        on_every_protocol(|protocol| {
            let mut client = protocol.connect(&gateway);
            assert!(client.start_get("/").try_read_response().is_none(), "{answer:?}");
        });
        // HTTP/1.0 delimits by close: an orderly close would mark the body as complete.
        let mut client = Client::connect(gateway.address());
        client.send("GET / HTTP/1.0\r\nHost: a\r\n\r\n");
        let end = client.read_to_end();
        let length = answer.contains("Content-Length");
        assert!(end.is_err() || length, "{answer:?}: {end:?}");
    }
}

#[test]
fn interim_responses_are_not_final() {
    let upstream = Upstream::with_response(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\
         X-RateLimit-Remaining: 9\r\nRateLimit: 9\r\nX-Request-Id: theirs\r\n\r\n\
         HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    );
    let gateway = start(&upstream);
    on_every_protocol(|protocol| {
        let mut client = protocol.connect(&gateway);
        for _ in 0..3 {
            let interim = client.start_get("/").read_interim();
            assert_eq!(
                (interim.status, interim.header("link")),
                (103, Some("x")),
                "interim responses are forwarded"
            );
            // Fields of the interim response must not reach the final one.
            for name in ["x-ratelimit-remaining", "ratelimit", "x-request-id"] {
                assert_eq!(interim.header(name), None, "{name}");
            }
            let response = client.read_response();
            assert_eq!((response.status, response.text().as_str()), (200, "hello"));
            assert_eq!(response.header("link"), None);
        }
    });
    // HTTP/1.0 has no interim responses.
    let mut old = Client::connect(gateway.address());
    assert_eq!(old.send("GET / HTTP/1.0\r\n\r\n").read_response().status, 200);
}

#[test]
fn too_many_interim_responses_or_fields_are_a_502() {
    const FINAL: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    for (count, status) in [(30, 200), (40, 502), (100_000, 502)] {
        let upstream = Upstream::with_handler(move |_, socket| {
            let flood = "HTTP/1.1 100 Continue\r\n\r\n".repeat(count) + FINAL;
            socket.write_all(flood.as_bytes()).is_ok()
        });
        let gateway = start(&upstream);
        on_every_protocol(|protocol| {
            let response = protocol.get(&gateway, "/", "");
            assert_eq!(response.status, status, "{count} interim");
        });
    }
    for (count, status) in [(1000, 200), (1100, 502), (13_000, 502)] {
        let upstream = Upstream::with_handler(move |_, socket| {
            let fields: Vec<_> = (0..count).map(|number| format!("{number:x}:\r\n")).collect();
            let head = FINAL.replace("\r\n\r\n", &format!("\r\n{}\r\n", fields.concat()));
            socket.write_all(head.as_bytes()).is_ok()
        });
        let gateway = start(&upstream);
        on_every_protocol(|protocol| {
            let response = protocol.get(&gateway, "/", "");
            assert_eq!(response.status, status, "{count} fields");
        });
    }
}

#[test]
fn a_response_head_in_single_bytes_is_parsed_alike() {
    let upstream = Upstream::with_handler(|_, socket| {
        let answer = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n\
            HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\n\r\n";
        answer.iter().all(|byte| socket.write_all(&[*byte]).is_ok())
    });
    let gateway = start(&upstream);
    on_every_protocol(|protocol| {
        let mut client = protocol.connect(&gateway);
        for _ in 0..3 {
            assert_eq!(client.start_get("/").read_interim().status, 103);
            let response = client.read_response();
            assert_eq!((response.status, response.text().as_str()), (200, "hello"));
        }
    });
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn response_heads_pass_up_to_the_size_limit() {
    for (length, status) in [(60_000, 200), (70_000, 502)] {
        let upstream = Upstream::with_handler(move |_, socket| {
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: {}\r\n\r\nok",
                "y".repeat(length)
            );
            socket.write_all(head.as_bytes()).is_ok()
        });
        let gateway = start(&upstream);
        on_every_protocol(|protocol| {
            assert_eq!(protocol.get(&gateway, "/", "").status, status, "{length}");
        });
    }
}
