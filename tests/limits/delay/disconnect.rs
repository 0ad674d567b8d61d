//! Clients that disconnect while their request is delayed: its slot goes to others.

use std::{thread, time::Duration};

use testkit::{
    backend::{Backend, MEMORY_BY_PROTOCOL_AND_REDIS, on_each},
    client::Client,
    gateway::Gateway,
    redis_server::RedisServer,
    upstream::Upstream,
    wait::{eventually, sleep},
    yaml::fill,
};
use tidegate::clock::{Clock, ms};

use super::{Arrivals, NOW, fill_upstream, get};

/// Releases one request per [`SLOT`].
const ONE_IN_TEN_SECONDS: &str = "
upstreams: {app: {targets: ['{upstream}'], retries: 0}}
limits:
  calls: {algorithm: leaky_bucket, quota: 1, window: 10s, max_wait: 70s, key: ['header:x-who']}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls], request_timeout: 2h}
";

const SLOT: Duration = Duration::from_secs(10);

const EXPECTING: &str = "Content-Length: 5\r\nExpect: 100-continue\r\n";

/// Sends a request that is delayed and waits until it is queued.
fn queue_request(gateway: &Gateway, who: &str, path: &str, more: &str) -> Client {
    let waiting = gateway.metric("tidegate_limit_waiting ");
    let mut client = Client::connect(gateway.address());
    let method = if more.is_empty() { "GET" } else { "POST" };
    client.send(format!("{method} {path} HTTP/1.1\r\nHost: a\r\nX-Who: {who}\r\n{more}\r\n"));
    gateway.wait_for_metric("tidegate_limit_waiting ", waiting + 1);
    client
}

/// The usage by the admin API; `target` is the query that names the caller.
fn used(gateway: &Gateway, target: &str) -> Option<u64> {
    get(gateway.admin(), &format!("/api/limits/calls{target}"), "").json()["used"].as_u64()
}

/// The first in the queue disconnects; the next two move up, and a later request queues behind
/// them.
fn assert_slot_goes_to_the_next(backend: &Backend, kind: &str, more: &str, body: usize) {
    let clock = Clock::simulated(NOW);
    let arrivals = Arrivals::new(&clock);
    let upstream = arrivals.upstream();
    let yaml = fill_upstream(ONE_IN_TEN_SECONDS, &upstream);
    let fleet = backend.start(&yaml, &clock);
    let gateway = &fleet.gateways[0];
    let start = clock.uptime();
    let who = format!("X-Who: {kind}\r\n");
    assert_eq!(Client::connect(gateway.address()).get("/a", &who).status, 200);
    let mut disconnected = queue_request(gateway, kind, "/b", more);
    disconnected.send(vec![b'x'; body]);
    let mut others: Vec<_> =
        ["/c", "/d"].iter().map(|path| queue_request(gateway, kind, path, "")).collect();
    let caller = format!("?key={}", kind.replace(' ', "+"));
    assert_eq!(used(gateway, &caller), Some(4), "{kind}");
    drop(disconnected);
    // If unread bytes precede the close, only the workers' sweep detects the disconnect.
    eventually("it leaves the queue", || {
        clock.advance(Duration::from_millis(100));
        gateway.metric("tidegate_limit_waiting ") == 2
    });
    // Redis is updated in the background: an earlier request would find the slot still in use.
    eventually("the slot is released", || used(gateway, &caller) == Some(3));
    others.push(queue_request(gateway, kind, "/e", ""));
    gateway.while_time_passes(|| {
        for client in &mut others {
            assert_eq!(client.read_response().status, 200, "{kind}");
        }
    });
    assert!(arrivals.of("/b", start).is_empty(), "{kind}");
    for (slot, path) in [(1, "/c"), (2, "/d"), (3, "/e")] {
        let [arrived] = arrivals.of(path, start)[..] else {
            panic!("{kind} {path}: not forwarded exactly once")
        };
        let slot = SLOT * slot;
        assert!(arrived >= slot && arrived < slot + SLOT * 29 / 30, "{kind} {path} {arrived:?}");
    }
}

#[test]
fn an_abandoned_slot_goes_to_the_next_in_the_queue() {
    on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
        thread::scope(|scope| {
            let long = "Content-Length: 5000000\r\n";
            for (kind, more, body) in [
                ("nothing more", "", 0),
                ("expects", EXPECTING, 0),
                ("began its body", "Content-Length: 500\r\n", 100),
                ("much of a body", long, 100_000),
                ("whole body", "Content-Length: 5\r\n", 5),
            ] {
                scope.spawn(move || assert_slot_goes_to_the_next(backend, kind, more, body));
            }
        });
    });
}

/// Fifty requests of one bucket arrive and disconnect together, after or before all are delayed.
/// Redis hangs meanwhile, so that the order of updates differs from the order of the disconnects.
fn assert_slots_released_after_disconnects(workers: usize, is_delayed: bool) {
    const CROWD: u64 = 50;
    let redis = RedisServer::start();
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&fill(
        "
        workers: {workers}
        store:
          redis: {shards: [{primary: '{redis}'}], connect_timeout: 5s, response_timeout: 5s}
        upstreams: {app: {targets: ['{upstream}'], retries: 0}}
        limits:
          calls: {algorithm: leaky_bucket, quota: 1, window: 60s, max_wait: 6000s, key: []}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls], request_timeout: 2h}
        ",
        [
            ("workers", workers.to_string()),
            ("redis", redis.url()),
            ("upstream", upstream.target()),
        ],
    ));
    assert_eq!(get(gateway.address(), "/first", "").status, 200);
    let mut clients: Vec<_> = (0..CROWD).map(|_| Client::connect(gateway.address())).collect();
    let calls = gateway.metric("tidegate_store_requests_total");
    if !is_delayed {
        redis.suspend();
    }
    for client in &mut clients {
        client.send("GET /b HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    if is_delayed {
        gateway.wait_for_metric("tidegate_limit_waiting ", CROWD);
        redis.suspend();
    } else {
        gateway.wait_for_metric("tidegate_store_requests_total", calls + CROWD);
    }
    drop(clients);
    gateway.wait_for_metric("tidegate_connections ", 0);
    redis.resume();
    eventually("every slot but the first is free", || {
        gateway.metric("tidegate_limit_waiting ") == 0 && used(&gateway, "") == Some(1)
    });
    assert_eq!(upstream.request_count(), 1);
}

#[test]
fn slots_of_clients_that_disconnect_together_are_released() {
    for workers in [1, 4] {
        assert_slots_released_after_disconnects(workers, true);
    }
}

#[test]
fn slots_of_clients_that_disconnect_before_the_delay_are_released() {
    for workers in [1, 4] {
        assert_slots_released_after_disconnects(workers, false);
    }
}

#[test]
fn requests_cut_by_the_drain_release_their_slots() {
    let backend = Backend::redis();
    let upstream = Upstream::hello();
    let yaml = fill_upstream(
        "
        drain_timeout: 200ms
        upstreams: {app: {targets: ['{upstream}'], retries: 0}}
        limits:
          calls: {algorithm: leaky_bucket, quota: 1, window: 20s, max_wait: 40s, key: []}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
        ",
        &upstream,
    );
    let fleet = backend.start(&yaml, &Clock::system());
    let [stopping, staying] = &fleet.gateways[..] else { panic!("two gateways") };
    assert_eq!(fleet.get("/a", "").status, 200);
    let mut delayed: Vec<_> =
        ["/b", "/c"].iter().map(|path| queue_request(stopping, "", path, "")).collect();
    // All three slots. No request may be refused before this: the deny cache would keep refusing.
    assert_eq!(used(staying, ""), Some(3));
    stopping.stop();
    assert!(delayed.iter_mut().all(|client| client.try_read_response().is_none()));
    eventually("the slots are released", || used(staying, "") == Some(1));
    queue_request(staying, "", "/e", "");
    assert_eq!(upstream.request_count(), 1);
}

#[test]
fn an_earlier_slot_is_used_once() {
    let backend = Backend::redis();
    let clock = Clock::simulated(NOW);
    let arrivals = Arrivals::new(&clock);
    let upstream = arrivals.upstream();
    let fleet = backend.start(&fill_upstream(ONE_IN_TEN_SECONDS, &upstream), &clock);
    let [one, other] = &fleet.gateways[..] else { panic!("two gateways") };
    let start = clock.uptime();
    assert_eq!(Client::connect(one.address()).get("/a", "X-Who: me\r\n").status, 200);
    let disconnected = queue_request(one, "me", "/b", "");
    let mut next = queue_request(other, "me", "/c", "");
    drop(disconnected);
    one.wait_for_metric("tidegate_limit_waiting ", 0);
    eventually("Redis has released the slot", || used(other, "?key=me") == Some(2));
    let mut second = queue_request(one, "me", "/d", "");
    let mut last = queue_request(one, "me", "/e", "");
    let (statuses, _) = one.while_time_passes(|| {
        [&mut next, &mut second, &mut last].map(|client| client.read_response().status)
    });
    assert_eq!(statuses, [200; 3]);
    for (slot, path) in [(1, "/d"), (2, "/c"), (3, "/e")] {
        let [arrived] = arrivals.of(path, start)[..] else {
            panic!("{path}: not forwarded exactly once")
        };
        assert!(arrived >= SLOT * slot, "{path} {arrived:?}");
        assert!(arrived < SLOT * slot + SLOT / 2, "{path} {arrived:?}");
    }
}

#[test]
fn a_timeout_during_the_delay_is_a_503_and_releases_the_slot() {
    let redis = RedisServer::start();
    let upstream = Upstream::hello();
    let yaml = fill(
        "
        store:
          redis: {shards: [{primary: '{redis}'}], connect_timeout: 5s, response_timeout: 5s}
        upstreams: {app: {targets: ['{upstream}'], retries: 0}}
        limits:
          calls: {algorithm: leaky_bucket, quota: 1, window: 3s, key: []}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls], request_timeout: 4s}
        ",
        [("redis", redis.url()), ("upstream", upstream.target())],
    );
    // A manual clock: slots pass only when the test sets it, and the timeout is in real time.
    let clock = Clock::manual(NOW);
    let gateway = Gateway::start_at(&yaml, clock.clone());
    let mut clients = [Client::connect(gateway.address()), Client::connect(gateway.address())];
    for (client, later) in clients.iter_mut().zip([3_000, 6_000]) {
        // After this the workers are connected to Redis.
        assert_eq!(client.get("/", "").status, 200);
        clock.set(NOW + ms(later));
    }
    // Both are decided when Redis resumes: by then half of their timeout is left, less than a slot.
    redis.suspend();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    // In real time: a simulated clock would also time out the calls that Redis has not answered.
    sleep(Duration::from_secs(2));
    redis.resume();
    let mut statuses = clients.each_mut().map(|client| client.read_response().status);
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 503]);
    eventually("the slot is released", || used(&gateway, "") == Some(1));
    // Now the next one is first in the queue.
    clock.set(NOW + ms(9_000));
    assert_eq!(get(gateway.address(), "/next", "").status, 200);
    assert_eq!(gateway.metric("tidegate_limit_delayed_total"), 1);
}

#[test]
fn a_client_that_disconnects_during_the_delay_is_refunded() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&fill_upstream(
        "
        upstreams: {app: {targets: ['{upstream}']}}
        limits:
          daily: {algorithm: fixed_window, quota: 100, window: 24h, key: []}
          smooth: {algorithm: leaky_bucket, quota: 1, window: 2s, key: []}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [daily, smooth]}
        ",
        &upstream,
    ));
    assert_eq!(get(gateway.address(), "/a", "").status, 200);
    let mut delayed = Client::connect(gateway.address());
    delayed.send("GET /b HTTP/1.1\r\nHost: a\r\n\r\n");
    gateway.wait_for_metric("tidegate_limit_waiting ", 1);
    let used = || get(gateway.admin(), "/api/limits/daily", "").json()["used"].as_u64();
    assert_eq!(used(), Some(2));
    drop(delayed);
    eventually("the slot is released", || used() == Some(1));
    assert_eq!(upstream.request_count(), 1);
}
