//! `mirror` of a route.

use tidegate_config as config;

use super::{GOOD, compile};

fn with(mirror: &str) -> String {
    let upstreams = "upstreams:\n  next: {targets: [http://h:2]}\n";
    GOOD.replace("upstreams:\n", upstreams)
        .replace("limits: [one]}", &format!("limits: [one], mirror: {mirror}}}"))
}

#[test]
fn all_requests_are_copied_by_default() {
    let snapshot = compile(&with("{upstream: next}")).unwrap();
    assert!(snapshot.notes.is_empty() && snapshot.routes[1].mirror.is_none());
    let mirror = snapshot.routes[0].mirror.as_ref().unwrap();
    assert_eq!((&*mirror.upstream.name, mirror.share), ("next", 100));
}

#[test]
fn what_cannot_work_is_a_fault() {
    for (mirror, expected) in [
        ("{upstream: nxt}", "unknown upstream `nxt`"),
        ("{upstream: app}", "`app`, which the requests are sent to already"),
        ("{upstream: hello}", "`hello`, whose responses the gateway makes itself"),
    ] {
        let faults = compile(&with(mirror)).unwrap_err();
        assert!(faults.len() == 1 && faults[0].contains(expected), "{mirror}: {faults:?}");
    }
    for share in ["0", "101", "-1", "half"] {
        let text = with(&format!("{{upstream: next, share: {share}}}"));
        let error = config::parse("t.yaml", &text).unwrap_err().to_string();
        assert!(
            error.contains(&format!("`{share}`, expected a whole number from 1 to 100")),
            "{error}"
        );
    }
}

#[test]
fn routes_that_forward_nothing_are_noted() {
    let text = GOOD.replace("upstream: hello}", "upstream: hello, mirror: {upstream: app}}");
    let snapshot = compile(&text).unwrap();
    let notes: Vec<String> = snapshot.notes.iter().map(ToString::to_string).collect();
    assert!(notes.len() == 1 && notes[0].contains("`mirror` without effect"), "{notes:?}");
}
