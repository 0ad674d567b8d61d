//! The commands' output and exit codes.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, sync::Arc};

use super::{Arguments, Exit, run};
use crate::config::{Environment, Fault};
use crate::snapshot::LoadError;

fn output(arguments: &[&str]) -> (Exit, String) {
    let mut out = Vec::new();
    let exit = run(std::iter::once("tidegate").chain(arguments.iter().copied()), &mut out);
    (exit, String::from_utf8(out).unwrap())
}

fn file(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.yaml");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

#[test]
fn clap_accepts_the_arguments() {
    <Arguments as clap::CommandFactory>::command().debug_assert();
}

#[test]
fn check_summarizes_a_valid_file() {
    let (_folder, path) = file(
        "upstreams: {hello: {respond: {}}}\nlimits: {l: {quota: 1, window: 1s}}\nroutes:\n\
         - {name: r, match: {host: h, path: /x, methods: [GET, HEAD]}, upstream: hello, limits: [l]}\n\
         - {name: s, match: {path: /y}, upstream: hello}\n",
    );
    let expected = format!(
        "{path}: ok (2 routes, 1 limit, 1 upstream)\n  listen 127.0.0.1:8080\n  limit l: 1 in 1s, by client_ip\n  r: GET,HEAD h/x -> hello (l)\n  \
         s: any */y -> hello (no limit)\n"
    );
    assert_eq!(output(&["check", "--config", &path]), (Exit::Ok, expected));
}

#[test]
fn the_configuration_is_an_argument_or_an_option() {
    let (folder, path) = file(
        "upstreams: {hello: {respond: {}}}\nroutes: [{name: r, match: {path: /x}, upstream: hello}]\n",
    );
    let log = folder.path().join("access.log");
    std::fs::write(&log, "").unwrap();
    let log = log.to_str().unwrap();
    for (argument, option) in [
        (vec!["check", &path], vec!["check", "--config", &path]),
        (vec!["explain", &path, "/x"], vec!["explain", "-c", &path, "/x"]),
        (
            vec!["explain", &path, "-X", "POST", "/x"],
            vec!["explain", "-X", "POST", "/x", "-c", &path],
        ),
        (vec!["replay", &path, log], vec!["replay", "-c", &path, log]),
    ] {
        let (exit, printed) = output(&argument);
        assert_eq!(exit, Exit::Ok, "{argument:?}: {printed}");
        assert_eq!((exit, printed), output(&option));
    }
    for both in [
        &["check", &path, "-c", &path][..],
        &["serve", &path, "--config", &path],
        &["explain", &path, "/x", "-c", &path],
        &["replay", &path, log, "-c", &path],
        &["replay", &path],
    ] {
        assert_eq!(output(both).0, Exit::Usage, "{both:?}");
    }
}

#[test]
fn check_accepts_every_example_and_notes_missing_secrets() {
    let mut count = 0;
    for entry in std::fs::read_dir("config/examples").unwrap() {
        let path = entry.unwrap().path();
        let (exit, printed) = output(&["check", "--config", path.to_str().unwrap()]);
        count += 1;
        let with_certificates = [("tls.yaml", "19:18"), ("partners.yaml", "11:18")];
        if let Some((name, place)) = with_certificates.iter().find(|(name, _)| path.ends_with(name))
        {
            // The certificates exist on no machine. `examples_load` in tests/docs loads these files
            // with certificates.
            let fault = format!("{name}:{place}: `/etc/tidegate/certs/");
            let faults = [&*fault, "the file does not exist"];
            assert!(faults.iter().all(|fault| printed.contains(fault)), "{printed}");
            continue;
        }
        assert_eq!(exit, Exit::Ok, "{printed}");
    }
    assert!(count > 8);
    for (example, missing) in [
        ("redis-sharded", "needed to start: the environment variable REDIS_PASSWORD is not set"),
        ("redis-cluster", "needed to start: cannot read the secret in /run/secrets/redis"),
        ("redis-cluster", "needed to start: the file /etc/tidegate/redis-ca.pem"),
        ("redis", "needed to start: the environment variable TIDEGATE_SECRET is not set"),
        ("compose", "needed to start: the environment variable TIDEGATE_SECRET is not set"),
    ] {
        let (_, printed) =
            output(&["check", "--config", &format!("config/examples/{example}.yaml")]);
        assert!(printed.contains(missing), "{printed}");
    }
    let arguments = ["tidegate", "check", "--config", "config/examples/redis-sentinel.yaml"];
    let mut out = Vec::new();
    let long: Environment = Arc::new(|_: &str| Some("hush".repeat(4).into()));
    assert_eq!(super::run_with(arguments, &long, &mut out), Exit::Ok);
    let printed = String::from_utf8(out).unwrap();
    assert!(!printed.contains("needed to start") && !printed.contains("note:"), "{printed}");
    assert!(!printed.contains("hush"), "{printed}");

    // Invalid secrets.
    let blank = " ".repeat(20);
    let not_utf8 = b"hush\xff".as_slice();
    let cases = [
        (b"hush".as_slice(), "shorter than 16 bytes: 4"),
        (b"", "is empty"),
        (blank.as_bytes(), "white space"),
        (not_utf8, "is not UTF-8"),
    ];
    for (value, expected) in cases {
        let mut out = Vec::new();
        let value = OsStr::from_bytes(value).to_owned();
        let variables: Environment = Arc::new(move |_: &str| Some(value.clone()));
        assert_eq!(super::run_with(arguments, &variables, &mut out), Exit::BadInput);
        let printed = String::from_utf8(out).unwrap();
        let place = "config/examples/redis-sentinel.yaml:17:13: the secret in env:TIDEGATE_SECRET";
        assert!(
            printed.contains(place) && printed.contains(expected) && !printed.contains("hush"),
            "{printed}"
        );
        assert!(printed.ends_with("1 fault found\n"), "{printed}");
    }
}

#[test]
fn check_prints_syntactic_and_semantic_faults() {
    let (_folder, path) = file("upstreams: {}\nroutes: 5\n");
    let (exit, printed) = output(&["check", "--config", &path]);
    assert_eq!(exit, Exit::BadInput);
    assert!(printed.starts_with(&format!("{path}:2:9: `5`, expected a list")), "{printed}");

    let (_folder, path) =
        file("upstreams: {}\nroutes: [{name: r, match: {path: /}, upstream: u}]\n");
    let (exit, printed) = output(&["check", "-c", &path]);
    assert_eq!(exit, Exit::BadInput);
    assert!(printed.starts_with(&format!("{path}:2:48: unknown upstream `u`")), "{printed}");

    let (exit, printed) = output(&["check", "-c", "no/such.yaml"]);
    assert_eq!(exit, Exit::BadInput);
    let expected = "no/such.yaml: the file does not exist, expected the path of a configuration; `tidegate init no/such.yaml` writes one";
    assert!(printed.starts_with(expected) && printed.lines().count() == 3, "{printed}");
}

#[test]
fn a_panic_is_an_internal_error() {
    let fault = || Fault::of_file("t.yaml", "a bug", "none");
    assert_eq!(Exit::from_load_error(&LoadError::Faults(fault().into())), Exit::BadInput);
    assert_eq!(Exit::from_load_error(&LoadError::Panic(fault())).code(), 70);
}

#[test]
fn the_number_of_path_parameters_is_limited() {
    let params = |count: usize| (0..count).map(|n| format!("/{{p{n}}}")).collect::<Vec<_>>();
    for (count, exit) in [(26, Exit::Ok), (64, Exit::Ok), (65, Exit::BadInput)] {
        let path = params(count).concat();
        let (_folder, file) = file(&format!(
            "upstreams: {{u: {{respond: {{}}}}}}\nroutes:\n\
             - name: r\n  match: {{path: '{path}'}}\n  upstream: u\n"
        ));
        let (ended, printed) = output(&["check", "-c", &file]);
        assert_eq!(ended, exit, "{printed}");
        if exit == Exit::BadInput {
            assert!(printed.starts_with(&format!("{file}:4:17: ")), "{printed}");
            assert!(printed.contains("(65 parameters; at most 64), expected a path"), "{printed}");
        }
    }
}

#[test]
fn schema_is_json_with_all_sections() {
    let (exit, printed) = output(&["schema"]);
    assert_eq!(exit, Exit::Ok);
    let schema: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert!(schema["properties"]["limits"].is_object());
}

#[test]
fn standard_options_and_usage_errors() {
    let (exit, printed) = output(&["--version"]);
    assert_eq!(
        (exit, printed.as_str()),
        (Exit::Ok, concat!("tidegate ", env!("CARGO_PKG_VERSION"), "\n"))
    );
    assert!(output(&["--help"]).1.contains("completions"));
    assert!(output(&["completions", "bash"]).1.contains("_tidegate"));
    assert_eq!(output(&["chek"]).0, Exit::Usage);
    assert_eq!(output(&["check", "--konfig", "x"]).0, Exit::Usage);
    assert_eq!(output(&["--log", "tidegate=loud"]).0, Exit::Usage);
    assert_eq!(Exit::Internal.code(), 70);
}

/// Standard output on a full disk.
struct Full;

impl std::io::Write for Full {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Err(std::io::ErrorKind::StorageFull.into())
    }
}

#[test]
fn an_output_that_cannot_be_written_is_no_internal_error() {
    let (_folder, faulty) = file("routes: 5\n");
    let example = "config/examples/status.yaml";
    for arguments in [
        &["schema"][..],
        &["--help"],
        &["--version"],
        &["completions", "bash"],
        &["check", "-c", example],
        &["check", "-c", &faulty],
        &["explain", "-c", example, "/"],
        &["explain", "-c", example, "--json", "/"],
        &["replay", "-c", example, "/dev/null"],
        &["replay", "-c", example, "--json", "/dev/null"],
    ] {
        let exit = run(std::iter::once(&"tidegate").chain(arguments), &mut Full);
        assert_eq!(exit, Exit::BadInput, "{arguments:?}");
    }
}

#[test]
fn check_notes_valid_settings_that_are_rarely_intended() {
    let (_folder, path) = file(
        "listen: [{address: '0.0.0.0:8123'}]
admin: {address: '10.0.0.1:9900', token: 'env:TOKEN'}
access_log: no-such-folder/access.log
upstreams:
  a: {targets: ['http://b:1', 'http://c:1', 'http://b:1']}
  own: {targets: ['http://127.0.0.1:8123', 'http://localhost:8123', 'http://10.0.0.1:9900']}
  fine: {targets: ['http://127.0.0.1:8124', 'http://example.com:8123'], protocol: auto}
routes:
  - {name: star, match: {path: '/api/*'}, upstream: a}
  - {name: inner, match: {path: '/a*/b'}, upstream: a}
  - {name: method, match: {path: /m, methods: [GET, CONNECT, TRACE]}, upstream: own}
  - {name: never, match: {path: '/x/{*rest}'}, strip_prefix: /v1, upstream: fine}
  - {name: longer, match: {path: /y}, strip_prefix: /y/z, upstream: fine}
  - {name: strips, match: {path: '/v1/{id}/{*rest}'}, strip_prefix: /v1/7, upstream: fine}
  - {name: some, match: {path: '/{*rest}'}, strip_prefix: /v2, upstream: fine}
",
    );
    let (exit, printed) = output(&["check", "-c", &path]);
    assert_eq!(exit, Exit::Ok, "{printed}");
    let notes: Vec<&str> = printed.lines().filter(|line| line.starts_with("note: ")).collect();
    let expected = [
        ":5:45: duplicate target `http://b:1`, which gets a share for each entry",
        ":6:19: `http://127.0.0.1:8123` is this gateway's own listener (line 1)",
        ":6:44: `http://localhost:8123` is this gateway's own listener (line 1)",
        ":6:69: `http://10.0.0.1:9900` is the gateway's own admin API",
        ":7:83: `auto` without TLS is HTTP/1.1",
        ":9:32: `/api/*` matches only paths with the character `*`, expected `/api/{*rest}`",
        ":10:33: `/a*/b` matches only paths with the character `*`, expected `{name}`",
        ":11:53: `CONNECT` gets a 405 before any route is looked up",
        ":11:62: `TRACE` gets a 405",
        ":12:62: `/v1` is never stripped: no path of `/x/{*rest}` begins with it",
        ":13:53: `/y/z` is never stripped: no path of `/y` begins with it",
    ];
    for expected in expected {
        assert!(notes.iter().any(|note| note.contains(expected)), "{expected}:\n{printed}");
    }
    assert_eq!(notes.len(), expected.len(), "{printed}");
    for missing in
        ["the environment variable TOKEN is not set", "the folder no-such-folder of the access log"]
    {
        let line = format!("\nmissing on this machine, and needed to start: {missing}");
        assert!(printed.contains(&line), "{printed}");
    }
    assert!(printed.ends_with('\n'), "a note ends its line");
    let lines: Vec<&str> = printed.lines().collect();
    // An empty line precedes each note.
    let is_separated =
        |(at, line): (usize, &&str)| !line.starts_with("note: ") || lines[at - 1].is_empty();
    assert!(lines.iter().enumerate().all(is_separated), "{printed}");
}

#[test]
fn check_notes_a_host_that_the_targets_certificate_is_not_for() {
    let (_folder, path) = file(
        "upstreams:
  inner: {targets: ['https://10.0.0.1:8443', 'https://api.test'], tls: {name: api.test}}
  plain: {targets: ['https://10.0.0.1:8443']}
routes:
  - {name: a, match: {path: /a}, upstream: inner, host: upstream}
  - {name: b, match: {path: /b}, upstream: inner}
  - {name: c, match: {path: /c}, upstream: plain, host: upstream}
",
    );
    let (exit, printed) = output(&["check", "-c", &path]);
    assert_eq!(exit, Exit::Ok, "{printed}");
    let notes: Vec<&str> = printed.lines().filter(|line| line.starts_with("note: ")).collect();
    let expected = ":5:57: `upstream` sends `10.0.0.1` as Host, and the certificate must be for `api.test`, expected `host: api.test`";
    assert!(notes.len() == 1 && notes[0].contains(expected), "{printed}");
}

#[test]
fn check_notes_paths_of_other_gateways_and_unused_limits() {
    let (_folder, path) = file(
        "upstreams: {a: {respond: {}}}
limits: {used: 1/1s, reported: 1/1s, unused: 1/1s}
routes:
  - {name: colon, match: {path: '/users/:id/x'}, upstream: a, limits: [used]}
  - {name: regex, match: {path: '/items/{id:[0-9]+}'}, upstream: a}
  - {name: fine, match: {path: '/a:b|/{c}.{{d}}'}, status: [reported]}
",
    );
    let (exit, printed) = output(&["check", &path]);
    assert_eq!(exit, Exit::Ok, "{printed}");
    let notes: Vec<&str> = printed.lines().filter(|line| line.starts_with("note: ")).collect();
    let expected = [
        ":4:33: `:id` in a path matches only this text, expected `{id}` for any text in a segment",
        ":5:33: `{id:[0-9]+}` matches any text: what follows the colon is a part of the name, expected `{id}`",
        ":2:38: no route names the limit `unused`, expected its name in `limits` of a route",
    ];
    for expected in expected {
        assert!(notes.iter().any(|note| note.contains(expected)), "{expected}:\n{printed}");
    }
    assert_eq!(notes.len(), expected.len(), "{printed}");
}

#[test]
fn check_notes_what_matches_or_changes_nothing() {
    let (_folder, path) = file(
        "upstreams: {a: {respond: {}}}
limits:
  l:
    quota: 5
    window: 1s
    tiers:
      - {match: {part: method, values: [get, PUT]}, quota: 7}
      - {match: {part: route, values: [nope, r]}, quota: 7}
      - {match: {part: path, values: ['/%61', /b]}, quota: 7}
      - {match: {part: client_ip, values: ['::ffff:10.0.0.0/104']}, quota: 7}
throttle: {max_active: 5, capacity: 1000}
routes:
  - {name: r, match: {path: /static/}, upstream: a, limits: [l]}
  - {name: s, match: {path: '/{*rest}'}, upstream: a, strip_prefix: /}
",
    );
    let (exit, printed) = output(&["check", &path]);
    assert_eq!(exit, Exit::Ok, "{printed}");
    for expected in [
        ": `get` matches no request, expected `GET`",
        ": `nope` matches no request, expected the name of a route",
        ": `/%61` matches no request, expected `/a`",
        ": the throttle applies to every route: while it is on, no one can log in",
        ": `/static/` matches only this path, expected `/static/{*rest}` for all paths below it",
        ": `/` strips nothing",
    ] {
        assert!(printed.contains(expected), "{expected}:\n{printed}");
    }
    assert_eq!(printed.matches("matches no request").count(), 3, "{printed}");
}

#[test]
fn check_notes_an_unlimited_tier_that_clients_can_choose() {
    let yaml = "upstreams: {a: {respond: {}}}
limits: {l: {quota: 5, window: 1s, tiers: [{match: {part: 'PART', values: ['10.0.0.1']}, quota: unlimited}]}}
routes: [{name: '10.0.0.1', upstream: a, limits: [l]}]
";
    let note = ": a client that sends this `header:x-plan` is not limited, expected ";
    let proxy = "client: {trusted_proxies: [10.0.0.1]}\n";
    for (part, more, is_noted) in [
        ("header:x-plan", "", true),
        ("header:x-plan", proxy, false),
        ("token", "", false),
        ("client_ip", "", false),
        ("route", "", false),
    ] {
        let (_folder, path) = file(&(yaml.replace("PART", part) + more));
        let (exit, printed) = output(&["check", &path]);
        assert_eq!((exit, printed.contains(note)), (Exit::Ok, is_noted), "{part}: {printed}");
    }
}

#[test]
fn arguments_in_the_wrong_order_are_usage_errors() {
    for arguments in [
        &["explain", "a.yaml"][..],
        &["explain", "http://h/x", "a.yaml"],
        &["replay", "a.log", "a.yaml"],
    ] {
        assert_eq!(output(arguments).0, Exit::Usage, "{arguments:?}");
    }
}

#[test]
fn check_shows_references_instead_of_their_values() {
    let (_folder, path) = file(
        "listen: [{address: ':${PORT}'}]
upstreams: {a: {respond: {}}}
limits: {l: '${RATE}'}
throttle: {max_active: '${ACTIVE}'}
routes:
  - {name: r, match: {host: '${HOST}', path: '/${V}/{*rest}'}, upstream: a, limits: [l]}
  - {name: s, match: {path: '/${V}/*'}, upstream: '${UP}'}
",
    );
    let env: Environment = Arc::new(|name: &str| match name {
        "HOST" => Some("internal.example".into()),
        "PORT" => Some("8080".into()),
        "RATE" => Some("10/1m".into()),
        "ACTIVE" => Some("100000".into()),
        "V" => Some("v7".into()),
        "UP" => Some("a".into()),
        _ => None,
    });
    let mut out = Vec::new();
    assert_eq!(super::run_with(["tidegate", "check", &path], &env, &mut out), Exit::Ok);
    let printed = String::from_utf8(out).unwrap();
    assert!(printed.contains("r: any ${HOST}/${V}/{*rest} -> "), "{printed}");
    assert!(printed.contains(": `/${V}/*` matches only paths with"), "{printed}");
    for value in ["internal", "v7", "100000"] {
        assert!(!printed.contains(value), "{value}: {printed}");
    }
    // Without the variables, each reference is a fault.
    let (exit, printed) = output(&["check", &path]);
    assert_eq!((exit, printed.matches(" is not set, ").count()), (Exit::BadInput, 7), "{printed}");
}

#[test]
fn a_log_filter_is_explained_once_and_may_not_be_empty() {
    let error = |filter: &str| super::parse_log_filter(filter).unwrap_err();
    for filter in ["", " ", "tidegate=loud", "a=b=c"] {
        let message = error(filter);
        assert_eq!(message.matches("debug").count(), 2, "{message}");
        assert_eq!(message.matches("expected").count(), 1, "{message}");
        assert_eq!(output(&["--log", filter]).0, Exit::Usage);
    }
}

#[test]
fn options_before_a_command_are_explained() {
    let arguments = ["tidegate", "-c", "x.yaml", "check"];
    let mut error = <Arguments as clap::Parser>::try_parse_from(arguments).unwrap_err();
    super::tips::add(&mut error);
    let message = error.to_string();
    assert!(message.contains("options stand after the command: tidegate check"), "{message}");
}

#[test]
fn the_headers_of_a_refusal_are_shown() {
    let arguments = ["explain", "-c", "config/examples/status.yaml", "-X", "TRACE", "/"];
    let (exit, printed) = output(&arguments);
    assert_eq!(exit, Exit::Ok);
    assert!(printed.contains("allow: GET, HEAD, POST"), "{printed}");
}

#[test]
fn check_shows_the_conditions_and_actions_of_routes() {
    let (_folder, path) = file(
        "upstreams: {app: {targets: ['http://a:1']}}
routes:
  - {name: all, match: {path: /a}, upstream: app}
  - {name: some, match: {path: /a, headers: {x-v: '2', x-old: false}, query: {q: true}, weight: 5}, upstream: app}
  - {name: moved, match: {path: /b}, redirect: {to: '/c?{query}'}}
  - {name: off, match: {path: /d, weight: 0}, respond: {status: 503}}
  - {name: asked, match: {path: /e}, decide: {}}
  - {name: nginx, match: {path: /f}, decide: {refuse_status: 403}}
client: {trusted_proxies: [127.0.0.1/32]}
",
    );
    let (exit, printed) = output(&["check", "-c", &path]);
    assert_eq!(exit, Exit::Ok, "{printed}");
    for line in [
        "  all: any */a -> app (no limit)",
        "  some: any */a [no header x-old, header x-v: 2, query q, 5 % of callers] -> app (no limit)",
        "  moved: any */b -> 308 /c?{query} (no limit)",
        "  off: any */d [0 % of callers] -> 503 (no limit)",
        "  asked: any */e -> a decision (no limit)",
        "  nginx: any */f -> a decision, refusals as 403 (no limit)",
    ] {
        assert!(printed.lines().any(|printed| printed == line), "{line}:\n{printed}");
    }
    assert!(printed.contains("a weight of 0: the route matches no request"), "{printed}");
    assert!(!printed.contains("serves only a share"), "{printed}");
}

/// Runs `hash` on a configuration with this store, and these lines as its input.
fn hash(store: &str, arguments: &[&str], input: &str) -> (Exit, String) {
    let (_folder, path) = file(&format!(
        "store: {{{store}}}\nclient: {{token: [header:x-key]}}\nupstreams: {{hello: {{respond: {{}}}}}}\n\
         limits:\n  l: {{quota: 1, window: 1s, key: [token, route]}}\n  all: {{quota: 1, window: 1s, key: []}}\n\
         routes: [{{name: r, match: {{path: /x}}, upstream: hello, limits: [l, all]}}]\n"
    ));
    let arguments = [&["tidegate", "hash", &path], arguments].concat();
    let arguments = <Arguments as clap::Parser>::try_parse_from(arguments).unwrap();
    let Some(super::Command::Hash(arguments)) = arguments.command else { panic!("hash") };
    let env = |name: &str| (name == "S").then(|| "a secret of some length".into());
    let mut out = Vec::new();
    let exit = super::hash::run(&arguments, &env, &mut input.as_bytes(), &mut out);
    (exit, String::from_utf8(out).unwrap())
}

#[test]
fn hash_prints_the_hash_of_a_key_on_standard_input() {
    let redis = "redis: {shards: [{primary: 'redis://h'}], secret: 'env:S'}";
    let (exit, alice) = hash(redis, &[], "alice\n");
    assert_eq!((exit, alice.len()), (Exit::Ok, 33), "{alice}");
    assert!(alice.trim_end().bytes().all(|byte| byte.is_ascii_hexdigit()), "{alice}");
    assert_eq!(hash(redis, &[], "alice").1, alice, "the line's end is no part of the key");
    assert_eq!(hash(redis, &[], "alice\r\n").1, alice);
    assert_ne!(hash(redis, &[], "bob\n").1, alice);
    let other = "redis: {shards: [{primary: 'redis://h'}], namespace: other, secret: 'env:S'}";
    assert_ne!(hash(other, &[], "alice\n").1, alice);
    let (exit, by_route) = hash(redis, &["--limit", "l"], "alice\nr\n");
    assert!(exit == Exit::Ok && by_route != alice, "{by_route}");
    assert_eq!(hash(redis, &["--limit", "all"], "").0, Exit::Ok);
    let address = ["--limit", "l", "--client-ip", "192.0.2.1"];
    assert_eq!(hash(redis, &address, "\nr\n").0, Exit::Ok);
    for (arguments, input) in [
        (&[][..], ""),
        (&[], "\n"),
        (&[], "alice\nr\n"),
        (&["--limit", "l"], "alice\n"),
        (&["--limit", "all"], "alice\n"),
        (&["--limit", "none"], "alice\n"),
        (&["--client-ip", "here"], "\n"),
        (&[], "eyJhbGciOiJIUzI1NiJ9.e30.AB\n"),
        (&[], "\0\u{feff}\n\n"),
    ] {
        assert_eq!(hash(redis, arguments, input), (Exit::BadInput, String::new()), "{input:?}");
    }
    assert_eq!(hash("", &[], "alice\n").0, Exit::BadInput, "only the running gateway knows");
}
