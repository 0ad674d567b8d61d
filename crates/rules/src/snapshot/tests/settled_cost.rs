//! Costs that are settled when a response ends, and the members of a body that limits read.

use tidegate_http1::Fields;

use super::{GOOD, compile};
use crate::snapshot::ResponseOutcome;

fn faults_of(limit: &str) -> String {
    compile(&GOOD.replace("{quota: 5, window: 10s}", limit))
        .map_or_else(|faults| faults.join("\n"), |_| String::new())
}

#[test]
fn a_cost_that_cannot_be_settled_is_refused_with_the_reason() {
    for (cost, reason) in [
        ("{estimate: 2}", "a cost that is never settled"),
        ("{actual: bytes, weights: {a: 1}}", "`weights` beside `actual`"),
        ("{actual: bytes, preset: openai}", "`preset` beside `actual`"),
        ("{weights: {}}", "no weight"),
        ("{weights: {a..b: 1}}", "a path has no empty segment"),
        ("{weights: {a: -1}}", "a number from 0 to 1000000000"),
        ("{preset: openai, weights: {total: 1}}", "`input` or `output`"),
        (
            "{estimate: 'json:max_tokens*n', actual: bytes}",
            "a path names one member and computes nothing",
        ),
        ("{estimate: 'json:a+b', actual: bytes}", "a path names one member and computes nothing"),
        ("{actual: 'json:usage.total*2'}", "a path names one member and computes nothing"),
        ("{actual: 'json:choices[0].x'}", "an element of an array is `items.0`, not `items[0]`"),
        ("{weights: {'a*2': 1}}", "a path names one member and computes nothing"),
        ("{actual: bytes, max: 0}", "`0`, expected a whole number from 1 to 9007199254740991"),
        ("{actual: bytes, max: 5, estimate: 6}", "at most 5: no request would be admitted"),
        ("{actual: bytes, missing_estimate: 6}", "beside an estimate that is a number"),
        (
            "{actual: bytes, estimate: 5, missing_estimate: 6}",
            "json:PATH, header:NAME, or a `preset`",
        ),
        ("{preset: openai, missing_estimate: 0}", "`0`, expected a whole number from 1"),
        (
            "{preset: openai, missing_estimate: 6, max: 5}",
            "`6`, expected a whole number from 1 to 5",
        ),
        (
            "{actual: bytes, failed: estimate}",
            "a whole number from 0 to 9007199254740991, or missing",
        ),
        ("{actual: bytes, failed: -1}", "or missing"),
    ] {
        let faults = faults_of(&format!("{{quota: 5, window: 10s, cost: {cost}}}"));
        assert!(faults.contains(reason), "{cost}: {faults}");
    }
    for cost in ["{actual: bytes}", "{preset: gemini}", "{actual: json:a, missing: 0, max: 5}"] {
        assert_eq!(faults_of(&format!("{{quota: 5, window: 10s, cost: {cost}}}")), "", "{cost}");
    }
    for algorithm in ["concurrency", "leaky_bucket"] {
        let limit =
            format!("{{quota: 5, window: 10s, algorithm: {algorithm}, cost: {{actual: bytes}}}}");
        assert!(faults_of(&limit).contains("cost"), "{algorithm}");
    }
}

#[test]
fn a_cost_may_exceed_the_quota_of_the_limit_itself() {
    // A plan may have a larger one.
    let limit = "{quota: 5, window: 10s, cost: {estimate: header:x, actual: json:a}}";
    let snapshot = compile(&GOOD.replace("{quota: 5, window: 10s}", limit)).unwrap();
    let cost = snapshot.limits[0].cost.settled().unwrap();
    assert_eq!(cost.settled(Some(128_000), ResponseOutcome::Completed, 1), 128_000);
    let headers = [("x", "100000")].into_iter().collect();
    assert_eq!(cost.estimate(&headers, None), Ok(100_000));
}

#[test]
fn a_failure_that_reports_nothing_is_free_unless_the_limit_says_otherwise() {
    for (cost, failed, completed) in [
        ("actual: json:a", 0, 7),
        ("actual: json:a, missing: 3", 0, 3),
        ("actual: json:a, missing: 3, failed: missing", 3, 3),
        ("actual: json:a, failed: missing", 7, 7),
        ("actual: json:a, failed: 2", 2, 7),
        ("actual: json:a, failed: 9, max: 8", 8, 7),
    ] {
        let limit = format!("{{quota: 5, window: 10s, cost: {{{cost}}}}}");
        let snapshot = compile(&GOOD.replace("{quota: 5, window: 10s}", &limit)).unwrap();
        let settled = snapshot.limits[0].cost.settled().unwrap();
        let of = |status| settled.settled(None, ResponseOutcome::of(status), 7);
        assert_eq!([of(400), of(503), of(200), of(399)], [failed, failed, completed, completed]);
        assert_eq!(settled.settled(Some(5), ResponseOutcome::Failed, 7), 5, "it is reported");
    }
}

#[test]
fn a_request_without_the_estimate_has_a_cost_of_its_own() {
    for (estimate, missing) in [("preset: openai", 1), ("preset: openai, missing_estimate: 9", 9)] {
        let limit = format!("{{quota: 5, window: 10s, cost: {{{estimate}}}}}");
        let snapshot = compile(&GOOD.replace("{quota: 5, window: 10s}", &limit)).unwrap();
        let cost = snapshot.limits[0].cost.settled().unwrap();
        assert_eq!(cost.estimate(&Fields::new(), None), Ok(missing));
    }
}

#[test]
fn a_route_reads_at_most_32_members() {
    let key = |count: usize| {
        let parts: Vec<String> = (0..count).map(|number| format!("json:m{number}")).collect();
        format!("{{quota: 5, window: 10s, key: [{}]}}", parts.join(", "))
    };
    assert_eq!(faults_of(&key(32)), "");
    let faults = faults_of(&key(33));
    assert!(faults.contains("33 members of a request's body, expected at most 32"), "{faults}");
}
