//! Responses whose charge is refunded.

use testkit::{
    backend::{Fleet, MEMORY_AND_TOPOLOGIES, MEMORY_BY_PROTOCOL_AND_TOPOLOGIES, on_all_at_once},
    client::Response,
    yaml::fill,
};
use tidegate::clock::{Clock, ms};

use super::{NOW, fill_upstream, status_upstream};

const LIMITS: [&str; 4] = ["sliding_window", "sliding_log", "fixed_window", "token_bucket"];

fn get_as(fleet: &Fleet, token: &str, path: &str) -> Response {
    fleet.get_in_order(path, &format!("Authorization: {token}\r\n"))
}

#[test]
fn a_refunded_response_restores_remaining() {
    let upstream = status_upstream();
    on_all_at_once(&MEMORY_AND_TOPOLOGIES, |backend| {
        for algorithm in LIMITS {
            let yaml = fill(
                "
                upstreams: {app: {targets: ['{upstream}'], retries: 0}}
                limits:
                  calls: {algorithm: {algorithm}, quota: 10, window: 1h, key: [token], refund: [304, 500, 502]}
                routes:
                  - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
                ",
                [("algorithm", algorithm), ("upstream", &*upstream.target())],
            );
            let fleet = backend.start(&yaml, &Clock::manual(NOW));
            let first = get_as(&fleet, "a", "/200");
            assert_eq!(first.number("x-ratelimit-remaining"), 9, "{algorithm}");
            let reset = first.number("x-ratelimit-reset");
            for status in [304, 500, 304] {
                let response = get_as(&fleet, "a", &format!("/{status}"));
                assert_eq!(response.status, status, "{algorithm}");
                assert_eq!(response.number("x-ratelimit-remaining"), 9, "{algorithm} {status}");
                assert_eq!(response.number("x-ratelimit-used"), 1);
                assert!(response.number("x-ratelimit-reset") >= reset, "{algorithm}");
            }
            for _ in 0..30 {
                assert_eq!(
                    get_as(&fleet, "b", "/304").status,
                    304,
                    "refunded requests are not counted"
                );
            }
            let charged = get_as(&fleet, "a", "/404");
            assert_eq!(charged.number("x-ratelimit-remaining"), 8, "{algorithm}: 404 is charged");
        }
    });
}

#[test]
fn upstream_failures_are_refunded_where_listed() {
    let yaml = "
        upstreams:
          gone: {targets: ['http://127.0.0.1:1'], retries: 0, ejection: {max_share: 0}}
        limits:
          refunded: {quota: 5, window: 1h, key: [], refund: [502]}
          charged: {quota: 5, window: 1h, key: []}
        routes:
          - {name: refunded, match: {path: /refunded}, upstream: gone, limits: [refunded]}
          - {name: charged, match: {path: /charged}, upstream: gone, limits: [charged]}
        ";
    on_all_at_once(&MEMORY_BY_PROTOCOL_AND_TOPOLOGIES, |backend| {
        let fleet = backend.start(yaml, &Clock::manual(NOW));
        for _ in 0..10 {
            let response = fleet.get_in_order("/refunded", "");
            assert_eq!((response.status, response.number("x-ratelimit-remaining")), (502, 5));
        }
        for left in (0..5).rev() {
            let response = fleet.get_in_order("/charged", "");
            assert_eq!((response.status, response.number("x-ratelimit-remaining")), (502, left));
        }
        assert_eq!(fleet.get_in_order("/charged", "").status, 429);
    });
}

#[test]
fn refused_requests_are_not_refunded() {
    let upstream = status_upstream();
    let yaml = fill_upstream(
        "
        upstreams: {app: {targets: ['{upstream}'], retries: 0}}
        limits:
          calls: {quota: 3, window: 1h, key: [], refund: [429, 304]}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
        ",
        &upstream,
    );
    on_all_at_once(&MEMORY_BY_PROTOCOL_AND_TOPOLOGIES, |backend| {
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        for _ in 0..3 {
            assert_eq!(fleet.get_in_order("/200", "").status, 200);
        }
        for _ in 0..5 {
            let response = fleet.get_in_order("/200", "");
            assert_eq!((response.status, response.number("x-ratelimit-used")), (429, 3));
        }
    });
}

#[test]
fn a_late_refund_is_not_credited_to_another_window() {
    let upstream = status_upstream();
    let yaml = fill_upstream(
        "
        upstreams: {app: {targets: ['{upstream}'], retries: 0}}
        limits:
          calls: {quota: 5, window: 60s, resolution: 6, key: [], refund: [304]}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
        ",
        &upstream,
    );
    on_all_at_once(&MEMORY_BY_PROTOCOL_AND_TOPOLOGIES, |backend| {
        let clock = Clock::manual(NOW);
        let fleet = backend.start(&yaml, &clock);
        assert_eq!(fleet.get_in_order("/304", "").number("x-ratelimit-remaining"), 5);
        clock.set(NOW + ms(200_000));
        assert_eq!(fleet.get_in_order("/304", "").number("x-ratelimit-remaining"), 5);
        assert_eq!(fleet.get_in_order("/200", "").number("x-ratelimit-remaining"), 4);
    });
}
