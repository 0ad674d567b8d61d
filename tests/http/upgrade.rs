//! Upgrades to another protocol over HTTP/1: the 101, and what passes through the tunnel.

/// Requests with a body that ask for an upgrade.
mod body;
/// How tunnels end.
mod end;
/// Tunnels over HTTP/2 streams.
mod http2;
/// Requests that do not become tunnels.
mod refused;

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    time::Duration,
};

use serde_json::Value;
use testkit::{
    client::{Client, Stream, get},
    gateway::Gateway,
    process::Process,
    protocol::{HTTP1, Protocol, on_protocols},
    upstream::{ResponseGate, Upstream},
    wait::{eventually, sleep},
    yaml::fill,
};

use crate::tidegate_command;

const SWITCHING: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nX-Own: 1\r\n\r\n";

/// A request for WebSocket.
fn request(path: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: gateway.test\r\nConnection: keep-alive, Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
}

/// Sends back what it receives, and closes when the other side does.
fn echo(socket: &mut TcpStream) {
    let mut bytes = [0; 16 * 1024];
    while let Some(count) = socket.read(&mut bytes).ok().filter(|count| *count > 0) {
        if socket.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
}

/// An upstream that accepts the upgrade and echoes. `/plain` gets an ordinary response.
fn echo_upstream() -> Upstream {
    Upstream::with_handler(|request, socket| {
        if request.starts_with(b"GET /plain") {
            return socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_ok();
        }
        let _ = socket.write_all(SWITCHING.as_bytes());
        echo(socket);
        false
    })
}

/// A gateway that forwards every request to `upstream`, once.
fn start(upstream: &Upstream) -> Gateway {
    Gateway::for_every_protocol(&fill(
        "
        upstreams: {app: {targets: [{target}], retries: 0}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: app}]
        ",
        [("target", upstream.target())],
    ))
}

/// A client whose connection was upgraded.
fn upgraded(protocol: Protocol, gateway: &Gateway, path: &str) -> Client<Box<dyn Stream>> {
    let mut client = protocol.connect_http1(gateway);
    client.send(request(path));
    assert_eq!(client.read_head().expect("a response").0, 101);
    client
}

fn assert_echoes(client: &mut Client<impl Read + Write>, text: &str) {
    client.send(text);
    assert_eq!(client.read_exact(text.len()).as_deref(), Some(text.as_bytes()));
}

/// The access line of `path`, once it is written.
fn access_line(log: &Path, path: &str) -> Value {
    let mut found = None;
    eventually("the access line", || {
        let text = fs::read_to_string(log).unwrap_or_default();
        let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        found = lines.find(|line| line["path"] == path);
        found.is_some()
    });
    found.expect("a line")
}

#[test]
fn a_101_that_was_asked_for_begins_a_tunnel() {
    on_protocols(&HTTP1, |protocol| {
        let upstream = echo_upstream();
        let directory = tempfile::tempdir().expect("a directory");
        let log = directory.path().join("access.log");
        let gateway = Gateway::for_every_protocol(&fill(
            "
            access_log: {log}
            limits: {few: {quota: 2, window: 1h, key: []}}
            upstreams: {app: {targets: [{target}]}}
            routes:
              - {name: few, match: {path: /few}, upstream: app, limits: [few]}
              - {name: all, match: {path: '/{*rest}'}, upstream: app}
            ",
            [("log", log.display().to_string()), ("target", upstream.target())],
        ));
        let mut client = protocol.connect_http1(&gateway);
        let response = client.send(request("/few")).read_response();
        assert_eq!(response.status, 101);
        assert_eq!(response.header("upgrade"), Some("websocket"));
        assert_eq!(response.header("connection"), Some("upgrade"));
        assert_eq!(response.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        assert_eq!(
            (response.header("x-own"), response.number("x-ratelimit-remaining")),
            (Some("1"), 1)
        );
        assert!(
            response.header("x-request-id").is_some()
                && response.header("content-length").is_none()
        );
        let sent = upstream.request_texts()[0].to_ascii_lowercase();
        assert!(sent.contains("\r\nconnection: upgrade\r\nupgrade: websocket\r\n"), "{sent}");
        assert!(sent.contains("\r\nsec-websocket-key: dghlihnhbxbszsbub25jzq==\r\n"), "{sent}");
        assert_echoes(&mut client, "\u{0}hello\r\n\r\n");
        gateway.wait_for_metric("tidegate_tunnels", 1);
        client.socket.half_close().expect("a half-close");
        assert!(client.is_closed(), "both directions end");
        gateway.wait_for_metric("tidegate_tunnels", 0);
        let line = access_line(&log, "/few");
        assert_eq!((&line["status"], &line["method"]), (&101.into(), &"GET".into()), "{line}");
        assert_eq!((&line["bytes"], &line["received"]), (&10.into(), &10.into()), "{line}");
        assert_eq!((&line["complete"], &line["cut"]), (&true.into(), &"".into()), "{line}");
        assert_eq!(protocol.get(&gateway, "/plain", "").status, 200);
        assert_eq!(upstream.connections(), 2, "the tunnel's connection is not reused");
    });
}

/// A 1xx response ends at its empty line, whatever its fields say: RFC 9112, 6.3.
#[test]
fn a_101_with_a_length_begins_a_tunnel() {
    for length in
        ["Content-Length: 0\r\n", "Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n"]
    {
        on_protocols(&HTTP1, |protocol| {
            let upstream = Upstream::with_handler(move |_, socket| {
                let head = SWITCHING.replace("X-Own: 1\r\n", length);
                let _ = socket.write_all(head.as_bytes());
                echo(socket);
                false
            });
            let gateway = start(&upstream);
            let mut client = protocol.connect_http1(&gateway);
            let response = client.send(request("/x")).read_response();
            assert_eq!(response.status, 101, "{length}");
            for name in ["content-length", "transfer-encoding"] {
                assert_eq!(response.header(name), None, "{length}");
            }
            assert_echoes(&mut client, "hello, tunnel");
        });
    }
}

/// The client would take any other answer for a cache's or another protocol's.
#[test]
fn a_101_that_does_not_answer_the_key_is_a_502() {
    for accept in ["Sec-WebSocket-Accept: wrong\r\n", ""] {
        let upstream = Upstream::with_handler(move |_, socket| {
            let head =
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n";
            let _ = socket.write_all(format!("{head}{accept}\r\n").as_bytes());
            echo(socket);
            false
        });
        let gateway = start(&upstream);
        let mut client = Client::connect(gateway.address());
        assert_eq!(client.send(request("/x")).read_response().status, 502);
    }
}

#[test]
fn any_protocol_but_http_itself_is_tunnelled() {
    on_protocols(&HTTP1, |protocol| {
        let upstream = Upstream::with_handler(|request, socket| {
            let text = String::from_utf8_lossy(request).to_ascii_lowercase();
            let protocol = text.split("\r\nupgrade: ").nth(1).and_then(|rest| rest.lines().next());
            let protocol = protocol.unwrap_or("none");
            let head =
                format!("HTTP/1.1 101 Ok\r\nConnection: upgrade\r\nUpgrade: {protocol}\r\n\r\n");
            let _ = socket.write_all(head.as_bytes());
            echo(socket);
            false
        });
        let gateway = start(&upstream);
        for (method, other) in [("GET", "Foo/2"), ("POST", "tcp"), ("GET", "WebSocket")] {
            let mut client = protocol.connect_http1(&gateway);
            client.send(format!(
                "{method} /x HTTP/1.1\r\nHost: gateway.test\r\nConnection: upgrade\r\n\
                 Upgrade: {other}\r\nContent-Length: 0\r\n\r\n"
            ));
            let response = client.read_response();
            assert_eq!((response.status, response.header("upgrade")), (101, Some(other)));
            assert_echoes(&mut client, "ping");
        }
    });
}

#[test]
fn bytes_read_ahead_are_handed_on_first_and_not_before_the_101() {
    on_protocols(&HTTP1, |protocol| {
        let gate = ResponseGate::default();
        let held = gate.clone();
        let upstream = Upstream::with_handler(move |_, socket| {
            held.wait();
            let _ = socket.write_all(format!("{SWITCHING}from the server").as_bytes());
            echo(socket);
            false
        });
        let gateway = start(&upstream);
        let mut client = protocol.connect_http1(&gateway);
        client.send(request("/x") + "early");
        eventually("the request has arrived", || upstream.request_count() == 1);
        client.send(" bird");
        sleep(Duration::from_millis(50));
        assert!(
            upstream.received_bytes().ends_with(b"\r\n\r\n"),
            "nothing is tunnelled before the 101"
        );
        gate.open();
        assert_eq!(client.read_head().expect("a response").0, 101);
        assert_eq!(client.read_exact(25).as_deref(), Some(&b"from the serverearly bird"[..]));
        assert_echoes(&mut client, "more");
    });
}

#[test]
fn ten_thousand_small_messages_pass_in_order() {
    let upstream = echo_upstream();
    let gateway = start(&upstream);
    on_protocols(&HTTP1, |protocol| {
        let mut client = upgraded(protocol, &gateway, "/x");
        for burst in 0..10_u32 {
            let numbers = burst * 1000..(burst + 1) * 1000;
            for n in numbers.clone() {
                client.send(n.to_be_bytes());
            }
            for n in numbers {
                assert_eq!(client.read_exact(4).as_deref(), Some(&n.to_be_bytes()[..]));
            }
        }
    });
}

#[test]
fn a_limit_refuses_an_upgrade_before_it_reaches_the_upstream() {
    on_protocols(&HTTP1, |protocol| {
        let upstream = echo_upstream();
        let gateway = Gateway::for_every_protocol(&fill(
            "
            limits: {few: {quota: 2, window: 1h, key: []}}
            upstreams: {app: {targets: [{target}]}}
            routes:
              - {name: few, match: {path: /few}, upstream: app, limits: [few]}
              - {name: all, match: {path: '/{*rest}'}, upstream: app}
            ",
            [("target", upstream.target())],
        ));
        drop((upgraded(protocol, &gateway, "/few"), upgraded(protocol, &gateway, "/few")));
        let mut client = protocol.connect_http1(&gateway);
        let refused = client.send(request("/few")).read_response();
        assert_eq!((refused.status, refused.number("x-ratelimit-remaining")), (429, 0));
        assert_eq!(upstream.request_count(), 2);
        assert_eq!(client.get("/plain", "").status, 200, "the connection still speaks HTTP");
    });
}

#[test]
fn a_slow_reader_does_not_grow_memory() {
    const MIB: u64 = 1024 * 1024;
    let upstream = Upstream::with_handler(|_, socket| {
        let _ = socket.write_all(SWITCHING.as_bytes());
        let chunk = vec![b'x'; 64 * 1024];
        while socket.write_all(&chunk).is_ok() {}
        false
    });
    let directory = tempfile::tempdir().expect("a directory");
    let yaml = fill(
        "
        listen: [{address: 127.0.0.1:0}]
        admin: {address: 127.0.0.1:0, hosts: [gateway.test]}
        access_log: off
        workers: 1
        upstreams: {app: {targets: [{target}]}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: app}]
        ",
        [("target", upstream.target())],
    );
    fs::write(directory.path().join("t.yaml"), yaml).expect("a file");
    let process =
        Process::start(tidegate_command(directory.path(), &["serve", "--config", "t.yaml"]));
    assert_eq!(get(process.admin, "/healthz", "").status, 200);
    let before = process.resident_bytes();
    let mut clients: Vec<_> = (0..8)
        .map(|_| {
            let mut client = Client::connect(process.address);
            client.send(request("/x"));
            assert_eq!(client.read_head().expect("a response").0, 101);
            client
        })
        .collect();
    for _ in 0..64 {
        for client in &mut clients {
            assert!(client.read_exact(MIB as usize / 4).is_some());
        }
    }
    let growth = process.resident_bytes().saturating_sub(before);
    assert!(growth < 8 * MIB, "{} KiB", growth / 1024);
}
