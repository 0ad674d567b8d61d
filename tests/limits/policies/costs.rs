//! Costs from request and response headers.

use testkit::{
    backend::{Fleet, MEMORY_BY_PROTOCOL_AND_REDIS, on_each},
    client::Response,
};
use tidegate::clock::Clock;

use super::{NOW, fill_upstream, status_upstream};

fn ask(fleet: &Fleet, cost: &str) -> Response {
    fleet.get("/200", &format!("X-Cost: {cost}\r\n"))
}

#[test]
fn request_costs_are_bounded() {
    let upstream = status_upstream();
    let yaml = fill_upstream(
        "
        upstreams: {app: {targets: ['{upstream}'], retries: 0}}
        limits:
          calls: {quota: 100, window: 1h, key: [], cost: header:X-Cost, max_cost: 20}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
        ",
        &upstream,
    );
    on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        assert_eq!(ask(&fleet, "20").number("x-ratelimit-remaining"), 80);
        assert_eq!(ask(&fleet, "7").number("x-ratelimit-remaining"), 73);
        assert_eq!(
            fleet.get("/200", "").number("x-ratelimit-remaining"),
            72,
            "the default cost is 1"
        );
        let before = upstream.request_count();
        for cost in ["0", "21", "-1", "1.5", "x", "", "99999999999999999999", "1\r\nX-Cost: 2"] {
            let response = ask(&fleet, cost);
            assert_eq!(response.status, 400, "{cost}");
            assert!(response.json()["detail"].as_str().is_some_and(|text| text.contains("x-cost")));
        }
        assert_eq!(upstream.request_count(), before, "none of them is forwarded");
        let stripped = fleet.get("/200", "X-Cost: 20\r\nConnection: X-Cost\r\n");
        assert_eq!(stripped.number("x-ratelimit-remaining"), 52, "Connection strips no cost");
        // Some servers treat `_` as `-`; the gateway reads one spelling, so only that one is
        // forwarded.
        fleet.get("/200", "X_Cost: 20\r\nX-Cost: 1\r\n");
        let received = upstream.request_texts().pop().unwrap_or_default().to_ascii_lowercase();
        assert!(received.contains("x-cost: 1") && !received.contains("x_cost"), "{received}");
        for left in [31, 11] {
            assert_eq!(ask(&fleet, "20").number("x-ratelimit-remaining"), left);
        }
        let refused = ask(&fleet, "20");
        assert_eq!((refused.status, refused.number("x-ratelimit-remaining")), (429, 11));
        assert_eq!(ask(&fleet, "11").status, 200, "a smaller one fits");
    });
}

#[test]
fn response_costs_are_charged() {
    let upstream = status_upstream();
    let yaml = fill_upstream(
        "
        upstreams: {app: {targets: ['{upstream}'], retries: 0}}
        limits:
          calls: {quota: 100, window: 1h, key: [], cost: response:X-Cost, max_cost: 50}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
        ",
        &upstream,
    );
    on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        for (path, left) in [
            ("/200?cost=10", 90),
            ("/200?cost=1", 89),
            ("/200?cost=0", 89),
            ("/200", 88),
            ("/200?cost=x", 87),
            ("/200?cost=1000", 37),
        ] {
            let response = fleet.get_in_order(path, "");
            assert_eq!(response.status, 200);
            assert_eq!(response.number("x-ratelimit-remaining"), left, "{path}");
        }
        let overdrawn = fleet.get_in_order("/200?cost=50", "");
        assert_eq!(overdrawn.number("x-ratelimit-remaining"), 0);
        assert_eq!(
            overdrawn.number("x-ratelimit-used"),
            113,
            "an admitted request is charged in full"
        );
        assert_eq!(fleet.get_in_order("/200?cost=0", "").status, 429);
    });
}
