//! The file of overrides, edited by hand and by other processes, and read by the commands.

use std::fs;

use serde_json::json;
use testkit::commands::run;
use testkit::{gateway::Gateway, wait::eventually};

use super::{ACME, BREAD, WithFile, ask, list, quota, request, rules, set};
use crate::tidegate_command;

/// Replaces the file, as editors do.
fn write(path: &std::path::Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).expect("a file");
    fs::rename(&new, path).expect("the file in its place");
}

#[test]
fn an_edit_by_hand_is_followed_and_a_faulty_one_changes_nothing() {
    let own = WithFile::start();
    let (gateway, path) = (&own.gateway, own.path());
    write(&path, "overrides:\n- {limit: each, consumer: bread, quota: 9, reason: by hand}\n");
    eventually("the new override", || quota(gateway, BREAD).0 == 9);
    // Also in place.
    fs::write(&path, "overrides:\n- {limit: each, consumer: bread, quota: 12}\n").expect("a file");
    eventually("the changed override", || quota(gateway, BREAD).0 == 12);
    let faulty = "overrides:\n- {limit: each, consumer: bread, quota: lots}\n";
    write(&path, faulty);
    eventually("the fault", || gateway.metric("tidegate_override_read_failures_total") >= 1);
    assert_eq!(quota(gateway, BREAD).0, 12, "the known ones stay");
    // The admin API does not replace what it cannot read.
    let body = json!({"limit": "each", "consumer": "acme", "quota": 5}).to_string();
    let refused = ask(gateway, "PUT /api/overrides", &body);
    assert_eq!(refused.status, 409);
    let faults = refused.json()["faults"].to_string();
    assert!(
        faults.contains("overrides.yaml:2:41: `lots`, expected a quota such as 5000"),
        "{faults}"
    );
    assert_eq!(fs::read_to_string(&path).expect("the file"), faulty);
    // A missing file is no change: it may be replaced at this moment.
    fs::remove_file(&path).expect("the file");
    assert_eq!(quota(gateway, BREAD).0, 12);
    // Nor at the next change.
    set(gateway, &json!({"limit": "each", "consumer": "acme", "quota": 11}));
    assert_eq!((quota(gateway, ACME).0, quota(gateway, BREAD).0), (11, 12));
    assert!(fs::read_to_string(&path).expect("the file").contains("bread"));
    write(&path, "overrides: []\n");
    eventually("no override", || quota(gateway, BREAD).0 == 5);
}

#[test]
fn overrides_survive_a_restart_and_are_shared_by_processes() {
    let own = WithFile::start();
    set(
        &own.gateway,
        &json!({"limit": "each", "consumer": "bread", "quota": 9, "reason": "a: #1"}),
    );
    let own = own.restarted();
    assert_eq!(quota(&own.gateway, BREAD), (9, 1));
    assert_eq!(list(&own.gateway)["overrides"][0]["reason"], "a: #1");
    let place = format!("overrides: {{file: '{}'}}", own.path().display());
    let second = Gateway::start(&rules(&place));
    assert_eq!(quota(&second, BREAD).0, 9);
    set(&second, &json!({"limit": "each", "consumer": "acme", "quota": 11}));
    eventually("the other process' override", || quota(&own.gateway, ACME).0 == 11);
    assert_eq!(quota(&own.gateway, BREAD).0, 9);
}

#[test]
fn a_faulty_file_does_not_start_and_check_has_its_lines() {
    let directory = tempfile::tempdir().expect("a directory");
    let yaml = rules("overrides: {file: overrides.yaml}");
    fs::write(directory.path().join("tidegate.yaml"), yaml).expect("a file");
    let output = |arguments: &[&str]| {
        let output = tidegate_command(directory.path(), arguments).output().expect("it runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let write =
        |text: &str| fs::write(directory.path().join("overrides.yaml"), text).expect("a file");
    write("overrides:\n- {limit: each, consumer: bread}\n");
    for command in ["check", "serve"] {
        let (code, text) = output(&[command, "--config", "tidegate.yaml"]);
        let fault = "overrides.yaml:2:3: no `quota`, expected a quota such as 5000";
        assert!(code == Some(1) && text.contains(fault), "{command}: {code:?} {text}");
    }
    // What does not fit the configuration is only a note: the admin API may have written it.
    write(
        "overrides:\n- {limit: old, consumer: bread, quota: 1}\n- {limit: each, plan: gold, quota: 1/1m}\n",
    );
    let (code, text) = output(&["check", "--config", "tidegate.yaml"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("note: overrides.yaml:2: no limit is called `old`"), "{text}");
    assert!(text.contains("note: overrides.yaml:3: `1/1m`, though the window of `each`"), "{text}");
    let with_redis =
        rules("overrides: {file: a.yaml}\nstore: {redis: {shards: [{primary: 'redis://h'}]}}");
    fs::write(directory.path().join("tidegate.yaml"), with_redis).expect("a file");
    let (code, text) = output(&["check", "--config", "tidegate.yaml"]);
    assert!(
        code == Some(1) && text.contains("a file of overrides, though there is Redis"),
        "{text}"
    );
}

#[test]
fn explain_shows_the_override_that_applies() {
    let own = WithFile::start();
    set(
        &own.gateway,
        &json!({"limit": "each", "consumer": "bread", "quota": 9, "reason": "launch"}),
    );
    set(&own.gateway, &json!({"limit": "caller", "key": "a", "quota": 7}));
    set(&own.gateway, &json!({"limit": "trial", "plan": "gold", "quota": "unlimited"}));
    set(&own.gateway, &json!({"limit": "parallel", "consumer": "bread", "quota": "blocked"}));
    let config = own.directory.path().join("tidegate.yaml");
    let place = format!("overrides: {{file: '{}'}}", own.path().display());
    fs::write(&config, rules(&place)).expect("a file");
    let explain = |more: &[&str]| {
        let config = config.to_str().expect("a path");
        run(&[&["explain", "--config", config][..], more].concat())
    };
    let text = explain(&["--consumer", "bread", "/own"]);
    assert!(text.contains("override   each, consumer bread: 9 (launch)\n"), "{text}");
    assert!(text.contains("limit      each: sliding_window, 9 in 1h"), "{text}");
    let text = explain(&["--header", "x-caller: a", "/open"]);
    assert!(text.contains("override   caller, hash ") && text.contains(": 7\n"), "{text}");
    let text = explain(&["--consumer", "acme", "/own"]);
    assert!(text.contains("limit      trial: not counted, by an override"), "{text}");
    let text = explain(&["--consumer", "bread", "/work"]);
    assert!(text.contains("override   parallel, consumer bread: blocked"), "{text}");
    assert!(text.contains("response   403: an operator has blocked this caller"), "{text}");
    let json = explain(&["--consumer", "bread", "--json", "/own"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["overrides"][0]["target"], "consumer bread");
    assert_eq!(json["overrides"][0]["reason"], "launch");
    // Another file, by the option.
    let other = own.directory.path().join("other.yaml");
    fs::write(&other, "overrides: [{limit: each, plan: gold, quota: 33}]").expect("a file");
    let other = other.to_str().expect("a path");
    let text = explain(&["--overrides", other, "--consumer", "acme", "/own"]);
    assert!(text.contains("override   each, plan gold: 33\n"), "{text}");
    assert_eq!(request(&own.gateway, "/work", BREAD).status, 403, "as the gateway decides");
}
