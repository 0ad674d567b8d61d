use std::fs;

use serde_json::Value;
use testkit::{client::Client, gateway::Gateway, protocol::on_every_protocol, upstream::Upstream};

use testkit::commands::run;
use testkit::log_lines::read_lines;

/// Routes with and without `allow` and `deny`, behind a trusted proxy: the client of the test.
fn rules(upstream: &Upstream, log: &str) -> String {
    format!(
        "access_log: {log}
workers: 1
client: {{trusted_proxies: [127.0.0.1/32]}}
upstreams: {{app: {{targets: [{}]}}}}
limits: {{few: {{quota: 2, window: 1h, key: []}}}}
routes:
  - name: inside
    match: {{path: /inside}}
    upstream: app
    limits: [few]
    allow: [10.0.0.0/8, 2001:db8::/32]
    deny: [10.1.0.0/16]
  - {{name: open, match: {{path: /open}}, upstream: app, deny: ['::ffff:192.0.2.0/120']}}
",
        upstream.target()
    )
}

fn from(address: &str) -> String {
    format!("X-Forwarded-For: {address}\r\n")
}

#[test]
fn only_admitted_clients_reach_the_upstream() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = Gateway::for_every_protocol(&rules(&upstream, "off"));
        let get = |path: &str, address: &str| protocol.get(&gateway, path, from(address));
        for address in ["192.0.2.1", "10.1.2.3", "::ffff:10.1.2.3", "2001:db9::1", "unknown"] {
            let refused = get("/inside", address);
            assert_eq!(refused.status, 403, "{address}");
            assert_eq!(refused.header("content-type"), Some("application/problem+json"));
            let problem = refused.json();
            assert_eq!(
                (&problem["type"], &problem["title"]),
                (&"about:blank".into(), &"Forbidden".into())
            );
            let expected = match address {
                "unknown" => "the trusted proxy in front of this gateway names no client address",
                _ => "this client's address is not allowed to use this route",
            };
            assert!(
                problem["detail"].as_str().is_some_and(|text| text.starts_with(expected)),
                "{problem}"
            );
            assert!(refused.header("x-ratelimit-used").is_none(), "{}", refused.head);
        }
        assert_eq!(upstream.request_count(), 0);
        // Refused requests are not charged.
        for (used, address) in [(1, "::ffff:10.2.0.1"), (2, "2001:db8::1")] {
            let response = get("/inside", address);
            assert_eq!((response.status, response.number("x-ratelimit-used")), (200, used));
        }
        assert_eq!(get("/inside", "10.2.0.1").status, 429);
        for (address, status) in [("192.0.2.7", 403), ("192.0.3.7", 200), ("2001:db8::7", 200)] {
            assert_eq!(get("/open", address).status, status, "{address}");
        }
        // The proxy names no client.
        let unnamed = protocol.get(&gateway, "/open", "");
        assert_eq!(unnamed.status, 403);
        assert!(unnamed.text().contains("expected X-Forwarded-For or Forwarded from the proxy"));
        let denied = |route: &str| {
            gateway.metric(&format!("tidegate_access_denied_total{{route=\"{route}\"}}"))
        };
        assert_eq!((denied("inside"), denied("open")), (5, 2));
    });
}

#[test]
fn a_refused_request_with_a_body_leaves_the_connection_usable() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = Gateway::for_every_protocol(&rules(&upstream, "off"));
        let mut client = protocol.connect(&gateway);
        for _ in 0..2 {
            let refused = client.ask("POST", "/inside", from("192.0.2.1"), "some body");
            assert_eq!(refused.status, 403);
        }
        assert_eq!(client.get("/inside", from("10.0.0.1")).status, 200);
        assert_eq!(upstream.request_count(), 1);
    });
}

#[test]
fn without_trusted_proxies_the_connection_counts() {
    let upstream = Upstream::hello();
    let yaml =
        rules(&upstream, "off").replace("trusted_proxies: [127.0.0.1/32]", "ipv6_prefix: 64");
    let yaml = yaml.replace("allow: [10.0.0.0/8", "allow: [127.0.0.0/8");
    on_every_protocol(|protocol| {
        let gateway = Gateway::for_every_protocol(&yaml);
        assert_eq!(protocol.get(&gateway, "/inside", from("10.1.0.1")).status, 200);
    });
    let gateway = Gateway::start(&yaml.replace("127.0.0.0/8", "128.0.0.0/8"));
    assert_eq!(Client::connect(gateway.address()).get("/inside", &from("10.0.0.1")).status, 403);
}

#[test]
fn a_reload_changes_who_is_admitted() {
    let upstream = Upstream::hello();
    let yaml = rules(&upstream, "off");
    let gateway = Gateway::start(&yaml);
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.get("/open", &from("192.0.2.1")).status, 403);
    gateway.reload(&yaml.replace("192.0.2.0", "192.0.9.0")).expect("valid");
    assert_eq!(client.get("/open", &from("192.0.2.1")).status, 200);
}

#[test]
fn explain_and_replay_show_who_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("a path").to_owned();
    let (log, config, other) = (path("access.log"), path("tidegate.yaml"), path("other.yaml"));
    let upstream = Upstream::hello();
    let yaml = rules(&upstream, &log);
    fs::write(&config, &yaml).expect("a file");
    fs::write(&other, yaml.replace("10.1.0.0/16", "10.2.0.0/16")).expect("a file");
    let clients = ["10.0.0.1", "10.1.0.1", "10.1.0.2", "10.2.0.1", "192.0.2.1", "10.0.0.2"];
    {
        let gateway = Gateway::start(&yaml);
        for (index, address) in clients.iter().enumerate() {
            let response = Client::connect(gateway.address()).get("/inside", &from(address));
            let header = format!("X-Forwarded-For: {address}");
            let explained: Value = serde_json::from_str(&run(&[
                "explain", "-c", &config, "--json", "-H", &header, "/inside",
            ]))
            .expect("JSON");
            let decision = match response.status {
                403 => "denied",
                // `explain` is for unused quotas.
                _ => "admitted",
            };
            assert_eq!(explained["decision"], decision, "{address}");
            let is_limit = explained["limits"].as_array().is_some_and(|limits| !limits.is_empty());
            assert_eq!(is_limit, decision == "admitted", "a refused request charges nothing");
            if response.status == 403 {
                assert_eq!(explained["status"], 403);
                assert_eq!(response.json()["detail"], explained["reason"]);
            }
            assert_eq!((index, response.status), (index, [200, 403, 403, 200, 403, 429][index]));
        }
        read_lines(log.as_ref(), clients.len());
    }
    let decisions = run(&["replay", "-c", &config, "--decisions", &log]);
    let decided: Vec<_> = decisions.lines().filter_map(|line| line.split('\t').nth(3)).collect();
    assert_eq!(decided, ["admitted", "denied", "denied", "admitted", "denied", "refused"]);

    let report = run(&["replay", "-c", &config, "--compare", &other, "--json", &log]);
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["results"][0]["denied"], serde_json::json!({"inside": 3}));
    assert_eq!(report["results"][1]["denied"], serde_json::json!({"inside": 2}));
    assert_eq!(report["results"][0]["matched"], 3);
    assert_eq!(report["not_checked"], 0);
    // 10.2.0.1 is newly refused; 10.1.0.1 is newly admitted, and 10.1.0.2 exceeds the quota.
    let difference = &report["difference"];
    assert_eq!(
        (&difference["newly_refused"], &difference["newly_admitted"]),
        (&1.into(), &1.into())
    );
    let text = run(&["replay", "-c", &config, &log]);
    assert!(text.contains("; 3 denied by route inside"), "{text}");
}
