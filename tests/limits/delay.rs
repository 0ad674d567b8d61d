//! Delayed requests. Tests that measure how exactly they are released use the system's clock, the
//! others a simulated one.
#![expect(clippy::print_stdout, reason = "the measured lateness is printed")]

/// Disconnects during the delay.
mod disconnect;
/// What is deferred until the end of the delay.
mod lifecycle;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use testkit::{
    backend::{Backend, MEMORY_AND_REDIS, MEMORY_BY_PROTOCOL_AND_REDIS, on_each},
    client::{Client, Response, get},
    gateway::Gateway,
    protocol::AnyClient,
    upstream::Upstream,
    wait::{eventually, sleep},
    yaml::fill,
};
use tidegate::clock::{self, Clock, StoreTime, Uptime, ms};

/// Arrival time and path of each request at the upstream.
#[derive(Clone)]
struct Arrivals {
    clock: Clock,
    /// Path and [`Clock::uptime`].
    recorded: Arc<Mutex<Vec<(String, Uptime)>>>,
}

impl Arrivals {
    /// Records the times of `clock`, which is the gateway's.
    fn new(clock: &Clock) -> Self {
        Self { clock: clock.clone(), recorded: Arc::default() }
    }

    /// An upstream that records arrivals and responds at once.
    fn upstream(&self) -> Upstream {
        let own = self.clone();
        Upstream::with_handler(move |request, socket| {
            let now = own.clock.uptime();
            let text = String::from_utf8_lossy(request);
            let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
            own.recorded.lock().expect("not poisoned").push((path, now));
            std::io::Write::write_all(socket, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                .is_ok()
        })
    }

    /// The arrival times for `path` after `start`, in order.
    fn of(&self, path: &str, start: Uptime) -> Vec<Duration> {
        let all = self.recorded.lock().expect("not poisoned");
        let found = all.iter().filter(|(known, _)| known == path);
        let mut found: Vec<_> = found.map(|(_, at)| at.saturating_sub(start)).collect();
        found.sort_unstable();
        found
    }
}

fn fill_upstream(yaml: &str, upstream: &Upstream) -> String {
    fill(yaml, [("upstream", upstream.target())])
}

/// A metric in seconds, over all labels.
fn seconds(gateway: &Gateway, name: &str) -> f64 {
    let text = get(gateway.admin(), "/metrics", "Connection: close\r\n").text();
    let lines = text.lines().filter(|line| line.starts_with(name));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// The start of the manual clocks.
const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

const SLOT: Duration = Duration::from_millis(250);

const DELAYED: &str = "tidegate_limit_delayed_total{route=\"all\",limit=\"calls\"}";

/// How long after its slot each request of one bucket arrived, relative to the most punctual one.
fn lateness(arrived: &[Duration]) -> Vec<Duration> {
    let offsets: Vec<_> =
        (0..).zip(arrived).map(|(slot, arrived)| arrived.saturating_sub(SLOT * slot)).collect();
    let first = offsets.iter().min().copied().unwrap_or_default();
    offsets.into_iter().map(|offset| offset.saturating_sub(first)).collect()
}

#[test]
fn four_a_second_are_released_every_250_ms() {
    const BUCKETS: usize = 8;
    const COUNT: u32 = 9;
    on_each(&MEMORY_AND_REDIS, |backend| {
        let clock = Clock::system();
        let arrivals = Arrivals::new(&clock);
        let upstream = arrivals.upstream();
        let yaml = fill_upstream(
            "
            upstreams: {app: {targets: ['{upstream}'], retries: 0}}
            limits:
              calls: {algorithm: leaky_bucket, quota: 4, window: 1s, max_wait: 10s, key: [path]}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
            ",
            &upstream,
        );
        let fleet = backend.start(&yaml, &clock);
        let mut clients: Vec<_> = (0..BUCKETS * COUNT as usize).map(|n| fleet.connect(n)).collect();
        let start = clock.uptime();
        for (at, client) in clients.iter_mut().enumerate() {
            client.start_get(&format!("/{}", at / COUNT as usize));
        }
        for client in &mut clients {
            assert_eq!(client.read_response().status, 200);
        }
        let mut late = Vec::new();
        for bucket in 0..BUCKETS {
            let arrived = arrivals.of(&format!("/{bucket}"), start);
            assert_eq!(arrived.len(), COUNT as usize);
            // The first slot is not before the start; clocks count whole milliseconds.
            for (slot, arrived) in (0..COUNT).zip(&arrived) {
                assert!(*arrived + Duration::from_millis(2) >= SLOT * slot, "{slot}: {arrived:?}");
            }
            // Without the first: it is not delayed, and arrives whenever its connection is served.
            late.extend(lateness(&arrived).into_iter().skip(1));
        }
        late.sort_unstable();
        let (median, p99) = (late[late.len() / 2], late[late.len() * 99 / 100]);
        let store = if backend.is_memory() { "memory" } else { "redis" };
        println!("{store}: {} releases, late by {median:?} (median), {p99:?} (p99)", late.len());
        // An unused slot would add 250 ms.
        assert!(median < Duration::from_millis(150), "{late:?}");
        let sum = |name| fleet.gateways.iter().map(|gateway| gateway.metric(name)).sum::<u64>();
        // Fewer if the machine stalled and some arrived after their slot.
        let most = BUCKETS as u64 * u64::from(COUNT - 1);
        assert!((most / 2..=most).contains(&sum(DELAYED)), "{}", sum(DELAYED));
        assert_eq!(sum("tidegate_limit_waiting "), 0);
        let delay = |gateway| seconds(gateway, "tidegate_limit_delay_seconds_total");
        let total: f64 = fleet.gateways.iter().map(delay).sum();
        let wanted = 0.25 * f64::from(COUNT * (COUNT - 1) / 2) * BUCKETS as f64;
        assert!((total - wanted).abs() < wanted * 0.5, "{total} s instead of {wanted} s");
    });
}

/// Sends requests for 2.5 s; returns the send and response times of each admitted one.
fn send_requests(address: SocketAddr, start: Instant) -> Vec<(Duration, Duration)> {
    let (mut client, mut admitted) = (Client::connect(address), Vec::new());
    while start.elapsed() < Duration::from_millis(2_500) {
        let sent = start.elapsed();
        match client.get("/", "").status {
            200 => admitted.push((sent, start.elapsed())),
            status => assert_eq!(status, 429),
        }
        sleep(Duration::from_millis(5));
    }
    admitted
}

/// The shortest time in which eleven requests were decided: from the first send to the last
/// response of any eleven.
fn shortest_of_eleven(admitted: &[(Duration, Duration)]) -> Option<Duration> {
    let spans = admitted.iter().filter_map(|&(_, last)| {
        let answered = admitted.iter().filter(|&&(_, answered)| answered <= last);
        let mut sent: Vec<_> = answered.map(|&(sent, _)| sent).collect();
        sent.sort_unstable();
        Some(last.saturating_sub(*sent.iter().rev().nth(10)?))
    });
    spans.min()
}

/// Asserts that the limit of `yaml` admits at most ten calls in any interval of one second.
fn assert_ten_in_any_second(yaml: &str) {
    let redis = Backend::redis();
    let upstream = Upstream::hello();
    let fleet = redis.start(&fill_upstream(yaml, &upstream), &Clock::system());
    let start = clock::instant();
    let callers: Vec<_> = (0..4)
        .map(|n| {
            let address = fleet.gateways[n % fleet.gateways.len()].address();
            thread::spawn(move || send_requests(address, start))
        })
        .collect();
    let admitted: Vec<_> =
        callers.into_iter().flat_map(|caller| caller.join().expect("no caller panics")).collect();
    let shortest = shortest_of_eleven(&admitted).expect("more than ten are admitted");
    println!("{} calls in 2.5 s; eleven take {shortest:?} at the least: {yaml}", admitted.len());
    assert!(admitted.len() >= 20, "{} calls", admitted.len());
    // Clocks count whole milliseconds.
    assert!(shortest >= Duration::from_millis(998), "{shortest:?}");
}

#[test]
fn a_sliding_log_admits_ten_calls_in_any_second() {
    assert_ten_in_any_second(
        "
        upstreams: {app: {targets: ['{upstream}'], retries: 0}}
        limits:
          calls: {algorithm: sliding_log, quota: 10, window: 1s, key: []}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
        ",
    );
}

#[test]
fn a_strict_window_admits_ten_calls_in_any_second() {
    assert_ten_in_any_second(
        "
        upstreams: {app: {targets: ['{upstream}'], retries: 0}}
        limits:
          calls: {strict: true, resolution: 10, quota: 10, window: 1s, key: []}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
        ",
    );
}

#[test]
fn delays_above_max_wait_are_refused() {
    on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
        let clock = Clock::manual(NOW);
        let upstream = Upstream::hello();
        let yaml = fill_upstream(
            "
            headers: {standard: draft-11}
            upstreams: {app: {targets: ['{upstream}'], retries: 0}}
            limits:
              calls: {algorithm: leaky_bucket, quota: 1, window: 10s, max_wait: 25s, key: []}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
            ",
            &upstream,
        );
        let fleet = backend.start(&yaml, &clock);
        let first = fleet.get("/", "");
        assert_eq!((first.status, first.number("x-ratelimit-limit")), (200, 3));
        assert_eq!(first.header("RateLimit-Policy"), Some(r#""calls";q=1;w=10"#), "the quota");
        assert_eq!(first.number("x-ratelimit-remaining"), 2);
        let mut delayed: Vec<_> = (0..2).map(|n| fleet.connect(n * fleet.gateways.len())).collect();
        for client in &mut delayed {
            client.start_get("/");
        }
        fleet.gateways[0].wait_for_metric("tidegate_limit_waiting ", 2);
        for (later, seconds) in [(0, 5), (1_500, 4), (4_001, 1)] {
            clock.set(NOW + ms(later));
            let response = fleet.get("/", "");
            assert_eq!(
                (response.status, response.number("retry-after")),
                (429, seconds),
                "{later}"
            );
            assert_eq!(response.number("x-ratelimit-remaining"), 0);
            assert_eq!(response.json()["violated-policies"], serde_json::json!(["calls"]));
        }
        assert_eq!(upstream.request_count(), 1);
        assert_eq!(fleet.gateways[0].metric(DELAYED), 2);
        drop(delayed);
        fleet.gateways[0].wait_for_metric("tidegate_limit_waiting ", 0);
    });
}

#[test]
fn the_delay_queue_is_bounded() {
    on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
        let upstream = Upstream::hello();
        let yaml = fill_upstream(
            "
            upstreams: {app: {targets: ['{upstream}'], retries: 0}}
            limits:
              calls: {algorithm: leaky_bucket, quota: 3, window: 10s, max_wait: 50s, max_queue: 2}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
            ",
            &upstream,
        );
        let clock = Clock::manual(NOW);
        let fleet = backend.start(&yaml, &clock);
        assert_eq!(fleet.get("/", "").status, 200);
        let delayed = [0, 1].map(|n| {
            let mut client = fleet.connect(n);
            client.start_get("/");
            client
        });
        let waiting = || {
            let each = fleet.gateways.iter().map(|g| g.metric("tidegate_limit_waiting "));
            each.sum::<u64>()
        };
        eventually("both wait", || waiting() == 2);
        let response = fleet.get("/", "");
        // The third slot begins after 10 s; the second, 6.67 s from now, is the longest permitted
        // delay.
        assert_eq!((response.status, response.number("retry-after")), (429, 4));
        drop(delayed);
        eventually("nothing waits", || waiting() == 0);
    });
}

/// At the release of a request, its slot and those of the requests that still wait are used.
#[test]
fn a_delayed_response_shows_what_is_left_at_its_release() {
    on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
        let (clock, upstream) = (Clock::simulated(NOW), Upstream::hello());
        let yaml = fill_upstream(
            "
            upstreams: {app: {targets: ['{upstream}'], retries: 0}}
            limits:
              calls: {algorithm: leaky_bucket, quota: 1, window: 10s, max_wait: 25s, key: []}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
            ",
            &upstream,
        );
        let fleet = backend.start(&yaml, &clock);
        let gateway = &fleet.gateways[0];
        // All at one gateway: it does not know who waits at another.
        let connect = |n: usize| fleet.connect(n * fleet.gateways.len());
        let left = |response: &Response| {
            let number = |name| response.number(name);
            let (left, used) = (number("x-ratelimit-remaining"), number("x-ratelimit-used"));
            assert_eq!(left + used, 3, "{}", response.head);
            (response.status, left)
        };
        assert_eq!(left(&connect(0).get("/", "")), (200, 2));
        let mut delayed = Vec::new();
        // The third comes so late that the last slot is within `max_wait`.
        for (waiting, later) in [(1, 0), (2, 0), (3, 5_500)] {
            clock.advance(Duration::from_millis(later));
            let mut client = connect(waiting);
            client.start_get("/");
            gateway.wait_for_metric("tidegate_limit_waiting ", waiting as u64);
            delayed.push(client);
        }
        let release = |at: usize, delayed: &mut Vec<AnyClient>| {
            left(&gateway.while_time_passes(|| delayed[at].read_response()).0)
        };
        assert_eq!(release(0, &mut delayed), (200, 0));
        assert_eq!(left(&connect(4).get("/", "")), (429, 0), "0 left: the next one is refused");
        assert_eq!(release(1, &mut delayed), (200, 1));
        assert_eq!(release(2, &mut delayed), (200, 2));
    });
}
