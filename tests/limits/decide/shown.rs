use std::fs;

use testkit::{client::Client, gateway::Gateway};

use super::about;
use testkit::commands::run;
use testkit::log_lines::read_lines;

const RULES: &str = "
client: {trusted_proxies: [127.0.0.1/32]}
upstreams: {app: {respond: {body: app}}}
limits:
  each: {quota: 3, window: 1h, key: [client_ip, method, path]}
  few: {quota: 1, window: 1h, key: []}
routes:
  - {name: asked, match: {path: /asked}, limits: [each], decide: {refuse_status: 403}}
  - {name: items, match: {path: '/items/{*rest}'}, upstream: app, limits: [few]}
";

#[test]
fn explain_shows_the_asked_request() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("tidegate.yaml");
    fs::write(&file, RULES).expect("a file");
    let file = file.to_str().expect("a path");
    let fields =
        ["X-Forwarded-Method: PUT", "X-Forwarded-Uri: /items/7?x=1", "X-Forwarded-For: 192.0.2.7"];
    let explain = |fields: &[&str], more: &[&str]| {
        let fields: Vec<&str> = fields.iter().flat_map(|line| ["-H", line]).collect();
        run(&[&["explain", file, "/asked"][..], &fields, more].concat())
    };
    let text = explain(&fields, &[]);
    for line in [
        "request    PUT /items/7 for host `localhost` from 192.0.2.7\n",
        "           a proxy asks about it by GET /asked\n",
        "route      asked\n",
        "response   204: ",
        "x-ratelimit-remaining: 2\n",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&explain(&fields, &["--json"])).expect("JSON");
    assert_eq!((&json["method"], &json["path"]), (&"PUT".into(), &"/items/7".into()));
    assert_eq!(json["question"], "GET /asked");
    let text = explain(&fields, &["--client", "198.51.100.1"]);
    assert!(text.contains("response   403: only proxies in `client.trusted_proxies`"), "{text}");
    let text = explain(&fields[..1], &[]);
    assert!(text.contains("response   400, sent as 403: no request is asked about"), "{text}");
}

#[test]
fn the_log_shows_the_asked_requests_and_replay_decides_them_alike() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("a path").to_owned();
    let (log, config) = (path("access.log"), path("tidegate.yaml"));
    fs::write(&config, RULES).expect("a file");
    let gateway = Gateway::start(&format!("access_log: {log}\nworkers: 1\n{RULES}"));
    let mut client = Client::connect(gateway.address());
    for uri in ["/items/7?secret=1", "/items/7", "/items/../items/7", "/items/7", "/other"] {
        client.get("/asked", &about("PUT", "api.test", uri));
    }
    client.get("/asked", "");
    assert_eq!(client.get("/items/7", "X-Forwarded-For: 192.0.2.1\r\n").status, 200);
    let lines = read_lines(log.as_ref(), 7);
    drop(gateway);
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let shown = |name: &str| -> Vec<String> {
        lines.iter().map(|line| line[name].to_string().replace('"', "")).collect()
    };
    let [item, other] = ["/items/7", "/other"];
    assert_eq!(shown("path"), [item, item, item, item, other, "/asked", item]);
    assert_eq!(shown("method"), ["PUT", "PUT", "PUT", "PUT", "PUT", "GET", "GET"]);
    assert_eq!(shown("host")[..5], ["api.test"; 5]);
    assert_eq!(
        shown("client"),
        ["192.0.2.1"; 5].into_iter().chain(["127.0.0.1", "192.0.2.1"]).collect::<Vec<_>>()
    );
    // The status of the refusal, not the one that nginx accepts.
    assert_eq!(shown("status"), ["204", "204", "204", "429", "204", "400", "200"]);
    assert_eq!(shown("route")[..6], ["asked"; 6]);

    let replayed = run(&["replay", "--config", &config, "--decisions", &log]);
    let decisions: Vec<Vec<&str>> =
        replayed.lines().map(|line| line.split('\t').collect()).collect();
    let routes: Vec<&str> = decisions.iter().map(|decision| decision[2]).collect();
    let verdicts: Vec<&str> = decisions.iter().map(|decision| decision[3]).collect();
    assert_eq!(verdicts, shown("limit"));
    assert_eq!(routes[..5], ["asked"; 5]);
    assert_eq!(routes[6], "items");
}
