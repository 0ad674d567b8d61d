//! Calls to the rate limit service.

use std::fs;

use serde_json::{Value, json};

use testkit::commands::run;

const RULES: &str = "
rate_limit_service:
  address: 127.0.0.1:8081
  domains: {edge: {limits: [user, path, plan], consumer: 'descriptor:user'}}
limits:
  user: {quota: 5, window: 1m, algorithm: fixed_window, key: [descriptor:user]}
  path: {quota: 2, window: 10s, algorithm: fixed_window, key: [descriptor:user, descriptor:path]}
  plan: {quota: 7, window: 1h, algorithm: fixed_window, key: [consumer]}
plans: {gold: {plan: 70}, none: {plan: 0}}
consumers: {entries: [{name: ann, plan: gold}, {name: bob, plan: none}]}
upstreams: {app: {respond: {}}}
routes: [{name: all, upstream: app}]
";

fn explain(arguments: &[&str]) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("t.yaml");
    fs::write(&file, RULES).expect("a file");
    let file = file.to_str().expect("a path");
    run(&[&["explain", "--config", file], arguments].concat())
}

#[test]
fn a_call_is_explained_with_the_limits_of_its_descriptors() {
    let text =
        explain(&["--descriptor", "edge", "user=a", "--descriptor", "edge", "user=a,path=/x"]);
    let expected = "domain     edge
consumer   a
descriptor user=a
limit      user: fixed_window, 5 in 1m, cost 1
           key: descriptor:user a
           admits, 4 left
limit      plan: fixed_window, 7 in 1h, cost 1
           key: consumer a
           admits, 6 left
descriptor user=a,path=/x
limit      path: fixed_window, 2 in 10s, cost 1
           key: descriptor:user a, descriptor:path /x
           admits, 1 left
decision   admitted (for a caller with unused quotas)
";
    assert_eq!(text, expected);
}

#[test]
fn calls_without_limits_and_for_unknown_domains_are_explained() {
    assert_eq!(
        explain(&["--descriptor", "edge", "other=a"]),
        "domain     edge\ndescriptor other=a\ndecision   none\n"
    );
    assert_eq!(
        explain(&["--descriptor", "nowhere", "user=a"]),
        "domain     nowhere: not in the configuration\ndescriptor user=a\ndecision   none\n"
    );
}

#[test]
fn the_json_has_the_plan_of_the_consumer() {
    let text = explain(&["--json", "--descriptor", "edge", "user=ann"]);
    let seen: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&seen["consumer"], &seen["plan"]), (&json!("ann"), &json!("gold")));
    let limits = seen["descriptors"][0]["limits"].as_array().expect("limits");
    let of = |name: &str| limits.iter().find(|limit| limit["name"] == name).expect("a limit");
    assert_eq!((&of("plan")["quota"], &of("plan")["plan"]), (&json!(70), &json!("gold")));
    assert_eq!((&of("user")["remaining"], &seen["decision"]), (&json!(4), &json!("admitted")));
}

#[test]
fn a_plan_that_admits_nothing_refuses_the_call() {
    let text = explain(&["--descriptor", "edge", "user=bob"]);
    assert!(text.contains("consumer   bob, plan none\n"), "{text}");
    assert!(text.contains("limit      plan: admits nothing\n"), "{text}");
    assert!(text.ends_with("decision   refused (for a caller with unused quotas)\n"), "{text}");
}
