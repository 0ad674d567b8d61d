use tidegate::clock::Clock;

use super::{NOW, one_limit, statuses};
use crate::stage::{Fleet, on_every_store};

fn decided(fleet: &Fleet, limit: &str, decision: &str) -> u64 {
    let line = format!(
        "tidegate_limit_decisions_total{{route=\"all\",limit=\"{limit}\",decision=\"{decision}\""
    );
    fleet.gateways.iter().map(|gateway| gateway.metric(&line)).sum()
}

#[test]
fn a_limit_that_is_not_enforced_counts_and_refuses_nobody() {
    let upstream = statuses();
    let yaml =
        one_limit(&upstream, "quota: 3, window: 1h, key: [], enforce: false, on_failure: closed");
    on_every_store(|stage| {
        let fleet = stage.start(&yaml, &Clock::manual(NOW));
        for _ in 0..10 {
            let reply = fleet.get("/200", "");
            assert_eq!(reply.status, 200);
            assert!(!reply.head.to_ascii_lowercase().contains("x-ratelimit"), "nobody feels it");
        }
        assert_eq!(decided(&fleet, "calls", "admitted"), 3);
        assert_eq!(decided(&fleet, "calls", "would_refuse"), 7);
        assert_eq!(decided(&fleet, "calls", "refused"), 0);
    });
}

#[test]
fn a_candidate_is_tried_beside_the_quota_that_counts() {
    let upstream = statuses();
    let yaml = one_limit(&upstream, "quota: 5, window: 1h, key: [], candidate: {quota: 2}");
    on_every_store(|stage| {
        let fleet = stage.start(&yaml, &Clock::manual(NOW));
        for left in (0..5).rev() {
            let reply = fleet.get("/200", "");
            assert_eq!((reply.status, reply.number("x-ratelimit-remaining")), (200, left));
            assert_eq!(reply.header("x-ratelimit-resource"), Some("calls"));
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
fn a_higher_candidate_shows_what_would_pass() {
    let upstream = statuses();
    let yaml = one_limit(&upstream, "quota: 2, window: 1h, key: [], candidate: {quota: 4}");
    on_every_store(|stage| {
        let fleet = stage.start(&yaml, &Clock::manual(NOW));
        for _ in 0..6 {
            fleet.get("/200", "");
        }
        assert_eq!(decided(&fleet, "calls", "refused"), 4);
        // What is refused is charged nowhere, so the candidate has seen two.
        assert_eq!(decided(&fleet, "calls~candidate", "would_refuse"), 0);
        assert_eq!(decided(&fleet, "calls~candidate", "admitted"), 6);
    });
}
