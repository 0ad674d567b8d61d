//! Header rules, rewritten paths and redirects: faults and notes.

use super::*;

/// A configuration whose first route has these keys in addition to a name, a pattern, and a limit
/// by a header and one by address.
fn route(keys: &str) -> String {
    let (sections, _) = GOOD.split_once("routes:").unwrap();
    let limits = "limits: {one: {quota: 5, window: 10s, key: ['header:x-team']},\n  address: {quota: 9, window: 10s}}";
    let sections = sections.replace("limits:\n  one: {quota: 5, window: 10s}", limits);
    format!(
        "{sections}routes:\n  - name: a\n    match: {{path: '/a/{{id}}'}}\n    limits: [one, address]\n    {keys}\n"
    )
}

#[test]
fn faulty_header_rules_are_located() {
    for (rules, expected) in [
        (
            "set: {content-length: '1'}",
            "`content-length` cannot be changed, expected a header that neither",
        ),
        ("set: {Host: a}", "`host` cannot be changed, expected the key `host` of the route"),
        ("remove: [Transfer-Encoding]", "`transfer-encoding` cannot be changed"),
        ("remove: [connection]", "`connection` cannot be changed"),
        ("add: {upgrade: h2c}", "`upgrade` cannot be changed"),
        ("remove: [via]", "`via` cannot be changed"),
        ("set: {'a:b': x}", "`a:b`, expected a header name"),
        ("remove: ['a b']", "`a b`, expected a header name"),
        ("set: {X-A: x, x-a: y}", "duplicate header `x-a`"),
        ("set: {x-a: x}, remove: [X-A]", "`x-a` is also in `set`"),
        (
            "set: {x-a: '{user}'}",
            "`{user}` (unknown variable `{user}`), expected text, with variables such as",
        ),
        ("set: {x-a: '{'}", "`{` (`{` without `}`)"),
        ("set: {x-a: \"a\\r\\nb: c\"}", "(the control character `\\r`)"),
        (
            "set: {x-a: '{path.other}'}",
            "`{path.other}`, which `/a/{id}` does not have, expected a path with `{other}`",
        ),
    ] {
        for message in ["request", "response"] {
            let text = route(&format!("upstream: app\n    headers: {{{message}: {{{rules}}}}}"));
            let faults = compile(&text).unwrap_err();
            assert!(faults.len() == 1 && faults[0].contains(expected), "{rules}: {faults:?}");
            assert!(faults[0].starts_with("12:"), "{faults:?}");
        }
    }
}

#[test]
fn faulty_replacements_are_located() {
    let rule = |name: &str, pattern: &str, with: &str| {
        format!("replace: {{{name}: {{pattern: '{pattern}', with: '{with}'}}}}")
    };
    for (rules, expected) in [
        (rule("x-a", "(a", "b"), "`(a` (unclosed group), expected a regular expression such as"),
        (rule("x-a", "a(?=b)", "b"), "`a(?=b)` (look-around, including look-ahead"),
        (rule("x-a", "", "b"), "`` (empty)"),
        (rule("x-a", "(a{1,1000}){1,1000}", "b"), "(more than 64 KiB once compiled)"),
        (rule("x-a", "\\p{L}", "b"), "`\\p{L}` (Unicode not allowed here)"),
        (
            rule("accept", "(a)", "$2"),
            "`$2` (no group `2` in the pattern), expected text, with groups",
        ),
        (rule("accept", "(a)", "$1b"), "(no group `1b` in the pattern)"),
        (rule("accept", "(?P<b>a)", "$c"), "(no group `c` in the pattern)"),
        (rule("accept", "(a)", "\\1"), "(`\\1`; a group is `$1`)"),
        (rule("accept", "a", "$"), "`$` (`$` without a group)"),
        (
            "replace: {accept: {pattern: a, with: \"\\r\\n\"}}".to_owned(),
            "(the control character `\\r`)",
        ),
        ("replace: {x-a: {pattern: a}}".to_owned(), "missing key `with`"),
        (rule("Host", "a", "b"), "`host` cannot be changed, expected the key `host` of the route"),
        (rule("Content-Length", "1", "2"), "`content-length` cannot be changed"),
        (rule("connection", "a", "b"), "`connection` cannot be changed"),
        (rule("\"a b\"", "a", "b"), "`a b`, expected a header name"),
        (
            rule("x-a", "a", "b") + ", set: {X-A: b}",
            "`x-a` is also in `set` or `remove`, expected one rule for what was sent",
        ),
        (rule("x-a", "a", "b") + ", remove: [x-a]", "`x-a` is also in `set` or `remove`"),
        (
            "replace: {x-a: {pattern: a, with: b}, X-A: {pattern: a, with: b}}".to_owned(),
            "duplicate header `x-a`",
        ),
    ] {
        for message in ["request", "response"] {
            let text = route(&format!("upstream: app\n    headers: {{{message}: {{{rules}}}}}"));
            let faults = compile(&text).unwrap_err();
            assert!(faults.len() == 1 && faults[0].contains(expected), "{rules}: {faults:?}");
            assert!(faults[0].starts_with("12:"), "{faults:?}");
        }
    }
}

#[test]
fn what_the_gateway_reads_or_writes_itself_is_not_replaced() {
    let sections = "auth: {keys: {api_key: {from: [header:x-key, cookie:key]}}}\n";
    let entry = "consumers: {entries: [{name: a, keys: [{sha256: \"SHA\"}]}]}\n";
    let entry = entry.replace("SHA", &"0a".repeat(32));
    for (name, expected) in [
        ("x-team", "`x-team` is changed, and limits count by it"),
        ("X_Team", "`x_team` is changed, and limits count by it"),
        ("authorization", "`authorization` is changed, and limits count by it"),
        ("x-key", "`x-key` is changed, and `auth` reads it"),
        ("cookie", "`cookie` is changed, and `auth` reads it"),
        (
            "x-forwarded-for",
            "`x-forwarded-for` of a client is not forwarded as it is, expected `set`",
        ),
        ("x-request-id", "`x-request-id` of a client is not"),
        ("traceparent", "`traceparent` of a client is not"),
        ("x_consumer_name", "`x_consumer_name` of a client is not"),
    ] {
        let keys = |message: &str| {
            let rule = format!("{{replace: {{{name}: {{pattern: a, with: b}}}}}}");
            let keys =
                format!("upstream: app\n    auth: [keys]\n    headers: {{{message}: {rule}}}");
            format!("{sections}{entry}{}", route(&keys))
        };
        let faults = compile(&keys("request")).unwrap_err();
        assert!(faults.len() == 1 && faults[0].contains(expected), "{name}: {faults:?}");
        assert!(compile(&keys("response")).is_ok(), "{name}");
    }
}

#[test]
fn what_limits_count_by_cannot_be_forged() {
    let faults = |rules: &str| {
        let text = route(&format!("upstream: app\n    headers: {{{rules}}}"));
        compile(&text).err().unwrap_or_default()
    };
    for (rules, expected) in [
        (
            "set: {x-team: '{header.x-other}'}",
            "`x-team` is set to `{header.x-other}`, and limits count by it",
        ),
        ("set: {X_Team: '{path.id}'}", "`x_team` is set to `{path.id}`, and limits count by it"),
        ("set: {authorization: 'Bearer {query}'}", "`authorization` is set to `{query}`"),
        ("add: {x-team: a}", "a second `x-team`, and limits count by it, expected `set`"),
    ] {
        let faults = faults(&format!("request: {{{rules}}}"));
        assert!(faults.len() == 1 && faults[0].contains(expected), "{rules}: {faults:?}");
    }
    for rules in [
        "request: {set: {x-team: fixed, authorization: 'Basic eDp5', x-user: '{header.x-other}'}}",
        "request: {set: {x-team: '{client_ip}'}, remove: [cookie]}",
        "response: {set: {x-team: '{header.x-team}'}, add: {authorization: a}}",
    ] {
        assert!(faults(rules).is_empty(), "{rules}: {:?}", faults(rules));
    }
}

#[test]
fn faulty_rewrites_and_hosts_are_located() {
    for (keys, expected) in [
        (
            "upstream: app\n    rewrite: /b/{path.other}",
            "`{path.other}`, which `/a/{id}` does not have",
        ),
        ("upstream: app\n    rewrite: /b/../c", "`/b/../c` (`//`, `.`, `..` or an escape"),
        ("upstream: app\n    rewrite: '/b?c=d'", "`/b?c=d` (`?` in a path)"),
        ("upstream: app\n    rewrite: '/{header.x}'", "`{header.x}` in a path"),
        (
            "upstream: app\n    rewrite: /b\n    strip_prefix: /a",
            "both `rewrite` and `strip_prefix`",
        ),
        ("upstream: app\n    host: 'a..b'", "`a..b`, expected preserve, upstream, or a host"),
        (
            "upstream: app\n    rewrite: /b\n    path: as_sent",
            "both `rewrite` and `path: as_sent`, expected one of them",
        ),
        ("respond: {}\n    path: strict", "`path` on a route that forwards no request"),
        ("upstream: app\n    path: raw", "`raw`, expected normalized, as_sent or strict"),
        ("respond: {}\n    rewrite: /b", "`rewrite` on a route that forwards no request"),
        ("respond: {}\n    host: upstream", "`host` on a route that forwards no request"),
        (
            "status: [one]\n    headers: {request: {remove: [x]}}",
            "`headers.request` on a route that forwards",
        ),
        ("redirect: {to: 'x'}", "`x` (not a URL), expected a URL such as"),
        ("redirect: {to: '//evil.test/'}", "(not a URL)"),
        ("redirect: {to: 'https://{header.x}/'}", "(`{header.x}` in the host of a URL)"),
        ("redirect: {to: '/b/{path.other}'}", "`{path.other}`, which `/a/{id}` does not have"),
        ("redirect: {to: /b, status: 200}", "`200`, expected 301, 302, 303, 307 or 308"),
        ("respond: {status: 204, body: x}", "a body with status 204"),
    ] {
        let faults = compile(&route(keys)).unwrap_err();
        assert!(faults.len() == 1 && faults[0].contains(expected), "{keys}: {faults:?}");
    }
}

#[test]
fn evident_redirect_loops_are_faults() {
    let with = |matches: &str, redirect: &str, more: &str| {
        let (sections, _) = GOOD.split_once("routes:").unwrap();
        let text = format!(
            "{sections}routes:\n  - {{name: a, match: {{{matches}}}, redirect: {{{redirect}}}}}\n{more}"
        );
        compile(&text).map(|snapshot| notes_on_routes(&snapshot).len())
    };
    let all = "path: '/{*rest}'";
    let secure = "  - {name: s, match: {host: www.a.test, path: '/{*rest}'}, upstream: app}\n";
    for (matches, redirect, more) in [
        ("path: /a", "to: /a", ""),
        ("path: '/a/{id}'", "to: '/a/{path.id}'", ""),
        ("path: '/a/{id}'", "to: '/a/7?{query}'", ""),
        (all, "to: 'https://{host}{path}'", ""),
        (all, "to: '/new/{path.rest}'", ""),
        ("path: '/a/{*rest}'", "to: '/a//b/{path.rest}'", ""),
        ("host: a.test, path: /a", "to: 'https://A.test:80/a'", ""),
        ("host: a.test, path: /a", "to: 'http://a.test/a#x'", ""),
        ("path: /a, headers: {x: true}", "to: /a", ""),
        ("path: /a, methods: [GET]", "to: /a, status: 303", ""),
    ] {
        let faults = with(matches, redirect, more).expect_err(redirect);
        assert!(faults.len() == 1 && faults[0].contains("leads back to this route"), "{faults:?}");
    }
    for (matches, redirect, more, notes) in [
        ("path: /a", "to: /b", "", 0),
        // After the redirect, a proxy in front of the gateway reports another scheme.
        ("headers: {x-forwarded-proto: http}", "to: 'https://{host}{path}'", "", 0),
        ("path: '/a/{*rest}'", "to: '/b/{path.rest}'", "", 0),
        ("path: '/{*rest}'", "to: /", "  - {name: s, match: {path: /}, upstream: app}\n", 0),
        ("host: a.test, path: '/{*rest}'", "to: 'https://b.test{path}'", "", 0),
        ("host: a.test, path: '/{*rest}'", "to: 'https://a.test:8443{path}'", "", 0),
        ("path: /a, methods: [POST]", "to: /a, status: 303", "", 0),
        ("path: /a, query: {old: true}", "to: /a", "", 0),
        // Other hosts that the route matches may not lead to this gateway.
        (all, "to: 'https://www.a.test{path}'", "", 1),
        ("host: '*.a.test', path: '/{*rest}'", "to: 'https://www.a.test{path}'", "", 1),
        (all, "to: 'https://www.a.test{path}'", secure, 0),
    ] {
        assert_eq!(with(matches, redirect, more), Ok(notes), "{matches} {redirect}");
    }
}

#[test]
fn values_of_a_route_are_compiled() {
    let text = route(
        "upstream: app\n    rewrite: '/b/{path.id}'\n    host: api.test:81\n    headers:\n      request: {set: {x-a: \
         '{path.id}'}}",
    );
    let snapshot = compile(&text).unwrap();
    let edits = &snapshot.routes[0].edits;
    assert_eq!(edits.host, tidegate_upstream::HostRule::Name("api.test:81".into()));
    assert!(edits.rewrite.is_some() && edits.response_headers.is_none());
    let rules = edits.request_headers.as_ref().unwrap();
    assert!(rules.drops(b"X-A") && snapshot.notes.is_empty());
}

#[test]
fn odd_names_and_long_values_are_faults_of_their_own() {
    let long = "a".repeat(1 << 20);
    for rules in [
        "set: {a.b: '{'}".to_owned(),
        "set: {'a[0]': x}".to_owned(),
        "set: {'a[': x}".to_owned(),
        "set: {'': x}".to_owned(),
        "remove: ['']".to_owned(),
        format!("remove: ['{long} ']"),
        format!("set: {{'{} ': x}}", &long[..900]),
        format!("set: {{a: '{{{long}}}'}}"),
        format!("set: {{a: '{{path.{long}}}'}}"),
    ] {
        let text = route(&format!("upstream: app\n    headers: {{request: {{{rules}}}}}"));
        let faults = compile(&text).unwrap_err();
        assert!(
            faults.len() == 1 && faults[0].len() < 4_000,
            "{} {}",
            faults.len(),
            faults[0].len()
        );
    }
    for keys in [
        format!("upstream: app\n    rewrite: '/{long}/../'"),
        format!("upstream: app\n    rewrite: '/{{path.{long}}}'"),
        format!("redirect: {{to: '{long}'}}"),
        format!("redirect: {{to: '/{{path.{long}}}'}}"),
        format!("upstream: app\n    host: {long}"),
    ] {
        let faults = compile(&route(&keys)).unwrap_err();
        assert!(
            faults.len() == 1 && faults[0].len() < 4_000,
            "{} {}",
            faults.len(),
            faults[0].len()
        );
    }
}

#[test]
fn changes_for_a_fixed_response_are_noted() {
    for (keys, expected) in [
        ("upstream: hello\n    rewrite: /b", "`rewrite` without effect"),
        ("upstream: hello\n    host: upstream", "`host` without effect"),
        ("upstream: hello\n    headers: {request: {remove: [x-b]}}", "`headers.request` without"),
    ] {
        let notes = compile(&route(keys)).unwrap().notes;
        assert!(notes.len() == 1 && notes[0].to_string().contains(expected), "{keys}: {notes:?}");
    }
    let response = "upstream: hello\n    headers: {response: {set: {x-b: c}}}";
    assert!(compile(&route(response)).unwrap().notes.is_empty());
}
