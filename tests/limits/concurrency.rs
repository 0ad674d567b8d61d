//! Concurrency limits: requests in flight hold permits and release them however they end.

/// Calls that Redis answers late or never receives.
mod redis_outage;

use std::{io::Write, time::Duration};

use testkit::{
    backend::{Backend, Fleet, MEMORY_BY_PROTOCOL_AND_REDIS, on_each},
    client::{Client, get},
    gateway::Gateway,
    protocol::{AnyClient, on_every_protocol},
    upstream::{ResponseLatch, Upstream},
    wait::eventually,
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime, ms};

const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

/// An upstream whose responses wait until their path is released; those to `/half...` begin before.
/// `/now`, `/refused` and `/other` are answered at once.
fn latched_upstream(latch: &ResponseLatch) -> Upstream {
    let latch = latch.clone();
    for path in ["/now", "/refused", "/other"] {
        latch.release(path);
    }
    Upstream::with_handler(move |request, socket| {
        let text = String::from_utf8_lossy(request);
        let path = text.split(' ').nth(1).unwrap_or_default();
        let head: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no";
        let (first, last) = head.split_at(if path.starts_with("/half") { head.len() } else { 0 });
        let _ = socket.write_all(first);
        latch.wait(path);
        socket.write_all(&[last, b"k"].concat()).is_ok()
    })
}

fn fill_upstream(yaml: &str, upstream: &Upstream) -> String {
    fill(yaml, [("upstream", upstream.target())])
}

/// The number of permits of a limit in use, by the admin API.
fn permits_in_use(gateway: &Gateway, limit: &str) -> Option<u64> {
    get(gateway.admin(), &format!("/api/limits/{limit}"), "").json()["used"].as_u64()
}

/// Waits until no permit is in use: the last one is released after its response.
fn wait_all_free(fleet: &Fleet) {
    for gateway in &fleet.gateways {
        eventually("every permit is free", || permits_in_use(gateway, "in_flight") == Some(0));
    }
}

/// Sends requests for these paths to the gateways in turn and waits until the upstream has them.
/// First waits until no permit is in use.
fn send_until_in_flight(fleet: &Fleet, upstream: &Upstream, paths: &[&str]) -> Vec<AnyClient> {
    wait_all_free(fleet);
    let before = upstream.request_count();
    let each = paths.iter().enumerate().map(|(n, path)| {
        let mut client = fleet.connect(n);
        client.start_get(path);
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
fn requests_in_flight_are_bounded_by_the_permits() {
    on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
        let latch = ResponseLatch::default();
        let upstream = latched_upstream(&latch);
        let yaml = fill_upstream(
            "
            upstreams:
              app: {targets: ['{upstream}'], retries: 0}
            limits:
              in_flight: {algorithm: concurrency, quota: 3, window: 60s, key: []}
              hourly: {quota: 100, window: 1h, key: []}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [in_flight, hourly]}
            ",
            &upstream,
        );
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        let mut in_flight = send_until_in_flight(&fleet, &upstream, &["/a", "/half", "/c"]);
        for n in 0..4 {
            let refused = fleet.connect(n).get("/now", "");
            assert_eq!((refused.status, refused.number("retry-after")), (429, 1));
            assert_eq!(refused.header("x-ratelimit-resource"), Some("in_flight"));
            assert_eq!(refused.number("x-ratelimit-limit"), 3);
            assert_eq!(refused.number("x-ratelimit-used"), 3);
        }
        assert_eq!(upstream.request_count(), 3);
        for (at, path) in [(1, "/half"), (0, "/a")] {
            latch.release(path);
            assert_eq!(in_flight[at].read_response().status, 200);
            eventually("a permit is free", || status(&fleet.gateways[0]) == 200);
        }
        // A refused request was charged nowhere else.
        eventually("a permit is free", || {
            let response = fleet.get("/now", "");
            response.status == 200 && response.header("x-ratelimit-resource") == Some("hourly")
        });
        latch.release("/c");
        assert_eq!(in_flight[2].read_response().status, 200);
        // All three permits are free again, and there is no fourth.
        wait_all_free(&fleet);
        let more = send_until_in_flight(&fleet, &upstream, &["/d", "/e", "/f"]);
        assert!(all_refuse(&fleet));
        for path in ["/d", "/e", "/f"] {
            latch.release(path);
        }
        drop(more);
    });
}

/// Free permits do not say how many requests may follow: a client that obeyed `remaining` would
/// send that many per lease.
#[test]
fn headers_advertise_permits_only_when_exhausted() {
    on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
        let latch = ResponseLatch::default();
        let upstream = latched_upstream(&latch);
        let yaml = fill_upstream(
            "
            headers: {x_ratelimit: true, standard: draft-11}
            upstreams:
              app: {targets: ['{upstream}'], retries: 0}
            limits:
              in_flight: {algorithm: concurrency, quota: 2, window: 60s, key: []}
              other: {algorithm: concurrency, quota: 5, window: 300s, key: []}
              hourly: {quota: 100, window: 1h, key: []}
            routes:
              - {name: other, match: {path: /other}, upstream: app, limits: [other]}
              - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [in_flight, hourly]}
            ",
            &upstream,
        );
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        let alone = fleet.get("/other", "");
        assert_eq!((alone.status, alone.header("x-ratelimit-limit")), (200, None));
        assert_eq!(alone.header("ratelimit"), None);
        let with_hourly = fleet.get("/now", "");
        assert_eq!(with_hourly.header("x-ratelimit-resource"), Some("hourly"));
        assert_eq!(with_hourly.number("x-ratelimit-remaining"), 99);
        assert!(with_hourly.header("ratelimit").is_some_and(|text| !text.contains("in_flight")));
        let in_flight = send_until_in_flight(&fleet, &upstream, &["/a", "/b"]);
        let refused = fleet.get("/now", "");
        assert_eq!(refused.header("x-ratelimit-resource"), Some("in_flight"));
        assert!(refused.header("ratelimit").is_some_and(|text| text.contains("in_flight")));
        drop(in_flight);
    });
}

#[test]
fn disconnected_clients_hold_no_permit() {
    on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
        let latch = ResponseLatch::default();
        let upstream = latched_upstream(&latch);
        let yaml = fill_upstream(
            "
            upstreams:
              app: {targets: ['{upstream}'], retries: 0}
              gone: {targets: ['http://127.0.0.1:1'], retries: 0}
            limits:
              in_flight: {algorithm: concurrency, quota: 2, window: 60s, key: []}
              hourly: {quota: 100, window: 1h, key: []}
              none: {quota: 1, cost: 1, window: 1h, key: []}
            routes:
              - {name: gone, match: {path: /gone}, upstream: gone, limits: [in_flight]}
              - {name: refused, match: {path: /refused}, upstream: app, limits: [none, in_flight]}
              - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [in_flight, hourly]}
            ",
            &upstream,
        );
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        for paths in [["/a", "/b"], ["/half-a", "/half-b"]] {
            let in_flight = send_until_in_flight(&fleet, &upstream, &paths);
            assert!(all_refuse(&fleet));
            drop(in_flight);
            wait_all_free(&fleet);
        }
        // A request that fails, or that another limit refuses, holds no permit either.
        for path in ["/gone", "/refused"] {
            for _ in 0..5 {
                eventually("the concurrency limit admits", || {
                    let response = fleet.get_in_order(path, "");
                    response.header("x-ratelimit-resource") != Some("in_flight")
                        || response.status == 502
                });
            }
        }
        wait_all_free(&fleet);
    });
}

#[test]
fn unrenewed_permits_expire_with_their_lease() {
    on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
        let latch = ResponseLatch::default();
        let upstream = latched_upstream(&latch);
        let clock = Clock::manual(NOW);
        let yaml = fill_upstream(
            "
            upstreams:
              app: {targets: ['{upstream}'], retries: 0}
            limits:
              in_flight: {algorithm: concurrency, quota: 2, window: 300s, key: []}
              other: {algorithm: concurrency, quota: 5, window: 300s, key: []}
            routes:
              - {name: other, match: {path: /other}, upstream: app, limits: [other]}
              - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [in_flight]}
            ",
            &upstream,
        );
        let fleet = backend.start(&yaml, &clock);
        // Renewals are due after 100 s of real time: none during this test.
        let mut in_flight = send_until_in_flight(&fleet, &upstream, &["/a", "/b"]);
        clock.set(NOW + ms(299_999));
        assert!(all_refuse(&fleet));
        // A lease ends up to 1/64 of its window late.
        clock.set(NOW + ms(300_000) + ms(4_688));
        wait_all_free(&fleet);
        // The former holders must not release permits of others.
        let others = send_until_in_flight(&fleet, &upstream, &["/c", "/d"]);
        latch.release("/a");
        latch.release("/b");
        assert!(in_flight.iter_mut().all(|client| client.read_response().status == 200));
        // By now the gateway has processed the ends of the first requests.
        assert!(in_flight.iter_mut().all(|client| client.get("/other", "").status == 200));
        for gateway in &fleet.gateways {
            eventually("the others' permits are free", || {
                permits_in_use(gateway, "other") == Some(0)
            });
            assert_eq!(permits_in_use(gateway, "in_flight"), Some(2));
        }
        assert!(all_refuse(&fleet));
        drop(others);
    });
}

#[test]
fn a_long_request_renews_and_releases_its_permit() {
    on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
        let latch = ResponseLatch::default();
        let upstream = latched_upstream(&latch);
        let yaml = fill_upstream(
            "
            upstreams:
              app: {targets: ['{upstream}'], retries: 0}
            limits:
              in_flight: {algorithm: concurrency, quota: 2, window: 2s, key: []}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [in_flight]}
            ",
            &upstream,
        );
        let clock = Clock::simulated(NOW);
        let fleet = backend.start(&yaml, &clock);
        let mut in_flight = send_until_in_flight(&fleet, &upstream, &["/a", "/half"]);
        // Each lease is renewed before it ends.
        for _ in 0..50 {
            clock.advance(Duration::from_millis(100));
            assert!(all_refuse(&fleet), "after {:?}", clock.uptime());
        }
        latch.release("/a");
        latch.release("/half");
        assert!(in_flight.iter_mut().all(|client| client.read_response().status == 200));
        // Released, not expired: the clock stands still, so no lease ends.
        wait_all_free(&fleet);
    });
}

#[test]
fn requests_cut_by_the_drain_release_their_permits() {
    let backend = Backend::redis();
    on_every_protocol(|protocol| {
        let latch = ResponseLatch::default();
        let upstream = latched_upstream(&latch);
        let yaml = fill_upstream(
            "
            drain_timeout: 200ms
            upstreams:
              app: {targets: ['{upstream}'], retries: 0}
            limits:
              in_flight: {algorithm: concurrency, quota: 2, window: 300s, key: []}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [in_flight]}
            ",
            &upstream,
        );
        let fleet = backend.start(&yaml, &Clock::system());
        let [stopping, staying] = &fleet.gateways[..] else { panic!("two gateways") };
        let mut in_flight: Vec<_> = ["/a", "/half"]
            .iter()
            .map(|path| {
                let mut client = protocol.connect(stopping);
                client.start_get(path);
                client
            })
            .collect();
        eventually("both are in flight", || upstream.request_count() == 2);
        assert_eq!(status(staying), 429);
        stopping.stop();
        assert!(in_flight.iter_mut().all(|client| client.try_read_response().is_none()));
        eventually("both are free", || permits_in_use(staying, "in_flight") == Some(0));
    });
}
