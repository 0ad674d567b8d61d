//! `allow` and `deny` of a route.

use super::*;

fn with(keys: &str) -> String {
    GOOD.replace("upstream: app", &format!("upstream: app, {keys}"))
}

#[test]
fn networks_are_checked() {
    assert!(compile(GOOD).unwrap().routes[0].access.is_none());
    assert!(compile(&with("deny: []")).unwrap().routes[0].access.is_none());
    assert!(compile(&with("deny: [10.0.0.0/8]")).unwrap().routes[0].access.is_some());
    let faults = compile(&with("allow: []")).unwrap_err();
    let expected =
        "8:49: no network, expected at least one; without `allow`, all clients may use the route";
    assert_eq!(faults, [expected]);
    let error = config::parse("t.yaml", &with("allow: [10.0.0.0/33]")).unwrap_err().to_string();
    assert!(error.contains("8:57: `10.0.0.0/33`, expected a network such as"), "{error}");
}

#[test]
fn networks_without_effect_are_noted() {
    let notes = |keys: &str| {
        let notes = compile(&with(keys)).unwrap().notes;
        notes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(notes("allow: [10.0.0.0/8, 192.0.2.1], deny: [10.1.0.0/16]"), "");
    let denied = notes("allow: [10.1.2.0/24, 192.0.2.1], deny: ['::ffff:10.1.0.0/112']");
    assert!(denied.contains("`10.1.2.0/24` is allowed, but `deny` has `10.1.0.0/16`"), "{denied}");
    let twice = notes("deny: [10.0.0.0/8, 10.1.0.0/16]");
    assert!(twice.contains("`10.1.0.0/16` is within `10.0.0.0/8`"), "{twice}");
}
