//! Faults in the map of a `cost`, and in other maps that may also be text.

use super::{GOOD, faults};

fn with_limit(line: &str) -> String {
    GOOD.replace("    quota: 5\n", &format!("    quota: 5\n    {line}\n"))
}

#[test]
fn the_keys_and_numbers_of_a_map_of_a_cost_are_checked() {
    let long = "9".repeat(309);
    let domain =
        "rate_limit_service: {address: '127.0.0.1:0', domains: {e: {limits: [{limits: x}]}}}\n";
    for (text, expected) in [
        (
            with_limit("cost: {actual: bytes, estimates: 5}"),
            "unknown key `estimates`, expected `estimate` (valid keys: actual, estimate, failed, max, missing, missing_estimate, preset, weights)",
        ),
        (
            with_limit(&format!("cost: {{actual: bytes, max: {long}}}")),
            "expected a whole number from 1 to 9007199254740991",
        ),
        (
            with_limit(&format!("cost: {{weights: {{a: {long}}}}}")),
            "expected a number from 0 to 1000000000",
        ),
        (
            with_limit("cost: {actual: bytes, estimate: 'json:max_tokens*n'}"),
            "or header:NAME: a path names one member and computes nothing",
        ),
        (
            GOOD.replace("key: [client_ip]", "key: ['json:a+b']"),
            ": a path names one member and computes nothing",
        ),
        (
            domain.to_owned() + GOOD,
            "unknown key `limits`, expected `limit` (valid keys: limit, match, quota)",
        ),
    ] {
        let found = faults(&text);
        let [fault] = &found[..] else { panic!("{text}: {found:?}") };
        let first = fault.lines().next().unwrap_or_default();
        assert!(first.contains(expected) && first.len() < 400, "{first}");
    }
}
