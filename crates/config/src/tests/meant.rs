//! Faults suggest what was meant, and quote no secret.

use super::{GOOD, parse};

#[test]
fn a_rate_under_a_name_that_ends_in_key_is_quoted() {
    let shown = |text: &str| parse("t.yaml", text).unwrap_err().to_string();
    let text = shown("limits: {per-key: 100r/s}");
    assert!(text.contains("| limits: {per-key: 100r/s}\n"), "{text}");
    // Masking a credential hides neither the closing brace nor the carets.
    let text = shown("limits: {per-key: hunter2}");
    assert!(text.contains("| limits: {per-key: *******}\n"), "{text}");
    let text = shown("limits: {per-key: 'hun}'}");
    assert!(text.contains("| limits: {per-key: ******}\n"), "{text}");
    let text = shown("limits:\n  per-key: hunter}");
    assert!(text.contains("|   per-key: *******\n"), "{text}");
    for credential in ["2fA9c/xYz81kPq0", "12345678901r/secretsecret", "4f/+a"] {
        let text = shown(&format!("limits: {{per-key: {credential}}}"));
        let quoted = text.lines().find(|line| line.starts_with("1 |")).unwrap();
        assert!(!quoted.contains(credential), "{text}");
    }
}

#[test]
fn a_missing_colon_is_reported_at_its_line() {
    for (text, expected) in [
        ("limits:\n  a\n    quota: 5\n", "2:3: `a` without a colon, expected `a:`"),
        ("limits\n  a: {quota: 5}\n", "1:1: `limits` without a colon, expected `limits:`"),
        (
            "routes:\n  - name: a\n    upstream app   # here\n\n    limits: [x]\n",
            "3:5: `upstream` without a colon, expected `upstream:`",
        ),
        (
            "routes:\n  - name a\n    upstream: app\n",
            "2:5: `name` without a colon, expected `name:`",
        ),
        ("routes: []\nupstreams\nlimits: {}\n", "2:1: `upstreams` without a colon"),
    ] {
        let faults = parse("t.yaml", text).unwrap_err().to_string();
        assert!(faults.starts_with(&format!("t.yaml:{expected}")), "{faults}");
    }
    for secret in [
        "store:\n  redis:\n    password hunter2\n    username: a\n",
        "store:\n  redis:\n    password:\n    hunter2\n    username: a\n",
        "store:\n  redis:\n    password:\n      hunter2\n      username: a\n",
    ] {
        let faults = parse("t.yaml", secret).unwrap_err().to_string();
        assert!(!faults.contains("hunter2"), "{faults}");
    }
    let other = parse("t.yaml", "limits:\n  a: b: c\n").unwrap_err().to_string();
    assert!(other.starts_with("t.yaml:2:") && !other.contains("without a colon"), "{other}");
}

#[test]
fn values_that_are_meant_are_named() {
    for (text, expected) in [
        (
            "limits: {a: {quota: 1, window: 1s, key: [ip]}}",
            "`ip`, expected `client_ip`: client_ip,",
        ),
        (
            "limits: {a: {quota: 1, window: 1s, key: ['headers:x']}}",
            "`headers:x`, expected `header:x`: client_ip,",
        ),
        (
            "upstreams: {a: {targets: ['localhost:3000']}}",
            "`localhost:3000`, expected `http://localhost:3000`: http://host:port",
        ),
        (
            "upstreams: {a: {targets: [{url: 'localhost:3000'}]}}",
            "`localhost:3000`, expected `http://localhost:3000`: http://host:port",
        ),
        (
            "limits: {a: {quota: 1, window: 1s, key: [header: x-tenant]}}",
            "a mapping, expected `header:x-tenant`, without a space after the colon",
        ),
        (
            "limits: {a: {quota: 1, window: 1s, key: [path: id, host]}}",
            "a mapping, expected `path:id`, without a space after the colon",
        ),
        (
            "limits: {a: {quota: 1, window: 1s, key: [name: id]}}",
            "a mapping, expected client_ip, token,",
        ),
        (
            "client: {token: [cookie: session]}",
            "a mapping, expected `cookie:session`, without a space after the colon",
        ),
        (
            "auth: {a: {api_key: {from: [header: x-api-key]}}}",
            "a mapping, expected `header:x-api-key`, without a space after the colon",
        ),
        (
            "store: {redis: 'redis://127.0.0.1:6379'}",
            "expected a mapping, such as {shards: [{primary: 'redis://127.0.0.1:6379'}]}",
        ),
        (
            "store: {redis: 'cache:6379'}",
            "expected a mapping, such as {shards: [{primary: 'redis://cache:6379'}]}",
        ),
        (
            "store: {redis: 'rediss://me:hunter2@cache:6379'}",
            "expected a mapping, such as {shards: [{primary: 'rediss://HOST:6379'}]}",
        ),
        (
            "upstreams: {a: {targets: ['https://api.test/v1?x=1']}}",
            "expected `https://api.test`: http://host:port",
        ),
    ] {
        let faults = parse("t.yaml", text).unwrap_err().to_string();
        assert!(faults.contains(expected), "{faults}");
        assert!(!faults.contains("hunter2"), "{faults}");
    }
}

#[test]
fn a_key_in_the_wrong_place_is_sent_to_its_own() {
    for (text, expected) in [
        (
            "cors: {origins: ['*']}",
            "unknown key `cors`, expected `routes[].cors`; here one of listen,",
        ),
        (
            "upstreams: {a: {cors: {}}}",
            "unknown key `cors`, expected `routes[].cors`; here one of targets,",
        ),
        (
            "timeout: 5s",
            "expected `routes[].request_timeout`, `upstreams.NAME.response_timeout` or `upstreams.NAME.connect_timeout`; here",
        ),
        (
            "routes: [{name: a, timeout: 5s}]",
            "unknown key `timeout`, expected `routes[].request_timeout`,",
        ),
        (
            "upstreams: {a: {timeout: 5s}}",
            "unknown key `timeout`, expected `routes[].request_timeout`,",
        ),
        ("redis: {}", "`store.redis`"),
        (
            "routes: [{name: a, waiting_room: {}}]",
            "expected `throttle.waiting_room`; here one of name,",
        ),
        (
            "routes: [{name: a, nothing_like_it: 5s}]",
            "unknown key `nothing_like_it`, expected one of name,",
        ),
    ] {
        let faults = parse("t.yaml", text).unwrap_err().to_string();
        assert!(faults.contains(expected), "{faults}");
    }
}

#[test]
fn keys_of_other_gateways_are_recognised() {
    for (text, expected) in [
        ("limits: {a: {rate: 5, window: 1s}}", "unknown key `rate`, expected `quota`"),
        ("limits: {a: {quota: 5, period: 1s}}", "unknown key `period`, expected `window`"),
        (
            "routes: [{name: a, answer_timeout: 1s}]",
            "unknown key `answer_timeout`, expected `response_body_timeout`",
        ),
        (
            "routes: [{name: a, answer_idle_timeout: 1s}]",
            "unknown key `answer_idle_timeout`, expected `response_idle_timeout`",
        ),
        ("routes: [{name: a, proxy_pass: b}]", "unknown key `proxy_pass`, expected `upstream`"),
        ("upstreams: {a: {servers: [b]}}", "unknown key `servers`, expected `targets`"),
        (
            "listen: [{address: ':1', tls: {cert: a, key: b}}]",
            "unknown key `cert`, expected `certificates`",
        ),
        ("listen: [{address: ${A}}]", "a variable needs quotes"),
    ] {
        let faults = parse("t.yaml", text).unwrap_err().to_string();
        assert!(faults.contains(expected), "{faults}");
    }
}

#[test]
fn a_key_of_a_certificate_is_not_quoted() {
    let lines =
        ["-----BEGIN PRIVATE KEY-----", "b2a8/9xQ+L0v", "hunter2", "-----END PRIVATE KEY-----"];
    let indent = "            ";
    let block = format!("{indent}{}\n", lines.join(&format!("\n{indent}")));
    for text in [
        format!("workers: |\n{block}{GOOD}"),
        format!("workers: \"{}\"\n{GOOD}", lines.join("\\n")),
        format!("listen:\n  - tls:\n      certificates:\n        - key: [|\n{block}{GOOD}"),
        lines.join("\n"),
        lines[..3].join(" : x\n"),
        format!("{}\n hunter2: [\n", lines[0]),
    ] {
        let shown = parse("t.yaml", &text).unwrap_err().to_string();
        assert!(!shown.contains("ter2") && !shown.contains("b2a8"), "{text}\n{shown}");
    }
}
