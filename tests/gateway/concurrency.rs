//! Concurrency limits: requests in flight hold slots and release them however they end.

mod redis_outage;

use std::{
    collections::BTreeSet,
    io::Write,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use testkit::{
    backend::{Backend, Fleet, on_every_store},
    client::{Client, get},
    gateway::Gateway,
    redis_server::RedisServer,
    upstream::Upstream,
    wait::{eventually, sleep},
};
use tidegate::clock::{self, Clock};

const NOW: u64 = 1_700_000_000_000;

/// Holds responses back until their path is released.
#[derive(Clone, Default)]
struct ResponseLatch(Arc<Mutex<BTreeSet<String>>>);

impl ResponseLatch {
    fn release(&self, path: &str) {
        self.0.lock().expect("not poisoned").insert(path.to_owned());
    }

    fn is_released(&self, path: &str) -> bool {
        self.0.lock().expect("not poisoned").contains(path)
    }

    /// An upstream whose responses wait until their path is released; those to `/half...` begin before.
    /// `/now` and `/other` are answered at once.
    fn upstream(&self) -> Upstream {
        let latch = self.clone();
        for path in ["/now", "/refused", "/other"] {
            latch.release(path);
        }
        Upstream::with(move |request, socket| {
            let text = String::from_utf8_lossy(request);
            let path = text.split(' ').nth(1).unwrap_or_default();
            let head: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no";
            let (first, last) =
                head.split_at(if path.starts_with("/half") { head.len() } else { 0 });
            let _ = socket.write_all(first);
            let start: Instant = clock::instant();
            while !latch.is_released(path) && start.elapsed() < Duration::from_secs(20) {
                sleep(Duration::from_millis(5));
            }
            socket.write_all(&[last, b"k"].concat()).is_ok()
        })
    }
}

fn limited(upstream: &Upstream, limit: &str, more: &str) -> String {
    format!(
        "{more}
upstreams: {{app: {{targets: [\"{}\"], retries: 0}}, gone: {{targets: ['http://127.0.0.1:1'], retries: 0}}}}
limits:
  flying: {{algorithm: concurrency, {limit}, key: []}}
  other: {{algorithm: concurrency, quota: 5, window: 300s, key: []}}
  hourly: {{quota: 100, window: 1h, key: []}}
  none: {{quota: 1, cost: 1, window: 1h, key: []}}
routes:
  - {{name: gone, match: {{path: /gone}}, upstream: gone, limits: [flying]}}
  - {{name: refused, match: {{path: /refused}}, upstream: app, limits: [none, flying]}}
  - {{name: other, match: {{path: /other}}, upstream: app, limits: [other]}}
  - {{name: all, match: {{path: '/{{*rest}}'}}, upstream: app, limits: [flying, hourly]}}
",
        upstream.target()
    )
}

/// The number of slots of a limit in use, by the admin API.
fn slots_in_use(gateway: &Gateway, limit: &str) -> Option<u64> {
    get(gateway.admin(), &format!("/api/limits/{limit}"), "").json()["used"].as_u64()
}

/// Waits until no slot is in use: the last one is released after its response.
fn wait_all_free(fleet: &Fleet) {
    for gateway in &fleet.gateways {
        eventually("every slot is free", || slots_in_use(gateway, "flying") == Some(0));
    }
}

/// Sends requests for these paths to the gateways in turn and waits until the upstream has them.
/// First waits until no slot is in use.
fn send_held(fleet: &Fleet, upstream: &Upstream, paths: &[&str]) -> Vec<Client> {
    wait_all_free(fleet);
    let before = upstream.request_count();
    let each = paths.iter().zip(fleet.gateways.iter().cycle()).map(|(path, gateway)| {
        let mut client = Client::connect(gateway.address());
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        client
    });
    let clients = each.collect();
    eventually("all are in flight", || upstream.request_count() == before + paths.len());
    clients
}

fn status(gateway: &Gateway) -> u16 {
    Client::connect(gateway.address()).get("/now", "").status
}

fn all_refuse(fleet: &Fleet) -> bool {
    fleet.gateways.iter().all(|gateway| status(gateway) == 429)
}

#[test]
fn requests_in_flight_are_bounded_by_the_slots() {
    on_every_store(|backend| {
        let latch = ResponseLatch::default();
        let upstream = latch.upstream();
        let yaml = limited(&upstream, "quota: 3, window: 60s", "");
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        let mut flying = send_held(&fleet, &upstream, &["/a", "/half", "/c"]);
        for gateway in &fleet.gateways {
            let refused = Client::connect(gateway.address()).get("/now", "");
            assert_eq!((refused.status, refused.number("retry-after")), (429, 1));
            assert_eq!(refused.header("x-ratelimit-resource"), Some("flying"));
            assert_eq!(refused.number("x-ratelimit-limit"), 3);
            assert_eq!(refused.number("x-ratelimit-used"), 3);
        }
        assert_eq!(upstream.request_count(), 3);
        for (at, path) in [(1, "/half"), (0, "/a")] {
            latch.release(path);
            assert_eq!(flying[at].read_response().status, 200);
            eventually("a slot is free", || status(&fleet.gateways[0]) == 200);
        }
        // A refused request was charged nowhere else.
        eventually("a slot is free", || {
            let response = fleet.get("/now", "");
            response.status == 200 && response.header("x-ratelimit-resource") == Some("hourly")
        });
        latch.release("/c");
        assert_eq!(flying[2].read_response().status, 200);
        // All three slots are free again, and there is no fourth.
        wait_all_free(&fleet);
        let more = send_held(&fleet, &upstream, &["/d", "/e", "/f"]);
        assert!(all_refuse(&fleet));
        for path in ["/d", "/e", "/f"] {
            latch.release(path);
        }
        drop(more);
    });
}

/// Free slots do not say how many requests may follow: a client that obeyed `remaining` would send that
/// many per lease.
#[test]
fn headers_advertise_slots_only_when_exhausted() {
    on_every_store(|backend| {
        let latch = ResponseLatch::default();
        let upstream = latch.upstream();
        let more = "headers: {x_ratelimit: true, standard: draft-11}";
        let yaml = limited(&upstream, "quota: 2, window: 60s", more);
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        let alone = fleet.get("/other", "");
        assert_eq!((alone.status, alone.header("x-ratelimit-limit")), (200, None));
        assert_eq!(alone.header("ratelimit"), None);
        let beside = fleet.get("/now", "");
        assert_eq!(beside.header("x-ratelimit-resource"), Some("hourly"));
        assert_eq!(beside.number("x-ratelimit-remaining"), 99);
        assert!(beside.header("ratelimit").is_some_and(|text| !text.contains("flying")));
        let flying = send_held(&fleet, &upstream, &["/a", "/b"]);
        let refused = fleet.get("/now", "");
        assert_eq!(refused.header("x-ratelimit-resource"), Some("flying"));
        assert!(refused.header("ratelimit").is_some_and(|text| text.contains("flying")));
        drop(flying);
    });
}

#[test]
fn disconnected_clients_hold_no_slot() {
    on_every_store(|backend| {
        let latch = ResponseLatch::default();
        let upstream = latch.upstream();
        let yaml = limited(&upstream, "quota: 2, window: 60s", "");
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        for paths in [["/a", "/b"], ["/half-a", "/half-b"]] {
            let flying = send_held(&fleet, &upstream, &paths);
            assert!(all_refuse(&fleet));
            drop(flying);
            wait_all_free(&fleet);
        }
        // A request that fails, or that another limit refuses, holds no slot either.
        for path in ["/gone", "/refused"] {
            for _ in 0..5 {
                eventually("the concurrency limit admits", || {
                    let response = fleet.get_in_order(path, "");
                    response.header("x-ratelimit-resource") != Some("flying")
                        || response.status == 502
                });
            }
        }
        wait_all_free(&fleet);
    });
}

#[test]
fn unrenewed_slots_expire_with_their_lease() {
    on_every_store(|backend| {
        let latch = ResponseLatch::default();
        let upstream = latch.upstream();
        let clock = Clock::manual(NOW);
        let fleet = backend.start(&limited(&upstream, "quota: 2, window: 300s", ""), &clock);
        // Renewals are due after 100 s of real time: none during this test.
        let mut flying = send_held(&fleet, &upstream, &["/a", "/b"]);
        clock.set(NOW + 299_999);
        assert!(all_refuse(&fleet));
        // A lease ends up to 1/64 of its window late.
        clock.set(NOW + 300_000 + 4_688);
        wait_all_free(&fleet);
        // The former holders must not release slots of others.
        let others = send_held(&fleet, &upstream, &["/c", "/d"]);
        latch.release("/a");
        latch.release("/b");
        assert!(flying.iter_mut().all(|client| client.read_response().status == 200));
        // By now the gateway has processed the ends of the first requests.
        assert!(flying.iter_mut().all(|client| client.get("/other", "").status == 200));
        for gateway in &fleet.gateways {
            eventually("the others' slots are free", || slots_in_use(gateway, "other") == Some(0));
            assert_eq!(slots_in_use(gateway, "flying"), Some(2));
        }
        assert!(all_refuse(&fleet));
        drop(others);
    });
}

#[test]
fn a_long_request_renews_and_releases_its_slot() {
    on_every_store(|backend| {
        let latch = ResponseLatch::default();
        let upstream = latch.upstream();
        let yaml = limited(&upstream, "quota: 2, window: 2s", "");
        let clock = Clock::simulated(NOW);
        let fleet = backend.start(&yaml, &clock);
        let mut flying = send_held(&fleet, &upstream, &["/a", "/half"]);
        // Each lease is renewed before it ends.
        for _ in 0..50 {
            clock.advance(Duration::from_millis(100));
            assert!(all_refuse(&fleet), "after {:?}", clock.uptime());
        }
        latch.release("/a");
        latch.release("/half");
        assert!(flying.iter_mut().all(|client| client.read_response().status == 200));
        // Released, not expired: the clock stands still, so no lease ends.
        wait_all_free(&fleet);
    });
}

#[test]
fn a_client_that_disconnects_during_the_charge_holds_no_slot() {
    let redis = RedisServer::start();
    let latch = ResponseLatch::default();
    let upstream = latch.upstream();
    let store = format!(
        "store: {{redis: {{shards: [{{primary: \"{}\"}}], connect_timeout: 5s, response_timeout: 5s}}}}",
        redis.url()
    );
    let gateway = Gateway::start(&limited(&upstream, "quota: 2, window: 300s", &store));
    let connect = || {
        let mut client = Client::connect(gateway.address());
        assert_eq!(client.get("/now", "").status, 200);
        client
    };
    let mut clients: Vec<_> = (0..2).map(|_| connect()).collect();
    eventually("both are free", || slots_in_use(&gateway, "flying") == Some(0));
    let calls = gateway.metric("tidegate_store_calls_total");
    redis.suspend();
    for client in &mut clients {
        client.send("GET /never HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    gateway.wait_for_metric("tidegate_store_calls_total", calls + 2);
    drop(clients);
    gateway.wait_for_metric("tidegate_connections ", 0);
    redis.resume();
    eventually("both are free", || slots_in_use(&gateway, "flying") == Some(0));
    assert!(upstream.request_texts().iter().all(|text| !text.contains("/never")));
}

/// Redis hangs while requests end: their slots are released when it recovers, long before their
/// leases expire.
#[test]
fn unsent_releases_are_made_after_an_outage() {
    let redis = RedisServer::start();
    let latch = ResponseLatch::default();
    let upstream = latch.upstream();
    let store = format!(
        "workers: 1\nstore: {{redis: {{shards: [{{primary: \"{}\"}}], connect_timeout: 5s, \
         response_timeout: 500ms}}}}",
        redis.url()
    );
    let gateway = Gateway::start(&limited(&upstream, "quota: 9, window: 300s", &store));
    let mut clients: Vec<_> = (0..3).map(|_| Client::connect(gateway.address())).collect();
    eventually("Redis decides", || {
        clients[0].get("/now", "").status == 200 && slots_in_use(&gateway, "flying") == Some(0)
    });
    for client in &mut clients {
        client.send("GET /long HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    eventually("all are in flight", || slots_in_use(&gateway, "flying") == Some(3));
    redis.suspend();
    let breaker_open = "tidegate_store_failures_total{kind=\"open\"}";
    eventually("the breaker is open", || {
        get(gateway.address(), "/other", "").status == 200 && gateway.metric(breaker_open) > 0
    });
    latch.release("/long");
    assert!(clients.iter_mut().all(|client| client.read_response().status == 200));
    redis.resume();
    for limit in ["flying", "other"] {
        eventually("every slot is free", || slots_in_use(&gateway, limit) == Some(0));
    }
}

#[test]
fn requests_cut_by_the_drain_release_their_slots() {
    let backend = Backend::Redis(RedisServer::start());
    let latch = ResponseLatch::default();
    let upstream = latch.upstream();
    let yaml = limited(&upstream, "quota: 2, window: 300s", "drain_timeout: 200ms");
    let fleet = backend.start(&yaml, &Clock::system());
    let [stopping, staying] = &fleet.gateways[..] else { panic!("two gateways") };
    let mut flying: Vec<_> = ["/a", "/half"]
        .iter()
        .map(|path| {
            let mut client = Client::connect(stopping.address());
            client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
            client
        })
        .collect();
    eventually("both are in flight", || upstream.request_count() == 2);
    assert_eq!(status(staying), 429);
    stopping.stop();
    assert!(flying.iter_mut().all(|client| client.try_read_response().is_none()));
    eventually("both are free", || slots_in_use(staying, "flying") == Some(0));
}
