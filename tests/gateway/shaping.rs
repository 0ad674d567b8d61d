//! Requests that are held back: real time is what is measured here, so nothing moves a clock.
#![expect(clippy::print_stdout, reason = "what is measured is shown")]

/// Who goes away while it waits, and who moves up.
mod gone;
/// What is not read, not sent and not ended before a request's turn.
mod held;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use tidegate::clock::{self, Clock};

use crate::{
    client::{Client, get},
    gateway::Gateway,
    redis_server::RedisServer,
    stage::{Stage, on_every_store},
    upstream::Upstream,
};

/// When each request reached the upstream, and its path.
#[derive(Clone, Default)]
struct Arrivals(Arc<Mutex<Vec<(String, Instant)>>>);

impl Arrivals {
    /// An upstream that notes who comes when, and answers at once.
    fn upstream(&self) -> Upstream {
        let own = self.clone();
        Upstream::with(move |request, socket| {
            let now = clock::instant();
            let text = String::from_utf8_lossy(request);
            let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
            own.0.lock().expect("no test panics with it").push((path, now));
            std::io::Write::write_all(socket, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                .is_ok()
        })
    }

    /// How long after `start` each for `path` came, the first first.
    fn of(&self, path: &str, start: Instant) -> Vec<Duration> {
        let all = self.0.lock().expect("no test panics with it");
        let found = all.iter().filter(|(known, _)| known == path);
        let mut found: Vec<_> = found.map(|(_, at)| at.duration_since(start)).collect();
        found.sort_unstable();
        found
    }
}

/// One route before `upstream` with one limit; `more` are whole lines.
fn limited(upstream: &Upstream, limit: &str, route: &str, more: &str) -> String {
    format!(
        "{more}
upstreams: {{app: {{targets: [\"{}\"], retries: 0}}}}
limits: {{calls: {{{limit}}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: app, limits: [calls]{route}}}]
",
        upstream.target()
    )
}

/// A metric in seconds, over all labels.
fn seconds(gateway: &Gateway, name: &str) -> f64 {
    let text = get(gateway.admin(), "/metrics", "Connection: close\r\n").text();
    let lines = text.lines().filter(|line| line.starts_with(name));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

const SLOT: Duration = Duration::from_millis(250);

const DELAYED: &str = "tidegate_limit_delayed_total{route=\"all\",limit=\"calls\"}";

/// How late each of these requests of one bucket was for its slot, by the earliest of them.
fn lateness(came: &[Duration]) -> Vec<Duration> {
    let offsets: Vec<_> =
        (0..).zip(came).map(|(slot, came)| came.saturating_sub(SLOT * slot)).collect();
    let first = offsets.iter().min().copied().unwrap_or_default();
    offsets.into_iter().map(|offset| offset.saturating_sub(first)).collect()
}

#[test]
fn four_a_second_are_released_every_250_ms() {
    const BUCKETS: usize = 8;
    const COUNT: u32 = 13;
    on_every_store(|stage| {
        let arrivals = Arrivals::default();
        let upstream = arrivals.upstream();
        let limit = "algorithm: leaky_bucket, quota: 4, window: 1s, max_wait: 10s, key: [path]";
        let fleet = stage.start(&limited(&upstream, limit, "", ""), &Clock::system());
        let gateways = fleet.gateways.iter().cycle();
        let mut clients: Vec<_> = gateways
            .take(BUCKETS * COUNT as usize)
            .map(|gateway| Client::connect(gateway.address()))
            .collect();
        let start = clock::instant();
        for (at, client) in clients.iter_mut().enumerate() {
            client.send(format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", at / COUNT as usize));
        }
        for client in &mut clients {
            assert_eq!(client.reply().status, 200);
        }
        let mut late = Vec::new();
        for bucket in 0..BUCKETS {
            let came = arrivals.of(&format!("/{bucket}"), start);
            assert_eq!(came.len(), COUNT as usize);
            // The first slot is not before the start, and clocks count whole milliseconds.
            for (slot, came) in (0..COUNT).zip(&came) {
                assert!(*came + Duration::from_millis(2) >= SLOT * slot, "{slot}: {came:?}");
            }
            // The first is not held: it comes in the crowd of all that arrive at once.
            late.extend(lateness(&came).into_iter().skip(1));
        }
        late.sort_unstable();
        let (median, p99) = (late[late.len() / 2], late[late.len() * 99 / 100]);
        let store = if matches!(stage, Stage::Memory) { "memory" } else { "redis" };
        println!("{store}: {} releases, late by {median:?} (median), {p99:?} (p99)", late.len());
        // One slot that nobody used would show as 250 ms.
        assert!(median < Duration::from_millis(150), "{late:?}");
        let sum = |name| fleet.gateways.iter().map(|gateway| gateway.metric(name)).sum::<u64>();
        // Fewer where the machine stood still, and some came only after their slot.
        let most = BUCKETS as u64 * u64::from(COUNT - 1);
        assert!((most / 2..=most).contains(&sum(DELAYED)), "{}", sum(DELAYED));
        assert_eq!(sum("tidegate_limit_waiting "), 0);
        let delay = |gateway| seconds(gateway, "tidegate_limit_delay_seconds_total");
        let total: f64 = fleet.gateways.iter().map(delay).sum();
        let wanted = 0.25 * f64::from(COUNT * (COUNT - 1) / 2) * BUCKETS as f64;
        assert!((total - wanted).abs() < wanted * 0.5, "{total} s instead of {wanted} s");
    });
}

/// Asks for 4 s; when each request that was let through was sent, and when it was answered.
fn ask_for_a_while(address: SocketAddr, start: Instant) -> Vec<(Duration, Duration)> {
    let (mut client, mut passed) = (Client::connect(address), Vec::new());
    while start.elapsed() < Duration::from_secs(4) {
        let sent = start.elapsed();
        match client.get("/", "").status {
            200 => passed.push((sent, start.elapsed())),
            status => assert_eq!(status, 429),
        }
        crate::wait::pause(Duration::from_millis(5));
    }
    passed
}

/// The least time from the first that was sent to the last that was answered, of any eleven. All of them
/// were decided in between.
fn shortest_of_eleven(passed: &[(Duration, Duration)]) -> Option<Duration> {
    let spans = passed.iter().filter_map(|&(_, last)| {
        let answered = passed.iter().filter(|&&(_, answered)| answered <= last);
        let mut sent: Vec<_> = answered.map(|&(sent, _)| sent).collect();
        sent.sort_unstable();
        Some(last.saturating_sub(*sent.iter().rev().nth(10)?))
    });
    spans.min()
}

/// CALLR's: ten calls a second, and no second that one could look back on holds more.
fn no_second_holds_more_than_ten(limit: &str) {
    let redis = Stage::Redis(RedisServer::start());
    let upstream = Upstream::hello();
    let limit = format!("{limit}, quota: 10, window: 1s, key: []");
    let fleet = redis.start(&limited(&upstream, &limit, "", ""), &Clock::system());
    let start = clock::instant();
    let callers: Vec<_> = (0..4)
        .map(|n| {
            let address = fleet.gateways[n % fleet.gateways.len()].address();
            thread::spawn(move || ask_for_a_while(address, start))
        })
        .collect();
    let passed: Vec<_> =
        callers.into_iter().flat_map(|caller| caller.join().expect("it is answered")).collect();
    let shortest = shortest_of_eleven(&passed).expect("more than ten were let through");
    println!("{limit}: {} calls in 4 s; eleven take {shortest:?} at the least", passed.len());
    assert!(passed.len() >= 20, "{} calls", passed.len());
    // Clocks count whole milliseconds.
    assert!(shortest >= Duration::from_millis(998), "{shortest:?}");
}

#[test]
fn ten_calls_a_second_by_log() {
    no_second_holds_more_than_ten("algorithm: sliding_log");
}

#[test]
fn ten_calls_a_second_by_strict_window() {
    no_second_holds_more_than_ten("strict: true, resolution: 10");
}

#[test]
fn a_wait_that_is_too_long_is_refused_and_told() {
    on_every_store(|stage| {
        let arrivals = Arrivals::default();
        let upstream = arrivals.upstream();
        let limit = "algorithm: leaky_bucket, quota: 1, window: 10s, max_wait: 25s, key: []";
        let clock = Clock::manual(crate::policies::NOW);
        let more = "headers: {standard: draft-11}";
        let fleet = stage.start(&limited(&upstream, limit, "", more), &clock);
        let first = fleet.get("/", "");
        assert_eq!((first.status, first.number("x-ratelimit-limit")), (200, 3));
        assert_eq!(first.header("RateLimit-Policy"), Some(r#""calls";q=1;w=10"#), "the quota");
        assert_eq!(first.number("x-ratelimit-remaining"), 2);
        let mut held: Vec<_> =
            (0..2).map(|_| Client::connect(fleet.gateways[0].address())).collect();
        for client in &mut held {
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        }
        fleet.gateways[0].wait_for("tidegate_limit_waiting ", 2);
        for (later, seconds) in [(0, 5), (1_500, 4), (4_001, 1)] {
            clock.set(crate::policies::NOW + later);
            let reply = fleet.get("/", "");
            assert_eq!((reply.status, reply.number("retry-after")), (429, seconds), "{later}");
            assert_eq!(reply.number("x-ratelimit-remaining"), 0);
            assert_eq!(reply.json()["violated-policies"], serde_json::json!(["calls"]));
        }
        assert_eq!(upstream.count(), 1);
        assert_eq!(fleet.gateways[0].metric(DELAYED), 2);
        drop(held);
        fleet.gateways[0].wait_for("tidegate_limit_waiting ", 0);
    });
}

#[test]
fn no_more_wait_than_the_queue_holds() {
    on_every_store(|stage| {
        let upstream = Upstream::hello();
        let limit = "algorithm: leaky_bucket, quota: 3, window: 10s, max_wait: 50s, max_queue: 2";
        let clock = Clock::manual(crate::policies::NOW);
        let fleet = stage.start(&limited(&upstream, limit, "", ""), &clock);
        assert_eq!(fleet.get("/", "").status, 200);
        let ends = [&fleet.gateways[0], &fleet.gateways[fleet.gateways.len() - 1]];
        let held = ends.map(|gateway| {
            let mut client = Client::connect(gateway.address());
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            client
        });
        let waiting = || {
            let each = fleet.gateways.iter().map(|g| g.metric("tidegate_limit_waiting "));
            each.sum::<u64>()
        };
        crate::wait::eventually("both wait", || waiting() == 2);
        let reply = fleet.get("/", "");
        // The third slot begins after 10 s, and the second, 6.67 s from now, is as far as a wait may go.
        assert_eq!((reply.status, reply.number("retry-after")), (429, 4));
        drop(held);
        crate::wait::eventually("nobody waits", || waiting() == 0);
    });
}
