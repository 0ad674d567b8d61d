use testkit::{
    client::{Client, Response},
    gateway::Gateway,
    protocol::on_every_protocol,
    upstream::Upstream,
};

fn configuration(upstream: &Upstream) -> String {
    format!(
        "workers: 1
http: {{max_head: 8KiB, max_headers: 20}}
upstreams: {{origin: {{targets: [{}]}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin, max_body: 1KiB}}]",
        upstream.target()
    )
}

fn start(upstream: &Upstream) -> Gateway {
    Gateway::start(&configuration(upstream))
}

/// Asserts that `bytes` are refused with `status`, a problem document and a close.
fn assert_refused(gateway: &Gateway, bytes: &[u8], status: u16) -> Response {
    let sent = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned();
    let mut client = Client::connect(gateway.address());
    client.send(bytes);
    let response = client.try_read_response().unwrap_or_else(|| panic!("no response to {sent:?}"));
    assert_eq!(response.status, status, "{sent:?}: {}", response.text());
    assert_eq!(response.header("content-type"), Some("application/problem+json"), "{sent:?}");
    let problem = response.json();
    assert_eq!(problem["status"], status);
    assert_eq!(problem["request-id"].as_str(), response.header("x-request-id"), "{sent:?}");
    assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{problem}");
    assert_eq!(response.header("connection"), Some("close"), "{sent:?}");
    assert!(client.is_closed(), "{sent:?}");
    response
}

fn assert_passes(gateway: &Gateway, bytes: &[u8]) {
    let sent = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned();
    let mut client = Client::connect(gateway.address());
    let response = client.send(bytes).read_response();
    assert_eq!(response.status, 200, "{sent:?}: {}", response.text());
}

/// Asserts that each of `refused` gets its status and nothing of it reaches the upstream, and that
/// each of `neighbours` passes and is all that the upstream receives.
fn assert_refused_and_passed(refused: &[(&[u8], u16)], neighbours: &[&[u8]]) {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    for (bytes, status) in refused {
        assert_refused(&gateway, bytes, *status);
    }
    assert_eq!(upstream.received_bytes(), b"", "nothing refused may reach the upstream");
    assert_eq!(upstream.connections(), 0, "a refused request opens no upstream connection");
    for (index, bytes) in neighbours.iter().enumerate() {
        assert_passes(&gateway, bytes);
        assert_eq!(upstream.request_count(), index + 1);
    }
    let failures = gateway.metric("tidegate_upstream_failures_total{upstream=\"origin\"");
    assert_eq!(failures, 0, "a client's fault is not the upstream's");
}

pub(crate) fn post(lines: &str, body: &str) -> Vec<u8> {
    format!("POST /a HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n{body}").into_bytes()
}

/// Requests with ambiguous body lengths.
pub(crate) fn ambiguous_body_lengths() -> Vec<Vec<u8>> {
    let smuggled = "0\r\n\r\nGET /admin HTTP/1.1\r\nHost: a\r\n\r\n";
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5, 5",
        "Content-Length: +5",
        "Content-Length: -5",
        "Content-Length: 5a",
        "Content-Length: 0x5",
        "Content-Length: 5 5",
        "Content-Length:",
        "Content-Length: 18446744073709551621",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: identity, chunked",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: \"chunked\"",
        "Transfer-Encoding:",
        "Transfer-Encoding:\u{b}chunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding\r\n : chunked",
        "X: y\nTransfer-Encoding: chunked",
    ]
    .iter()
    .map(|lines| post(lines, smuggled))
    .chain([b"POST /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_vec()])
    .collect()
}

#[test]
fn ambiguous_body_lengths_are_refused() {
    let refused = ambiguous_body_lengths();
    let refused: Vec<(&[u8], u16)> = refused.iter().map(|bytes| (&bytes[..], 400)).collect();
    assert_refused_and_passed(
        &refused,
        &[
            &post("Content-Length: 5", "hello"),
            &post("content-length:\t005 ", "hello"),
            &post("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n"),
            &post("transfer-encoding:  CHUNKED ", "5\r\nhello\r\n0\r\n\r\n"),
            b"POST /a HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello",
        ],
    );
}

/// Heads that two recipients could interpret differently.
pub(crate) fn ambiguous_heads() -> Vec<Vec<u8>> {
    let with = |line: &str| format!("GET / HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n").into_bytes();
    vec![
        with("X: y\nHost: b"),
        b"GET / HTTP/1.1\nHost: a\n\n".to_vec(),
        b"GET / HTTP/1.1\r\nHost: a\r\n\n".to_vec(),
        with("X: y\rHost: b"),
        with("X: y\0z"),
        with("X: y\u{1}z"),
        with("X: y\u{7f}z"),
        with("X: y\r\n folded"),
        with("X: y\r\n\tfolded"),
        with(" X: y"),
        with("X : y"),
        with("X\t: y"),
        with(": y"),
        with("X y"),
        with("X(): y"),
        b"GET / HTTP/1.1\r\n X: y\r\nHost: a\r\n\r\n".to_vec(),
        b"get / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"Post / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n".to_vec(),
        b" GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"GET\t/\tHTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"GET /\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"GET /a\\b HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"GET a/b HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"GET /\r\n\r\n".to_vec(),
        b"GET\r\n\r\n".to_vec(),
        b"G{T / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"GET / http/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"GET / HTTP\r\nHost: a\r\n\r\n".to_vec(),
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\r\n".to_vec(),
    ]
}

#[test]
fn ambiguous_heads_are_refused() {
    let with = |line: &str| format!("GET / HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n").into_bytes();
    let refused = ambiguous_heads();
    let mut refused: Vec<(&[u8], u16)> = refused.iter().map(|bytes| (&bytes[..], 400)).collect();
    refused.extend([
        (&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], 505),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"GET / HTTP/01.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.10\r\nHost: a\r\n\r\n", 400),
        (b"GET /a\\b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /?\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    ]);
    assert_refused_and_passed(
        &refused,
        &[
            &with("X: y"),
            &with("X:y\r\nx: \u{e9}\tz \r\nEmpty:"),
            b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /a?b=c|d&e[]=%20' HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /a?b=\\c HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET / HTTP/1.2\r\nHost: a\r\n\r\n",
            b"GET / HTTP/1.0\r\n\r\n",
        ],
    );
}

/// Requests without one well-formed host.
pub(crate) fn without_exactly_one_host() -> Vec<Vec<u8>> {
    let with = |hosts: &str| format!("GET / HTTP/1.1\r\n{hosts}X: y\r\n\r\n").into_bytes();
    vec![
        with(""),
        with("Host:\r\n"),
        with("Host: a\r\nHost: b\r\n"),
        with("Host: a\r\nHost: a\r\n"),
        with("Host: a\r\nhost: b\r\n"),
        with("Host: a, b\r\n"),
        with("Host: a b\r\n"),
        with("Host: a/b\r\n"),
        with("Host: user@a\r\n"),
        with("Host: a:b\r\n"),
        with("Host: a:123456\r\n"),
        with("Host: :80\r\n"),
        with("Host: [::1\r\n"),
        with("Host: [zz]\r\n"),
        with("Host: a%00\r\n"),
        b"GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"GET http://user@a/ HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
    ]
}

#[test]
fn requests_without_exactly_one_host_are_refused() {
    let with = |hosts: &str| format!("GET / HTTP/1.1\r\n{hosts}X: y\r\n\r\n").into_bytes();
    let refused = without_exactly_one_host();
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    for bytes in &refused {
        let mut client = Client::connect(gateway.address());
        let response = client.send(bytes).read_response();
        assert_eq!(response.status, 400, "{:?}", String::from_utf8_lossy(bytes));
        assert!(response.json()["request-id"].is_string());
    }
    assert_eq!(upstream.received_bytes(), b"");
    for hosts in ["Host: a\r\n", "Host: A.Example.COM:8080\r\n", "Host: [::1]:80\r\n"] {
        assert_passes(&gateway, &with(hosts));
    }
    assert_passes(&gateway, b"GET http://a:80/x HTTP/1.1\r\nHost: ignored\r\n\r\n");
    assert!(upstream.request_texts()[3].contains("host: a:80\r\n"));
}

#[test]
fn a_head_that_is_too_large_is_refused() {
    let many = |count| {
        format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "A: b\r\n".repeat(count)).into_bytes()
    };
    let wide = |width| {
        format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "y".repeat(width)).into_bytes()
    };
    let long =
        |length| format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "y".repeat(length)).into_bytes();
    assert_refused_and_passed(
        &[
            (&many(20), 431),
            (&many(900), 431),
            (&wide(8192), 431),
            (&wide(60_000), 431),
            (&long(9000), 414),
            (&vec![b'G'; 20_000], 414),
        ],
        &[&many(19), &wide(8000), &long(8000)],
    );
}

/// Requests whose chunks or trailers are malformed.
pub(crate) fn malformed_chunks() -> Vec<Vec<u8>> {
    [
        "5\r\nhelloX",
        "5\r\nhello\n0\r\n\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        "\r\nhello\r\n0\r\n\r\n",
        "fffffffffffffffff\r\n",
        "5;a\nb\r\nhello\r\n0\r\n\r\n",
        "0\r\nX : y\r\n\r\n",
        "0\r\nX: y\n\r\n",
        "0\r\n folded\r\n\r\n",
        "0\r\nX: y\0\r\n\r\n",
    ]
    .iter()
    .map(|body| post("Transfer-Encoding: chunked", body))
    .collect()
}

#[test]
fn malformed_chunks_are_a_client_error() {
    let refused = malformed_chunks();
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    for bytes in &refused {
        assert_refused(&gateway, bytes, 400);
    }
    assert_eq!(upstream.request_count(), 0, "no whole request may have reached the upstream");
    assert_eq!(gateway.metric("tidegate_upstream_failures_total{upstream=\"origin\""), 0);
    let good = "5;a=b\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n";
    assert_passes(&gateway, &post("Transfer-Encoding: chunked\r\nTrailer: X-Sum", good));
    assert!(upstream.request_texts()[0].ends_with("5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n"));
}

#[test]
fn bodies_above_the_limit_are_refused_by_length_and_by_count() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    let long = "y".repeat(1025);
    assert_refused(&gateway, &post("Content-Length: 100000", ""), 413);
    assert_eq!(upstream.received_bytes(), b"");
    let chunk = format!("401\r\n{long}\r\n0\r\n\r\n");
    assert_refused(&gateway, &post("Transfer-Encoding: chunked", &chunk), 413);
    let chunks = format!("200\r\n{}\r\n", "y".repeat(512)).repeat(3);
    assert_refused(&gateway, &post("Transfer-Encoding: chunked", &chunks), 413);
    assert_eq!(upstream.request_count(), 0);
    assert_eq!(gateway.metric("tidegate_upstream_failures_total{upstream=\"origin\""), 0);
    assert_passes(&gateway, &post("Content-Length: 1024", &long[1..]));
    let chunk = format!("400\r\n{}\r\n0\r\n\r\n", &long[1..]);
    assert_passes(&gateway, &post("Transfer-Encoding: chunked", &chunk));
}

#[test]
fn unsupported_methods_and_expectations_are_refused() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    for (line, status) in [
        ("TRACE / HTTP/1.1\r\nHost: a\r\n", 405),
        ("CONNECT a:80 HTTP/1.1\r\nHost: a\r\n", 405),
        ("GET / HTTP/1.1\r\nHost: a\r\nExpect: 200-maybe\r\n", 417),
        ("GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nExpect: x\r\n", 417),
    ] {
        let response =
            Client::connect(gateway.address()).send(format!("{line}\r\n")).read_response();
        assert_eq!(response.status, status, "{line}");
        assert_eq!(response.header("content-type"), Some("application/problem+json"));
        assert!(response.header("x-request-id").is_some());
    }
    assert_eq!(upstream.received_bytes(), b"");
    assert_passes(&gateway, b"OPTIONS / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_passes(&gateway, b"PURGE / HTTP/1.1\r\nHost: a\r\n\r\n");
}

/// The members of `Expect` are a list (RFC 9110, 5.6.1): empty ones are absent, and repetitions
/// change nothing.
#[test]
fn an_expectation_is_a_list() {
    let upstream = Upstream::hello();
    let gateway = Gateway::for_every_protocol(&configuration(&upstream));
    on_every_protocol(|protocol| {
        for value in ["", ",", "100-continue, 100-Continue", "100-continue,", ", 100-continue"] {
            let response = protocol.get(&gateway, "/", format!("Expect: {value}\r\n"));
            assert_eq!(response.status, 200, "{protocol:?}: {value:?}");
        }
        for value in ["100-continue, x", "100-continue;a=1", "x,"] {
            let response = protocol.get(&gateway, "/", format!("Expect: {value}\r\n"));
            assert_eq!(response.status, 417, "{protocol:?}: {value:?}");
        }
    });
    for (value, asks) in [("100-continue,", true), (",", false)] {
        let mut client = Client::connect(gateway.address());
        client.send(format!(
            "POST / HTTP/1.1\r\nHost: a\r\nExpect: {value}\r\nContent-Length: 1\r\n\r\n"
        ));
        if asks {
            assert_eq!(client.read_head().expect("an interim response").0, 100);
        }
        client.send("x");
        assert_eq!(client.read_response().status, 200, "{value}");
    }
}

/// Nothing of such a request was sent, so the connection to the upstream is as good as before.
#[test]
fn a_body_malformed_at_its_start_costs_no_connection() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    for _ in 0..20 {
        assert_passes(&gateway, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_refused(&gateway, &post("Transfer-Encoding: chunked", "x\r\n"), 400);
    }
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn a_valid_request_before_an_invalid_one_is_answered() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    for good in [
        &b"GET /good HTTP/1.1\r\nHost: a\r\n\r\n"[..],
        b"POST /good HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
        b"POST /good HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        let before = upstream.request_count();
        let bad =
            b"GET /bad HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\nGET /c HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut client = Client::connect(gateway.address());
        client.send([good, good, bad].concat());
        assert_eq!(client.read_response().status, 200);
        assert_eq!(client.read_response().status, 200);
        assert_eq!(client.read_response().status, 400);
        assert!(client.is_closed());
        assert_eq!(upstream.request_count(), before + 2);
    }
    assert!(upstream.request_texts().iter().all(|text| text.contains("/good")));
}

#[test]
fn pipelined_requests_are_answered_in_their_order() {
    let upstream = Upstream::with_handler(|request, socket| {
        use std::io::Write;
        let path = String::from_utf8_lossy(request).split(' ').nth(1).map(str::to_owned);
        let path = path.unwrap_or_default();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}", path.len());
        socket.write_all(head.as_bytes()).is_ok()
    });
    let gateway = start(&upstream);
    let mut client = Client::connect(gateway.address());
    let all: Vec<String> =
        (0..50).map(|n| format!("GET /{n} HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
    client.send(all.concat());
    for n in 0..50 {
        assert_eq!(client.read_response().text(), format!("/{n}"));
    }
}

#[test]
fn a_head_in_single_bytes_is_one_request() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    let mut client = Client::connect(gateway.address());
    for byte in post("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n") {
        client.send([byte]);
    }
    assert_eq!(client.read_response().status, 200);
    // The body is streamed, so it may be chunked differently.
    let received = &upstream.request_texts()[0];
    let (head, body) = received.split_once("\r\n\r\n").expect("a head");
    let is_chunked = head.contains("transfer-encoding: chunked");
    let chunks = || body.split("\r\n").skip(1).step_by(2).collect();
    let data: String = if is_chunked { chunks() } else { body.to_owned() };
    assert_eq!(data, "hello", "{received}");
}
