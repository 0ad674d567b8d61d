//! `reserve` of a limit.

use tidegate_charge::LeaseSize;

use super::{GOOD, compile};

const REDIS: &str = "store: {redis: {shards: [{primary: 'redis://h'}], secret: env:S}}\n";

fn with(limit: &str) -> String {
    format!("{}{REDIS}", GOOD.replace("{quota: 5, window: 10s}", limit))
}

#[test]
fn window_counters_may_lease_units() {
    for (limit, expected) in [
        ("{quota: 5, window: 10s}", LeaseSize::Off),
        ("{quota: 5, window: 10s, reserve: auto}", LeaseSize::Auto),
        ("{quota: 5, window: 10s, strict: true, reserve: 5}", LeaseSize::Units(5)),
        ("{quota: 5, window: 10s, algorithm: fixed_window, reserve: 1}", LeaseSize::Units(1)),
    ] {
        let snapshot = compile(&with(limit)).unwrap();
        assert_eq!(snapshot.limits[0].limit.lease_size, expected, "{limit}");
        assert!(snapshot.notes.is_empty());
    }
}

#[test]
fn other_algorithms_are_refused_with_the_reason() {
    let faults_of = |limit: &str| compile(&with(limit)).unwrap_err().join("\n");
    for (algorithm, reason) in [
        ("sliding_log", "exact time of every charge"),
        ("token_bucket", "refills continuously"),
        ("leaky_bucket", "release time of its own"),
        ("concurrency", "in flight"),
    ] {
        let limit = format!("{{algorithm: {algorithm}, quota: 5, window: 10s, reserve: auto}}");
        let faults = faults_of(&limit);
        assert!(faults.contains(reason) && faults.contains(algorithm), "{faults}");
        assert!(faults.contains("expected off, or a sliding_window or fixed_window"), "{faults}");
    }
    let faults = faults_of("{quota: 5, window: 10s, reserve: 6}");
    assert!(faults.ends_with("`6`, expected off, auto, or 1 to 5"), "{faults}");
}

/// The request is charged before its cost is known, so leased units would admit further requests at
/// a cost of 1 each although the counter is overdrawn.
#[test]
fn a_cost_from_the_response_excludes_leases() {
    for reserve in ["auto", "5"] {
        let limit =
            format!("{{quota: 5, window: 10s, cost: 'response:X-Cost', reserve: {reserve}}}");
        let faults = compile(&with(&limit)).unwrap_err().join("\n");
        assert!(
            faults
                .contains(&format!("`{reserve}`, though the cost is only known from the response")),
            "{faults}"
        );
        assert!(faults.ends_with("expected off, or a cost that is known on admission"), "{faults}");
    }
    let off = compile(&with("{quota: 5, window: 10s, cost: 'response:X-Cost', reserve: off}"));
    assert!(off.is_ok());
    let known = compile(&with("{quota: 5, window: 10s, cost: 'header:X-Cost', reserve: auto}"));
    assert_eq!(known.unwrap().limits[0].limit.lease_size, LeaseSize::Auto);
}

#[test]
fn leases_without_redis_are_noted() {
    let text = GOOD.replace("window: 10s", "window: 10s, reserve: auto");
    let notes = compile(&text).unwrap().notes;
    let [note] = &notes[..] else { panic!("{notes:?}") };
    assert!(note.to_string().contains("the counters are in this process"), "{note}");
}
