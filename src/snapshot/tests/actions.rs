//! The action of a route: exactly one of its four.

use super::*;

#[test]
fn a_route_has_exactly_one_action() {
    let replaced = |from: &str, to: &str| GOOD.replace(from, to);
    let cases = [
        (
            replaced(", upstream: app", ""),
            "8:5: no action, expected `upstream`, `redirect`, `respond` or `status`",
        ),
        (
            replaced("upstream: app", "upstream: app, status: [one]"),
            "8:49: both `upstream` and `status`, expected one of them",
        ),
        (
            replaced("upstream: app", "upstream: app, redirect: {to: /b}"),
            "8:49: both `upstream` and `redirect`, expected one of them",
        ),
        (
            replaced("upstream: app", "respond: {}, status: [one]"),
            "8:47: both `respond` and `status`, expected one of them",
        ),
        (replaced("upstream: app", "status: []"), "8:34: no limit, expected at least one"),
        (replaced("upstream: app", "status: [on]"), "8:43: unknown limit `on`, expected `one`"),
        (
            replaced("upstream: app", "status: [one, one]"),
            "8:48: duplicate limit `one`, expected each limit once",
        ),
        (
            replaced("10s}", "10s, key: ['path:id']}")
                .replace(", limits: [one]", "")
                .replace("upstream: app", "status: [one]"),
            "8:43: `one` counts by `path:id`, which `/a` does not have, expected a path with `{id}`",
        ),
    ];
    for (text, expected) in &cases {
        assert_eq!(compile(text).unwrap_err(), [*expected], "{text}");
    }
    let snapshot = compile(&replaced("upstream: app", "status: [one]")).unwrap();
    let Action::Status(limits) = &snapshot.routes[0].action else { panic!("no status") };
    assert_eq!((limits[0].limit.name(), limits.len()), ("one", 1));
    assert!(snapshot.notes.is_empty());
    let separate =
        replaced("10s}", "10s, key: [host, route]}").replace("upstream: app", "status: [one]");
    let notes = compile(&separate).unwrap().notes;
    let [note] = &notes[..] else { panic!("{notes:?}") };
    assert!(note.to_string().contains("`one` counts by `route`"), "{note}");
}
