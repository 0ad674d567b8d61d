//! The headers of a response that adjusts its charge, and what the next request finds.

use serde_json::Value;
use testkit::{
    backend::{Backend, Fleet, MEMORY_AND_TOPOLOGIES, on_all_at_once},
    client::Response,
    upstream::Upstream,
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime, ms};

use super::{NOW, fill_upstream, status_upstream};

/// Every algorithm whose charges a response can adjust.
const LIMITS: [&str; 6] = [
    "algorithm: sliding_window, resolution: 6",
    "algorithm: sliding_window, resolution: 6, strict: true",
    "algorithm: sliding_log",
    "algorithm: fixed_window",
    "algorithm: token_bucket",
    "algorithm: leaky_bucket, max_wait: 10s",
];

/// Asserts that the headers of a response match the status route.
fn assert_headers_match_status(fleet: &Fleet, response: &Response, what: &str) {
    let status = fleet.get("/status", "").json();
    let value_of = |name: &str| status["resources"]["calls"][name].as_u64();
    for name in ["limit", "remaining", "used", "reset"] {
        let header = response.number(&format!("x-ratelimit-{name}"));
        assert_eq!(Some(header), value_of(name), "{what}: {name} of {status}");
    }
}

#[test]
fn headers_of_a_refunded_response_match_the_store() {
    let upstream = status_upstream();
    on_all_at_once(&MEMORY_AND_TOPOLOGIES, |backend| {
        for limit in LIMITS {
            let yaml = fill(
                "
                upstreams: {app: {targets: ['{upstream}'], retries: 0}}
                limits:
                  calls: {{limit}, quota: 10, window: 12s, key: [], refund: [304]}
                routes:
                  - {name: status, match: {path: /status}, status: [calls]}
                  - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
                ",
                [("limit", limit), ("upstream", &*upstream.target())],
            );
            let clock = Clock::manual(NOW);
            let fleet = backend.start(&yaml, &clock);
            for step in 0..12 {
                let path = ["/200", "/304"][step % 2];
                let response = fleet.get(path, "");
                if !limit.contains("leaky_bucket") {
                    assert_headers_match_status(
                        &fleet,
                        &response,
                        &format!("{limit}, {path}, step {step}"),
                    );
                } else if step == 0 {
                    assert_headers_match_status(&fleet, &response, limit);
                }
                clock.set(clock.store_time() + ms(1_100));
            }
        }
    });
}

#[test]
fn reset_of_an_adjusted_response_admits() {
    let upstream = status_upstream();
    on_all_at_once(&MEMORY_AND_TOPOLOGIES, |backend| {
        let all = LIMITS[..5].iter().flat_map(|limit| [10, 7, 4].map(|cost| (limit, cost)));
        for (hour, (limit, cost)) in (0..).zip(all) {
            assert_reset_admits(&upstream, backend, limit, cost, hour);
        }
    });
}

/// Sends three requests of that cost in an hour without other usage; waits for the advertised reset
/// if nothing remains.
fn assert_reset_admits(upstream: &Upstream, backend: &Backend, limit: &str, cost: u32, hour: u64) {
    let yaml = fill(
        "
        upstreams: {app: {targets: ['{upstream}'], retries: 0}}
        limits:
          calls: {{limit}, quota: 10, window: 60s, key: [], cost: response:X-Cost}
        routes:
          - {name: status, match: {path: /status}, status: [calls]}
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
        ",
        [("limit", limit), ("upstream", &*upstream.target())],
    );
    let clock = Clock::manual(NOW + ms(300) + ms(hour * 3_600_000));
    let fleet = backend.start(&yaml, &clock);
    for _ in 0..3 {
        let response = fleet.get(&format!("/200?cost={cost}"), "");
        assert_eq!(response.status, 200, "{limit}, {cost}");
        assert_headers_match_status(&fleet, &response, &format!("{limit}, {cost}"));
        if response.number("x-ratelimit-remaining") == 0 {
            clock.set(StoreTime::from_unix_ms(response.number("x-ratelimit-reset") * 1_000));
        }
    }
}

/// Limits whose next request needs the refund of the previous one: with a lease of several units,
/// of one, and without. The leaky bucket has a slot every 3.6 ms, and no request may wait for one.
const SCARCE_LIMITS: [&str; 12] = [
    "algorithm: sliding_window, resolution: 6, quota: 1",
    "algorithm: sliding_window, resolution: 6, quota: 1, reserve: auto",
    "algorithm: sliding_window, resolution: 6, quota: 1, reserve: 1",
    "algorithm: sliding_window, resolution: 6, strict: true, quota: 1",
    "algorithm: sliding_window, resolution: 6, strict: true, quota: 1, reserve: auto",
    "algorithm: sliding_window, resolution: 6, strict: true, quota: 1, reserve: 1",
    "algorithm: sliding_log, quota: 1",
    "algorithm: fixed_window, quota: 1",
    "algorithm: fixed_window, quota: 1, reserve: auto",
    "algorithm: fixed_window, quota: 1, reserve: 1",
    "algorithm: token_bucket, quota: 1",
    "algorithm: leaky_bucket, quota: 1000000, max_wait: 0s",
];

/// Each request needs the refund of the one before, whichever gateway charged it.
#[test]
fn a_refund_is_visible_to_the_next_request() {
    let upstream = status_upstream();
    on_all_at_once(&MEMORY_AND_TOPOLOGIES, |backend| {
        for (day, limit) in (0..).zip(SCARCE_LIMITS) {
            assert_refunds_are_visible(&upstream, backend, limit, day);
        }
    });
}

/// Sends 60 refunded requests on a day without other usage.
fn assert_refunds_are_visible(upstream: &Upstream, backend: &Backend, limit: &str, day: u64) {
    let yaml = fill(
        "
        upstreams: {app: {targets: ['{upstream}'], retries: 0}}
        limits:
          calls: {{limit}, window: 1h, key: [], refund: [304]}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
        ",
        [("limit", limit), ("upstream", &*upstream.target())],
    );
    let clock = Clock::manual(NOW + ms(day * 86_400_000));
    let fleet = backend.start(&yaml, &clock);
    for turn in 0..60 {
        let response = if limit.contains("reserve") {
            // A gateway cannot use units leased by another one until they are returned.
            fleet.get_in_order("/304", "")
        } else {
            fleet.get("/304", "")
        };
        assert_eq!(response.status, 304, "{limit}, turn {turn}");
    }
}

#[test]
fn the_status_route_reports_numbers() {
    let upstream = status_upstream();
    let yaml = fill_upstream(
        "
        upstreams: {app: {targets: ['{upstream}'], retries: 0}}
        limits:
          calls: {quota: 10, window: 10s, key: []}
        routes:
          - {name: status, match: {path: /status}, status: [calls]}
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
        ",
        &upstream,
    );
    on_all_at_once(&MEMORY_AND_TOPOLOGIES, |backend| {
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        let status: Value = fleet.get("/status", "").json();
        assert_eq!(status["resources"]["calls"]["remaining"], 10);
    });
}
