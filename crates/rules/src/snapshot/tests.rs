//! Compilation: rules, faults and their locations.

mod access;
mod actions;
mod algorithms;
mod balance;
mod compress;
mod cors;
mod error_bodies;
mod hostile;
mod mirror;
mod parsed;
mod rate_limit_call;
mod rate_limit_service;
mod reserve;
mod route_edits;
mod route_match;
mod secrets;
mod settled_cost;
mod variables;
mod waiting_room;

use std::path::Path;

use proptest::prelude::*;
use tidegate_config as config;
use tidegate_limit::{Algorithm, MAX_QUOTA_MILLIS, MAX_UNITS, Millis};

use super::{Action, SecretReading, Snapshot};

const GOOD: &str = "\
listen: [{address: 127.0.0.1:80}]
upstreams:
  app: {targets: [http://h:1]}
  hello: {respond: {body: hi}}
limits:
  one: {quota: 5, window: 10s}
routes:
  - {name: a, match: {path: /a}, upstream: app, limits: [one]}
  - {name: b, match: {path: '/b/{id}'}, upstream: hello}
";

fn compile(text: &str) -> Result<Snapshot, Vec<String>> {
    let loaded = Snapshot::load_to_serve(Path::new("t.yaml"), text.as_bytes(), &|_| None);
    loaded.map(|(_, snapshot)| snapshot).map_err(|error| {
        let faults = error.into_faults();
        let shown = faults.iter().map(ToString::to_string);
        shown.map(|f| f.lines().next().unwrap().replacen("t.yaml:", "", 1)).collect()
    })
}

/// The first lines of the notes, except for notes on limits that no route names.
fn notes_on_routes(snapshot: &Snapshot) -> Vec<String> {
    let notes = snapshot.notes.iter().filter(|note| !note.what.starts_with("no route names"));
    notes.map(|note| note.to_string().lines().next().unwrap().to_owned()).collect()
}

#[test]
fn every_shipped_configuration_compiles() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config");
    let examples = std::fs::read_dir(root.join("examples")).unwrap();
    // Their certificate files do not exist: see `examples_load` in tests/docs.
    let has_files = |file: &std::path::PathBuf| {
        !["tls.yaml", "partners.yaml"].iter().any(|name| file.ends_with(name))
    };
    let files = examples.map(|entry| entry.unwrap().path()).filter(has_files);
    for file in files.chain([root.join("tidegate.yaml")]) {
        let loaded = config::load(&file, &|_| None).unwrap_or_else(|error| panic!("{error}"));
        Snapshot::compile(&loaded, SecretReading::Unread)
            .unwrap_or_else(|faults| panic!("{faults}"));
    }
}

#[test]
fn a_valid_configuration_compiles() {
    let snapshot = compile(GOOD).unwrap();
    let names: Vec<&str> = snapshot.routes.iter().map(|route| &*route.name).collect();
    assert_eq!(names, ["a", "b"]);
    let limit = &snapshot.routes[0].limits[0].limit;
    assert_eq!((limit.index, limit.quota.limit, limit.quota.sub_window().as_ms()), (0, 5, 2000));
    let Action::Upstream(upstream) = &snapshot.routes[1].action else { panic!("no upstream") };
    assert_eq!(&*upstream.name, "hello");
    assert_eq!(snapshot.identity.ipv6_prefix, 64);
    let idle = snapshot.http.timeouts.idle.map(Millis::as_ms);
    assert_eq!((snapshot.http.head.bytes, idle), (32 << 10, Some(75_000)));
}

#[test]
fn a_fingerprint_excludes_the_quota() {
    let of = |limit: &str| {
        let text = GOOD.replace("{quota: 5, window: 10s}", limit);
        compile(&text).unwrap().limits[0].limit.identity.fingerprint()
    };
    let first = of("{quota: 5, window: 10s}");
    assert_eq!(of("{quota: 9, window: 10s, cost: 2, on_failure: open}"), first);
    assert_eq!(of("{quota: 9, window: 10000ms, resolution: 5, key: [client_ip]}"), first);
    for other in ["window: 20s", "window: 10s, resolution: 2", "window: 10s, key: [host]"] {
        assert_ne!(of(&format!("{{quota: 5, {other}}}")), first, "{other}");
    }
    // Gateways share the fingerprint in Redis: change it only together with the format of the
    // store's keys.
    assert_eq!(first, 2_343_172_364_648_572_171);
}

#[test]
fn a_response_timeout_that_never_acts_is_noted() {
    let of = |routes: &[&str], upstream: &str| {
        let routes = routes.iter().enumerate().map(|(index, timeout)| {
            format!("- {{name: r{index}, match: {{path: /{index}}}, upstream: a, request_timeout: {timeout}}}\n")
        });
        let text = format!(
            "upstreams: {{a: {{targets: ['http://127.0.0.1:9'], response_timeout: {upstream}}}}}\nroutes:\n{}",
            routes.collect::<String>()
        );
        compile(&text).unwrap().notes
    };
    for (routes, upstream) in [
        (&["2m"][..], "1m"),
        (&["1m"], "1m"),
        (&["off"], "1h"),
        (&["1s", "1m"], "1m"),
        (&["1s", "off"], "1m"),
    ] {
        assert!(of(routes, upstream).is_empty(), "{routes:?}, {upstream}");
    }
    let notes = of(&["30s", "20s"], "1m");
    let [note] = &notes[..] else { panic!("{notes:?}") };
    assert!(note.what.starts_with("`response_timeout` of 1m never acts"), "{note}");
}

#[test]
fn a_redirect_leads_to_the_first_listener_with_tls() {
    let folder = tempfile::tempdir().unwrap();
    let identity = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
    let (cert, key) = (folder.path().join("a.pem"), folder.path().join("a.key"));
    std::fs::write(&cert, identity.cert.pem()).unwrap();
    std::fs::write(&key, identity.signing_key.serialize_pem()).unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let files = format!("certificates: [{{cert: {}, key: {}}}]", cert.display(), key.display());
    let rest = "upstreams: {a: {respond: {}}}
routes: [{name: a, match: {path: /}, upstream: a}]
";
    let redirecting = |to: &str, more: &str| {
        let listen = format!("listen:\n- {{address: 127.0.0.1:80, redirect_https: {to}}}\n");
        compile(&format!("{listen}{more}{rest}"))
    };
    let compile = |more: &str| redirecting("true", more);
    let snapshot = compile(&format!("- {{address: 127.0.0.1:8443, tls: {{{files}}}}}\n")).unwrap();
    assert_eq!(snapshot.listeners[0].redirect_https, Some(8443));
    assert!(!snapshot.listeners[0].http2 && snapshot.listeners[1].http2);
    assert!(snapshot.notes.is_empty(), "{:?}", snapshot.notes);
    assert_eq!(snapshot.tls_files().len(), 2);
    let snapshot = compile("").unwrap();
    assert_eq!(snapshot.listeners[0].redirect_https, Some(443));
    assert!(snapshot.notes[0].to_string().contains("without a listener with `tls`"));
    let tls = format!("- {{address: 127.0.0.1:8443, tls: {{{files}}}}}\n");
    for more in ["", &tls] {
        let snapshot = redirecting("443", more).unwrap();
        assert_eq!(snapshot.listeners[0].redirect_https, Some(443), "a mapped port");
        assert!(snapshot.notes.is_empty(), "{:?}", snapshot.notes);
    }
    assert_eq!(redirecting("false", "").unwrap().listeners[0].redirect_https, None);
    let fault = |to: &str, more: &str| match redirecting(to, more) {
        Err(faults) => faults.join("\n"),
        Ok(snapshot) => snapshot.notes.iter().map(ToString::to_string).collect(),
    };
    let own = fault("80", "");
    assert!(own.contains("`80` is the port of this listener, which is in clear"), "{own}");
    let circle = fault(
        "81",
        "- {address: 127.0.0.1:81, redirect_https: 82}\n- {address: 127.0.0.1:82, redirect_https: 80}\n",
    );
    assert_eq!(circle.matches("redirects back: a circle").count(), 3, "{circle}");
    let clear = fault("81", "- {address: 127.0.0.1:81}\n");
    assert!(clear.contains("`81` is the port of a listener in clear"), "{clear}");
    let faulty = format!(
        "- {{address: 127.0.0.1:8443, redirect_https: true, proxy_protocol: {{from: []}}, tls: {{{files}}}}}\n"
    );
    let faults = compile(&faulty).unwrap_err();
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults[0].contains("requests would be redirected to themselves"), "{faults:?}");
    assert!(faults[1].contains("no network, expected the networks"), "{faults:?}");
}

#[test]
fn faulty_limits_are_refused() {
    let name = "expected a name of 1 to 64 letters, digits, `_`, `.` or `-`";
    let too_large = |at: &str, quota: u64, algorithm: &str, most: &str| {
        format!(
            "{at}: `{quota}`, too large to count exactly with `{algorithm}`, expected at most {most}, or `fixed_window` or `sliding_window`, which count up to 9007199254740991"
        )
    };
    let cases = [
        ("one: {quota: 5, window: 10s, resolution: 7}", "6:44: `7` sub-windows of 10s, expected a resolution from 1 to 60 that divides the window, such as 5 or 8".to_owned()),
        ("one: {algorithm: token_bucket, quota: 2000000000, window: 1h}", too_large("6:41", 2_000_000_000, "token_bucket", "1250999896, a shorter window")),
        ("one: {algorithm: token_bucket, quota: 5000000000, window: 1s}", too_large("6:41", 5_000_000_000, "token_bucket", "4294967295")),
        ("one: {algorithm: leaky_bucket, quota: 2000000000, window: 1h, max_wait: 1s}", too_large("6:41", 2_000_000_000, "leaky_bucket", "1250999896, a shorter window and max_wait")),
        ("one: {algorithm: leaky_bucket, quota: 4294967296, window: 1s}", too_large("6:41", 1 << 32, "leaky_bucket", "4294967295")),
        ("one: {algorithm: sliding_log, quota: 4294967296, window: 1s}", too_large("6:40", 1 << 32, "sliding_log", "4294967295")),
        ("one: {algorithm: concurrency, quota: 4294967296, window: 1s}", too_large("6:40", 1 << 32, "concurrency", "4294967295")),
        ("one: {algorithm: concurrency, quota: 4, window: 1s, candidate: {quota: 4294967296}}", too_large("6:74", 1 << 32, "concurrency", "4294967295")),
        ("one: {algorithm: sliding_log, quota: 4, window: 1s, tiers: [{match: {part: header:a, values: [b]}, quota: 4294967296}]}", too_large("6:109", 1 << 32, "sliding_log", "4294967295")),
        ("one: {quota: 9007199254740992, window: 1h}", "6:16: `9007199254740992`, expected a whole number from 1 to 9007199254740991".to_owned()),
        ("one: {algorithm: sliding_log, quota: 5, window: 600h}", "6:51: too long for sliding_log, expected at most 596h".to_owned()),
        ("one: {algorithm: fixed_window, quota: 5, window: 10s, resolution: 5}", "6:69: `resolution` with `fixed_window`, expected it only with `sliding_window`".to_owned()),
        ("one: {algorithm: sliding_log, quota: 5, window: 10s, strict: true}", "6:64: `strict` with `sliding_log`, expected it only with `sliding_window`".to_owned()),
        ("one: {quota: 5, window: 10s, max_wait: 1s}", "6:42: `max_wait` with `sliding_window`, expected it only with `leaky_bucket`".to_owned()),
        ("one: {quota: 5, window: 10s, max_queue: 7}", "6:43: `max_queue` with `sliding_window`, expected it only with `leaky_bucket`".to_owned()),
        ("one: {algorithm: concurrency, quota: 5, window: 900ms}", "6:51: `900ms` as the lease of a permit: too short to be renewed, expected at least 1s".to_owned()),
        ("one: {algorithm: concurrency, quota: 5, window: 10s, refund: [304]}", "6:56: `refund` with `concurrency`, which releases every permit anyway, expected no `refund`".to_owned()),
        ("one: {algorithm: concurrency, quota: 5, window: 10s, cost: \"response:x-cost\"}", "6:62: a cost from the response, though permits are acquired before it, expected a number or `header:NAME`".to_owned()),
        ("one: {quota: 5, window: 10s, cost: 6}", "6:38: `6`, expected at most the quota, 5: no request would be admitted".to_owned()),
        ("one: {algorithm: leaky_bucket, quota: 5, window: 10s, max_wait: 2m}", "6:67: `one` may delay a request for 2m, but the request_timeout of route `a` is 2m, expected a shorter max_wait (by default, it is the window), or a longer request_timeout".to_owned()),
        ("one: {quota: 5, window: 10s, key: [host, host]}", "6:44: duplicate part `host`, expected each part once".to_owned()),
        ("one: {quota: 5, window: 10s, key: [\"path:id\"]}", "8:58: `one` counts by `path:id`, which `/a` does not have, expected a path with `{id}`".to_owned()),
        ("two words: {quota: 5, window: 10s}\n  one: {quota: 5, window: 10s}", format!("6:3: `two words`, {name}")),
    ];
    for (limit, expected) in &cases {
        let text = GOOD.replace("one: {quota: 5, window: 10s}", limit);
        assert_eq!(compile(&text).unwrap_err(), std::slice::from_ref(expected), "{limit}");
    }
}

#[test]
fn faulty_prefixes_are_refused() {
    let replaced = |from: &str, to: &str| GOOD.replace(from, to);
    let cases = [
        (
            replaced("path: '/b/{id}'", "path: /b, path_prefix: /b"),
            "9:33: both `path` and `path_prefix`, expected one of them",
        ),
        (
            replaced("path: /a", "path_prefix: /a").replace("path: '/b/{id}'", "path_prefix: /a"),
            "9:36: `/a/...` matches the same requests as route `a` (line 8), expected another host, path or method",
        ),
        (
            replaced("path: /a", "path_prefix: '/a/{*rest}'"),
            "8:36: `/a/{*rest}` (`{*name}` in a prefix, which matches all paths below anyway), expected a prefix such as /login, which matches /login and all paths below it",
        ),
        (
            replaced("path: /a", "path_prefix: a"),
            "8:36: `a` (the path must start with /), expected a prefix such as /login, which matches /login and all paths below it",
        ),
        (
            replaced("path: /a", "path: '/y/{rest...}'"),
            "8:29: `/y/{rest...}` (write {*rest} for the rest of the path), expected a path such as /items/{id} or /files/{*rest}",
        ),
    ];
    for (text, expected) in &cases {
        assert_eq!(compile(text).unwrap_err(), [*expected], "{text}");
    }
}

#[test]
fn faulty_routes_and_upstreams_are_refused() {
    let replaced = |from: &str, to: &str| GOOD.replace(from, to);
    let cases = [
        (replaced("upstream: app", "upstream: ap"), "8:44: unknown upstream `ap`, expected `app`"),
        (
            replaced("upstream: app", "upstream: shop"),
            "8:44: unknown upstream `shop`, expected one of app, hello",
        ),
        (replaced("[one]", "[oen]"), "8:58: unknown limit `oen`, expected `one`"),
        (replaced("[one]", "[one, one]"), "8:63: duplicate limit `one`, expected each limit once"),
        (
            replaced("name: b", "name: a"),
            "9:12: duplicate name `a`, expected a unique name (line 8 has it already)",
        ),
        (
            replaced("name: b", "name: ä"),
            "9:12: `ä`, expected a name of 1 to 64 letters, digits, `_`, `.` or `-`",
        ),
        (
            replaced("path: '/b/{id}'", "path: /a"),
            "9:29: `/a` matches the same requests as route `a` (line 8), expected another host, path or method",
        ),
        (
            replaced("path: /a", "path: /a, host: 'a b'"),
            "8:39: `a b` (` ` is not allowed in a host), expected a host such as api.example.com or *.example.com",
        ),
        (
            replaced("path: /a", "path: a"),
            "8:29: `a` (the path must start with /), expected a path such as /items/{id} or /files/{*rest}",
        ),
        (
            replaced("path: /a", "path: /a, methods: [GET, GET]"),
            "8:48: duplicate method `GET`, expected each method once",
        ),
        (
            replaced("upstream: app", "upstream: app, strip_prefix: v1"),
            "8:63: `v1`, expected the beginning of a path, such as /v1",
        ),
        (
            replaced("upstream: app", "upstream: app, strip_prefix: /v1/../v2"),
            "8:63: `/v1/../v2`, expected the beginning of a path, such as /v1",
        ),
        (
            replaced("{targets: [http://h:1]}", "{}"),
            "3:3: neither `targets` nor `respond`, expected one of them",
        ),
        (
            replaced("{targets: [http://h:1]}", "{targets: []}"),
            "3:9: neither `targets` nor `respond`, expected one of them",
        ),
        (
            replaced("[http://h:1]}", "[http://h:1], respond: {}}"),
            "3:32: both `targets` and `respond`, expected one of them",
        ),
        (
            replaced("body: hi", "body: hi, status: 204"),
            "4:27: a body with status 204, expected no `body`",
        ),
        (
            replaced("body: hi", "content_type: ä"),
            "4:35: `ä`, expected a media type such as text/plain",
        ),
        (
            replaced("127.0.0.1:80}", "127.0.0.1:80}, {address: 127.0.0.1:80}"),
            "1:45: duplicate address `127.0.0.1:80`, expected each address once",
        ),
        (
            replaced("[{address: 127.0.0.1:80}]", "[]"),
            "1:1: no listener, expected at least one address; only a `rate_limit_service` without routes needs none",
        ),
        (
            format!("{GOOD}admin: {{address: 127.0.0.1:80}}"),
            "10:18: `127.0.0.1:80`, which is also in `listen`, expected an address of its own",
        ),
        (
            format!("{GOOD}admin: {{address: '[::]:9900'}}"),
            "10:18: `[::]:9900` is not on loopback, and `admin.token` is missing, expected a loopback address \
             such as 127.0.0.1:9900, or a token: write `token: file:PATH` (or `env:NAME`), and make one with \
             `openssl rand -hex 32`",
        ),
        (
            format!("{GOOD}store: {{redis: {{}}}}"),
            "10:9: no server, expected one of `shards`, `cluster` and `sentinel`",
        ),
        (
            format!(
                "{GOOD}store: {{redis: {{shards: [{{primary: 'redis://h'}}], namespace: 'a:b'}}}}"
            ),
            "10:62: `a:b`, expected a name of 1 to 64 letters, digits, `_`, `.` or `-`",
        ),
    ];
    for (text, expected) in &cases {
        assert_eq!(compile(text).unwrap_err(), [*expected], "{text}");
    }
}

#[test]
fn faulty_connections_to_targets_are_refused() {
    let replaced = |from: &str, to: &str| GOOD.replace(from, to);
    let cases = [
        (
            replaced("{body: hi}}", "{body: hi}, protocol: http2}"),
            "4:32: `protocol` with `respond`, which connects to no server, expected `targets`, or no such key",
        ),
        (
            replaced("[http://h:1]}", "[http://h:1], tls: {name: a}}"),
            "3:32: `tls` without an https target, expected targets with https://, or no `tls`",
        ),
        (
            replaced("[http://h:1]}", "[http://h:1, https://h:2]}"),
            "3:31: targets with and without https in one upstream, expected the same for all targets",
        ),
        (
            replaced("[http://h:1]}", "[http://h:1], protocol: http2, send_proxy: v2}"),
            "3:61: `send_proxy` with HTTP/2, expected `protocol: http1`: an HTTP/2 connection carries requests of many clients",
        ),
    ];
    for (text, expected) in &cases {
        assert_eq!(compile(text).unwrap_err(), [*expected], "{text}");
    }
}

#[test]
fn all_faults_are_reported_at_once() {
    let text = GOOD
        .replace("quota: 5", "quota: 5, cost: 6")
        .replace("upstream: app", "upstream: x")
        .replace("body: hi", "status: 204, body: hi")
        .replace("path: '/b/{id}'", "path: b");
    let faults = compile(&text).unwrap_err();
    let lines: Vec<&str> = faults.iter().filter_map(|fault| fault.split(':').next()).collect();
    assert_eq!(lines, ["4", "6", "8", "9"], "{faults:#?}");
}

proptest! {
    /// No numbers cause a panic, and every accepted quota can be counted exactly.
    #[test]
    fn an_accepted_quota_can_be_counted(
        quota in prop_oneof![0..10u64, any::<u32>().prop_map(u64::from), 1..=MAX_UNITS, any::<u64>()],
        window in prop_oneof![0..100u64, 0..=8784 * 3_600_000u64],
        resolution in proptest::option::of(prop_oneof![0..70u32, any::<u32>()]),
        algorithm in prop::sample::select(Algorithm::all(1, Millis::ZERO).map(Algorithm::tag).to_vec()),
    ) {
        let resolution = match resolution.filter(|_| algorithm == "sliding_window") {
            Some(resolution) => format!(", resolution: {resolution}"),
            None => String::new(),
        };
        let limit = format!("{{algorithm: {algorithm}, quota: {quota}, window: {window}ms{resolution}}}");
        let text = GOOD.replace("{quota: 5, window: 10s}", &limit);
        let loaded = config::parse("t.yaml", &text);
        if algorithm == "fixed_window" && window > 0 && (1..=MAX_UNITS).contains(&quota) {
            prop_assert!(loaded.as_ref().is_ok_and(|loaded| Snapshot::compile(loaded, SecretReading::Unread).is_ok()));
        }
        if let Some(Ok(snapshot)) = loaded.ok().map(|loaded| Snapshot::compile(&loaded, SecretReading::Unread)) {
            let quota = snapshot.limits[0].limit.quota;
            prop_assert!(quota.limit > 0 && !quota.sub_window().is_zero());
            prop_assert_eq!((quota.sub_window() * u64::from(quota.algorithm.resolution())).as_ms(), window);
            prop_assert!(quota.limit <= quota.algorithm.max_units());
            let product = u128::from(quota.limit) * u128::from(quota.window.as_ms());
            let is_bucket = algorithm.ends_with("bucket");
            prop_assert!(product <= u128::from(MAX_QUOTA_MILLIS) || !is_bucket);
        }
    }
}

#[test]
fn syntactic_and_semantic_faults_are_reported_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.yaml");
    let text = "
upstreams:
  good: {respond: {status: 200, body: hi, content_type: text/plain}}
  broken: {targets: [http://127.0.0.1:1], retries: many}
  aimless: {targets: 5}
limits:
  unread: {quota: 5, window: soon}
  senseless: {quota: 0, window: 1m}
routes:
  - {name: a, match: {path: /a}, upstream: good, limits: [unread], strip_prefx: /x}
  - {name: b, match: 5, upstream: nowhere}
  - {name: c, match: {path: /c}, upstream: nowhere, limits: [unread, missing]}
  - {name: d, match: {path: /d}, upstream: broken}
";
    std::fs::write(&file, text).unwrap();
    let faults = Snapshot::load(&file, &|_| None).unwrap_err().into_faults();
    let found: Vec<(usize, &str)> =
        faults.iter().map(|fault| (fault.location.line, &*fault.what)).collect();
    // An unreadable value is reported once; references to it and its neighbours are still checked.
    assert_eq!(
        found,
        [
            (4, "`many`"),
            (5, "`5`"),
            (7, "`soon`"),
            (8, "`0`"),
            (10, "unknown key `strip_prefx`"),
            (11, "`5`"),
            (11, "unknown upstream `nowhere`"),
            (12, "unknown upstream `nowhere`"),
            (12, "unknown limit `missing`"),
        ]
    );
}

/// The faults of a file, each as its line and its description.
fn load_faults(text: &str) -> Vec<(usize, String)> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.yaml");
    std::fs::write(&file, text).unwrap();
    let faults = Snapshot::load(&file, &|_| None).unwrap_err().into_faults();
    faults.iter().map(|fault| (fault.location.line, fault.what.to_string())).collect()
}

#[test]
fn every_fault_of_a_section_is_reported_at_once() {
    let text = "\
throttle:
  max_active: 10
  resume_below: 20
  memory: 90s
  false_positive: 2
  capacity: 0
  forget_status: [401, 1000]
http:
  max_head: 1KiB
  max_headers: 0
  head_timeout: 0s
  max_connections: off
limits:
  one:
    window: 10s
    key: [host, host]
    resolution: 7
    tiers: [{quota: 0, match: {part: host, values: []}}]
  two:
    quota: many
    window: 500ms
    algorithm: concurrency
    refund: [304]
upstreams:
  fixed: {respond: {status: 204, body: hi, content_type: \"\"}, retries: 11}
routes:
  - {match: {host: a b, path: b, methods: [GET, GET]}, upstream: fixed, status: [one]}
  - {name: c, upstream: fixed, max_body: big, limits: [one, one], strip_prefix: v1}
";
    let found = load_faults(text);
    let lines: Vec<usize> = found.iter().map(|(line, _)| *line).collect();
    let expected = [
        3, 4, 5, 6, 7, 9, 10, 11, 12, 14, 16, 17, 18, 18, 20, 21, 23, 25, 25, 25, 27, 27, 27, 27,
        27, 28, 28, 28,
    ];
    assert_eq!(lines, expected, "{found:#?}");
    // A document without its required section.
    let found = load_faults(
        "workers: x\nadmin: {hosts: [a]}\nstore: {redis: {tls_ca: a, namespace: 'a b'}}\n",
    );
    let lines: Vec<usize> = found.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [1, 1, 2, 3, 3, 3], "{found:#?}");
}

#[test]
fn what_depends_on_a_faulty_value_is_not_reported() {
    let limit = |keys: &str| format!("{GOOD}  # end\n").replace("{quota: 5, window: 10s}", keys);
    for text in [
        limit("{quota: x, window: 10s, cost: 7, reserve: 8}"),
        limit("{quota: 5, window: x, resolution: 7}"),
        limit("{quota: 5, windw: 7s, resolution: 9}"),
        limit("{quota: 5, window: 10s, algorithm: x, max_wait: 1m, max_queue: 5}"),
        limit("{quota: 5, window: 10s, cost: x, max_cost: 3}"),
        limit("{quota: 5, window: 10s, tiers: [{match: {part: x, values: [a]}, quota: 7}]}"),
        GOOD.replace("limits:\n", "limts:\n"),
        GOOD.replace("upstreams:\n", "upstrems:\n"),
        GOOD.replace("name: a", "nme: a").replace("name: b", "name: x"),
        GOOD.replace("path: /a", "pth: /a"),
        GOOD.replace("path: /a", "path: '/b/{id}', host: {}"),
        GOOD.replace("targets: [http://h:1]", "targts: [http://h:1]"),
        GOOD.replace("targets: [http://h:1]", "targets: [ftp://h]"),
        GOOD.replace("body: hi", "body: hi, status: x"),
        GOOD.replace("[{address: 127.0.0.1:80}]", "[{address: x}, {address: 127.0.0.1:8080}]"),
        format!("{GOOD}throttle: {{max_active: x, resume_below: 5}}"),
        format!(
            "{GOOD}store: {{redis: {{shards: [{{primary: x}}, {{primary: 'redis://127.0.0.1'}}]}}}}"
        ),
        format!("{GOOD}store: {{redis: {{shrds: [{{primary: 'redis://a'}}], tls_ca: a}}}}"),
        format!("{GOOD}store: {{redis: {{cluster: ['redis://a'], username: a, password: b}}}}"),
    ] {
        let found = load_faults(&text);
        assert_eq!(found.len(), 1, "{text}{found:#?}");
    }
}
