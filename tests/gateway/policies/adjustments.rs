use serde_json::Value;
use testkit::{
    backend::{Backend, Fleet, MEMORY_AND_TOPOLOGIES, on_all_at_once},
    client::Response,
    upstream::Upstream,
};
use tidegate::clock::Clock;

use super::{NOW, one_limit, status_upstream};

/// Every algorithm whose charges a response can adjust.
const LIMITS: [&str; 6] = [
    "algorithm: sliding_window, resolution: 6",
    "algorithm: sliding_window, resolution: 6, strict: true",
    "algorithm: sliding_log",
    "algorithm: fixed_window",
    "algorithm: token_bucket",
    "algorithm: leaky_bucket, max_wait: 10s",
];

/// A status route beside the limited one.
fn with_status(yaml: &str) -> String {
    let status = "{name: status, match: {path: /status}, status: [calls]}, {name: all";
    yaml.replacen("{name: all", status, 1)
}

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
            let limit = format!("{limit}, quota: 10, window: 12s, key: [], refund: [304]");
            let clock = Clock::manual(NOW);
            let fleet = backend.start(&with_status(&one_limit(&upstream, &limit)), &clock);
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
                    assert_headers_match_status(&fleet, &response, &limit);
                }
                clock.set(clock.now() + 1_100);
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

/// Sends three requests of that cost in an hour without other usage; waits for the advertised reset if
/// nothing remains.
fn assert_reset_admits(upstream: &Upstream, backend: &Backend, limit: &str, cost: u32, hour: u64) {
    let limit = format!("{limit}, quota: 10, window: 60s, key: [], cost: response:X-Cost");
    let clock = Clock::manual(NOW + 300 + hour * 3_600_000);
    let fleet = backend.start(&with_status(&one_limit(upstream, &limit)), &clock);
    for _ in 0..3 {
        let response = fleet.get(&format!("/200?cost={cost}"), "");
        assert_eq!(response.status, 200, "{limit}, {cost}");
        assert_headers_match_status(&fleet, &response, &format!("{limit}, {cost}"));
        if response.number("x-ratelimit-remaining") == 0 {
            clock.set(response.number("x-ratelimit-reset") * 1_000);
        }
    }
}

/// Each request needs the refund of the one before, whichever gateway charged it.
#[test]
fn a_refund_is_visible_to_the_next_request() {
    let upstream = status_upstream();
    on_all_at_once(&MEMORY_AND_TOPOLOGIES, |backend| {
        let reserves = ["", ", reserve: auto", ", reserve: 1"];
        let all = LIMITS.iter().flat_map(|limit| reserves.map(|reserve| (limit, reserve)));
        for (day, (limit, reserve)) in (0..).zip(all) {
            let is_leasable = limit.contains("sliding_window") || limit.contains("fixed_window");
            if is_leasable || reserve.is_empty() {
                assert_refunds_are_visible(&upstream, backend, limit, reserve, day);
            }
        }
    });
}

/// Sends 60 refunded requests on a day without other usage.
fn assert_refunds_are_visible(
    upstream: &Upstream,
    backend: &Backend,
    limit: &str,
    reserve: &str,
    day: u64,
) {
    let quota = if limit.contains("leaky_bucket") { 1_000_000 } else { 1 };
    let limit = format!("{limit}, quota: {quota}, window: 1h, key: [], refund: [304]{reserve}");
    let limit = limit.replace("max_wait: 10s", "max_wait: 0s");
    let clock = Clock::manual(NOW + day * 86_400_000);
    let fleet = backend.start(&one_limit(upstream, &limit), &clock);
    for turn in 0..60 {
        let response = if reserve.is_empty() {
            fleet.get("/304", "")
        } else {
            // A gateway cannot use units leased by another one until they are returned.
            fleet.get_in_order("/304", "")
        };
        assert_eq!(response.status, 304, "{limit}, turn {turn}");
    }
}

#[test]
fn the_status_route_reports_numbers() {
    let upstream = status_upstream();
    let yaml = with_status(&one_limit(&upstream, "quota: 10, window: 10s, key: []"));
    on_all_at_once(&MEMORY_AND_TOPOLOGIES, |backend| {
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        let status: Value = fleet.get("/status", "").json();
        assert_eq!(status["resources"]["calls"]["remaining"], 10);
    });
}
