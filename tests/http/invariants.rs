use std::{io::Read, time::Duration};

use rustix::process::Signal;
use testkit::{
    client::{Client, Response, get},
    gateway::Gateway,
    port::free_port,
    process::Process,
    protocol::on_every_protocol,
    redis_server::RedisServer,
    upstream::Upstream,
    wait::eventually,
};

use crate::tidegate_command;

/// Asserts the status, a request id and, for an error, a problem document with the same id.
fn assert_status_and_id(response: &Response, status: u16) {
    assert_eq!(response.status, status, "{}", response.head);
    let id = response.header("X-Request-Id").unwrap_or_else(|| panic!("no id:\n{}", response.head));
    assert_eq!((id.len(), response.header("date").is_some()), (32, true), "{}", response.head);
    if status >= 400 {
        assert_eq!(response.header("Content-Type"), Some("application/problem+json"));
        let problem = response.json();
        assert_eq!(problem["request-id"].as_str(), Some(id));
        assert_eq!(problem["status"].as_u64(), Some(u64::from(status)));
        assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{problem}");
        assert!(problem["type"].is_string() && problem["title"].is_string(), "{problem}");
    }
}

#[test]
fn every_response_has_a_request_id() {
    let (upstream, silent) = (Upstream::hello(), Upstream::silent());
    let gateway = Gateway::for_every_protocol(&format!(
        "http: {{max_head: 8KiB, head_timeout: 2s}}
client: {{trusted_proxies: [127.0.0.2/32]}}
store: {{redis: {{shards: [{{primary: 'redis://127.0.0.1:1'}}]}}}}
auth: {{keys: {{api_key: {{}}}}, sso: {{forward: {{to: 'http://127.0.0.1:1/'}}}}}}
consumers: {{entries: []}}
upstreams:
  origin: {{targets: [{}]}}
  silent: {{targets: [{}], response_timeout: 200ms}}
  gone: {{targets: ['http://127.0.0.1:1']}}
  fixed: {{respond: {{status: 418, body: tea}}}}
limits:
  once: {{quota: 1, window: 1h}}
  closed: {{quota: 1, window: 1h, on_failure: closed}}
routes:
  - {{name: a, match: {{path: /a, methods: [GET, POST]}}, upstream: origin, max_body: 10B}}
  - {{name: silent, match: {{path: /silent}}, upstream: silent}}
  - {{name: gone, match: {{path: /gone}}, upstream: gone}}
  - {{name: fixed, match: {{path: /fixed}}, upstream: fixed}}
  - {{name: keys, match: {{path: /keys}}, upstream: fixed, auth: [keys]}}
  - {{name: sso, match: {{path: /sso}}, upstream: fixed, auth: [sso]}}
  - {{name: decide, match: {{path: /decide}}, decide: {{}}}}
  - {{name: once, match: {{path: /once}}, upstream: origin, limits: [once]}}
  - {{name: closed, match: {{path: /closed}}, upstream: origin, limits: [closed]}}",
        upstream.target(),
        silent.target()
    ));
    let long = "x".repeat(9000);
    assert_eq!(get(gateway.address(), "/once", "").status, 200);
    on_every_protocol(|protocol| {
        for (method, path, fields, status) in [
            ("GET", "/a", "", 200),
            ("GET", "/once", "", 429),
            ("GET", "/closed", "", 503),
            ("GET", "/nowhere", "", 404),
            ("PUT", "/a", "", 405),
            ("TRACE", "/a", "", 405),
            ("GET", "/%zz", "", 400),
            ("POST", "/a", "Content-Length: 11\r\n", 413),
            ("GET", "/a", "Expect: more\r\n", 417),
            ("GET", "/a", &format!("X: {long}\r\n"), 431),
            ("GET", &format!("/{long}"), "", 414),
            ("GET", "/gone", "", 502),
            ("GET", "/silent", "", 504),
            ("GET", "/keys", "", 401),
            ("GET", "/keys", "X-Api-Key: wrong\r\n", 401),
            ("GET", "/sso", "", 503),
            ("GET", "/decide", "X-Forwarded-Uri: /a\r\nX-Forwarded-Method: GET\r\n", 403),
        ] {
            let mut client = protocol.connect(&gateway);
            let has_body = fields.starts_with("Content-Length");
            assert_status_and_id(
                &client.start(method, path, fields, has_body).read_response(),
                status,
            );
        }
        let response = protocol.get(&gateway, "/fixed", "");
        assert_eq!((response.status, response.text().as_str()), (418, "tea"));
        assert!(response.header("X-Request-Id").is_some());
    });
    for (line, fields, status) in [
        ("OPTIONS *", "", 200),
        ("GET /a b", "", 400),
        ("GET http://[/", "", 400),
        ("POST /a", "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", 400),
        ("POST /a", "Transfer-Encoding: gzip\r\n", 400),
        ("GET /a", "Broken : x\r\n", 400),
    ] {
        let mut client = Client::connect(gateway.address());
        client.send(format!("{line} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
        assert_status_and_id(&client.read_response(), status);
    }
    for (sent, status) in [
        ("GET /a HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        ("GET /a HTTP/1.1\r\n\r\n", 400),
        ("GET /a\r\n\r\n", 400),
        ("GET /a HTTP/1.1\r\nHost: a\r\n", 408),
        ("POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    ] {
        let mut client = Client::connect(gateway.address());
        assert_status_and_id(&client.send(sent).read_response(), status);
    }
}

#[test]
fn a_refused_head_request_gets_the_headers_of_get() {
    on_every_protocol(|protocol| {
        let gateway = Gateway::for_every_protocol(
            "upstreams: {hello: {respond: {body: hello}}}
limits: {small: {quota: 2, window: 1h}}
routes: [{name: a, match: {path: /a}, upstream: hello, limits: [small]}]",
        );
        let mut client = protocol.connect(&gateway);
        for (status, left) in [(200, "1"), (200, "0"), (429, "0"), (429, "0")] {
            let response = client.ask("HEAD", "/a", "", "");
            let remaining = response.header("X-RateLimit-Remaining");
            assert_eq!((response.status, remaining), (status, Some(left)));
            assert_eq!(response.header("Retry-After").is_some(), status == 429);
            assert!(response.number("Content-Length") > 0, "{}", response.head);
        }
        // The connection is in sync: no body was sent.
        assert_eq!(client.get("/nowhere", "").status, 404);
    });
}

#[test]
fn ipv4_and_ipv6_clients_are_served_and_mapped_addresses_are_one_caller() {
    let gateway = Gateway::start(
        "listen: [{address: '[::]:0'}, {address: '[::1]:0'}]
workers: 2
upstreams: {hello: {respond: {body: hello}}}
limits: {small: {quota: 9, window: 1h}}
routes: [{name: a, match: {path: /a}, upstream: hello, limits: [small]}]",
    );
    let [any, six] = gateway.server.addresses[..] else { panic!("two listeners") };
    let four = std::net::SocketAddr::from(([127, 0, 0, 1], any.port()));
    let any_six = std::net::SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, any.port()));
    for (address, used) in [(four, 1), (six, 1), (any_six, 2), (four, 2)] {
        let response = get(address, "/a", "");
        assert_eq!(
            (response.status, response.number("X-RateLimit-Used")),
            (200, used),
            "{address}"
        );
    }
}

#[test]
fn ipv4_and_ipv6_listeners_share_a_port() {
    let start = |port: u16| {
        Gateway::start(&format!(
            "listen: [{{address: '[::]:{port}'}}, {{address: '0.0.0.0:{port}'}}]
upstreams: {{hello: {{respond: {{body: hello}}}}}}
routes: [{{name: a, match: {{path: /a}}, upstream: hello}}]"
        ))
    };
    let port = free_port();
    let gateway = start(port);
    for address in [format!("127.0.0.1:{port}"), format!("[::1]:{port}")] {
        let address = address.parse().expect("an address");
        assert_eq!(get(address, "/a", "").status, 200);
    }
    drop(gateway);
}

#[test]
fn connections_above_the_limit_wait() {
    let gateway = Gateway::start(
        "workers: 1
http: {max_connections: 2}
upstreams: {hello: {respond: {body: hello}}}
routes: [{name: a, match: {path: /a}, upstream: hello}]",
    );
    let mut first = Client::connect(gateway.address());
    let mut second = Client::connect(gateway.address());
    assert_eq!((first.get("/a", "").status, second.get("/a", "").status), (200, 200));
    let mut third = Client::connect(gateway.address());
    third.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    third.socket.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
    assert!(third.socket.read(&mut [0]).is_err(), "a third connection is served beside two");
    assert_eq!(second.get("/a", "").status, 200, "the other two are still served");
    drop(first);
    third.socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    assert_eq!(third.read_response().status, 200);
}

#[test]
fn no_log_level_contains_a_secret() {
    const SECRETS: [&str; 5] =
        ["hush-redis", "hush-token", "hush-cookie", "hush-query", "hush-header"];
    let upstream = Upstream::hello();
    // This Redis has no password, so sending one is an error, which is logged.
    let redis = RedisServer::start();
    let directory = tempfile::tempdir().expect("a directory");
    let url = redis.url().replace("redis://", "redis://user:hush-redis@");
    let yaml = format!(
        "listen: [{{address: '127.0.0.1:0'}}]
admin: {{address: '127.0.0.1:0', hosts: [gateway.test]}}
store: {{redis: {{shards: [{{primary: '{url}'}}]}}}}
upstreams: {{origin: {{targets: [{}]}}, gone: {{targets: ['http://127.0.0.1:1']}}}}
limits: {{small: {{quota: 3, window: 1h, key: [token, 'cookie:c', 'query:k', 'header:x-key']}}}}
routes:
  - {{name: a, match: {{path: /a}}, upstream: origin, limits: [small]}}
  - {{name: gone, match: {{path: /gone}}, upstream: gone, limits: [small]}}",
        upstream.target()
    );
    std::fs::write(directory.path().join("t.yaml"), &yaml).expect("a file");
    let mut process = Process::start(tidegate_command(
        directory.path(),
        &["--config", "t.yaml", "--log", "trace"],
    ));
    let headers =
        "Authorization: Bearer hush-token\r\nCookie: c=hush-cookie\r\nX-Key: hush-header\r\n";
    for path in ["/a?k=hush-query", "/gone?k=hush-query", "/b?k=hush-query", "/a?k=hush-query"] {
        let response = get(process.address, path, headers);
        let text = response.head + &String::from_utf8_lossy(&response.body);
        assert!(path.starts_with("/a") || !text.contains("hush-"), "{text}");
    }
    // The fault does not repeat the malformed password.
    std::fs::write(directory.path().join("t.yaml"), yaml.replace("user:", "user:@"))
        .expect("a file");
    process.signal(Signal::HUP);
    eventually("the fault is logged", || process.log().contains("has faults"));
    let log = process.log();
    let line = log.lines().find(|line| line.contains("has faults")).expect("the line");
    assert!(line.contains("t.yaml:") && line.contains("expected"), "{line}");
    assert!(!line.contains("\\n") && !line.contains("^^"), "a sentence, no picture: {line}");
    let admin_texts = ["/readyz", "/metrics"].map(|path| get(process.admin, path, "").text());
    process.signal(Signal::TERM);
    assert_eq!(process.wait_exit().code(), Some(0));
    let texts = process.log() + &admin_texts.concat();
    assert!(texts.contains("\"TRACE\"") && texts.contains("Redis is lost"), "{texts}");
    for secret in SECRETS {
        assert!(!texts.contains(secret), "{secret}");
    }
}
