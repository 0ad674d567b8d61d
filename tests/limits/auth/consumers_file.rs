//! The file of consumers: it is watched, a faulty one changes nothing, and the commands read it.

use std::{fs, path::Path};

use testkit::api_keys::hash;
use testkit::commands::run;
use testkit::{
    client::{Client, get},
    gateway::Gateway,
    upstream::Upstream,
    wait::eventually,
    yaml::fill,
};
use tidegate::auth::{KeyHash, check_form, is_password_of};

use crate::tidegate_command;

const RULES: &str = "
auth: {keys: {api_key: {}, max_failures: off}}
consumers: {file: '{file}'}
plans: {free: {each: 5}}
upstreams: {app: {targets: ['{target}']}}
limits: {each: {quota: 2, window: 1h, key: [consumer]}}
routes: [{name: all, upstream: app, auth: [keys], limits: [each]}]
";

fn write(path: &Path, records: &[(&str, &str)]) {
    let lines = records.iter().map(|(name, plan)| {
        format!(
            "- name: {name}\n  plan: {plan}\n  keys:\n    - {{id: first, sha256: {}}}\n",
            hash(name)
        )
    });
    // As editors do: the file is replaced.
    let new = path.with_extension("new");
    fs::write(&new, lines.collect::<String>()).expect("a file");
    fs::rename(&new, path).expect("the file in its place");
}

#[test]
fn the_file_is_read_again_and_nothing_else_changes() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("consumers.yaml");
    write(&file, &[("acme", "free")]);
    let upstream = Upstream::hello();
    let name = file.display().to_string();
    let gateway = Gateway::start(&fill(RULES, [("file", &*name), ("target", &upstream.target())]));
    let mut client = Client::connect(gateway.address());
    let mut ask = |name: &str| client.get("/", &super::key(name));
    assert_eq!(ask("acme").number("x-ratelimit-used"), 1);
    assert_eq!(ask("bread").status, 401);
    write(&file, &[("acme", "free"), ("bread", "free")]);
    eventually("the new consumer", || ask("bread").status == 200);
    assert_eq!(ask("acme").number("x-ratelimit-used"), 2, "the counter stays");
    assert_eq!(gateway.metric("tidegate_configuration_generation"), 1, "no reload");
    // A faulty file changes nothing, and its line is reported.
    write(&file, &[("acme", "free"), ("bread", "glod")]);
    eventually("the fault", || gateway.metric("tidegate_reloads_total{outcome=\"faulty\"}") >= 1);
    assert_eq!(ask("bread").status, 200);
    let fault = get(gateway.admin(), "/api/state", "").text();
    assert!(
        fault.contains("consumers.yaml:6:9: unknown plan `glod`, expected one of free"),
        "{fault}"
    );
    // A reload reads it as well, and is refused as a whole.
    let reloaded = gateway.reload(&fill(RULES, [("file", &*name), ("target", &upstream.target())]));
    assert!(reloaded.unwrap_err().contains("unknown plan `glod`"));
    write(&file, &[("bread", "free")]);
    eventually("the removed consumer", || ask("acme").status == 401);
}

#[test]
fn a_faulty_file_does_not_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("tidegate.yaml");
    let yaml = fill(RULES, [("file", "consumers.yaml"), ("target", "http://127.0.0.1:9")]);
    fs::write(&config, yaml).expect("a file");
    let output = |arguments: &[&str]| {
        let output = tidegate_command(directory.path(), arguments).output().expect("it runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    for (content, fault) in [
        (None, "consumers.yaml: the file does not exist, expected the path of a file"),
        (Some("- name: acme\n  plan: [free]\n"), "consumers.yaml:2:9: a list, expected text"),
        (Some("acme: {}\n"), "consumers.yaml:1:1: a mapping, expected a list of consumers"),
    ] {
        if let Some(content) = content {
            fs::write(directory.path().join("consumers.yaml"), content).expect("a file");
        }
        for command in ["check", "serve"] {
            let (code, text) = output(&[command, "--config", "tidegate.yaml"]);
            assert!(code == Some(1) && text.contains(fault), "{command}: {code:?} {text}");
        }
    }
}

#[test]
fn a_new_key_is_found_by_its_record() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("a path").to_owned();
    let printed = run(&["key", "new", "--consumer", "acme"]);
    let (key, record) = printed.split_once('\n').expect("a key and its record");
    assert_eq!(check_form(key), Ok(()));
    assert!(record.starts_with("- name: acme\n  keys:\n    - {id: "), "{record}");
    assert!(record.contains(&KeyHash::of(key.as_bytes()).to_string()), "{record}");
    fs::write(path("consumers.yaml"), record).expect("a file");
    let consumers = path("consumers.yaml");
    let yaml = fill(RULES, [("file", &*consumers), ("target", "http://127.0.0.1:9")]);
    fs::write(path("tidegate.yaml"), yaml).expect("a file");
    let check = |key: &str| {
        let arguments = ["key", "check", "--config", "tidegate.yaml"];
        let mut command = tidegate_command(directory.path(), &arguments);
        let file = path("key");
        fs::write(&file, format!("{key}\n")).expect("a file");
        command.stdin(fs::File::open(file).expect("a file"));
        let output = command.output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, text) = check(key);
    assert!(code == Some(0) && text.contains("consumer   acme, key "), "{text}");
    assert!(text.starts_with("form       well-formed\n"), "{text}");
    let (code, text) = check("tg_wrong");
    assert!(code == Some(1) && text.contains("none has this key"), "{text}");
    let mut command = tidegate_command(directory.path(), &["key", "password"]);
    fs::write(path("password"), "open sesame\r\n").expect("a file");
    command.stdin(fs::File::open(path("password")).expect("a file"));
    let printed = command.output().expect("it runs").stdout;
    let printed = String::from_utf8_lossy(&printed);
    let hash = printed.trim_end().strip_prefix("password: ").expect("a line of the record");
    assert!(is_password_of(hash, b"open sesame"), "{printed}");
    // A name that YAML could read as something else is quoted.
    let quoted = run(&["key", "new", "--consumer", "true: \"x\""]);
    assert!(quoted.contains("- name: \"true: \\\"x\\\"\"\n"), "{quoted}");
}
