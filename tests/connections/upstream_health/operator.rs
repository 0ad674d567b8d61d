//! What operators see of the health of targets: the admin API, and the log.

use std::{fs, io::Write, time::Duration};

use rustix::process::Signal;
use testkit::{
    client::{Client, get},
    gateway::Gateway,
    process::Process,
    upstream::Upstream,
    wait::eventually,
    yaml::fill,
};
use tidegate::clock::Clock;

use super::{START, refusing};

#[test]
fn the_admin_api_reports_the_health_and_load_of_each_target() {
    let (upstream, refusing) = (Upstream::hello(), refusing());
    let gateway = Gateway::start(&fill(
        "
        workers: 1
        upstreams:
          origin: {targets: [{url: '{working}', weight: 3}, '{refusing}'], balance: peak_ewma}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
        ",
        [("working", upstream.target()), ("refusing", refusing)],
    ));
    eventually("the failing target is found", || {
        get(gateway.address(), "/", "");
        gateway.metric("tidegate_target_ejections_total") == 1
    });
    let list = || get(gateway.admin(), "/api/upstreams", "").json();
    // A request ends a little after its client has read the response.
    eventually("no request is in flight", || {
        list()["upstreams"][0]["targets"][0]["in_flight"] == 0
    });
    let listed = list();
    let origin = &listed["upstreams"][0];
    assert_eq!((&origin["name"], &origin["balance"]), (&"origin".into(), &"peak_ewma".into()));
    let [good, bad] = [&origin["targets"][0], &origin["targets"][1]];
    assert_eq!((&good["status"], &good["weight"]), (&"up".into(), &3.into()));
    assert!(good["latency_ms"].as_f64().expect("it succeeds") > 0.0 && good["reason"].is_null());
    assert_eq!(good["target"], upstream.address.to_string());
    assert_eq!(bad["status"], "ejected");
    assert!(bad["latency_ms"].is_null(), "it has never responded: {bad}");
    assert!(bad["reason"].as_str().expect("a text").contains("connect"), "{}", bad["reason"]);
    assert!(bad["since_ms"].as_u64().expect("it succeeds") > START.as_unix_ms());
    assert_eq!(good["connections"], 1);
}

#[test]
fn the_latency_of_a_target_stays_while_nothing_is_sent() {
    let upstream = Upstream::hello();
    let yaml = fill(
        "
        workers: 1
        upstreams: {origin: {targets: ['{target}']}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("target", upstream.target())],
    );
    let gateway = Gateway::start_at(&yaml, Clock::manual(START));
    assert_eq!(get(gateway.address(), "/", "").status, 200);
    let target = || {
        let listed = get(gateway.admin(), "/api/upstreams", "").json();
        listed["upstreams"][0]["targets"][0].clone()
    };
    eventually("no request is in flight", || target()["in_flight"] == 0);
    let measured = target()["latency_ms"].clone();
    assert!(measured.as_f64().is_some_and(|latency| latency > 0.0), "{measured}");
    gateway.clock.advance(Duration::from_mins(1));
    assert_eq!(target()["latency_ms"], measured);
}

/// Many failures of one upstream hide none of another, and each has its reason.
#[test]
fn every_upstream_and_reason_has_its_log_line() {
    let refusing = refusing();
    let broken = Upstream::with_handler(|_, socket| {
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel");
        false
    });
    let malformed = Upstream::with_response("HTTP/1.1 200 OK\r\nX : y\r\n\r\n");
    let directory = tempfile::tempdir().expect("a directory");
    let yaml = fill(
        "
        listen: [{address: '127.0.0.1:0'}]
        admin: {address: '127.0.0.1:0'}
        workers: 1
        upstreams:
          refusing: {targets: ['{refusing}'], ejection: {max_share: 0}}
          broken: {targets: ['{broken}'], ejection: {max_share: 0}}
          malformed: {targets: ['{malformed}'], ejection: {max_share: 0}}
        routes:
          - {name: refusing, match: {path: /refusing}, upstream: refusing}
          - {name: broken, match: {path: /broken}, upstream: broken}
          - {name: malformed, match: {path: /malformed}, upstream: malformed}
        ",
        [
            ("refusing", refusing.as_str()),
            ("broken", &broken.target()),
            ("malformed", &malformed.target()),
        ],
    );
    fs::write(directory.path().join("tidegate.yaml"), yaml).expect("a file");
    let command =
        crate::tidegate_command(directory.path(), &["serve", "--config", "tidegate.yaml"]);
    let mut process = Process::start(command);
    for path in ["/refusing", "/refusing", "/broken", "/malformed", "/refusing"] {
        let mut client = Client::connect(process.address);
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
        let _ = client.read_to_end();
    }
    process.signal(Signal::TERM);
    process.wait_exit();
    let log = process.log();
    for parts in [
        ["\"refusing\"", "no connection to the upstream"],
        ["\"broken\"", "the connection ended before the message did"],
        ["\"malformed\"", "the upstream failed"],
    ] {
        let is_line = |line: &str| parts.iter().all(|part| line.contains(part));
        assert!(log.lines().any(is_line), "{parts:?}: {log}");
    }
}

#[test]
fn a_change_of_health_is_one_log_line_with_its_reason() {
    let (upstream, refusing) = (Upstream::hello(), refusing());
    let directory = tempfile::tempdir().expect("a directory");
    let yaml = fill(
        "
        listen: [{address: '127.0.0.1:0'}]
        admin: {address: '127.0.0.1:0'}
        workers: 2
        upstreams: {origin: {targets: ['{refusing}', '{working}'], balance: round_robin}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("refusing", &refusing), ("working", &upstream.target())],
    );
    fs::write(directory.path().join("tidegate.yaml"), yaml).expect("a file");
    let command =
        crate::tidegate_command(directory.path(), &["serve", "--config", "tidegate.yaml"]);
    let mut process = Process::start(command);
    for _ in 0..40 {
        assert_eq!(get(process.address, "/", "").status, 200);
    }
    process.signal(Signal::TERM);
    process.wait_exit();
    let log = process.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("ejected")).collect();
    let [line] = lines[..] else { panic!("{log}") };
    let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
    let text = line.to_string();
    for part in ["\"origin\"", &refusing["http://".len()..], "connect failed: refused", "10000"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
