use super::{Crowd, check_refusal, tokens};
use crate::{
    client::{Client, get},
    gateway::Gateway,
};

impl Gateway {
    /// Sets the throttle's mode through the admin API.
    pub(super) fn put_mode(&self, mode: &str) {
        let body = format!("{{\"mode\": \"{mode}\"}}");
        let (status, text) = put(self, &body, "");
        assert_eq!(status, 200, "{text}");
        let state: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(state["mode"], mode);
    }
}

fn put(gateway: &Gateway, body: &str, headers: &str) -> (u16, String) {
    let mut client = Client::connect(gateway.admin());
    let length = body.len();
    client.send(format!(
        "PUT /api/throttle HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    ));
    let reply = client.reply();
    (reply.status, reply.text())
}

const SETTINGS: &str = "max_active: 20, capacity: 1000";

#[test]
fn the_operator_closes_and_opens_it_at_once() {
    let crowd = Crowd::start(1, None, SETTINGS);
    assert_eq!(crowd.ask(0, "user", "/a").status, 200);
    let gateway = &crowd.gateways[0];
    gateway.put_mode("on");
    assert_eq!(crowd.state(0)["throttling"], true);
    check_refusal(&crowd.ask(0, "newcomer", "/a"), 20, crowd.clock.now());
    assert_eq!(crowd.ask(0, "user", "/a").status, 200);
    gateway.put_mode("off");
    assert_eq!(crowd.ask(0, "newcomer", "/a").status, 200);
    crowd.ask_all(tokens("user", 100), 200);
    for _ in 0..6 {
        crowd.tick();
    }
    assert_eq!(crowd.ask(0, "another", "/a").status, 200, "off is off, however many there are");
    gateway.put_mode("auto");
    assert_eq!(crowd.ask(0, "stranger", "/a").status, 429, "auto has counted all the while");
}

#[test]
fn whom_the_operator_keeps_out_of_an_empty_house_is_told_to_wait() {
    let crowd = Crowd::start(1, None, SETTINGS);
    crowd.gateways[0].put_mode("on");
    let (mut last, mut waits) = (0, Vec::new());
    for _ in 0..10 {
        crowd.pass(super::MINUTE);
        let reply = crowd.ask(0, "newcomer", "/a");
        check_refusal(&reply, 20, crowd.clock.now());
        let reset = reply.number("X-RateLimit-Reset");
        assert!(reset >= last, "a reset moved back: {last}, then {reset}");
        last = reset;
        waits.push(reply.number("Retry-After"));
    }
    assert!(waits.iter().all(|&wait| wait > 30), "all come back at once: {waits:?}");
}

#[test]
fn what_is_not_a_mode_is_refused_and_a_web_page_is_not_asked() {
    let crowd = Crowd::start(1, None, SETTINGS);
    let gateway = &crowd.gateways[0];
    for body in ["", "{}", "{\"mode\": \"open\"}", "{\"mode\": \"on\", \"x\": 1}", "on"] {
        let (status, text) = put(gateway, body, "");
        assert_eq!(status, 400, "{body}");
        assert!(text.contains("expected"), "{text}");
    }
    let forged = put(gateway, "{\"mode\": \"on\"}", "Origin: http://evil.example\r\n");
    assert_eq!(forged.0, 403);
    assert_eq!(crowd.state(0)["mode"], "auto");
    let without = Gateway::start(
        "upstreams: {a: {respond: {}}}\nroutes: [{name: a, match: {path: /}, upstream: a}]",
    );
    assert_eq!(get(without.admin(), "/api/throttle", "").status, 404);
    assert_eq!(put(&without, "{\"mode\": \"on\"}", "").0, 404);
}

#[test]
fn metrics_tell_the_mode_the_estimate_and_its_error() {
    let crowd = Crowd::start(1, None, SETTINGS);
    crowd.fill("user", 25);
    let state = crowd.state(0);
    let (active, error) = (state["active"].as_u64().unwrap(), state["error"].as_u64().unwrap());
    assert!(active.abs_diff(25) <= error.max(1), "{state}");
    let gateway = &crowd.gateways[0];
    crowd.ask_all(tokens("user", 25), 200);
    crowd.ask_all(tokens("newcomer", 7), 429);
    assert_eq!(crowd.ask(0, "", "/a").status, 429);
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
        ("tidegate_throttle_remembered_total ", 25),
    ] {
        assert_eq!(gateway.metric(metric), value, "{metric}");
    }
}

#[test]
fn a_reload_moves_the_marks_and_keeps_who_is_known() {
    let crowd = Crowd::start(1, None, SETTINGS);
    crowd.fill("user", 25);
    let gateway = &crowd.gateways[0];
    let lower = crowd.yaml.replace("max_active: 20", "max_active: 10");
    gateway.reload(&lower).expect("it reloads");
    check_refusal(&crowd.ask(0, "newcomer", "/a"), 10, crowd.clock.now());
    crowd.ask_all(tokens("user", 25), 200);
    let off = lower.replace("capacity: 1000", "capacity: 1000, mode: 'off'");
    gateway.reload(&off).expect("it reloads");
    assert_eq!(crowd.ask(0, "newcomer", "/a").status, 200);
    gateway.put_mode("on");
    let same = off.replace("max_active: 10", "max_active: 11");
    gateway.reload(&same).expect("it reloads");
    assert_eq!(crowd.state(0)["mode"], "on", "what the operator set stays");
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
    crowd.ask_all(tokens("user", 25), 200);
}

#[test]
fn one_line_tells_of_each_change() {
    // The log is the process's: only the binary's own can be read alone.
    let upstream = super::api();
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(
        folder.path().join("t.yaml"),
        format!(
            "listen: [{{address: '127.0.0.1:0'}}]\nadmin: {{address: '127.0.0.1:0', hosts: [gateway.test]}}\nworkers: 1\n\
             client: {{token: [header:authorization]}}\n\
             throttle: {{max_active: 5, capacity: 1000}}\n\
             upstreams: {{a: {{targets: ['{}']}}}}\n\
             routes: [{{name: a, match: {{path: /}}, upstream: a}}]\n",
            upstream.target()
        ),
    )
    .expect("a file");
    let process = crate::process::Process::start(folder.path(), &["--config", "t.yaml"]);
    for token in tokens("user", 6) {
        let headers = format!("Authorization: Bearer {token}\r\n");
        assert_eq!(get(process.address, "/", &headers).status, 200);
    }
    crate::wait::eventually("it throttles", || {
        get(process.admin, "/api/throttle", "").json()["throttling"] == true
    });
    let headers = "Authorization: Bearer newcomer-secret\r\n";
    assert_eq!(get(process.address, "/", headers).status, 429);
    crate::wait::eventually("it says so", || process.has_said("throttling: only").is_some());
    let said = process.said();
    assert_eq!(said.matches("throttling: only active users").count(), 1, "{said}");
    for secret in ["user-1", "newcomer-secret"] {
        assert!(!said.contains(secret), "a token in the log: {said}");
    }
}
