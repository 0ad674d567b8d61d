//! Hostile configurations: large ones and long values.

use std::fmt::Write;

use tidegate_config::MAX_FAULTS;

use super::{GOOD, compile};

/// A configuration of `count` upstreams, limits and routes; each route names `upstream` and
/// `limit`.
fn large(count: usize, upstream: &str, limit: &str) -> String {
    let (mut upstreams, mut limits, mut routes) = (String::new(), String::new(), String::new());
    for n in 0..count {
        let (upstream, limit) = (upstream.replace('#', &n.to_string()), limit.replace('#', "0"));
        writeln!(upstreams, "  u{n}: {{respond: {{body: hi}}}}").unwrap();
        writeln!(limits, "  l{n}: {{quota: 5, window: 10s}}").unwrap();
        writeln!(
            routes,
            "  - {{name: r{n}, match: {{host: h{n}.test, path: '/r/{n}/{{id}}', methods: [GET]}}, \
             upstream: {upstream}, limits: [{limit}]}}"
        )
        .unwrap();
    }
    format!("upstreams:\n{upstreams}limits:\n{limits}routes:\n{routes}")
}

#[test]
fn ten_thousand_routes_compile() {
    let text = large(10_000, "u#", "l#");
    assert!(text.len() > 1 << 20);
    let snapshot = compile(&text).unwrap();
    assert_eq!((snapshot.routes.len(), snapshot.limits.len()), (10_000, 10_000));
}

#[test]
fn only_the_first_faults_and_names_are_reported() {
    for (upstream, limit, expected) in [
        ("nowhere", "l#", "unknown upstream `nowhere`, expected one of u0, u1, u10,"),
        ("u#", "u1", "unknown limit `u1`, expected `l"),
    ] {
        let faults = compile(&large(2_000, upstream, limit)).unwrap_err();
        assert_eq!(faults.len(), MAX_FAULTS);
        assert!(faults[0].contains(expected), "{}", faults[0]);
        assert!(faults.iter().all(|fault| fault.len() < 400), "{}", faults[0]);
    }
    let mut routes = String::new();
    for n in 0..2_000 {
        writeln!(routes, "  - {{name: same, match: {{path: '/{{p{n}}}'}}, upstream: app}}")
            .unwrap();
    }
    let faults = compile(&format!("upstreams: {{app: {{respond: {{}}}}}}\nroutes:\n{routes}"));
    assert_eq!(faults.unwrap_err().len(), MAX_FAULTS);
}

#[test]
fn long_values_are_truncated_in_faults() {
    let long = "a".repeat(1 << 20);
    for (from, to) in [
        ("path: /a", format!("path: /{long}")),
        ("path: /a", format!("path: /a, host: {long}")),
        ("path: /a", format!("path: /a, host: {}", "a.".repeat(12_000))),
        ("name: b", format!("name: {long}")),
        ("upstream: app", format!("upstream: {long}")),
        ("upstream: app", format!("upstream: app, strip_prefix: {long}")),
        ("limits: [one]", format!("limits: [{long}]")),
        ("{quota: 5,", format!("{{key: ['header:{long}'], quota: 5,")),
        ("{quota: 5,", format!("{{key: ['path:{long}'], quota: 5,")),
    ] {
        let text = GOOD.replace(from, &to);
        if let Err(faults) = compile(&text) {
            assert!(faults.iter().all(|fault| fault.len() < 4_000), "{from}: {}", faults[0].len());
        } else {
            panic!("{from} passed");
        }
    }
}

#[test]
fn a_pattern_that_no_request_can_match_is_located() {
    for (value, fault) in [
        ("\"/a\\0\"", "8:29: `/a\\0` (`\\0` must be written as %00)"),
        ("'/a b'", "8:29: `/a b` (` ` must be written as %20)"),
        ("'/{*rest}/b'", "8:29: `/{*rest}/b` (`{*name}` must be at the end)"),
        ("'/{id}/{id}'", "8:29: `/{id}/{id}` (parameter `id` is used twice)"),
        ("'/{}'", "8:29: `/{}` (a parameter without a name)"),
    ] {
        let faults = compile(&GOOD.replace("path: /a", &format!("path: {value}"))).unwrap_err();
        let expected =
            format!("{fault}, expected a path such as /items/{{id}} or /files/{{*rest}}");
        assert_eq!(faults, [expected]);
    }
}
