use std::{fs, path::Path, process::Command};

use rustix::process::Signal;
use testkit::{client::get, process::Process, wait::eventually};

use crate::{reload::post_reload, tidegate_command};

/// The value of a variable that the configuration refers to.
const VARIABLE: &str = "hush-variable-4711";

/// A command of the binary, with the variable.
fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = tidegate_command(folder, arguments);
    command.env("HUSH", VARIABLE);
    command
}

/// What a command prints on both streams.
fn output(folder: &Path, arguments: &[&str]) -> String {
    let output = command(folder, arguments).output().expect("it runs");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

fn configuration() -> String {
    "listen: [{address: '127.0.0.1:0'}]
admin: {address: '127.0.0.1:0', hosts: [gateway.test]}
access_log: off
consumers: {file: c.yaml}
auth: {keys: {api_key: {}}}
upstreams:
  app: {targets: ['http://127.0.0.1:1']}
  keyed: {targets: ['http://127.0.0.1:1']}
routes:
  - name: a
    match: {path: /a}
    upstream: app
    headers:
      request: {set: {Authorization: Bearer hush-set, x-upstream: hush-set, x-variable: '${HUSH}'}}
      response: {set: {cache-control: no-store, x-client: '{client_ip}'}}
  - {name: b, match: {path: /b}, redirect: {to: 'https://a.test/?token=hush-set'}}
  - {name: c, match: {path: /c, headers: {x-api-key: hush-set}}, rewrite: '/${HUSH}', upstream: app}
"
    .to_owned()
}

/// The configuration with secrets in wrong places: a key, its hash, a password, and others.
fn faulty_configurations(good: &str, [key, hash, password]: [&str; 3]) -> Vec<String> {
    let inside = |line: &str| good.replace("access_log: off", line);
    vec![
        inside(key),
        inside(&format!("{key}: 1")),
        inside(&format!("workers: {key}")),
        inside(&format!("workers: {hash}")),
        inside(&format!("workers: many # {key}")),
        inside("workers: ${HUSH}"),
        inside("access_log: {format: '${HUSH}', fields: ['${HUSH}']}"),
        inside("tls: ${HUSH}"),
        inside(&format!("store: {{redis: {{secret: {password}}}}}")),
        good.replace("{file: c.yaml}", &format!("{{entries: [{{name: a, keys: ['{key}']}}]}}")),
        good.replace("{file: c.yaml}", "{entries: [{name: a, keys: [own-hush]}]}"),
        good.replace(
            "{file: c.yaml}",
            "\n  entries:\n    - name: a\n      keys:\n        - own-hush",
        ),
        good.replace(
            "{file: c.yaml}",
            &format!("{{entries: [{{name: a, password: '{password}', x: 1}}]}}"),
        ),
        good.replace("x-upstream: hush-set", "x-upstream: [hush-set]"),
        good.replace("x-upstream: hush-set", "x-upstream: 'hush-set {x'"),
        good.replace("x-upstream: hush-set", "x-upstream: {own-hush: 1}"),
        good.replace("match: {path: /a}", "match: {path: /a, headers: [x-api-key: own-hush]}"),
        good.replace("match: {path: /a}", "match: {path: /a, headers: [own-hush]}"),
        good.replace("{file: c.yaml}", "{entries: [{name: a, keys: [{other: own-hush}]}]}"),
        good.replace("{file: c.yaml}", "{entries: [{name: a, keys: [{own-hush: b}]}]}"),
        inside("limits: {a: {quota: 1, window: 1s, tiers: [{match: {part: token, values: {own-hush: 1}}}]}}"),
        inside("limits:\n  a:\n    tiers:\n      - match:\n          values: |\n            own-hush"),
        good.replace(
            "    headers:\n      request: {set: {Authorization: Bearer hush-set, x-upstream: hush-set, x-variable: '${HUSH}'}}",
            "    headers:\n      request:\n        set:\n          x-upstream: |\n            own-hush\n            hush-set {x",
        ),
    ]
}

#[test]
fn no_output_shows_what_an_operator_wrote_as_a_secret() {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path();
    let made = output(folder, &["key", "new", "--consumer", "acme"]);
    let (key, record) = made.split_once('\n').expect("a key and its record");
    let hash = record.split("sha256: ").nth(1).expect("a hash").trim_end_matches(['}', '\n']);
    let password = "$2y$05$abcdefghijklmnopqrstuvABCDEFGHIJKLMNOPQRSTUVWXYZ01234";
    let secrets = [key, hash, password, VARIABLE, "hush-set", "own-hush"];
    let assert_hidden = |what: &str, text: &str| {
        for secret in secrets {
            assert!(!text.contains(secret), "{what} shows {secret}:\n{text}");
        }
    };
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).expect("a file");
    let good = configuration();
    write("t.yaml", &good);
    write("c.yaml", record);
    let mut process = Process::start(command(folder, &["--config", "t.yaml", "--log", "debug"]));
    let checked = output(folder, &["check", "t.yaml"]);
    assert!(checked.contains("t.yaml: ok"), "{checked}");
    assert_hidden("check", &checked);
    for url in ["/a", "/b", "/c"] {
        let explain = ["explain", "-c", "t.yaml", "-H", "x-api-key: hush-set", url];
        for arguments in [&explain[..], &[&explain[..], &["--json"]].concat()] {
            let explained = output(folder, arguments);
            assert!(explained.contains(url) || explained.contains("a.test"), "{explained}");
            assert_hidden("explain", &explained);
        }
    }
    let shown = get(process.admin, "/api/config", "").text();
    assert!(shown.contains("no-store") && shown.contains("{client_ip}"), "{shown}");
    assert_hidden("/api/config", &shown);

    for broken in faulty_configurations(&good, [key, hash, password]) {
        write("t.yaml", &broken);
        let checked = output(folder, &["check", "t.yaml"]);
        assert!(checked.contains("expected"), "{broken}\n{checked}");
        assert_hidden("check", &checked);
        assert_hidden("serve", &output(folder, &["--config", "t.yaml"]));
        let reloaded = post_reload(process.admin);
        assert_eq!(reloaded.status, 400, "{broken}");
        assert_hidden("POST /api/reload", &reloaded.text());
        assert_hidden("/api/state", &get(process.admin, "/api/state", "").text());
    }
    write("t.yaml", &good);
    for broken in [
        made.clone(),
        format!("- name: a\n  keys:\n    - {{id: x, sha256: {key}}}\n"),
        format!("- name: a\n  keys:\n    - {key}\n"),
        "- name: a\n  keys:\n    - {id: x, sha256: own-hush}\n".to_owned(),
        "- name: a\n  keys:\n    - own-hush\n".to_owned(),
        format!("[{{\"name\": \"a\", \"keys\": \"{key}\"}}]"),
        format!("- name: a\n  plan: {key}\n"),
        format!("- {key}: {hash}\n"),
        format!("- name: a\n  password: {}\n", &password[..40]),
        format!("- name: a\n  x: 1 # {key}\n"),
    ] {
        let logged = process.log().matches("the file of consumers has faults").count();
        write("c.yaml", &broken);
        let checked = output(folder, &["check", "t.yaml"]);
        assert!(checked.contains("expected"), "{broken}\n{checked}");
        assert_hidden("check", &checked);
        assert_hidden("serve", &output(folder, &["--config", "t.yaml"]));
        assert_hidden("POST /api/reload", &post_reload(process.admin).text());
        eventually("the faults are logged", || {
            process.log().matches("the file of consumers has faults").count() > logged
        });
        assert_hidden("/api/state", &get(process.admin, "/api/state", "").text());
    }
    process.signal(Signal::TERM);
    assert_eq!(process.wait_exit().code(), Some(0));
    assert_hidden("the log", &process.log());
}

#[test]
fn a_note_on_a_missing_file_shows_the_variable_of_its_path() {
    let directory = tempfile::tempdir().expect("a directory");
    let yaml = "access_log: ${HUSH}/access.log
store: {redis: {shards: [{primary: 'rediss://127.0.0.1:1'}], tls_ca: '${HUSH}/ca.pem', password: 'file:${HUSH}'}}
upstreams: {hello: {respond: {body: hi}}}
routes: [{name: a, match: {path: /a}, upstream: hello}]
";
    fs::write(directory.path().join("t.yaml"), yaml).expect("a file");
    let checked = output(directory.path(), &["check", "t.yaml"]);
    assert_eq!(checked.matches("on this machine").count(), 3, "{checked}");
    assert!(checked.contains("${HUSH}") && !checked.contains(VARIABLE), "{checked}");
}

/// Each service is asked for by its URL, and none of them answers.
#[test]
fn no_output_shows_a_credential_in_the_url_of_a_service() {
    const HUSH: &str = "hush-url-4711";
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path();
    let yaml = "listen:
  - {address: '127.0.0.1:0'}
  - address: '127.0.0.1:0'
    tls: {acme: {domains: [a.test], directory: 'https://127.0.0.1:1/dir?token=HUSH', storage: acme}}
admin: {address: '127.0.0.1:0', hosts: [gateway.test]}
access_log: off
auth:
  sso: {forward: {to: 'http://127.0.0.1:1/verify?token=HUSH', request_headers: [cookie]}}
  login: {jwt: {issuer: i, audiences: [a], jwks: 'http://127.0.0.1:1/jwks?access_token=HUSH'}}
upstreams: {hello: {respond: {body: hi}}}
routes:
  - {name: a, match: {path: /a}, upstream: hello, auth: [sso]}
  - {name: b, match: {path: /b}, upstream: hello, auth: [login]}
";
    fs::write(folder.join("t.yaml"), yaml.replace("HUSH", HUSH)).expect("a file");
    fs::create_dir(folder.join("acme")).expect("a folder");
    let assert_hidden = |what: &str, text: &str| {
        assert!(!text.contains(HUSH), "{what} shows it:\n{text}");
    };
    let process = Process::start(command(folder, &["--config", "t.yaml", "--log", "debug"]));
    assert_eq!(get(process.address, "/a", "Cookie: a=b\r\n").status, 503);
    assert_eq!(get(process.address, "/b", "Authorization: Bearer a.b.c\r\n").status, 503);
    for subject in ["authentication service", "key set", "certificate"] {
        eventually("each failure is logged", || process.log().contains(subject));
    }
    for arguments in [&["check", "t.yaml"][..], &["explain", "-c", "t.yaml", "/a"]] {
        assert_hidden(arguments[0], &output(folder, arguments));
    }
    for path in ["/api/config", "/api/state", "/api/acme", "/api/upstreams", "/metrics"] {
        let shown = get(process.admin, path, "").text();
        assert!(!shown.is_empty(), "{path}");
        assert_hidden(path, &shown);
    }
    // Each URL beside a fault.
    let traces = "traces: {endpoint: 'http://127.0.0.1:1/v1/traces?api_key=HUSH'}";
    for (from, to) in [
        ("hosts:", "hots:"),
        ("access_log: off", "access_log: of"),
        ("access_log: off", traces),
        ("HUSH'", "HUSH', x: 1"),
    ] {
        let broken = yaml.replace(from, to).replace("HUSH", HUSH);
        fs::write(folder.join("t.yaml"), broken).expect("a file");
        assert_hidden("check", &output(folder, &["check", "t.yaml"]));
        assert_hidden("POST /api/reload", &post_reload(process.admin).text());
        assert_hidden("/api/state", &get(process.admin, "/api/state", "").text());
    }
    assert_hidden("the log", &process.log());
}

#[test]
fn no_command_repeats_a_password_in_its_arguments() {
    let directory = tempfile::tempdir().expect("a directory");
    for arguments in [
        &["proxy", "--to", "http://u:own-hush/x@127.0.0.1:1"][..],
        &["proxy", "--to", "u:own-hush@127.0.0.1:1"],
        &["proxy", "--to", "http://own-hush@127.0.0.1:1"],
        &["health", "http://u:own-hush@h"],
        &["health", "http://u:own-hush/x@h"],
        &["health", "--url", "http://u:own-hush@h"],
        &["health", "--url", "http://u:own-hush/x@h"],
        &["check", "http://u:own-hush/x@h"],
    ] {
        let shown = output(directory.path(), arguments);
        assert!(shown.contains("expected") || shown.contains("does not exist"), "{shown}");
        assert!(!shown.contains("own-hush"), "{arguments:?}: {shown}");
    }
}

#[test]
fn a_file_that_a_variable_names_is_called_as_it_is_written() {
    let directory = tempfile::tempdir().expect("a directory");
    let base = "upstreams: {hello: {respond: {body: hi}}}
routes: [{name: a, match: {path: /a}, upstream: hello}]
";
    for (section, file) in [
        ("consumers: {file: '/nonexist/${HUSH}'}", "/nonexist/${HUSH}"),
        ("overrides: {file: '/dev/null/${HUSH}'}", "/dev/null/${HUSH}"),
    ] {
        fs::write(directory.path().join("t.yaml"), format!("{base}{section}\n")).expect("a file");
        for arguments in
            [&["check", "t.yaml"][..], &["explain", "-c", "t.yaml", "/a"], &["serve", "t.yaml"]]
        {
            let shown = output(directory.path(), arguments);
            assert!(shown.contains(file), "{arguments:?}: {shown}");
            assert!(!shown.contains(VARIABLE), "{arguments:?}: {shown}");
        }
    }
}
