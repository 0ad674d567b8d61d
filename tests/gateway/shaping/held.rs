use std::{
    io::{ErrorKind, Read, Write},
    sync::Arc,
    thread,
    time::Duration,
};

use tidegate::clock;

use super::{Arrivals, limited};
use crate::{
    client::{Client, get},
    gateway::Gateway,
    seen::read_lines,
    upstream::Upstream,
    wait::eventually,
};

/// One in two seconds; connections whose deadlines are all shorter.
const LIMIT: &str = "algorithm: leaky_bucket, quota: 1, window: 2s, max_wait: 5s, key: []";
const HTTP: &str = "http: {head_timeout: 900ms, idle_timeout: 900ms, body_timeout: 900ms}";

/// How long the second has to wait at the least: clocks count whole milliseconds.
const WAIT: Duration = Duration::from_millis(1_998);

fn start(upstream: &Upstream, route: &str, more: &str) -> Gateway {
    Gateway::start(&limited(upstream, LIMIT, route, more))
}

#[test]
fn a_body_is_not_asked_for_before_its_turn() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream, "", HTTP);
    let begin = clock::instant();
    assert_eq!(get(gateway.address(), "/", "").status, 200);
    let mut client = Client::connect(gateway.address());
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.reply().status, 100);
    assert!(begin.elapsed() >= WAIT, "{:?}", begin.elapsed());
    assert_eq!((upstream.count(), client.send("hello").reply().status), (1, 200));
    assert_eq!(upstream.count(), 2);
}

#[test]
fn a_body_that_began_may_go_on_after_its_turn() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream, "", HTTP);
    assert_eq!(get(gateway.address(), "/", "").status, 200);
    let mut client = Client::connect(gateway.address());
    let before = upstream.raw().len();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello");
    // For longer than a body may stall.
    eventually("it is released", || upstream.raw().len() > before);
    assert_eq!(client.send("hello").reply().status, 200);
}

#[test]
fn a_long_body_is_not_taken_in_before_its_turn() {
    const LENGTH: usize = 32 << 20;
    let upstream = Upstream::raw_with(|socket| {
        let (mut sum, mut buffer) = (0, vec![0; 1 << 20]);
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        while let Some(count) = socket.read(&mut buffer).ok().filter(|count| *count > 0) {
            let is_get = sum == 0 && buffer.starts_with(b"GET");
            sum += count;
            if is_get || sum > LENGTH {
                let _ = socket.write_all(answer);
                sum = if is_get { 0 } else { sum };
            }
        }
    });
    let limit = "algorithm: leaky_bucket, quota: 1, window: 3s, key: []";
    let gateway = Gateway::start(&limited(&upstream, limit, ", max_body: 64MiB", ""));
    assert_eq!(get(gateway.address(), "/", "").status, 200);
    let mut client = Client::connect(gateway.address());
    client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\n"));
    client.socket.set_write_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    let (mut sent, part) = (0, vec![b'x'; 1 << 20]);
    // As much as the system's own buffers hold.
    let stalled = loop {
        match client.socket.write(&part[..part.len().min(LENGTH - sent)]) {
            Ok(count) => sent += count,
            Err(error) => break error.kind(),
        }
        assert!(sent < LENGTH / 2, "it is read");
    };
    assert!(matches!(stalled, ErrorKind::WouldBlock | ErrorKind::TimedOut), "{stalled}");
    assert_eq!(gateway.metric("tidegate_limit_waiting "), 1);
    client.socket.set_write_timeout(None).expect("no timeout");
    while sent < LENGTH {
        sent += client.socket.write(&part[..part.len().min(LENGTH - sent)]).expect("it goes on");
    }
    assert_eq!(client.reply().status, 200);
}

#[test]
fn the_wait_is_a_part_of_the_requests_own_time() {
    let upstream = Upstream::silent();
    let limit = "algorithm: leaky_bucket, quota: 1, window: 1s, key: []";
    let gateway = Gateway::start(&limited(&upstream, limit, ", request_timeout: 1500ms", ""));
    let begin = clock::instant();
    let mut clients: Vec<_> = (0..2).map(|_| Client::connect(gateway.address())).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    for client in &mut clients {
        assert_eq!(client.reply().status, 504);
    }
    // Not 1500 ms more after the second of them.
    let took = begin.elapsed();
    assert!(took > Duration::from_millis(1250) && took < Duration::from_millis(2450), "{took:?}");
}

#[test]
fn what_is_held_is_released_while_the_gateway_stops() {
    let arrivals = Arrivals::default();
    let upstream = arrivals.upstream();
    let gateway = Arc::new(start(&upstream, "", "drain_timeout: 20s"));
    let begin = clock::instant();
    assert_eq!(get(gateway.address(), "/a", "").status, 200);
    let mut held = Client::connect(gateway.address());
    held.send("GET /b HTTP/1.1\r\nHost: a\r\n\r\n");
    gateway.wait_for("tidegate_limit_waiting ", 1);
    let stopping = thread::spawn({
        let gateway = gateway.clone();
        move || gateway.server.stop()
    });
    let reply = held.reply();
    assert_eq!((reply.status, reply.header("connection")), (200, Some("close")));
    assert!(arrivals.of("/b", begin)[0] >= WAIT);
    stopping.join().expect("it stops");
}

#[test]
fn the_access_line_tells_the_delay() {
    let upstream = Upstream::hello();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("access.log");
    let limit = "algorithm: leaky_bucket, quota: 2, window: 2s, key: []";
    let log = format!("access_log: {}\nworkers: 1", file.display());
    let gateway = Gateway::start(&limited(&upstream, limit, "", &log));
    let mut clients: Vec<_> = (0..2).map(|_| Client::connect(gateway.address())).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    assert!(clients.iter_mut().all(|client| client.reply().status == 200));
    let text = read_lines(&file, 2);
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let delays: Vec<_> = lines.iter().filter_map(|line| line["delay_ms"].as_f64()).collect();
    let [first, second] = delays[..] else { panic!("{text}") };
    assert!(first == 0.0 && (300.0..2_000.0).contains(&second), "{first} {second}");
    assert!(lines[1]["duration_ms"].as_f64() >= Some(second));
}

#[test]
fn a_limit_that_only_watches_holds_nobody() {
    let upstream = Upstream::hello();
    let limit = "algorithm: leaky_bucket, quota: 1, window: 1h, key: [], enforce: false";
    let gateway = Gateway::start(&limited(&upstream, limit, "", ""));
    for _ in 0..3 {
        assert_eq!(get(gateway.address(), "/", "").status, 200);
    }
    let count = |decision: &str| {
        let labels = format!("route=\"all\",limit=\"calls\",decision=\"{decision}\"");
        gateway.metric(&format!("tidegate_limit_decisions_total{{{labels}"))
    };
    assert_eq!((count("admitted"), count("would_refuse")), (2, 1));
    assert_eq!(gateway.metric("tidegate_limit_delayed_total"), 0);
}
