//! The admin listener: host names, cross-origin requests, and connections that never send a
//! request.

use std::{net::TcpStream, time::Duration};

use testkit::{
    client::{Client, Response, get},
    gateway::Gateway,
    wait::sleep,
    yaml::fill,
};
use tidegate::clock::instant;

const LOOPBACK: &str = "
admin: {address: '127.0.0.1:0'}
upstreams: {hello: {respond: {body: hi}}}
limits:
  calls: {quota: 100, window: 1h, key: [token]}
  together: {quota: 100, window: 1h, key: []}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [calls]}]
";

fn ask(gateway: &Gateway, line: &str, headers: &str) -> Response {
    Client::connect(gateway.admin()).send(format!("{line}\r\n{headers}\r\n")).read_response()
}

#[test]
fn unknown_host_names_are_refused() {
    let token = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(token.path(), "0123456789abcdef").expect("a file");
    let token = token.path().display();
    let loopback = Gateway::start(LOOPBACK);
    let wildcard = Gateway::start(&fill(
        "
        admin: {address: '0.0.0.0:0', token: 'file:{token}'}
        upstreams: {hello: {respond: {body: hi}}}
        limits: {calls: {quota: 100, window: 1h, key: [token]}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [calls]}]
        ",
        [("token", token)],
    ));
    let named = Gateway::start(
        "
        admin: {address: '127.0.0.1:0', hosts: [Admin.example.com, tidegate]}
        upstreams: {hello: {respond: {body: hi}}}
        limits: {calls: {quota: 100, window: 1h, key: [token]}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [calls]}]
        ",
    );
    let port = loopback.admin().port();
    for (host, wanted) in [
        (format!("127.0.0.1:{port}"), [200, 200, 200]),
        ("127.0.0.1".to_owned(), [200, 200, 200]),
        ("localhost".to_owned(), [200, 200, 200]),
        ("LOCALHOST.:8000".to_owned(), [200, 200, 200]),
        ("[::1]:9900".to_owned(), [200, 200, 200]),
        ("127.9.9.9".to_owned(), [200, 200, 200]),
        ("10.1.2.3:9900".to_owned(), [421, 200, 421]),
        ("[2001:db8::1]".to_owned(), [421, 200, 421]),
        ("admin.example.com:443".to_owned(), [421, 421, 200]),
        ("TIDEGATE".to_owned(), [421, 421, 200]),
        ("evil.example".to_owned(), [421, 421, 421]),
        (format!("evil.example:{port}"), [421, 421, 421]),
        ("127.0.0.1.evil.example".to_owned(), [421, 421, 421]),
        ("127.0.0.1:9900.evil.example".to_owned(), [421, 421, 421]),
        ("localhost.evil.example".to_owned(), [421, 421, 421]),
        ("127.0.0.1@evil.example".to_owned(), [421, 421, 421]),
        ("127.1".to_owned(), [421, 421, 421]),
        ("0x7f.0.0.1".to_owned(), [421, 421, 421]),
        (String::new(), [421, 421, 421]),
    ] {
        for (gateway, wanted) in [&loopback, &wildcard, &named].into_iter().zip(wanted) {
            for target in ["/healthz", "/metrics", "/api/limits", "/api/limits/calls?key=a"] {
                let line = format!("GET {target} HTTP/1.1");
                let headers = format!("Host: {host}\r\nAuthorization: Bearer 0123456789abcdef\r\n");
                let response = ask(gateway, &line, &headers);
                assert_eq!(response.status, wanted, "{host} {target}: {}", response.text());
                if wanted == 421 {
                    assert_eq!(response.header("content-type"), Some("application/problem+json"));
                    assert!(response.text().contains("admin.hosts"), "{}", response.text());
                }
            }
        }
    }
}

#[test]
fn every_form_of_the_host_is_checked() {
    let gateway = Gateway::start(LOOPBACK);
    for (line, headers, wanted) in [
        ("GET /healthz HTTP/1.0", "", 200),
        ("GET /healthz HTTP/1.0", "Host: evil.example\r\n", 421),
        ("GET /healthz HTTP/1.1", "", 421),
        ("GET /healthz HTTP/1.1", "Host: localhost\r\nHost: evil.example\r\n", 421),
        ("GET http://evil.example/healthz HTTP/1.1", "Host: localhost\r\n", 421),
        ("GET http://localhost/healthz HTTP/1.1", "Host: evil.example\r\n", 421),
        ("GET http://localhost/healthz HTTP/1.1", "Host: localhost\r\n", 200),
        ("GET /nowhere HTTP/1.1", "Host: evil.example\r\n", 421),
        ("PUT /healthz HTTP/1.1", "Host: evil.example\r\n", 421),
    ] {
        let response = ask(&gateway, line, headers);
        assert_eq!(response.status, wanted, "{line} {headers}: {}", response.text());
    }
}

#[test]
fn cross_origin_writes_are_refused() {
    let gateway = Gateway::start(LOOPBACK);
    let used = || {
        let line = "GET /api/limits/calls?key=a HTTP/1.1";
        let state = ask(&gateway, line, "Host: localhost\r\n");
        state.json()["used"].as_u64()
    };
    get(gateway.address(), "/", "Authorization: a\r\n");
    for headers in [
        "Origin: http://evil.example\r\n",
        "Origin: null\r\n",
        "Origin: http://localhost:3000\r\n",
        "Origin: http://localhost\r\n",
        "Origin: http://localhost:9900\r\nOrigin: http://evil.example\r\n",
        "Origin: http://localhost:9900.evil.example\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
        "Sec-Fetch-Site: same-site\r\n",
        "Origin: http://localhost:9900\r\nSec-Fetch-Site: cross-site\r\n",
    ] {
        for line in [
            "DELETE /api/limits/calls?key=a HTTP/1.1",
            "POST /api/reload HTTP/1.1",
            "PUT /api/throttle HTTP/1.1",
            "PUT /api/log_level HTTP/1.1",
            "GET /api/events HTTP/1.1",
        ] {
            let response = ask(&gateway, line, &format!("Host: localhost:9900\r\n{headers}"));
            assert_eq!(response.status, 403, "{line} {headers}: {}", response.text());
            assert!(response.text().contains("web page"), "{}", response.text());
        }
        let read = ask(&gateway, "GET /healthz HTTP/1.1", "Host: localhost:9900\r\n");
        assert_eq!(read.status, 200);
    }
    assert_eq!(used(), Some(1));
    let own =
        "Host: localhost:9900\r\nOrigin: http://LOCALHOST:9900\r\nSec-Fetch-Site: same-origin\r\n";
    assert_eq!(ask(&gateway, "DELETE /api/limits/calls?key=a HTTP/1.1", own).status, 204);
    assert_eq!(used(), Some(0));
}

#[test]
fn unfinished_requests_do_not_block_the_operator() {
    let gateway = Gateway::start(LOOPBACK);
    let mut unfinished = Vec::new();
    for index in 0..300 {
        let mut client = Client::connect(gateway.admin());
        match index % 4 {
            0 => {}
            1 => drop(client.send("GET /healthz HT")),
            2 => drop(client.send("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: ")),
            _ => drop(client.send(
                "PUT /api/throttle HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
            )),
        }
        unfinished.push(client);
    }
    for _ in 0..10 {
        let began = instant();
        let response = ask(&gateway, "GET /healthz HTTP/1.1", "Host: localhost\r\n");
        assert_eq!(response.status, 200);
        // In real time, like the port's timeouts: an unfinished request would block it for 10 s.
        assert!(instant() - began < Duration::from_secs(5), "{:?}", instant() - began);
        assert_eq!(get(gateway.address(), "/", "").status, 200, "clients are served");
    }
    // The oldest connections were closed to make room.
    sleep(Duration::from_millis(50));
    let mut closed = 0;
    for client in &mut unfinished {
        client.socket.set_nonblocking(true).expect("a socket");
        closed += usize::from(client.is_closed_or_reset());
    }
    assert!(closed >= 300 - 64, "{closed} of 300 closed");
}

#[test]
fn admin_request_bodies_are_bounded() {
    let gateway = Gateway::start(LOOPBACK);
    let length = 1024 * 1024 + 1;
    let head = format!(
        "PUT /api/throttle HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
    );
    let mut client =
        Client::from_socket(TcpStream::connect(gateway.admin()).expect("a connection"));
    assert_eq!(client.send(head).read_response().status, 413);
}

#[test]
fn the_error_for_an_unknown_path_or_method_names_the_valid_ones() {
    let gateway = Gateway::start(LOOPBACK);
    let ask = |line: &str| ask(&gateway, line, "Host: localhost\r\n");
    let unknown = ask("GET /api/limit HTTP/1.1");
    assert_eq!(unknown.status, 404);
    assert_eq!(unknown.header("content-type"), Some("application/problem+json"));
    let body = unknown.json();
    let detail = body["detail"].as_str().expect("text");
    assert!(detail.contains("no such path; expected one of: GET /; GET /healthz; "), "{detail}");
    assert!(body.get("faults").is_none(), "only a reload has faults: {body}");

    let wrong = ask("GET /api/reload HTTP/1.1");
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("POST")));
    let body = wrong.json();
    assert!(body["detail"].as_str().is_some_and(|text| text.contains("Allow")), "{body}");

    let page = ask("GET / HTTP/1.1");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
}

#[test]
fn malformed_and_incomplete_keys_are_refused() {
    let gateway = Gateway::start(LOOPBACK);
    for (query, expected) in [
        ("key=%zz", "malformed escape; expected `%` and two hexadecimal digits"),
        ("key=%4", "malformed escape"),
        ("key=a%", "malformed escape"),
        ("%6", "malformed escape"),
        ("key=%ff", "not UTF-8"),
        ("client_ip=192.0.2.1", "`client_ip` without `key`; expected also an empty `key`"),
        ("client_ip=192.0.2.1", ": key=&client_ip=192.0.2.1"),
    ] {
        let line = format!("GET /api/limits/calls?{query} HTTP/1.1");
        let refused = ask(&gateway, &line, "Host: localhost\r\n");
        let text = refused.text();
        assert!(refused.status == 400 && text.contains(expected), "{query}: {text}");
    }
    let refused = ask(&gateway, "GET /api/limits/%ff?key=a HTTP/1.1", "Host: localhost\r\n");
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    assert!(refused.status == 400 && refused.text().contains("not UTF-8"), "{}", refused.text());
    let line = "DELETE /api/limits/together?client_ip=192.0.2.1 HTTP/1.1";
    let refused = ask(&gateway, line, "Host: localhost\r\n");
    assert!(refused.status == 400 && refused.text().contains("all callers together"), "{line}");
    for query in ["key=%41+b", "key=A%20b&&", "key=&client_ip=192.0.2.1"] {
        let line = format!("GET /api/limits/calls?{query} HTTP/1.1");
        let shown = ask(&gateway, &line, "Host: localhost\r\n");
        assert_eq!(shown.status, 200, "{query}: {}", shown.text());
    }
}
