//! What limits have by their algorithm.

use tidegate_limit::leaky_bucket;

use super::*;

#[test]
fn every_algorithm_has_its_own_fingerprint() {
    let of = |limit: &str| {
        let text = GOOD.replace("{quota: 5, window: 10s}", limit);
        std::sync::Arc::clone(&compile(&text).unwrap().limits[0].limit)
    };
    let mut fingerprints = std::collections::BTreeSet::new();
    for name in ["sliding_window", "sliding_log", "fixed_window", "token_bucket"] {
        let limit = of(&format!("{{algorithm: {name}, quota: 5, window: 10s}}"));
        assert_eq!(limit.algorithm().tag(), name);
        let whole = limit.quota.sub_window().as_ms() == 10_000;
        assert_eq!(whole, name != "sliding_window");
        assert!(fingerprints.insert(limit.identity.fingerprint()));
    }
    let (lax, strict) =
        (of("{quota: 5, window: 10s}"), of("{quota: 5, window: 10s, strict: true}"));
    assert!(strict.algorithm().is_strict() && !lax.algorithm().is_strict());
    assert_eq!(
        lax.identity.fingerprint(),
        strict.identity.fingerprint(),
        "strictness keeps what was counted"
    );
}

#[test]
fn max_queue_bounds_the_number_of_slots() {
    let of = |limit: &str| {
        let limit = format!("{{algorithm: leaky_bucket, {limit}}}");
        let snapshot = compile(&GOOD.replace("{quota: 5, window: 10s}", &limit)).unwrap();
        snapshot.limits[0].limit.quota
    };
    for (quota, most) in [(3, 0), (3, 1), (3, 2), (7, 5), (999, 998), (1000, 7), (4, 3)] {
        let quota = of(&format!("quota: {quota}, window: 1s, max_wait: 30s, max_queue: {most}"));
        // One request is released at once; the others wait.
        assert_eq!(leaky_bucket::capacity(&quota), most + 1, "{quota:?}");
    }
    let fast = of("quota: 10000, window: 1s, max_queue: 25");
    assert_eq!(leaky_bucket::capacity(&fast), 20 + 1, "rounded down to whole ms");
    assert_eq!(
        of("quota: 5, window: 10s").algorithm.max_wait().as_ms(),
        10_000,
        "as long as the window"
    );
    let quota = of("quota: 5, window: 10s, max_wait: 3s, max_queue: 100");
    assert_eq!(quota.algorithm.max_wait().as_ms(), 3_000);
}

#[test]
fn a_large_log_is_noted() {
    let of = |quota: u32| {
        let limit = format!("{{algorithm: sliding_log, quota: {quota}, window: 10s}}");
        compile(&GOOD.replace("{quota: 5, window: 10s}", &limit)).unwrap().notes
    };
    assert!(of(10_000).is_empty());
    let notes = of(10_001);
    let [note] = &notes[..] else { panic!("{notes:?}") };
    assert!(note.to_string().starts_with("t.yaml:6:40: `10001` with sliding_log"), "{note}");
}
