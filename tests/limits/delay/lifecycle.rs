//! What is deferred until the end of the delay: `100 Continue`, bodies, the drain; and what the
//! delay counts towards.

use std::{
    io::{ErrorKind, Read, Write},
    sync::Arc,
    thread,
    time::Duration,
};

use testkit::{
    client::{Client, get},
    gateway::Gateway,
    upstream::Upstream,
    wait::eventually,
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime};

use testkit::log_lines::read_lines;

/// The delay of the second request.
const DELAY: Duration = Duration::from_secs(2);

/// The minimum: clocks count whole milliseconds.
const MIN_DELAY: Duration = Duration::from_millis(1_998);

/// Starts `yaml` with `{upstream}` on a simulated clock.
fn start(yaml: &str, upstream: &Upstream) -> Gateway {
    let yaml = fill(yaml, [("upstream", upstream.target())]);
    Gateway::start_at(&yaml, Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)))
}

/// One request in two seconds; all timeouts of the connection are shorter.
const SHORT_TIMEOUTS: &str = "
http: {head_timeout: 900ms, idle_timeout: 900ms, body_timeout: 900ms}
upstreams: {app: {targets: ['{upstream}'], retries: 0}}
limits:
  calls: {algorithm: leaky_bucket, quota: 1, window: 2s, max_wait: 5s, key: []}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
";

#[test]
fn continue_is_sent_after_the_delay() {
    let upstream = Upstream::hello();
    let gateway = start(SHORT_TIMEOUTS, &upstream);
    assert_eq!(get(gateway.address(), "/", "").status, 200);
    let mut client = Client::connect(gateway.address());
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    let start = gateway.clock.uptime();
    let response = gateway.assert_times_out(DELAY, || client.read_response());
    assert_eq!(response.status, 100);
    assert!(gateway.clock.uptime().saturating_sub(start) >= MIN_DELAY);
    assert_eq!((upstream.request_count(), client.send("hello").read_response().status), (1, 200));
    assert_eq!(upstream.request_count(), 2);
}

#[test]
fn a_body_that_began_continues_after_the_delay() {
    let upstream = Upstream::hello();
    let gateway = start(SHORT_TIMEOUTS, &upstream);
    assert_eq!(get(gateway.address(), "/", "").status, 200);
    let mut client = Client::connect(gateway.address());
    let before = upstream.received_bytes().len();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello");
    // Longer than `body_timeout`.
    gateway.assert_times_out(DELAY, || {
        eventually("the request is forwarded", || upstream.received_bytes().len() > before);
    });
    assert_eq!(client.send("hello").read_response().status, 200);
}

#[test]
fn a_long_body_is_not_read_during_the_delay() {
    const LENGTH: usize = 32 << 20;
    let upstream = Upstream::on_connection(|socket| {
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
    let gateway = start(
        "
        upstreams: {app: {targets: ['{upstream}'], retries: 0}}
        limits:
          calls: {algorithm: leaky_bucket, quota: 1, window: 3s, key: []}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls], max_body: 64MiB}
        ",
        &upstream,
    );
    assert_eq!(get(gateway.address(), "/", "").status, 200);
    let mut client = Client::connect(gateway.address());
    client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\n"));
    client.socket.set_write_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    let (mut sent, part) = (0, vec![b'x'; 1 << 20]);
    // At most what the kernel's buffers hold.
    let stalled = loop {
        match client.socket.write(&part[..part.len().min(LENGTH - sent)]) {
            Ok(count) => sent += count,
            Err(error) => break error.kind(),
        }
        assert!(sent < LENGTH / 2, "the body is read during the delay");
    };
    assert!(matches!(stalled, ErrorKind::WouldBlock | ErrorKind::TimedOut), "{stalled}");
    assert_eq!(gateway.metric("tidegate_limit_waiting "), 1);
    client.socket.set_write_timeout(None).expect("no timeout");
    let (status, _) = gateway.while_time_passes(|| {
        while sent < LENGTH {
            sent +=
                client.socket.write(&part[..part.len().min(LENGTH - sent)]).expect("it is read");
        }
        client.read_response().status
    });
    assert_eq!(status, 200);
}

#[test]
fn the_delay_counts_towards_the_request_timeout() {
    let upstream = Upstream::silent();
    let gateway = start(
        "
        upstreams: {app: {targets: ['{upstream}'], retries: 0}}
        limits:
          calls: {algorithm: leaky_bucket, quota: 1, window: 10s, key: []}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls], request_timeout: 15s}
        ",
        &upstream,
    );
    let mut clients: Vec<_> = (0..2).map(|_| Client::connect(gateway.address())).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    gateway.wait_for_metric("tidegate_limit_waiting ", 1);
    // The second one gets no new 15 s after its delay of 10 s.
    gateway.assert_times_out(Duration::from_secs(15), || {
        for client in &mut clients {
            assert_eq!(client.read_response().status, 504);
        }
    });
}

#[test]
fn delayed_requests_are_released_during_the_drain() {
    let upstream = Upstream::hello();
    let gateway = Arc::new(start(
        "
        drain_timeout: 20s
        upstreams: {app: {targets: ['{upstream}'], retries: 0}}
        limits:
          calls: {algorithm: leaky_bucket, quota: 1, window: 2s, max_wait: 5s, key: []}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
        ",
        &upstream,
    ));
    assert_eq!(get(gateway.address(), "/a", "").status, 200);
    let mut delayed = Client::connect(gateway.address());
    delayed.send("GET /b HTTP/1.1\r\nHost: a\r\n\r\n");
    gateway.wait_for_metric("tidegate_limit_waiting ", 1);
    let stopping = thread::spawn({
        let gateway = gateway.clone();
        move || gateway.stop()
    });
    let response = delayed.read_response();
    assert_eq!((response.status, response.header("connection")), (200, Some("close")));
    assert!(stopping.join().expect("it stops") >= MIN_DELAY);
}

#[test]
fn the_access_line_contains_the_delay() {
    let upstream = Upstream::hello();
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("access.log");
    let yaml = fill(
        "
        access_log: {log}
        workers: 1
        upstreams: {app: {targets: ['{upstream}'], retries: 0}}
        limits:
          calls: {algorithm: leaky_bucket, quota: 2, window: 2s, key: []}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
        ",
        [("log", file.display().to_string()), ("upstream", upstream.target())],
    );
    let gateway =
        Gateway::start_at(&yaml, Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)));
    let mut clients: Vec<_> = (0..2).map(|_| Client::connect(gateway.address())).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    gateway.wait_for_metric("tidegate_limit_waiting ", 1);
    gateway.assert_times_out(Duration::from_secs(1), || {
        assert!(clients.iter_mut().all(|client| client.read_response().status == 200));
    });
    let (text, _) = gateway.while_time_passes(|| read_lines(&file, 2));
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let delays: Vec<_> = lines.iter().filter_map(|line| line["delay_ms"].as_f64()).collect();
    let [first, second] = delays[..] else { panic!("{text}") };
    // Slots are a second apart; two ticks later the clock has stopped.
    assert!(first == 0.0 && (998.0..=1_200.0).contains(&second), "{first} {second}");
    assert!(lines[1]["duration_ms"].as_f64() >= Some(second));
}

#[test]
fn a_shadow_limit_delays_nothing() {
    let upstream = Upstream::hello();
    let gateway = start(
        "
        upstreams: {app: {targets: ['{upstream}'], retries: 0}}
        limits:
          calls: {algorithm: leaky_bucket, quota: 1, window: 1h, key: [], enforce: false}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
        ",
        &upstream,
    );
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
