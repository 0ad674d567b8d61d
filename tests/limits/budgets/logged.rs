use std::{fs, path::Path};

use serde_json::{Value, json};
use testkit::{client::Client, gateway::Gateway, upstream::Upstream, yaml::fill};
use tidegate::clock::{Clock, ms};

use super::{JSON, NOW, plain, responses, scripted};
use testkit::commands::run;
use testkit::log_lines::read_lines;

/// An upstream whose response to `/N` reports N tokens; to another path, none.
fn metered() -> Upstream {
    Upstream::with_handler(|request, socket| {
        let text = String::from_utf8_lossy(request);
        let path = text.split(' ').nth(1).unwrap_or_default().trim_start_matches('/');
        let tokens: Option<u64> = path.parse().ok();
        let body = json!({"usage": {"total_tokens": tokens}}).to_string();
        let fields = format!("{JSON}X-Cost: 3\r\n");
        std::io::Write::write_all(socket, &plain(&fields, body.as_bytes())).is_ok()
    })
}

fn lines(log: &Path, count: usize) -> Vec<Value> {
    let text = read_lines(log, count);
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn the_access_line_has_the_cost_that_was_settled() {
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("access.log");
    let upstream = scripted();
    let yaml = fill(
        "
        access_log: '{log}'
        upstreams: {model: {targets: ['{upstream}'], retries: 0}}
        limits:
          tokens:
            quota: 100000
            window: 1h
            key: []
            cost: {estimate: 50, actual: 'json:usage.total_tokens', max: 200}
            refund: [503]
            candidate: {quota: 7}
          calls: {quota: 100000, window: 1h, key: [], cost: 2}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: model, limits: [tokens, calls]}
        ",
        [("log", log.to_str().expect("a path")), ("upstream", &upstream.target())],
    );
    let gateway = Gateway::start_at(&yaml, Clock::manual(NOW));
    for (path, ..) in responses() {
        let mut client = Client::connect(gateway.address());
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
        let _ = client.read_to_end();
    }
    let logged = lines(&log, responses().len());
    for (path, _, cost) in responses() {
        let line = logged.iter().find(|line| line["path"] == path).expect("a line");
        assert_eq!(line["cost"], json!({"tokens": cost}), "{line}");
    }
}

#[test]
fn only_limits_with_a_variable_cost_that_charged_are_logged() {
    let directory = tempfile::tempdir().expect("a directory");
    let (log, text) = (directory.path().join("access.log"), directory.path().join("text.log"));
    let upstream = metered();
    let yaml = |log: &str| {
        fill(
            "
            access_log: {log}
            upstreams: {app: {targets: ['{upstream}']}, gone: {targets: ['http://127.0.0.1:1']}}
            limits:
              fixed: {quota: 9, window: 1h, key: [], cost: 2}
              sent: {quota: 9, window: 1h, key: [], cost: 'header:x-units'}
              answered: {quota: 9, window: 1h, key: [], cost: 'response:x-cost'}
              settled: {quota: 100, window: 1h, key: [], cost: {actual: 'header:x-cost', estimate: 40}}
              watching: {quota: 1, window: 1h, key: [], enforce: false, cost: {actual: bytes, estimate: 2}}
            routes:
              - {name: plain, match: {path: /1}, upstream: app, limits: [fixed]}
              - {name: none, match: {path: /2}, upstream: app}
              - {name: gone, match: {path: /gone}, upstream: gone, limits: [settled]}
              - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [fixed, sent, answered, settled, watching]}
            ",
            [("log", log), ("upstream", &upstream.target())],
        )
    };
    let file = |path: &Path| path.to_str().expect("a path").to_owned();
    let gateway = Gateway::start_at(&yaml(&file(&log)), Clock::manual(NOW));
    let mut client = Client::connect(gateway.address());
    for (path, status) in [("/1", 200), ("/2", 200), ("/3", 200), ("/gone", 502), ("/4", 429)] {
        assert_eq!(client.get(path, "X-Units: 5\r\n").status, status, "{path}");
    }
    let costs = [
        Value::Null,
        Value::Null,
        json!({"sent": 5, "answered": 3, "settled": 3}),
        json!({"settled": 0}),
        Value::Null,
    ];
    for (line, cost) in lines(&log, 5).iter().zip(costs) {
        assert_eq!(line["cost"], cost, "{line}");
    }
    let access_log = format!("{{to: '{}', format: text}}", file(&text));
    let gateway = Gateway::start_at(&yaml(&access_log), Clock::manual(NOW));
    assert_eq!(Client::connect(gateway.address()).get("/3", "").status, 200);
    let line = read_lines(&text, 1);
    assert!(line.contains(" cost=sent:1,answered:3,settled:3 "), "{line}");
}

#[test]
fn replay_charges_the_costs_that_were_settled() {
    const COSTS: [u64; 12] = [30, 0, 76, 12, 1, 90, 7, 55, 20, 2, 64, 3];
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("a path").to_owned();
    let (log, config) = (path("access.log"), path("t.yaml"));
    let upstream = metered();
    let yaml = fill(
        "
        access_log: '{log}'
        workers: 1
        upstreams: {model: {targets: ['{upstream}']}}
        limits:
          tokens:
            algorithm: fixed_window
            quota: 100000
            window: 1h
            key: []
            cost: {estimate: 40, actual: 'json:usage.total_tokens'}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: model, limits: [tokens]}
        ",
        [("log", &*log), ("upstream", &upstream.target())],
    );
    let clock = Clock::manual(NOW);
    let gateway = Gateway::start_at(&yaml, clock.clone());
    let mut client = Client::connect(gateway.address());
    for (n, cost) in COSTS.iter().enumerate() {
        clock.set(NOW + ms(n as u64));
        assert_eq!(client.get(&format!("/{cost}"), "").status, 200);
    }
    let logged = lines(log.as_ref(), COSTS.len());
    drop(gateway);

    let decisions = |yaml: &str, costs: &dyn Fn(usize) -> u64, quota: u64| {
        fs::write(&config, yaml).expect("a file");
        let decided = run(&["replay", "-c", &config, "--decisions", &log]);
        let mut used = 0;
        for (n, line) in decided.lines().enumerate() {
            let is_admitted = used + costs(n) <= quota;
            used += if is_admitted { costs(n) } else { 0 };
            let expected = if is_admitted { "admitted" } else { "refused" };
            assert_eq!(line.split('\t').nth(3), Some(expected), "{n}: {line}");
        }
        assert_eq!(decided.lines().count(), COSTS.len());
    };
    let tight = yaml.replace("quota: 100000", "quota: 150");
    decisions(&tight, &|n| COSTS[n], 150);
    let report = run(&["replay", "-c", &config, &log]);
    assert!(!report.contains("has no `cost`"), "{report}");
    let capped = tight.replace("total_tokens'", "total_tokens', max: 40");
    decisions(&capped, &|n| COSTS[n].min(40), 150);
    let cost = "{estimate: 40, actual: 'json:usage.total_tokens'}";
    decisions(&tight.replace(cost, "25"), &|_| 25, 150);

    // Without the field, the estimate is charged.
    let lacking = |n: usize| n.is_multiple_of(3);
    let text = logged.into_iter().enumerate().map(|(n, mut line)| {
        if lacking(n) {
            line.as_object_mut().expect("an object").remove("cost");
        }
        format!("{line}\n")
    });
    fs::write(&log, text.collect::<String>()).expect("a file");
    decisions(&tight, &|n| if lacking(n) { 40 } else { COSTS[n] }, 150);
    let report: Value =
        serde_json::from_str(&run(&["replay", "-c", &config, "--json", &log])).expect("JSON");
    assert_eq!(report["results"][0]["without_cost"], 4);
    let note = format!(
        "{config}: requests whose line has no `cost` of a limit: 4; each is charged the configured estimate, \
         or 1 if the request or its response has it: tokens"
    );
    assert!(
        report["notes"].as_array().is_some_and(|notes| notes.contains(&note.into())),
        "{report}"
    );
}
