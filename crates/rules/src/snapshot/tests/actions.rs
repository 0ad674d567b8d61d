//! The action of a route: exactly one of its five.

use super::*;

#[test]
fn a_route_has_exactly_one_action() {
    let replaced = |from: &str, to: &str| GOOD.replace(from, to);
    let cases = [
        (
            replaced(", upstream: app", ""),
            "8:5: no action, expected `upstream`, `redirect`, `respond`, `status` or `decide`",
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
    let charged =
        replaced("10s}", "10s, key: [host, route]}").replace("upstream: app", "status: [one]");
    assert!(compile(&charged).unwrap().notes.is_empty(), "it counts the requests of this route");
    let separate = charged.replace(", limits: [one]", "");
    let notes = compile(&separate).unwrap().notes;
    let [note] = &notes[..] else { panic!("{notes:?}") };
    assert!(
        note.to_string()
            .contains("`one` counts by `route`, and no request to this route says which"),
        "{note}"
    );
}

/// A `decide` route, with a method of each kind.
const DOOR: &str = "\
client: {trusted_proxies: [10.0.0.1/32]}
auth: {certificate: {certificate: {consumer: san_uri}}, keys: {api_key: {}}}
consumers: {entries: []}
upstreams: {app: {respond: {}}}
limits: {one: {quota: 5, window: 10s}}
routes:
  - {name: door, match: {path: '/decide/{id}'}, limits: [one], auth: [keys], decide: {}}
  - {name: app, match: {path: /app}, upstream: app}
";

#[test]
fn a_decide_route_refuses_what_cannot_hold() {
    let replaced = |from: &str, to: &str| {
        assert!(DOOR.contains(from), "{from}");
        DOOR.replace(from, to)
    };
    let limit = |keys: &str| replaced("window: 10s", &format!("window: 10s, {keys}"));
    let route = |keys: &str| replaced("decide: {}", &format!("decide: {{}}, {keys}"));
    let unseen = "which the gateway does not see, on a `decide` route";
    let mut wrong = Vec::new();
    for (text, expected) in [
        (
            replaced("client: {trusted_proxies: [10.0.0.1/32]}\n", ""),
            "6:78: `decide` without `client.trusted_proxies`: no proxy may ask, expected the addresses",
        ),
        (
            replaced("decide: {}", "decide: {refuse_status: 503}"),
            "7:102: `503`, expected 429, or 403 for nginx",
        ),
        (
            replaced("auth: [keys]", "auth: [certificate]"),
            "7:71: `certificate` on a `decide` route",
        ),
        (route("upstream: app"), "7:78: both `upstream` and `decide`, expected one of them"),
        (route("cors: {origins: ['*']}"), "7:90: `cors` on a `decide` route"),
        (route("strip_prefix: /x"), "7:90: `strip_prefix` on a `decide` route"),
        (route("max_body: 1MiB"), "7:90: `max_body` on a `decide` route: the asking proxy has"),
        (route("max_body: 10MiB"), "7:90: `max_body` on a `decide` route: the asking proxy has"),
        (route("rewrite: /x"), "7:90: `rewrite` on a route that forwards no request"),
        (
            route("headers: {response: {set: {x: '{path.id}'}}}"),
            "7:120: `{path.NAME}` on a `decide` route, whose path is not that of the asked request",
        ),
        (
            limit("key: ['path:id']"),
            "7:58: `one` counts by `path:id` on a `decide` route, whose path is not that of the asked",
        ),
        (
            limit("key: ['json:user']"),
            "7:58: `one` counts by `json:user` on a `decide` route, which sees no body",
        ),
        (
            limit("tiers: [{match: {part: 'json:user', values: [a]}, quota: 9}]"),
            "7:58: `one` counts by `json:user` on a `decide` route, which sees no body",
        ),
        (limit("key: ['header:host']"), "7:58: `one` counts by `header:host` on a `decide` route"),
        (
            limit("algorithm: concurrency"),
            "7:58: `one` bounds requests in flight, whose end the gateway does not see,",
        ),
        (
            limit("cost: 'response:x-cost'"),
            &format!("7:58: `one` has a cost that the response gives, {unseen}"),
        ),
        (
            limit("cost: {estimate: 1, actual: bytes}"),
            &format!("7:58: `one` has a cost that the response gives, {unseen}"),
        ),
        (
            limit("refund: [404]"),
            &format!("7:58: `one` depends on the status of the response, {unseen}"),
        ),
        (
            limit("charge_on: [401]"),
            &format!("7:58: `one` depends on the status of the response, {unseen}"),
        ),
        (
            replaced("path: /app}", "path: '/decide/{name}', methods: [GET]}")
                .replace("path: '/decide/{id}'", "path: '/decide/{id}', methods: [PUT]"),
            "",
        ),
        (
            replaced("path: /app}", "path: '/decide/{name}'}")
                .replace("path: '/decide/{id}'", "path: '/decide/{id}', methods: [PUT]"),
            "8:17: `door` and this route, of which one has `decide`, share a path",
        ),
        (DOOR.to_owned(), ""),
    ] {
        let faults = compile(&text).err().unwrap_or_default();
        let is_expected = match faults.as_slice() {
            [] => expected.is_empty(),
            [first, ..] => !expected.is_empty() && first.starts_with(expected),
        };
        if !is_expected {
            wrong.push(format!("{expected}: {faults:?}"));
        }
    }
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn trusted_proxies_that_are_everyone_are_noted() {
    let noted = |text: &str, danger: &str| -> usize {
        let notes = compile(text).unwrap().notes;
        notes.iter().filter(|note| note.to_string().contains(danger)).count()
    };
    let (asks, chooses) = ("every client may ask a `decide` route", "every client chooses");
    for network in ["0.0.0.0/0", "'::/0'"] {
        let all = DOOR.replace("10.0.0.1/32", network);
        assert_eq!((noted(&all, asks), noted(&all, chooses)), (1, 0), "{network}");
        let unasked = all.replace("decide: {}", "upstream: app");
        assert_eq!((noted(&unasked, asks), noted(&unasked, chooses)), (0, 1), "{network}");
    }
    assert_eq!((noted(DOOR, asks), noted(DOOR, chooses)), (0, 0));
}

#[test]
fn doors_with_the_same_path_are_one() {
    let doors = DOOR
        .replace("path: /app}, upstream: app", "path: '/decide/{x}', methods: [PUT]}, decide: {}");
    let snapshot = compile(&doors).unwrap();
    assert!(snapshot.doors.is_some());
    assert!(compile(GOOD).unwrap().doors.is_none());
}
