use testkit::{
    client::{Client, get},
    gateway::Gateway,
};

use super::{ThrottleFleet, assert_throttled_response, tokens};
use crate::tidegate_command;

/// Sets the throttle's mode through the admin API.
pub(super) fn put_mode(gateway: &Gateway, mode: &str) {
    let body = format!("{{\"mode\": \"{mode}\"}}");
    let (status, text) = put(gateway, &body, "");
    assert_eq!(status, 200, "{text}");
    let state: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(state["mode"], mode);
}

fn put(gateway: &Gateway, body: &str, headers: &str) -> (u16, String) {
    let mut client = Client::connect(gateway.admin());
    let length = body.len();
    client.send(format!(
        "PUT /api/throttle HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    ));
    let response = client.read_response();
    (response.status, response.text())
}

const SETTINGS: &str = "max_active: 20, capacity: 1000";

#[test]
fn the_operator_switches_the_mode_at_once() {
    let fleet = ThrottleFleet::in_memory(SETTINGS);
    assert_eq!(fleet.ask(0, "user", "/a").status, 200);
    let gateway = &fleet.gateways[0];
    put_mode(gateway, "on");
    assert_eq!(fleet.state(0)["throttling"], true);
    assert_throttled_response(
        &fleet.ask(0, "newcomer", "/a"),
        20,
        fleet.clock.store_time().as_unix_ms(),
    );
    assert_eq!(fleet.ask(0, "user", "/a").status, 200);
    put_mode(gateway, "off");
    assert_eq!(fleet.ask(0, "newcomer", "/a").status, 200);
    fleet.ask_all(tokens("user", 100), 200);
    for _ in 0..6 {
        fleet.tick();
    }
    assert_eq!(fleet.ask(0, "another", "/a").status, 200, "`off` admits any number");
    put_mode(gateway, "auto");
    assert_eq!(fleet.ask(0, "stranger", "/a").status, 429, "`auto` counts in every mode");
}

#[test]
fn retry_after_of_a_forced_throttle_is_sound() {
    let fleet = ThrottleFleet::in_memory(SETTINGS);
    put_mode(&fleet.gateways[0], "on");
    let (mut last, mut waits) = (0, Vec::new());
    for _ in 0..10 {
        fleet.advance(super::MINUTE);
        let response = fleet.ask(0, "newcomer", "/a");
        assert_throttled_response(&response, 20, fleet.clock.store_time().as_unix_ms());
        let reset = response.number("X-RateLimit-Reset");
        assert!(reset >= last, "a reset moved back: {last}, then {reset}");
        last = reset;
        waits.push(response.number("Retry-After"));
    }
    assert!(waits.iter().all(|&wait| wait > 30), "all denied users would retry at once: {waits:?}");
}

#[test]
fn invalid_modes_and_cross_origin_requests_are_refused() {
    let fleet = ThrottleFleet::in_memory(SETTINGS);
    let gateway = &fleet.gateways[0];
    for body in ["", "{}", "{\"mode\": \"open\"}", "{\"mode\": \"on\", \"x\": 1}", "on"] {
        let (status, text) = put(gateway, body, "");
        assert_eq!(status, 400, "{body}");
        assert!(text.contains("expected"), "{text}");
    }
    let forged = put(gateway, "{\"mode\": \"on\"}", "Origin: http://evil.example\r\n");
    assert_eq!(forged.0, 403);
    assert_eq!(fleet.state(0)["mode"], "auto");
    let without = Gateway::start(
        "upstreams: {a: {respond: {}}}\nroutes: [{name: a, match: {path: /}, upstream: a}]",
    );
    assert_eq!(get(without.admin(), "/api/throttle", "").status, 404);
    assert_eq!(put(&without, "{\"mode\": \"on\"}", "").0, 404);
}

#[test]
fn metrics_report_mode_estimate_and_error() {
    let fleet = ThrottleFleet::in_memory(SETTINGS);
    fleet.fill("user", 25);
    let state = fleet.state(0);
    let (active, error) = (state["active"].as_u64().unwrap(), state["error"].as_u64().unwrap());
    assert!(active.abs_diff(25) <= error.max(1), "{state}");
    let gateway = &fleet.gateways[0];
    fleet.ask_all(tokens("user", 25), 200);
    fleet.ask_all(tokens("newcomer", 7), 429);
    assert_eq!(fleet.ask(0, "", "/a").status, 429);
    for (metric, value) in [
        ("tidegate_throttle_throttling ", 1),
        ("tidegate_throttle_active ", active),
        ("tidegate_throttle_active_error ", error),
        ("tidegate_throttle_saturated ", 0),
        ("tidegate_throttle_max_active ", 20),
        ("tidegate_throttle_loaded ", 1),
        ("tidegate_throttle_memory_bytes ", state["memory_bytes"].as_u64().unwrap()),
        ("tidegate_throttle_decisions_total{decision=\"known\"", 25),
        ("tidegate_throttle_decisions_total{decision=\"unknown\"", 7),
        ("tidegate_throttle_decisions_total{decision=\"missing\"", 1),
        ("tidegate_throttle_recorded_total ", 25),
    ] {
        assert_eq!(gateway.metric(metric), value, "{metric}");
    }
}

#[test]
fn a_reload_changes_the_thresholds_and_keeps_the_filter() {
    let fleet = ThrottleFleet::in_memory(SETTINGS);
    fleet.fill("user", 25);
    let gateway = &fleet.gateways[0];
    let lower = fleet.yaml.replace("max_active: 20", "max_active: 10");
    gateway.reload(&lower).expect("it reloads");
    assert_throttled_response(
        &fleet.ask(0, "newcomer", "/a"),
        10,
        fleet.clock.store_time().as_unix_ms(),
    );
    fleet.ask_all(tokens("user", 25), 200);
    let off = lower.replace("capacity: 1000", "capacity: 1000, mode: 'off'");
    gateway.reload(&off).expect("it reloads");
    assert_eq!(fleet.ask(0, "newcomer", "/a").status, 200);
    put_mode(gateway, "on");
    let same = off.replace("max_active: 10", "max_active: 11");
    gateway.reload(&same).expect("it reloads");
    assert_eq!(fleet.state(0)["mode"], "on", "the mode set by the operator stays");
    for (old, new, key) in [
        ("capacity: 1000", "capacity: 2000", "throttle.capacity"),
        ("capacity: 1000", "capacity: 1000, memory: 10m", "throttle.memory"),
        ("capacity: 1000", "capacity: 1000, false_positive: 0.1", "throttle.false_positive"),
    ] {
        let faults = gateway.reload(&same.replace(old, new)).expect_err("a restart is needed");
        assert!(faults.contains(key) && faults.contains("restart"), "{faults}");
    }
    let without: Vec<_> = same.lines().filter(|line| !line.starts_with("throttle")).collect();
    let faults = gateway.reload(&without.join("\n")).expect_err("a restart is needed");
    assert!(faults.contains("`throttle`") && faults.contains("restart"), "{faults}");
    fleet.ask_all(tokens("user", 25), 200);
}

#[test]
fn each_mode_change_is_logged_once() {
    // The log belongs to the process: only a child process's log can be read in isolation.
    let upstream = super::api();
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(
        directory.path().join("t.yaml"),
        testkit::yaml::fill(
            "
            listen: [{address: '127.0.0.1:0'}]
            admin: {address: '127.0.0.1:0', hosts: [gateway.test]}
            workers: 1
            client: {token: [header:authorization]}
            throttle: {max_active: 5, capacity: 1000}
            upstreams: {a: {targets: ['{target}']}}
            routes: [{name: a, match: {path: /}, upstream: a}]
            ",
            [("target", upstream.target())],
        ),
    )
    .expect("a file");
    let process = testkit::process::Process::start(tidegate_command(
        directory.path(),
        &["--config", "t.yaml"],
    ));
    for token in tokens("user", 6) {
        let headers = format!("Authorization: Bearer {token}\r\n");
        assert_eq!(get(process.address, "/", &headers).status, 200);
    }
    testkit::wait::eventually("it throttles", || {
        get(process.admin, "/api/throttle", "").json()["throttling"] == true
    });
    let headers = "Authorization: Bearer newcomer-secret\r\n";
    assert_eq!(get(process.address, "/", headers).status, 429);
    testkit::wait::eventually("it is logged", || process.log_line("throttling started").is_some());
    let log = process.log();
    assert_eq!(log.matches("throttling started").count(), 1, "{log}");
    for secret in ["user-1", "newcomer-secret"] {
        assert!(!log.contains(secret), "a token in the log: {log}");
    }
}

#[test]
fn an_exceeded_capacity_is_reported_by_api_metrics_and_readyz() {
    // The filters may not grow, so that few tokens suffice.
    let settings = "max_active: 250, capacity: 100, max_memory: 8KiB, memory: 1m, mode: 'off'";
    let fleet = ThrottleFleet::in_memory(settings);
    let gateway = &fleet.gateways[0];
    let health = || get(gateway.admin(), "/readyz", "").json()["throttle"].clone();
    fleet.tick();
    let before = fleet.state(0);
    assert_eq!((&before["over_capacity"], &before["false_positive"]), (&false.into(), &0.0.into()));
    assert_eq!(before["max_false_positive"], 0.001);
    assert_eq!(before["memory_bytes"], before["max_memory_bytes"]);
    assert!(health()["note"].is_null(), "{}", health());
    fleet.ask_all(tokens("user", 300), 200);
    fleet.tick();
    let state = fleet.state(0);
    let rate = state["false_positive"].as_f64().expect("a rate");
    assert!(state["over_capacity"] == true && rate > 0.01 && rate < 0.5, "{state}");
    let metrics = get(gateway.admin(), "/metrics", "").text();
    for (name, least) in [
        ("tidegate_throttle_false_positive_ratio ", 0.01),
        ("tidegate_throttle_max_false_positive_ratio ", 0.001),
    ] {
        let line = metrics.lines().find(|line| line.starts_with(name)).expect(name);
        let value: f64 = line[name.len()..].parse().expect("a number");
        assert!((least..0.5).contains(&value), "{line}");
    }
    let note = health()["note"].to_string();
    assert!(note.contains("of 0.1 % configured") && note.contains("throttle.capacity"), "{note}");
    assert_eq!(get(gateway.admin(), "/readyz", "").status, 200, "it stays ready");
    // The tokens expire.
    fleet.advance(3 * super::MINUTE);
    assert!(fleet.state(0)["over_capacity"] == false && health()["note"].is_null());
}

#[test]
fn filters_grow_beyond_their_capacity_and_keep_all_users() {
    let fleet = ThrottleFleet::in_memory("max_active: 1000, capacity: 300, memory: 5m");
    fleet.ask_all(tokens("user", 700), 200);
    let before = fleet.state(0)["memory_bytes"].as_u64().expect("a number");
    for _ in 0..5 {
        fleet.tick();
    }
    let state = fleet.state(0);
    assert_eq!(state["memory_bytes"], 8 * before, "{state}");
    assert_eq!(state["memory_bytes"], state["max_memory_bytes"]);
    let active = state["active"].as_u64().expect("a number");
    assert!(active.abs_diff(700) < 60, "the estimate does not grow: {state}");
    put_mode(&fleet.gateways[0], "on");
    fleet.ask_all(tokens("user", 700), 200);
    // The first minute was filled at the smaller size, so that a few newcomers pass as active.
    let is_refused = |token: &String| fleet.ask(0, token, "/a").status == 429;
    let refused = tokens("newcomer", 30).filter(is_refused).count();
    assert!(refused >= 15, "{refused}");
}

#[test]
fn requests_with_and_without_a_token_are_counted() {
    let fleet = ThrottleFleet::in_memory(SETTINGS);
    fleet.ask_all(tokens("user", 3), 200);
    for _ in 0..2 {
        fleet.ask(0, "", "/a");
        fleet.ask(0, "", "/health");
    }
    let state = fleet.state(0);
    assert_eq!(
        (&state["requests_with_token"], &state["requests_without_token"]),
        (&3.into(), &2.into())
    );
    let gateway = &fleet.gateways[0];
    assert_eq!(gateway.metric("tidegate_throttle_requests_total{token=\"absent\"}"), 2);
}

/// The filters keep the size that they were started with, although a default `capacity` follows
/// `max_active`.
#[test]
fn max_active_changes_on_reload_without_capacity() {
    let fleet = ThrottleFleet::in_memory("max_active: 20");
    let more = fleet.yaml.replace("max_active: 20", "max_active: 60000");
    fleet.gateways[0].reload(&more).expect("a valid configuration");
    let state = fleet.state(0);
    assert_eq!((&state["max_active"], &state["memory_bytes"]), (&60_000.into(), &860_960.into()));
    let too_many = fleet.yaml.replace("max_active: 20", "max_active: 1000000");
    let faults =
        fleet.gateways[0].reload(&too_many).expect_err("more than the filters can estimate");
    assert!(faults.contains("`throttle.max_active` cannot change on reload"), "{faults}");
}
