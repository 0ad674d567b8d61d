//! Costs that are settled when a response ends, and the members of a body that limits read.

use super::{GOOD, compile};

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
        ("{weights: {a: -1}}", "a factor from 0 to 1000000000"),
        ("{preset: openai, weights: {total: 1}}", "`input` or `output`"),
        ("{actual: bytes, max: 0}", "`0`, expected a whole number from 1 to 9007199254740991"),
        ("{actual: bytes, max: 5, estimate: 6}", "at most 5: no request would be admitted"),
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
    assert_eq!(cost.settled(Some(128_000), 1), 128_000);
    let headers = [("x", "100000")].into_iter().collect();
    assert_eq!(cost.estimate(&headers, None), Ok(100_000));
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
