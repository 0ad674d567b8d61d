//! What a request may contain: trailers, hosts, a loop; and what is forwarded of it.

use testkit::{
    client::{Client, get},
    gateway::Gateway,
    upstream::Upstream,
    yaml::fill,
};

use super::{ORIGIN, start};

#[test]
fn request_trailers_have_no_effect() {
    let upstream = Upstream::hello();
    let gateway = start(
        &upstream,
        "
        upstreams: {origin: {targets: [{target}]}}
        limits:
          small:
            quota: 9
            window: 1m
            key: ['header:X-Caller']
            cost: 'header:X-Cost'
            max_cost: 3
        routes: [{name: all, match: {path: /a}, upstream: origin, limits: [small]}]
        ",
    );
    let forbidden = [
        "X-Caller",
        "x_caller",
        "X-Cost",
        "Content-Length",
        "Transfer-Encoding",
        "Host",
        "Authorization",
        "Cookie",
        "X-Forwarded-For",
        "x_forwarded_for",
        "X-Request-Id",
        "Via",
        "Forwarded",
        "Connection",
        "X-RateLimit-Limit",
        "TE",
        "Expect",
    ];
    let trailers = forbidden.map(|name| format!("{name}: 1\r\n")).concat();
    let mut client = Client::connect(gateway.address());
    client.send(format!(
        "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
         5;secret=extension\r\nhello\r\n0;more\r\n{trailers}X-Sum: 1\r\n\r\n"
    ));
    assert_eq!(client.read_response().status, 200);
    let text = &upstream.request_texts()[0];
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    assert_eq!(body, "5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n", "{head}");
}

#[test]
fn options_asterisk_is_answered_by_the_gateway() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream, ORIGIN);
    let mut client = Client::connect(gateway.address());
    for target in ["*", "http://b.test", "http://b.test:80"] {
        let asked = format!("OPTIONS {target} HTTP/1.1\r\nHost: a\r\nMax-Forwards: 0\r\n\r\n");
        let response = client.send(asked).read_response();
        assert!((200..300).contains(&response.status), "{target}: {}", response.head);
        assert!(response.header("allow").is_some(), "{}", response.head);
    }
    assert_eq!(client.get("/a", "").status, 200);
    assert_eq!(upstream.request_count(), 1, "only the GET is forwarded");
}

#[test]
fn an_unsupported_method_is_answered_with_the_supported_ones() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream, ORIGIN);
    for line in ["TRACE /", "CONNECT a:80"] {
        let mut client = Client::connect(gateway.address());
        let response = client.send(format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n")).read_response();
        let allow = response.header("allow").unwrap_or_default();
        assert_eq!(response.status, 405, "{line}");
        assert!(allow.starts_with("GET, HEAD, POST"), "{line}: {}", response.head);
    }
    assert_eq!(upstream.request_count(), 0);
}

#[test]
fn hosts_are_limited_to_255_bytes_and_one_trailing_dot() {
    let gateway = Gateway::start(
        "
        upstreams: {named: {respond: {body: named}}, other: {respond: {body: other}}}
        routes:
          - {name: named, match: {host: api.test, path: /a}, upstream: named}
          - {name: v6, match: {host: '[2001:db8::1]', path: /a}, upstream: named}
          - {name: other, match: {path: /a}, upstream: other}
        ",
    );
    let ask = |host: &str| {
        let mut client = Client::connect(gateway.address());
        client.send(format!("GET /a HTTP/1.1\r\nHost: {host}\r\n\r\n")).read_response()
    };
    for host in ["api.test", "API.test.", "api.test:80", "api.test.:80", "[2001:db8::1]:80"] {
        assert_eq!(ask(host).text(), "named", "{host}");
    }
    let long = format!("{}b", "a.".repeat(127));
    assert_eq!((long.len(), ask(&long).text().as_str()), (255, "other"));
    for host in [&format!("{long}c"), "api.test..", ".", "[2001:db8::1", "2001:db8::1"] {
        assert_eq!(ask(host).status, 400, "{host}");
    }
}

#[test]
fn head_answered_204_with_a_length_is_a_204_without_one() {
    let upstream = Upstream::with_response("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n");
    let gateway = start(&upstream, ORIGIN);
    let mut client = Client::connect(gateway.address());
    for _ in 0..3 {
        client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
        let (status, head) = client.read_head().expect("a response");
        assert_eq!(status, 204);
        assert!(!head.to_ascii_lowercase().contains("content-length"), "{head}");
    }
}

#[test]
fn a_loop_through_the_gateway_is_a_508() {
    let upstream = Upstream::hello();
    let yaml = |target: &str, protocol: &str| {
        fill(
            "
            listen: [{address: '127.0.0.1:0', http2: true}]
            upstreams: {origin: {targets: ['{target}'], protocol: {protocol}}}
            routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
            ",
            [("target", target), ("protocol", protocol)],
        )
    };
    let gateway = Gateway::start(&yaml(&upstream.target(), "http1"));
    assert_eq!(get(gateway.address(), "/", "Via: 1.0 other\r\n").status, 200);
    let text = upstream.request_texts()[0].clone();
    assert!(text.contains("Via: 1.0 other\r\n") && text.contains("\r\nvia: 1.1 tidegate-"));
    for protocol in ["http1", "http2"] {
        let target = format!("http://{}", gateway.address());
        gateway.reload(&yaml(&target, protocol)).expect("sound rules");
        let before = gateway.metric("tidegate_requests_total");
        assert_eq!(get(gateway.address(), "/", "").status, 508, "{protocol}");
        gateway.wait_for_metric("tidegate_requests_total", before + 2);
    }
}

#[test]
fn via_has_the_version_that_the_client_spoke() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream, ORIGIN);
    for version in ["1.0", "1.1"] {
        let mut client = Client::connect(gateway.address());
        client.send(format!("GET / HTTP/{version}\r\nHost: a\r\n\r\n"));
        assert_eq!(client.read_response().status, 200);
        let received = upstream.request_texts().pop().expect("a request");
        assert!(received.contains(&format!("\r\nvia: {version} tidegate-")), "{received}");
    }
}
