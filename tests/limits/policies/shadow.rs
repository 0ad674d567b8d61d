//! Shadow limits: counted, and never enforced.

use testkit::backend::{Fleet, MEMORY_BY_PROTOCOL_AND_REDIS, on_each};
use tidegate::clock::Clock;

use super::{NOW, fill_upstream, status_upstream};

fn decided(fleet: &Fleet, limit: &str, decision: &str) -> u64 {
    let line = format!(
        "tidegate_limit_decisions_total{{route=\"all\",limit=\"{limit}\",decision=\"{decision}\""
    );
    fleet.gateways.iter().map(|gateway| gateway.metric(&line)).sum()
}

#[test]
fn shadow_limits_count_and_refuse_nothing() {
    let upstream = status_upstream();
    let yaml = fill_upstream(
        "
        upstreams: {app: {targets: ['{upstream}'], retries: 0}}
        limits:
          calls: {quota: 3, window: 1h, key: [], enforce: false, on_failure: closed}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
        ",
        &upstream,
    );
    on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        for _ in 0..10 {
            let response = fleet.get("/200", "");
            assert_eq!(response.status, 200);
            assert!(
                !response.head.to_ascii_lowercase().contains("x-ratelimit"),
                "no header advertises a shadow limit"
            );
        }
        assert_eq!(decided(&fleet, "calls", "admitted"), 3);
        assert_eq!(decided(&fleet, "calls", "would_refuse"), 7);
        assert_eq!(decided(&fleet, "calls", "refused"), 0);
    });
}

#[test]
fn a_candidate_quota_is_counted_apart_from_the_enforced_one() {
    let upstream = status_upstream();
    let yaml = fill_upstream(
        "
        upstreams: {app: {targets: ['{upstream}'], retries: 0}}
        limits:
          calls: {quota: 5, window: 1h, key: [], candidate: {quota: 2}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
        ",
        &upstream,
    );
    on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        for left in (0..5).rev() {
            let response = fleet.get("/200", "");
            assert_eq!((response.status, response.number("x-ratelimit-remaining")), (200, left));
            assert_eq!(response.header("x-ratelimit-resource"), Some("calls"));
        }
        let refused = fleet.get("/200", "");
        assert_eq!(refused.status, 429);
        assert_eq!(refused.json()["violated-policies"], serde_json::json!(["calls"]));
        assert_eq!(decided(&fleet, "calls", "admitted"), 5);
        assert_eq!(decided(&fleet, "calls", "refused"), 1);
        assert_eq!(decided(&fleet, "calls~candidate", "admitted"), 2);
        assert_eq!(decided(&fleet, "calls~candidate", "would_refuse"), 4);
    });
}

#[test]
fn a_higher_shadow_quota_shows_what_would_pass() {
    let upstream = status_upstream();
    let yaml = fill_upstream(
        "
        upstreams: {app: {targets: ['{upstream}'], retries: 0}}
        limits:
          calls: {quota: 2, window: 1h, key: [], candidate: {quota: 4}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
        ",
        &upstream,
    );
    on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        for _ in 0..6 {
            fleet.get("/200", "");
        }
        assert_eq!(decided(&fleet, "calls", "refused"), 4);
        // A refused request is charged nowhere: the shadow limit has counted two and admits all
        // six.
        assert_eq!(decided(&fleet, "calls~candidate", "would_refuse"), 0);
        assert_eq!(decided(&fleet, "calls~candidate", "admitted"), 6);
    });
}
