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
"
    .to_owned()
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
    for url in ["/a", "/b"] {
        for arguments in
            [&["explain", "-c", "t.yaml", url][..], &["explain", "-c", "t.yaml", "--json", url]]
        {
            let explained = output(folder, arguments);
            assert!(explained.contains("/a") || explained.contains("a.test"), "{explained}");
            assert_hidden("explain", &explained);
        }
    }
    let shown = get(process.admin, "/api/config", "").text();
    assert!(shown.contains("no-store") && shown.contains("{client_ip}"), "{shown}");
    assert_hidden("/api/config", &shown);

    // A configuration with secrets in wrong places.
    let inside = |line: &str| good.replace("access_log: off", line);
    for broken in [
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
    ] {
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
