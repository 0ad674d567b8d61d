//! Plans, overrides and the consumer of a call.

use serde_json::json;
use testkit::{
    backend::{MEMORY_AND_REDIS, on_each},
    client::{Client, Response},
    gateway::Gateway,
    rate_limit_client::descriptor,
    yaml::without_indentation,
};
use tidegate::clock::Clock;

use super::{NOW, connect, connect_first};

const RULES: &str = "
    rate_limit_service:
      address: 127.0.0.1:0
      domains:
        edge: {limits: [per-user, per-path], consumer: 'descriptor:user'}
    consumers:
      entries:
        - {name: acme, plan: gold}
        - {name: banned, plan: none}
        - {name: staff, plan: unlimited}
    plans:
      gold: {per-user: 7, per-path: 3}
      none: {per-user: 0}
      unlimited: {per-user: unlimited}
    limits:
      per-user: {quota: 5, window: 1m, algorithm: fixed_window, key: [consumer]}
      per-path: {quota: 2, window: 1m, algorithm: fixed_window, key: [consumer, 'descriptor:path']}
    upstreams: {app: {respond: {}}}
    routes: [{name: all, upstream: app}]
";

#[test]
fn the_plan_of_a_consumer_applies_to_its_calls() {
    on_each(&MEMORY_AND_REDIS, |backend| {
        let fleet = backend.start(RULES, &Clock::manual(NOW));
        let mut client = connect_first(&fleet);
        let mut asked = |text: &str| client.ask("edge", vec![descriptor(text)]).statuses();
        assert_eq!(asked("user=acme"), ["ok 6"]);
        assert_eq!(asked("user=acme,path=/x"), ["ok 2"]);
        assert_eq!(asked("user=stranger"), ["ok 4"], "without a record, the limit's own quota");
        assert_eq!(asked("user=staff"), ["none"]);
        assert_eq!(asked("user=banned"), ["over"]);
        assert_eq!(asked("user= banned\t"), ["over"], "white space makes no other name");
        assert_eq!(asked("user=banned,path=/x"), ["ok 1"], "the plan has no quota for it");
        assert_eq!(asked("path=/x"), ["none"], "no consumer");
    });
}

/// A client that can add a descriptor must not be counted as another consumer.
#[test]
fn each_descriptor_counts_for_the_consumer_that_it_names() {
    on_each(&MEMORY_AND_REDIS, |backend| {
        let fleet = backend.start(RULES, &Clock::manual(NOW));
        let mut client = connect_first(&fleet);
        let mut asked = |texts: &[&str]| {
            let descriptors = texts.iter().map(|text| descriptor(text));
            client.ask("edge", descriptors.collect()).statuses()
        };
        assert_eq!(asked(&["user=acme", "user=stranger"]), ["ok 6", "ok 4"]);
        assert_eq!(asked(&["user=staff", "user=stranger"]), ["none", "ok 3"]);
        assert_eq!(asked(&["user=acme,x=y", "user=stranger"]), ["none", "ok 2"]);
        assert_eq!(asked(&["user=", "user=stranger"]), ["ok 4", "ok 1"]);
        for _ in 0..6 {
            asked(&["user=stranger"]);
        }
        assert_eq!(asked(&["user=acme", "user=stranger"]), ["ok 6", "over"]);
    });
}

pub(super) fn put_override(gateway: &Gateway, body: &str) -> Response {
    let length = body.len();
    let head = format!(
        "PUT /api/overrides HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    Client::connect(gateway.admin()).send(head).read_response()
}

#[test]
fn an_override_of_a_consumer_applies_to_its_calls() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = format!("overrides: {{file: '{}/overrides.yaml'}}\n", folder.path().display());
    let rules = place + &without_indentation(RULES);
    let gateway = Gateway::start_at(&rules, Clock::manual(NOW));
    let mut client = connect(&gateway);
    let put = |body: serde_json::Value| {
        let response = put_override(&gateway, &body.to_string());
        assert!(response.status < 300, "{}", response.text());
    };
    put(json!({"limit": "per-user", "consumer": "acme", "quota": 9, "until": null}));
    put(json!({"limit": "per-user", "consumer": "other", "quota": "blocked", "until": null}));
    let mut asked = |text: &str| client.ask("edge", vec![descriptor(text)]);
    assert_eq!(asked("user=acme").statuses(), ["ok 8"]);
    let blocked = asked("user=other");
    assert_eq!(blocked.statuses(), ["over"]);
    assert_eq!(blocked.refused_by().as_deref(), Some("per-user"));
    assert_eq!(blocked.header("retry-after"), None, "no wait helps");
}
