//! Upgrades to another protocol over HTTP/1: the 101, the tunnel, and its end.

mod http2;
mod refused;

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    path::Path,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;
use testkit::{
    client::{Client, Stream, get},
    gateway::Gateway,
    process::Process,
    protocol::{HTTP1, Protocol, connect_tls, on_protocols},
    upstream::{ResponseGate, Upstream},
    wait::{TIMEOUT, eventually, sleep},
};
use tidegate::clock::{Clock, StoreTime};

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

fn configuration(target: &str, more: &str) -> String {
    format!(
        "{more}
limits:
  open: {{algorithm: concurrency, quota: 1, window: 3s, key: []}}
  few: {{quota: 2, window: 1h, key: []}}
upstreams: {{app: {{{target}, retries: 0}}, fixed: {{respond: {{body: hi}}}}}}
routes:
  - {{name: open, match: {{path: /open}}, upstream: app, limits: [open]}}
  - {{name: few, match: {{path: /few}}, upstream: app, limits: [few]}}
  - {{name: brief, match: {{path: /brief}}, upstream: app, tunnel_idle_timeout: 1s}}
  - {{name: fixed, match: {{path: /fixed}}, upstream: fixed}}
  - {{name: all, match: {{path: '/{{*rest}}'}}, upstream: app}}
"
    )
}

fn start_at(upstream: &Upstream, more: &str, clock: Clock) -> Gateway {
    let target = format!("targets: [\"{}\"]", upstream.target());
    Gateway::for_every_protocol_at(&configuration(&target, more), clock)
}

fn start(upstream: &Upstream) -> Gateway {
    start_at(upstream, "", Clock::system())
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
        let more = format!("access_log: {}", log.display());
        let gateway = start_at(&upstream, &more, Clock::system());
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
fn half_close_is_kept_in_both_directions() {
    on_protocols(&HTTP1, |protocol| {
        let upstream = Upstream::with_handler(|request, socket| {
            let _ = socket.write_all(SWITCHING.as_bytes());
            let mut received = Vec::new();
            if request.starts_with(b"GET /server") {
                let _ = socket.write_all(b"done");
                let _ = socket.shutdown(Shutdown::Write);
                let _ = socket.read_to_end(&mut received);
                // Shows on the next connection.
                assert_eq!(received, b"the client continues");
                return false;
            }
            let _ = socket.read_to_end(&mut received);
            let _ = socket.write_all(&[&received[..], b" and the answer"].concat());
            false
        });
        let gateway = start(&upstream);
        let mut client = upgraded(protocol, &gateway, "/client");
        client.send("the question").socket.half_close().expect("a half-close");
        assert_eq!(client.read_to_end().expect("an orderly end"), b"the question and the answer");

        let mut client = upgraded(protocol, &gateway, "/server");
        assert_eq!(client.read_to_end().expect("an orderly end"), b"done");
        gateway.wait_for_metric("tidegate_tunnels", 1);
        client.send("the client ").send("continues");
        client.socket.half_close().expect("a half-close");
        gateway.wait_for_metric("tidegate_tunnels", 0);
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
fn a_reset_of_one_side_resets_the_other() {
    let upstream = echo_upstream();
    let gateway = start(&upstream);
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.send(request("/x")).read_head().expect("a response").0, 101);
    let socket = socket2::Socket::from(client.socket);
    socket.set_linger(Some(Duration::ZERO)).expect("an option");
    drop(socket);
    gateway.wait_for_metric("tidegate_tunnels", 0);

    let broken = Upstream::with_handler(|_, socket| {
        let _ = socket.write_all(format!("{SWITCHING}half").as_bytes());
        let _ = socket.read(&mut [0]);
        let _ = socket2::SockRef::from(&*socket).set_linger(Some(Duration::ZERO));
        false
    });
    let gateway = start(&broken);
    let mut client = upgraded(Protocol::Http1, &gateway, "/x");
    assert_eq!(client.read_exact(4).as_deref(), Some(&b"half"[..]));
    client.send("x");
    let error = client.read_to_end().expect_err("a reset, not an orderly end");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

/// Sends until the other side takes no more.
fn fill(socket: &mut TcpStream) {
    socket.set_write_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    while socket.write_all(&[b'x'; 16 * 1024]).is_ok() {}
}

fn reset(socket: &TcpStream) {
    socket2::SockRef::from(socket).set_linger(Some(Duration::ZERO)).expect("an option");
}

#[test]
fn a_reset_ends_a_tunnel_whose_other_side_does_not_read() {
    let (release, hold) = mpsc::channel::<()>();
    let hold = Mutex::new(hold);
    let upstream = Upstream::with_handler(move |request, socket| {
        let _ = socket.write_all(SWITCHING.as_bytes());
        if request.starts_with(b"GET /flood") {
            fill(socket);
            reset(socket);
            return false;
        }
        let _ = hold.lock().expect("not poisoned").recv();
        false
    });
    let gateway = start(&upstream);
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.send(request("/x")).read_head().expect("a response").0, 101);
    fill(&mut client.socket);
    assert_eq!(gateway.metric("tidegate_tunnels"), 1);
    reset(&client.socket);
    drop(client);
    gateway.wait_for_metric("tidegate_tunnels", 0);
    drop(release);

    let mut client = Client::connect(gateway.address());
    assert_eq!(client.send(request("/flood")).read_head().expect("a response").0, 101);
    gateway.wait_for_metric("tidegate_tunnels", 0);
    assert!(client.read_to_end().is_err(), "a reset, not an orderly end");
}

/// The end of the connection without the end of the session: what was sent may be incomplete.
#[test]
fn a_tls_session_that_is_cut_off_resets_the_upstream() {
    let (ended, end) = mpsc::channel();
    let ended = Mutex::new(ended);
    let upstream = Upstream::with_handler(move |_, socket| {
        let _ = socket.write_all(SWITCHING.as_bytes());
        let mut received = Vec::new();
        let result = socket.read_to_end(&mut received).map_err(|error| error.kind());
        let _ = ended.lock().expect("no panic").send((result, received));
        false
    });
    let gateway = start(&upstream);
    for is_orderly in [true, false] {
        let mut client = connect_tls(&gateway);
        assert_eq!(client.send(request("/x")).read_head().expect("a response").0, 101);
        client.send("half");
        if is_orderly {
            client.socket.half_close().expect("a half-close");
        } else {
            client.socket.sock.shutdown(Shutdown::Write).expect("a half-close");
        }
        let (result, received) = end.recv_timeout(TIMEOUT).expect("the end of the stream");
        let expected = if is_orderly { Ok(4) } else { Err(ErrorKind::ConnectionReset) };
        assert_eq!((result, &received[..]), (expected, &b"half"[..]), "orderly: {is_orderly}");
        gateway.wait_for_metric("tidegate_tunnels", 0);
    }
}

#[test]
fn an_idle_tunnel_is_cut_and_a_busy_one_is_not() {
    on_protocols(&HTTP1, |protocol| {
        let upstream = echo_upstream();
        let directory = tempfile::tempdir().expect("a directory");
        let log = directory.path().join("access.log");
        let more =
            format!("access_log: {}\nhttp: {{idle_timeout: 2s, body_timeout: 2s}}", log.display());
        let gateway = start_at(
            &upstream,
            &more,
            Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)),
        );
        let (mut brief, mut long) =
            (upgraded(protocol, &gateway, "/brief"), upgraded(protocol, &gateway, "/long"));
        // In total longer than any timeout but that of `long`.
        for _ in 0..20 {
            gateway.clock.advance(Duration::from_millis(400));
            assert_echoes(&mut brief, "x");
        }
        let (is_cut, took) = gateway.while_time_passes(|| brief.is_closed_or_reset());
        assert!(is_cut && took > Duration::from_millis(900), "{took:?}");
        assert_echoes(&mut long, "the default is an hour");
        let line = gateway.while_time_passes(|| access_line(&log, "/brief")).0;
        assert_eq!(
            (&line["cut"], &line["complete"]),
            (&"tunnel_idle".into(), &false.into()),
            "{line}"
        );
    });
}

#[test]
fn a_tunnel_lives_until_the_drain_timeout() {
    on_protocols(&HTTP1, |protocol| {
        let upstream = echo_upstream();
        let directory = tempfile::tempdir().expect("a directory");
        let log = directory.path().join("access.log");
        let more = format!("access_log: {}\ndrain_timeout: 20s", log.display());
        let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
        let gateway = Arc::new(start_at(&upstream, &more, clock));
        let mut client = upgraded(protocol, &gateway, "/open");
        let stopping = thread::spawn({
            let gateway = Arc::clone(&gateway);
            move || gateway.stop()
        });
        let start = gateway.clock.uptime();
        let ten = Duration::from_secs(10);
        eventually("half of the time", || gateway.clock.uptime() > start + ten);
        assert_echoes(&mut client, "still here");
        assert!(client.is_closed_or_reset());
        assert!(gateway.clock.uptime() >= start + 2 * ten);
        assert!(stopping.join().expect("it stops") >= 2 * ten);
        let line = access_line(&log, "/open");
        assert_eq!((&line["cut"], &line["bytes"]), (&"drain_timeout".into(), &10.into()), "{line}");
    });
}

#[test]
fn a_tunnel_that_ends_does_not_delay_the_drain() {
    on_protocols(&HTTP1, |protocol| {
        let upstream = echo_upstream();
        let gateway = Arc::new(start_at(&upstream, "drain_timeout: 20s", Clock::system()));
        let client = upgraded(protocol, &gateway, "/open");
        let stopping = thread::spawn({
            let gateway = Arc::clone(&gateway);
            move || gateway.stop()
        });
        drop(client);
        assert!(stopping.join().expect("it stops") < Duration::from_secs(10));
    });
}

#[test]
fn a_tunnel_holds_its_concurrency_permit() {
    on_protocols(&HTTP1, |protocol| {
        let upstream = echo_upstream();
        let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
        let gateway = start_at(&upstream, "", clock);
        let mut client = upgraded(protocol, &gateway, "/open");
        let refused = protocol.get(&gateway, "/open", "");
        assert_eq!(refused.status, 429);
        // Leases of 3 s are renewed.
        gateway.while_time_passes(|| {
            let until = gateway.clock.uptime() + Duration::from_secs(10);
            eventually("time passes", || gateway.clock.uptime() > until);
        });
        assert_echoes(&mut client, "open");
        assert_eq!(protocol.get(&gateway, "/open", "").status, 429);
        drop(client);
        gateway.wait_for_metric("tidegate_tunnels", 0);
        let mut client = upgraded(protocol, &gateway, "/open");
        assert_echoes(&mut client, "again");
    });
}

#[test]
fn a_limit_refuses_an_upgrade_before_it_reaches_the_upstream() {
    on_protocols(&HTTP1, |protocol| {
        let upstream = echo_upstream();
        let gateway = start(&upstream);
        drop((upgraded(protocol, &gateway, "/few"), upgraded(protocol, &gateway, "/few")));
        let mut client = protocol.connect_http1(&gateway);
        let refused = client.send(request("/few")).read_response();
        assert_eq!((refused.status, refused.number("x-ratelimit-remaining")), (429, 0));
        assert_eq!(upstream.request_count(), 2);
        assert_eq!(client.get("/plain", "").status, 200, "the connection is still one of HTTP");
    });
}

/// Starts a process with one worker.
fn start_process(upstream: &Upstream) -> (TempDir, Process) {
    let directory = tempfile::tempdir().expect("a directory");
    let more = "listen: [{address: 127.0.0.1:0}]\nadmin: {address: 127.0.0.1:0, hosts: [gateway.test]}\n\
        access_log: off\nworkers: 1";
    let yaml = configuration(&format!("targets: [\"{}\"]", upstream.target()), more);
    fs::write(directory.path().join("t.yaml"), yaml).expect("a file");
    let process =
        Process::start(tidegate_command(directory.path(), &["serve", "--config", "t.yaml"]));
    (directory, process)
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
    let (_directory, process) = start_process(&upstream);
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
