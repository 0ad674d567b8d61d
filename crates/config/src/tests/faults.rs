//! Faults: their texts and locations.

use tidegate_limit::MAX_UNITS;

use super::{GOOD, faults, parse};

const DURATION: &str = "a duration such as 250ms, 10s, 30m, 1h or 7d, from 1ms to 366d";
const WINDOW: &str =
    "a duration such as 250ms, 10s, 30m, 1h or 7d, or hour, day, week or month, from 1ms to 366d";

fn with_limit(line: &str) -> String {
    GOOD.replace("    quota: 5\n", &format!("    quota: 5\n    {line}\n"))
}

#[test]
fn a_faulty_value_is_located() {
    let cases: &[(&str, &str)] = &[
        ("reserve: maybe", "6:14: `maybe`, expected off, auto or a whole number from 1 to 1048576"),
        (
            "cost: 0",
            "6:11: `0`, expected a whole number from 1 to 9007199254740991, header:NAME, response:NAME, or a map that settles it",
        ),
        (
            "cost: [1]",
            "6:5: a list, expected a whole number from 1 to 9007199254740991, header:NAME, response:NAME, or a map that settles it",
        ),
        ("enforce: yes", "6:14: `yes`, expected true or false"),
        (
            "enforce: \"true\"",
            "6:14: `true` in quotes, which is text, expected true or false, without quotes",
        ),
        ("refund: 304", "6:13: `304`, expected a list, such as [200-399]"),
        (
            "refund: [304, 99]",
            "6:19: `99`, expected a status from 200 to 599, or a range such as 200-399",
        ),
        ("on_failure: panic", "6:17: `panic`, expected local, open or closed"),
        (
            "algorithm: {a: 1}",
            "6:5: a mapping, expected sliding_window, sliding_log, fixed_window, \
          token_bucket, leaky_bucket or concurrency",
        ),
        ("resolution: -1", "6:17: `-1`, expected a whole number from 1 to 60"),
        ("resolution: 61", "6:17: `61`, expected a whole number from 1 to 60"),
        (
            "qouta: 6",
            "6:5: unknown key `qouta`, expected `quota` (valid keys: algorithm, \
          block, candidate, charge_on, cost, enforce, key, max_cost, max_queue, max_wait, on_failure, quota, refund, reserve, resolution, starts, strict, \
          tiers, time_zone, window)",
        ),
        (
            "time_zone: Berlin",
            "6:16: `Berlin`, expected a time zone of the IANA database such as Europe/Berlin, America/New_York or UTC",
        ),
        (
            "time_zone: europe/berlin",
            "6:16: `europe/berlin`, expected `Europe/Berlin`: a time zone of the IANA database such as Europe/Berlin, \
             America/New_York or UTC",
        ),
        (
            "starts: 32",
            "6:13: `32`, expected for `window: month` a day from 1 to 31, for `window: week` a day such as monday",
        ),
        ("quota: 6", "6:5: duplicate key `quota`, expected it once (first defined on line 5)"),
    ];
    for (line, expected) in cases {
        assert_eq!(faults(&with_limit(line)), [*expected], "{line}");
    }
    for window in ["10", "s", "-1s", "99999999999999999999s", "9000h", "0s", "ß", "10x", "1.0005s"]
    {
        let text = GOOD.replace("window: 10s", &format!("window: {window}"));
        assert_eq!(faults(&text), [format!("6:13: `{window}`, expected {WINDOW}")]);
    }
}

/// A target is a section, although it may also be text.
#[test]
fn the_keys_of_a_weighted_target_are_checked() {
    for (target, expected) in [
        (
            "{weight: 1}",
            vec!["2:19: missing key `url`, expected a line `url: ...` in this section"],
        ),
        (
            "{url: http://h:1, wieght: 1}",
            vec!["2:37: unknown key `wieght`, expected `weight` (valid keys: url, weight)"],
        ),
        (
            "{url: http://h:1, weight: -1}",
            vec!["2:45: `-1`, expected a whole number from 0 to 1000"],
        ),
        ("{url: http://h:1, weight: 0}", vec![]),
        ("http://h:1", vec![]),
    ] {
        let text = format!(
            "upstreams:\n  app: {{targets: [{target}]}}\nroutes: [{{name: a, upstream: app}}]\n"
        );
        assert_eq!(faults(&text), expected, "{target}");
    }
}

#[test]
fn a_faulty_quota_of_a_tier_is_one_fault() {
    for quota in ["quota: 0", "quota: many", "quota: ''", "qouta: 5", ""] {
        let tier = format!("tiers: [{{match: {{part: host, values: [a]}}, {quota}}}]");
        let found = faults(&with_limit(&tier));
        assert_eq!(found.len(), 1, "{quota}: {found:?}");
    }
}

#[test]
fn a_list_in_the_place_of_a_text_gets_the_syntax() {
    let health = "    health: {path: /, status: [[1]]}\n";
    let text = format!("upstreams:\n  app:\n    targets: [http://h:1]\n{health}");
    let found = parse("t.yaml", &text).unwrap_err().to_string();
    let expected = "a list, expected a status from 200 to 599, or a range such as 200-399";
    assert!(found.contains(expected), "{found}");
}

#[test]
fn a_duration_or_size_in_another_notation_is_corrected() {
    for (window, meant) in
        [("10 s", "10s"), ("2days", "2d"), ("1m30s", "90s"), ("1.5s", "1500ms"), ("5Min", "5m")]
    {
        let text = GOOD.replace("window: 10s", &format!("window: {window}"));
        assert_eq!(faults(&text), [format!("6:13: `{window}`, expected `{meant}`: {WINDOW}")]);
    }
    for (size, meant) in
        [("10MB", "10MiB"), ("64kb", "64KiB"), ("1.5GiB", "1536MiB"), ("1k", "1KiB")]
    {
        let text = GOOD.replace("    upstream", &format!("    max_body: {size}\n    upstream"));
        let expected = format!(
            "11:15: `{size}`, expected `{meant}`: a size such as 512B, 64KiB, 10MiB or 1GiB"
        );
        assert_eq!(faults(&text), [expected]);
    }
}

#[test]
fn a_fault_names_the_range_of_its_key() {
    let number = |min: u64, max: u64| format!("expected a whole number from {min} to {max}");
    let off = "expected off, or a whole number from 1 to 4294967295";
    let trillion = 1_000_000_000_000;
    for (line, expected) in [
        ("workers: 1025", number(0, 1024)),
        ("http: {max_headers: 0}", number(1, 1024)),
        ("http: {max_connections: 0}", number(1, u32::MAX.into())),
        ("http: {max_connections_per_client: 0}", off.to_owned()),
        ("http: {max_requests_per_client: 0}", off.to_owned()),
        ("http: {max_head: 1KiB}", "from 8KiB to 1MiB".to_owned()),
        ("http: {idle_timeout: 0s}", format!("expected off, or {DURATION}")),
        ("client: {ipv6_prefix: 129}", number(1, 128)),
        ("store: {memory: {max_keys: 0}}", number(1, trillion)),
        (
            "store: {redis: {cluster: ['redis://a'], connect_timeout: 0s}}",
            format!("expected {DURATION}"),
        ),
        ("throttle: {max_active: 0}", number(1, trillion)),
        ("throttle: {max_active: 5, resume_below: 0}", number(1, trillion)),
        ("throttle: {max_active: 5, capacity: 0}", number(1, 1_000_000_000)),
        ("throttle: {max_active: 5, memory: 721h}", "from 1m to 720h".to_owned()),
        ("throttle: {max_active: 5, waiting_room: {ticket_ttl: 19s}}", "from 20s to 1h".to_owned()),
        (
            "throttle: {max_active: 5, waiting_room: {cookie: 'a b'}}",
            "the name of a cookie".to_owned(),
        ),
        (
            "throttle: {max_active: 5, false_positive: .nan}",
            "expected a number from 0.000000001 to 0.5".to_owned(),
        ),
    ] {
        let found = faults(&format!("{line}\n{GOOD}"));
        let [fault] = &found[..] else { panic!("{line}: {found:#?}") };
        assert!(fault.ends_with(&expected), "{line}: {fault}");
    }
    for (line, expected) in [
        ("resolution: 0", number(1, 60)),
        ("max_cost: 0", number(1, MAX_UNITS)),
        ("max_wait: 1194h", "from 0ms to 1193h".to_owned()),
        ("candidate: {quota: 0}", number(1, MAX_UNITS)),
        (
            "max_cost: 08",
            number(1, MAX_UNITS) + ", without the leading zero: YAML 1.1 reads it as octal",
        ),
        (
            "cost: 08",
            "expected a whole number from 1 to 9007199254740991, header:NAME, response:NAME, or a map that settles it"
                .to_owned(),
        ),
        ("max_cost: '8'", number(1, MAX_UNITS) + ", without quotes"),
        ("cost: '8'", "header:NAME, response:NAME, or a map that settles it, without quotes".to_owned()),
    ] {
        let found = faults(&with_limit(line));
        let [fault] = &found[..] else { panic!("{line}: {found:#?}") };
        assert!(fault.ends_with(&expected), "{line}: {fault}");
    }
}

#[test]
fn only_what_this_version_supports_is_expected() {
    let upstream = |key: &str| {
        GOOD.replace("{respond: {body: hi}}", &format!("{{targets: [http://h:1], {key}}}"))
    };
    let listen = |key: &str| format!("listen: [{{address: 127.0.0.1:80, {key}}}]\n{GOOD}");
    for (text, fault) in [
        (
            listen("tls: {acme: {}}"),
            "missing key `domains`, expected a line `domains: ...` in this section",
        ),
        (
            listen("proxy_protocol: {}"),
            "missing key `from`, expected a line `from: ...` in this section",
        ),
        (
            listen("redirect_https: 0"),
            "`0`, expected true, false, or the port that clients use, from 1 to 65535",
        ),
        (
            listen("redirect_https: off"),
            "`off`, expected true, false, or the port that clients use, from 1 to 65535",
        ),
        (
            listen("tsl: {}"),
            "unknown key `tsl`, expected `tls` (valid keys: address, tls, http2, proxy_protocol, redirect_https)",
        ),
        (
            upstream("balance: random"),
            "`random`, expected round_robin, least_requests, peak_ewma or hash",
        ),
        (
            upstream("retry_on: [refused]"),
            "`refused`, expected connect, reset, timeout, 502, 503, 504 or a range of these such as 502-504",
        ),
        (
            upstream("health: {status: [299-200]}"),
            "`299-200`, expected `200-299`: a status from 200 to 599, or a range such as 200-399",
        ),
        (upstream("protocol: http3"), "`http3`, expected http1, http2 or auto"),
    ] {
        let found = faults(&text);
        assert!(found.len() == 1 && found[0].ends_with(fault), "{text}: {found:#?}");
    }
}

#[test]
fn no_expected_value_is_refused() {
    let route = |key: &str| {
        GOOD.replace("    upstream: hello\n", &format!("    upstream: hello\n    {key}\n"))
    };
    for (text, fault) in [
        // `1KiB` is not suggested: it is out of the key's range.
        (
            format!("http: {{max_head: 1kb}}\n{GOOD}"),
            "`1kb`, expected a size such as 512B, 64KiB, 10MiB or 1GiB, from 8KiB to 1MiB",
        ),
        // The value would be refused as an item as well, so the list has an example.
        (with_limit("refund: 99"), "`99`, expected a list, such as [200-399]"),
        (with_limit("refund: 304"), "`304`, expected a list, such as [200-399]"),
        (GOOD.replace("[client_ip]", "token"), "`token`, expected a list, such as [token]"),
        (GOOD.replace("[client_ip]", "ip"), "`ip`, expected a list, such as [client_ip]"),
        (route("allow: office"), "`office`, expected a list, such as [10.0.0.0/8]"),
        (route("status: a.b"), "`a.b`, expected a list, such as [a.b]"),
        (format!("listen: x\n{GOOD}"), "`x`, expected a list of mappings"),
        (GOOD.replace("/x}", "/x, methods: get}"), "`get`, expected a list, such as [GET]"),
    ] {
        let found = faults(&text);
        assert!(found.len() == 1 && found[0].ends_with(fault), "{text}: {found:#?}");
    }
}

#[test]
fn unprintable_characters_are_escaped() {
    for (written, shown) in [
        ("\"\\e[31mquota\"", "unknown key `\\u{1b}[31mquota`"),
        ("\"a\\r\\n\\0b\"", "unknown key `a\\r\\n\\0b`"),
        ("\"qu\u{202e}ota\"", "unknown key `qu\\u{202e}ota`"),
    ] {
        let text = with_limit(&format!("{written}: 1"));
        let found = parse("t\u{1b}.yaml", &text).unwrap_err().to_string();
        assert!(found.starts_with(&format!("t\\u{{1b}}.yaml:6:5: {shown}, ")), "{found}");
        assert!(!found.contains(['\u{1b}', '\r', '\0', '\u{202e}']), "{found:?}");
    }
}

#[test]
fn an_unquoted_path_with_braces_is_explained() {
    for path in ["{*rest}", "/{*rest}", "/items/{id}"] {
        let found = faults(&GOOD.replace("path: /x", &format!("path: {path}")));
        assert!(
            found[0].ends_with("a path with braces needs quotes, such as \"/{*rest}\""),
            "{found:?}"
        );
    }
}

#[test]
fn faults_in_every_section_are_located() {
    let url = "expected http://host:port, https://host:port, unix:/path, srv://name or srvs://name, and nothing after it (a route's `rewrite` adds a path)";
    let redis = "expected a Redis URL such as redis://127.0.0.1:6379 or redis://user:password@host:6379/0 (percent-encode special characters of the password: %40 for @)";
    let part = "expected client_ip, token, consumer, plan, claim:NAME, host, method, route, path, path:NAME, header:NAME, \
                cookie:NAME, query:NAME, json:PATH or descriptor:NAME";
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
        "unix:",
        "https://h:443/a",
        "HTTPS://h",
        "http://[::1",
        "http://a b",
    ] {
        let shown = bad.replace("u@", "*@");
        // The URL that is meant, with a scheme and without a path.
        let meant = |meant: &str| url.replace("expected ", &format!("expected `{meant}`: "));
        let expected = match bad {
            "h:80" => meant("http://h:80"),
            "http://h:1/api" => meant("http://h:1"),
            "http://h?q" => meant("http://h"),
            "https://h:443/a" => meant("https://h:443"),
            _ => format!("{url}; or {{url: URL, weight: NUMBER}}"),
        };
        assert_eq!(faults(&target(bad)), [format!("2:21: `{shown}`, {expected}")]);
    }
    let cases = [
        (
            top("listen: [{address: example.com:80}]"),
            "1:20: `example.com:80`, expected an address such as 127.0.0.1:8080, [::1]:8080, localhost:8080, or :8080 \
             for all addresses"
                .to_owned(),
        ),
        (
            top("listen: 127.0.0.1:80"),
            "1:9: `127.0.0.1:80`, expected a list of mappings".to_owned(),
        ),
        (
            top("workers: many"),
            "1:10: `many`, expected a whole number from 0 to 1024".to_owned(),
        ),
        (
            top("admin: {}"),
            "1:1: missing key `address`, expected a line `address: ...` in this section".to_owned(),
        ),
        (
            top("http: {max_head: 64kb}"),
            "1:18: `64kb`, expected `64KiB`: a size such as 512B, 64KiB, 10MiB or 1GiB, from 8KiB to 1MiB"
                .to_owned(),
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
        (GOOD.replace("client_ip", "x"), format!("7:11: `x`, {part}")),
        (GOOD.replace("client_ip", "header:a b"), format!("7:11: `header:a b`, {part}")),
        (
            GOOD.replace("/x}", "/x, methods: [get]}"),
            "10:33: `get`, expected a method in capitals such as GET".to_owned(),
        ),
        (
            GOOD.replace("- name: all\n    match", "- match"),
            "9:5: missing key `name`, expected a line `name: ...` in this section".to_owned(),
        ),
        (
            GOOD.replace("    quota: 5\n", ""),
            "4:3: missing key `quota`, expected a line `quota: ...` in this section".to_owned(),
        ),
        (
            GOOD.replace("quota: 5", "quota:"),
            "5:5: nothing, expected a whole number from 1 to 9007199254740991".to_owned(),
        ),
    ];
    for (text, expected) in &cases {
        assert_eq!(faults(text), std::slice::from_ref(expected), "{text}");
    }
}

#[test]
fn faults_of_the_access_log_are_located() {
    let cases = [
        (
            "access_log: stdrr",
            "1:13: `stdrr`, expected stderr, stdout, off, a file path with a `/` in it, or a mapping with `to`, \
             `format`, `fields`",
        ),
        (
            "access_log: {to: stdrr}",
            "1:18: `stdrr`, expected stderr, stdout, off or a file path with a `/` in it",
        ),
        (
            "access_log: {file: stderr}",
            "1:14: unknown key `file`, expected one of fields, format, to",
        ),
        ("access_log: {format: xml}", "1:22: `xml`, expected json, combined or text"),
        (
            "access_log: {fields: [time, query]}",
            "1:29: `query`, expected time, client, method, host, path, protocol, status, route, limit, refused_by, token, consumer, bytes, \
             received, cost, duration_ms, delay_ms, upstream, upstream_ms, attempts, priority, cut, complete, request_id, trace_id, referer \
             or user_agent",
        ),
    ];
    for (line, expected) in cases {
        assert_eq!(faults(&format!("{line}\n{GOOD}")), [expected], "{line}");
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
    let keys = "algorithm, block, candidate, charge_on, cost, enforce, key, max_cost, max_queue, max_wait, on_failure, quota, refund, \
                reserve, resolution, starts, strict, tiers, time_zone, window";
    let part = "client_ip, token, consumer, plan, claim:NAME, host, method, route, path, path:NAME, header:NAME, cookie:NAME, \
                query:NAME, json:PATH or descriptor:NAME";
    let top = "listen, workers, admin, drain_delay, drain_timeout, access_log, traces, http, client, headers, store, \
               upstreams, limits, auth, consumers, plans, overrides, rate_limit_service, throttle, routes";
    let route = "name, match, upstream, redirect, respond, status, decide, limits, auth, auth_optional, consumers, priority, throttle, path, strip_prefix, rewrite, host, \
                 headers, request_timeout, response_idle_timeout, response_body_timeout, tunnel_idle_timeout, max_body, max_inspect, allow, deny, cors, \
                 error_bodies, refuse_as, compress, mirror";
    let line = |key: &str| format!("expected a line `{key}: ...` in this section");
    let expected = [
        format!("1:1: unknown key `upstream`, expected `upstreams` (valid keys: {top})"),
        format!("3:3: missing key `window`, {}", line("window")),
        format!("3:9: unknown key `qouta`, expected `quota` (valid keys: {keys})"),
        "4:16: `x`, expected a whole number from 1 to 9007199254740991".to_owned(),
        format!("4:27: `y`, expected {WINDOW}"),
        format!("4:36: `a`, expected {part}"),
        format!("4:46: `b`, expected {part}"),
        format!("8:5: `5`, expected a mapping with the keys {route}"),
    ];
    assert_eq!(faults(text), expected);
}

#[test]
fn a_value_in_the_place_of_a_mapping_is_shown_in_one() {
    let text = "upstreams: {app: 'http://127.0.0.1:3000'}\nroutes: [{name: a, match: /login, upstream: app}]";
    let expected = [
        "1:18: `http://127.0.0.1:3000`, expected a mapping, such as {targets: [http://127.0.0.1:3000]}",
        "2:27: `/login`, expected a mapping, such as {path: /login}",
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
t.yaml:5:12: `five`, expected a whole number from 1 to 9007199254740991
  |
5 |     quota: five
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
fn a_credential_beside_a_fault_is_not_quoted() {
    for (line, is_hidden) in [
        ("headers: {request: {set: {x-backend-pass: hunter2}}}", true),
        ("headers: {request: {set: {\"pwd\":hunter2, x: y}}}", true),
        ("headers: {request: {replace: {x-backend-pass: {pattern: a, with: hunter2}}}}", true),
        ("headers: {request: {replace: {x-key: {pattern: hunter2, with: a}}}}", true),
        ("match: {query: {sig: hunter2}}", true),
        ("redirect: {to: '/a?api_key=hunter2#x'}", true),
        ("redirect: {to: '/a?plan=hunter2'}", false),
        ("match: {headers: {Authorization: 'Bearer hunter2'}}", true),
        ("match: {headers: {x-plan: hunter2}}", false),
        ("limits: [hunter2]", false),
    ] {
        let text = format!("{GOOD}  - {{name: b, upstream: nowhere, nonsense: 1, {line}}}\n");
        let shown = parse("t.yaml", &text).unwrap_err().to_string();
        assert_eq!(!shown.contains("hunter2"), is_hidden, "{text}\n{shown}");
    }
    let keys = "limits: {a: {quota: 1, window: 1s, key: [cookie:session, token], nonsense: 1}}";
    let shown = parse("t.yaml", keys).unwrap_err().to_string();
    assert!(shown.contains("key: [cookie:session, token], nonsense: 1}}"), "{shown}");
    for limit in ["{quota: 5, wndow: 10s}", "10/1y"] {
        let text = GOOD.replace("limits:\n", &format!("limits:\n  per-token: {limit}\n"));
        let shown = parse("t.yaml", &text).unwrap_err().to_string();
        assert!(shown.contains(&format!("per-token: {limit}\n")), "{shown}");
    }
    let admin = "admin: {address: '127.0.0.1:1', token: hunter2hunter2hunter2}";
    let shown = parse("t.yaml", admin).unwrap_err().to_string();
    assert!(!shown.contains("ter2"), "{shown}");
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

#[test]
fn faults_fit_into_one_line_of_a_log() {
    let faults = parse("t.yaml", "workers: many\nroutes: 5\n").unwrap_err().faults;
    let line = faults.in_one_line();
    assert!(!line.contains('\n') && !line.contains('^'), "{line}");
    let parts: Vec<&str> = line.split("; ").collect();
    assert!(parts.len() == 2, "{line}");
    assert!(
        parts[0].starts_with("t.yaml:1:10: `many`, expected")
            && parts[1].starts_with("t.yaml:2:9: "),
        "{line}"
    );
}
