use super::{GOOD, compile};
use crate::limit::Reserve;

const REDIS: &str = "store: {redis: {shards: [{primary: 'redis://h'}], secret: env:S}}\n";

fn with(limit: &str) -> String {
    format!("{}{REDIS}", GOOD.replace("{quota: 5, window: 10s}", limit))
}

#[test]
fn tokens_may_be_taken_ahead_where_they_count_for_what_they_are() {
    for (limit, expected) in [
        ("{quota: 5, window: 10s}", Reserve::Off),
        ("{quota: 5, window: 10s, reserve: auto}", Reserve::Auto),
        ("{quota: 5, window: 10s, strict: true, reserve: 5}", Reserve::Tokens(5)),
        ("{quota: 5, window: 10s, algorithm: fixed_window, reserve: 1}", Reserve::Tokens(1)),
    ] {
        let snapshot = compile(&with(limit)).unwrap();
        assert_eq!(snapshot.limits[0].limit.reserve, expected, "{limit}");
        assert!(snapshot.notes.is_empty());
    }
}

#[test]
fn where_they_would_not_it_is_a_fault_that_tells_why() {
    let faults = |limit: &str| compile(&with(limit)).unwrap_err().join("\n");
    for (algorithm, why) in [
        ("sliding_log", "entries count from the ms"),
        ("token_bucket", "flow back from the ms"),
        ("leaky_bucket", "points in time"),
        ("concurrency", "in flight"),
    ] {
        let limit = format!("{{algorithm: {algorithm}, quota: 5, window: 10s, reserve: auto}}");
        let told = faults(&limit);
        assert!(told.contains(why) && told.contains(algorithm), "{told}");
        assert!(told.contains("expected off, or a sliding_window or fixed_window"), "{told}");
    }
    let told = faults("{quota: 5, window: 10s, reserve: 6}");
    assert!(told.ends_with("`6`, expected off, auto, or 1 to 5"), "{told}");
}

/// A request is charged before anybody knows its cost, so tokens here would pass for 1 each though the
/// record is overdrawn.
#[test]
fn what_only_the_answer_tells_cannot_be_taken_ahead() {
    for reserve in ["auto", "5"] {
        let limit =
            format!("{{quota: 5, window: 10s, cost: 'response:X-Cost', reserve: {reserve}}}");
        let told = compile(&with(&limit)).unwrap_err().join("\n");
        assert!(
            told.contains(&format!("`{reserve}`, though only the answer tells the cost")),
            "{told}"
        );
        assert!(told.ends_with("expected off, or a cost that is known before"), "{told}");
    }
    let off = compile(&with("{quota: 5, window: 10s, cost: 'response:X-Cost', reserve: off}"));
    assert!(off.is_ok());
    let known = compile(&with("{quota: 5, window: 10s, cost: 'header:X-Cost', reserve: auto}"));
    assert_eq!(known.unwrap().limits[0].limit.reserve, Reserve::Auto);
}

#[test]
fn without_redis_there_is_nothing_to_take_it_from() {
    let text = GOOD.replace("window: 10s", "window: 10s, reserve: auto");
    let notes = compile(&text).unwrap().notes;
    let [note] = &notes[..] else { panic!("{notes:?}") };
    assert!(note.to_string().contains("the counters are in this process"), "{note}");
}
