//! Faults: their texts and locations.

use super::{GOOD, faults, parse};

fn with_limit(line: &str) -> String {
    GOOD.replace("    quota: 5\n", &format!("    quota: 5\n    {line}\n"))
}

#[test]
fn a_faulty_value_is_located() {
    let duration = "expected a duration such as 250ms, 10s, 30m or 1h";
    let cases: &[(&str, &str)] = &[
        ("reserve: maybe", "6:14: `maybe`, expected off, auto or a whole number from 1"),
        ("cost: 0", "6:11: `0`, expected a whole number from 1, header:NAME or response:NAME"),
        ("cost: [1]", "6:5: a list, expected a whole number from 1, header:NAME or response:NAME"),
        ("enforce: yes", "6:14: `yes`, expected true or false"),
        ("enforce: \"true\"", "6:14: `true`, expected true or false"),
        ("refund: 304", "6:13: `304`, expected a list, such as [304]"),
        ("refund: [304, 99]", "6:19: `99`, expected a status from 200 to 599"),
        ("on_failure: panic", "6:17: `panic`, expected local, open or closed"),
        (
            "algorithm: {a: 1}",
            "6:5: a mapping, expected sliding_window, sliding_log, fixed_window, \
          token_bucket, leaky_bucket or concurrency",
        ),
        ("resolution: -1", "6:17: `-1`, expected a whole number from 0 to 4294967295"),
        (
            "resolution: 4294967296",
            "6:17: `4294967296`, expected a whole number from 0 to 4294967295",
        ),
        (
            "qouta: 6",
            "6:5: unknown key `qouta`, expected `quota` (valid keys: algorithm, quota, \
          window, resolution, strict, key, cost, max_cost, tiers, candidate, enforce, refund, reserve, on_failure, max_wait, \
          max_queue)",
        ),
        ("quota: 6", "6:5: duplicate key `quota`, expected it once (first defined on line 5)"),
    ];
    for (line, expected) in cases {
        assert_eq!(faults(&with_limit(line)), [*expected], "{line}");
    }
    for window in ["10", "10 s", "s", "10d", "-1s", "1.5s", "99999999999999999999s", "9000h", "ß"]
    {
        let text = GOOD.replace("window: 10s", &format!("window: {window}"));
        assert_eq!(faults(&text), [format!("6:13: `{window}`, {duration}")]);
    }
}

#[test]
fn faults_in_every_section_are_located() {
    let url = "expected http://host:port, https://host:port or unix:/path, and nothing after it";
    let redis = "expected a Redis URL such as redis://127.0.0.1:6379 or redis://user:password@host:6379/0 (percent-encode special characters of the password: %40 for @)";
    let part = "expected client_ip, token, host, method, route, path, path:NAME, header:NAME, \
                cookie:NAME or query:NAME";
    let target =
        |t: &str| GOOD.replace("{respond: {body: hi}}", &format!("{{targets: [\"{t}\"]}}"));
    let top = |line: &str| format!("{line}\n{GOOD}");
    for bad in [
        "http://h:1/api",
        "http://",
        "h:80",
        "http://u@h",
        "http://h:0",
        "http://h:x",
        "ftp://h",
        "http://h?q",
        "unix:app.sock",
        "http://[::1",
        "http://a b",
    ] {
        let shown = bad.replace("u@", "*@");
        assert_eq!(faults(&target(bad)), [format!("2:21: `{shown}`, {url}")]);
    }
    let cases = [
        (
            top("listen: [{address: localhost:80}]"),
            "1:20: `localhost:80`, expected an address such as 127.0.0.1:8080 or [::1]:8080"
                .to_owned(),
        ),
        (
            top("listen: 127.0.0.1:80"),
            "1:9: `127.0.0.1:80`, expected a list, such as [127.0.0.1:80]".to_owned(),
        ),
        (
            top("workers: many"),
            format!("1:10: `many`, expected a whole number from 0 to {}", u64::MAX),
        ),
        (
            top("admin: {}"),
            "1:1: missing key `address`, expected a line `address: ...` in this section".to_owned(),
        ),
        (
            top("access_log: stdrr"),
            "1:13: `stdrr`, expected stderr, stdout, off or a file path with a `/` in it"
                .to_owned(),
        ),
        (
            top("http: {max_head: 64kb}"),
            "1:18: `64kb`, expected a size such as 512B, 64KiB, 10MiB or 1GiB".to_owned(),
        ),
        (
            top("client: {trusted_proxies: [all]}"),
            "1:28: `all`, expected a network such as 10.0.0.0/8, ::1/128 or a single address"
                .to_owned(),
        ),
        (
            top("client: {token: [query:t]}"),
            "1:18: `query:t`, expected header:NAME or cookie:NAME".to_owned(),
        ),
        (top("headers: {standard: false}"), "1:21: `false`, expected off or draft-11".to_owned()),
        (
            top("store: {redis: {shards: [{primary: \"redis://a:b@\"}]}}"),
            format!("1:36: this value, {redis}"),
        ),
        (
            top("store: {redis: {shards: [{primary: \"redis://h:port\"}]}}"),
            format!("1:36: this value, {redis}"),
        ),
        (GOOD.replace("client_ip", "ip"), format!("7:11: `ip`, {part}")),
        (GOOD.replace("client_ip", "header:a b"), format!("7:11: `header:a b`, {part}")),
        (
            GOOD.replace("/x}", "/x, methods: [get]}"),
            "10:33: `get`, expected a method in capitals such as GET".to_owned(),
        ),
        (
            GOOD.replace("    match: {path: /x}\n", ""),
            "9:5: missing key `match`, expected a line `match: ...` in this section".to_owned(),
        ),
        (
            GOOD.replace("    quota: 5\n", ""),
            "4:3: missing key `quota`, expected a line `quota: ...` in this section".to_owned(),
        ),
        (
            GOOD.replace("quota: 5", "quota:"),
            format!("5:5: nothing, expected a whole number from 0 to {}", u64::MAX),
        ),
    ];
    for (text, expected) in &cases {
        assert_eq!(faults(text), std::slice::from_ref(expected), "{text}");
    }
}

#[test]
fn all_faults_are_reported_at_once() {
    let text = "\
upstream: {}
limits:
  one: {qouta: 1}
  two: {quota: x, window: y, key: [a, token, b]}
routes:
  - name: r
    upstream: u
  - 5
";
    let keys = "algorithm, quota, window, resolution, strict, key, cost, max_cost, tiers, candidate, enforce, refund, \
                reserve, on_failure, max_wait, max_queue";
    let part = "client_ip, token, host, method, route, path, path:NAME, header:NAME, cookie:NAME or \
                query:NAME";
    let top = "listen, workers, admin, drain_timeout, access_log, http, client, headers, store, \
               upstreams, limits, throttle, routes";
    let route = "name, match, upstream, status, limits, throttle, strip_prefix, request_timeout, answer_idle_timeout, answer_timeout, max_body";
    let line = |key: &str| format!("expected a line `{key}: ...` in this section");
    let expected = [
        format!("1:1: unknown key `upstream`, expected `upstreams` (valid keys: {top})"),
        format!("3:3: missing key `window`, {}", line("window")),
        format!("3:9: unknown key `qouta`, expected `quota` (valid keys: {keys})"),
        format!("4:16: `x`, expected a whole number from 0 to {}", u64::MAX),
        "4:27: `y`, expected a duration such as 250ms, 10s, 30m or 1h".to_owned(),
        format!("4:36: `a`, expected {part}"),
        format!("4:46: `b`, expected {part}"),
        format!("6:5: missing key `match`, {}", line("match")),
        format!("8:5: `5`, expected a mapping with the keys {route}"),
    ];
    assert_eq!(faults(text), expected);
}

#[test]
fn a_fault_quotes_its_line() {
    let text = "limits:\n\ta: 1\n";
    let faults = parse("conf/t.yaml", text).unwrap_err().to_string();
    assert!(faults.starts_with("conf/t.yaml:2:2: not YAML (tabs disallowed"), "{faults}");

    let faults =
        parse("t.yaml", &GOOD.replace("quota: 5", "quota: five # per caller")).unwrap_err();
    let expected = "\
t.yaml:5:12: `five`, expected a whole number from 0 to 18446744073709551615
  |
5 |     quota: five # per caller
  |            ^^^^

1 fault found";
    assert_eq!(faults.to_string(), expected);
}

#[test]
fn a_literal_secret_is_not_quoted() {
    for line in [
        "password: hunter2",
        "password: 'hun ter2'",
        "password: [hunter2]",
        "\"password\": hunter2",
        "secret: hunter2",
        "password: env:X, secret: hunter2",
        "secret: [hunter2]",
    ] {
        for text in [
            format!("store: {{redis: {{{line}}}}}\n{GOOD}"),
            format!("store: {{redis: {{{line}, pasword: 1}}}}\n{GOOD}"),
            format!("store:\n  redis:\n    {line} : x\n{GOOD}"),
        ] {
            let shown = parse("t.yaml", &text).unwrap_err().to_string();
            assert!(!shown.contains("ter2"), "{text}\n{shown}");
        }
    }
}

#[test]
fn a_password_in_a_url_is_not_quoted() {
    let shown = |text: &str| parse("t.yaml", text).unwrap_err().to_string();
    let redis = |primary: &str| format!("store: {{redis: {{shards: [{{primary: {primary}}}]}}}}");
    let text = shown(&format!("{}\n{GOOD}", redis("\"redis://u:p@ss@h/x\"")));
    assert!(text.contains("redis://******@h/x") && !text.contains("p@ss"), "{text}");
    for password in ["hush", "hu,sh", "hu'sh", "hu sh", "hush://", "hush@", "hu/sh", "hu\tsh"] {
        let long = format!("{password}{}", "x".repeat(200));
        for password in [password, &long] {
            let url = format!("\"redis://user:{password}@h\"");
            for line in [
                redis(&url) + " wrong",
                redis(&url).replace("primary", "primry"),
                redis(&format!("[{url}]")),
                redis("redis://h").replace("shards", &format!("{url}: 1, shards")),
                format!("listen: {url}"),
                format!("listen: [{{address: {url}}}]"),
                format!("workers: {url}"),
                format!("drain_timeout: {url}"),
                format!("headers: {{standard: {url}}}"),
                format!("? {url}\n: 1"),
            ] {
                let text = shown(&format!("{line}\n{GOOD}"));
                assert!(!text.contains("hu") && !text.contains("xxxxx"), "{line}\n{text}");
            }
        }
    }
}

#[test]
fn a_long_line_is_truncated() {
    let text = format!("limits: [{}, \u{1b}[31m]", "x".repeat(5000));
    let shown = parse("t.yaml", &text).unwrap_err().to_string();
    assert!(shown.lines().all(|line| line.chars().count() < 400), "{shown}");
    assert!(!shown.contains('\u{1b}'));
}

#[test]
fn at_most_fifty_faults_are_reported() {
    let quotas = vec!["{quota: x, window: 1s}"; 80].join(", ");
    let text = format!("upstreams: {{}}\nroutes: [{quotas}]\n");
    assert_eq!(faults(&text).len(), 50);
}
