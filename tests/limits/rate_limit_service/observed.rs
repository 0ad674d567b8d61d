//! Access log, metrics and the admin API.

use serde_json::Value;
use testkit::{
    client::get,
    gateway::Gateway,
    rate_limit_client::{RateLimitClient, descriptor},
    yaml::{fill, without_indentation},
};
use tidegate::clock::Clock;

use super::{NOW, RULES, connect};
use testkit::log_lines::read_lines;

fn ask(client: &mut RateLimitClient, text: &str) -> bool {
    client.ask("edge", vec![descriptor(text)]).is_ok()
}

#[test]
fn a_call_has_a_line_in_the_access_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("access.log");
    let log = fill("access_log: {log}\n", [("log", file.display())]);
    let gateway =
        Gateway::start_at(&format!("{log}{}", without_indentation(RULES)), Clock::manual(NOW));
    let mut client = connect(&gateway);
    assert!(ask(&mut client, "user=a,path=/x") && ask(&mut client, "user=a,path=/x"));
    assert!(!ask(&mut client, "user=a,path=/x"));
    let _ = client.unary("/x.Y/Z", b"").expect_err("no such method");
    let lines = read_lines(&file, 4);
    let lines: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let shown = |line: &Value, key: &str| line[key].as_str().unwrap_or_default().to_owned();
    let route = "rate_limit_service:edge";
    for (line, limit, refused_by) in [
        (&lines[0], "admitted", ""),
        (&lines[1], "admitted", ""),
        (&lines[2], "refused", "per-path"),
    ] {
        assert_eq!(shown(line, "route"), route);
        assert_eq!(
            shown(line, "path"),
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
        );
        assert_eq!(
            (shown(line, "limit"), shown(line, "refused_by")),
            (limit.into(), refused_by.into())
        );
        assert_eq!(line["status"], 200);
    }
    assert_eq!((shown(&lines[3], "route"), &lines[3]["status"]), (String::new(), &404.into()));
}

#[test]
fn metrics_and_the_admin_api_count_calls_with_requests() {
    let gateway = Gateway::start_at(RULES, Clock::manual(NOW));
    let mut client = connect(&gateway);
    for _ in 0..2 {
        assert!(ask(&mut client, "user=a,path=/x"));
    }
    for _ in 0..3 {
        assert!(!ask(&mut client, "user=a,path=/x"));
    }
    let labels = "route=\"rate_limit_service:edge\",limit=\"per-path\"";
    let decided = |decision: &str| {
        gateway
            .metric(&format!("tidegate_limit_decisions_total{{{labels},decision=\"{decision}\"}}"))
    };
    assert_eq!((decided("admitted"), decided("refused")), (2, 3));
    let route = "tidegate_requests_total{route=\"rate_limit_service:edge\"";
    assert_eq!(gateway.metric(route), 5);
    let listed = get(gateway.admin(), "/api/limits", "").json();
    let mut limits = listed["limits"].as_array().expect("a list").iter();
    let limit = limits.find(|limit| limit["name"] == "per-path").expect("per-path");
    assert_eq!(
        (&limit["decisions"]["refused"], &limit["key"][0]),
        (&3.into(), &"descriptor:user".into())
    );
    let caller = "/api/limits/per-path?key=a+&key=%2Fx";
    let state = get(gateway.admin(), caller, "");
    assert_eq!(state.status, 200, "{}", state.text());
    assert_eq!(state.json()["remaining"], 0);
}
