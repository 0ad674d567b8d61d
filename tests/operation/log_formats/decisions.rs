//! The process log at `debug`: the decisions on each request.

use rustix::process::Signal;
use serde_json::Value;
use testkit::{client::Client, process::Process, upstream::Upstream, wait::eventually, yaml::fill};

use super::{SECRET, command, directory_of, directory_with, request};

/// The lines of the process log in JSON whose message is `message`.
fn messages(process: &Process, message: &str) -> Vec<Value> {
    let log = process.log();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.filter(|line| line["message"] == message).collect()
}

#[test]
fn debug_shows_the_decisions_on_each_request() {
    let upstream = Upstream::hello();
    let directory = directory_of(&fill(
        "
        listen: [{address: '127.0.0.1:0'}]
        admin: {address: '127.0.0.1:0', hosts: [gateway.test]}
        workers: 1
        drain_timeout: 1s
        access_log: off
        throttle: {max_active: 1000, capacity: 1000, mode: on}
        upstreams:
          hello: {respond: {body: hello}}
          app: {targets: ['{target}']}
        limits: {few: {quota: 2, window: 1h, key: [token]}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [few], throttle: false}
          - {name: app, match: {path: /app}, upstream: app, throttle: false}
          - {name: guarded, match: {path: /guarded}, upstream: hello}
        ",
        [("target", upstream.target())],
    ));
    let process = Process::start(command(&directory, &["--log", "tidegate=debug"]));
    let mut ids = Vec::new();
    for (path, status) in [("/a", 200), ("/a", 200), ("/a", 429), ("/app", 200), ("/guarded", 429)]
    {
        let response = request(process.address, path);
        assert_eq!(response.status, status, "{path}");
        ids.push(response.header("x-request-id").expect("an id").to_owned());
    }
    eventually("the decisions are logged", || messages(&process, "request decided").len() == 5);
    let log = process.log();
    let hidden = [SECRET, "\u{9b}", "curl"];
    assert!(hidden.iter().all(|text| !log.contains(text)), "{log}");

    let app = upstream.target().trim_start_matches("http://").to_owned();
    let requests = messages(&process, "request decided");
    for (index, (id, request)) in ids.iter().zip(&requests).enumerate() {
        let (path, route, limits, upstream, status) = [
            ("/a", "all", "admitted", "", 200),
            ("/a", "all", "admitted", "", 200),
            ("/a", "all", "refused", "", 429),
            ("/app", "app", "none", &*app, 200),
            ("/guarded", "guarded", "throttled", "", 429),
        ][index];
        assert_eq!(request["request_id"], **id);
        assert_eq!((&request["method"], &request["host"]), (&"GET".into(), &"gateway.test".into()));
        assert_eq!((&request["path"], &request["route"]), (&path.into(), &route.into()));
        assert_eq!((&request["limits"], &request["status"]), (&limits.into(), &status.into()));
        let attempts = u64::from(path == "/app");
        assert_eq!(
            (&request["upstream"], &request["attempts"]),
            (&upstream.into(), &attempts.into())
        );
    }
    let limits = messages(&process, "limit decided");
    assert_eq!(limits.len(), 3);
    for (index, decision) in ["admitted", "admitted", "refused"].into_iter().enumerate() {
        let limit = &limits[index];
        assert_eq!(limit["request_id"], *ids[index]);
        assert_eq!((&limit["limit"], &limit["decision"]), (&"few".into(), &decision.into()));
        let remaining = 1_u64.saturating_sub(index as u64);
        assert_eq!((&limit["quota"], &limit["remaining"]), (&2.into(), &remaining.into()));
        assert_eq!((&limit["cost"], &limit["source"]), (&1.into(), &"store".into()));
        assert_eq!(limit["hash"], limits[0]["hash"], "the same caller");
        assert_eq!(limit["hash"].as_str().map(str::len), Some(32));
    }
    let throttled = messages(&process, "refused by the throttle");
    assert_eq!(throttled.len(), 1);
    assert_eq!(
        (&throttled[0]["request_id"], &throttled[0]["reason"]),
        (&ids[4].clone().into(), &"Unknown".into())
    );
}

#[test]
fn decisions_are_logged_while_the_level_is_debug() {
    let directory = directory_with("access_log: off");
    let process = Process::start(command(&directory, &[]));
    let set = |level: &str| {
        let body = format!("{{\"level\":\"{level}\"}}");
        let mut client = Client::connect(process.admin);
        client.send(format!(
            "PUT /api/log_level HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        let response = client.read_response();
        assert_eq!(response.status, 200, "{}", response.text());
    };
    assert_eq!(request(process.address, "/a").status, 200);
    set("tidegate=debug");
    assert_eq!(request(process.address, "/b").status, 200);
    eventually("the decisions are logged", || messages(&process, "request decided").len() == 1);
    assert_eq!(messages(&process, "request decided")[0]["path"], "/b");
    set("info");
    assert_eq!(request(process.address, "/c").status, 429);
    process.signal(Signal::HUP);
    eventually("a later line", || process.log_line("configuration").is_some());
    assert_eq!(messages(&process, "request decided").len(), 1);
}
