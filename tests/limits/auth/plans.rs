//! Limits by consumer, quotas of plans, and what the log, `explain` and `replay` show of them.

use serde_json::Value;
use testkit::api_keys::key;
use testkit::commands::run;
use testkit::log_lines::read_lines;
use testkit::{
    backend::{MEMORY_AND_REDIS, on_each},
    client::{Client, get},
    gateway::Gateway,
    protocol::on_every_protocol,
    upstream::Upstream,
};
use tidegate::clock::{Clock, StoreTime};

use super::{rules, start};
use crate::tidegate_command;

#[test]
fn a_consumer_has_the_quota_of_its_plan() {
    on_each(&MEMORY_AND_REDIS, |backend| {
        let upstream = Upstream::hello();
        let clock = Clock::manual(StoreTime::from_unix_ms(1_700_000_000_000));
        let yaml = rules(&upstream, "off", "off").replace("access_log: 'off'\n", "");
        let fleet = backend.start(&yaml, &clock);
        let get = |name: &str| fleet.get("/orders/1", &key(name));
        for used in 1..=4 {
            let response = get("acme");
            assert_eq!(response.status, 200);
            assert_eq!(
                (response.number("x-ratelimit-limit"), response.number("x-ratelimit-used")),
                (4, used)
            );
        }
        let refused = get("acme");
        assert_eq!((refused.status, refused.number("x-ratelimit-limit")), (429, 4));
        // `exports` has no quota of this plan, so its own applies.
        assert_eq!(get("bread").number("x-ratelimit-limit"), 1);
        assert_eq!(get("bread").status, 429);
        // Without a consumer, the address is counted under the limit's own quota.
        assert_eq!(fleet.get("/maybe", "").number("x-ratelimit-limit"), 1);
        assert_eq!(fleet.get("/maybe", "").status, 429);
    });
}

#[test]
fn refused_consumers_are_shown_by_name_and_counted_by_plan() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    let mut client = Client::connect(gateway.address());
    for (name, status) in [("acme", 200), ("bread", 200), ("bread", 429), ("bread", 429)] {
        assert_eq!(client.get("/orders/1", &key(name)).status, status);
    }
    let metric = |name: &str| gateway.metric(&format!("tidegate_plan_{name}"));
    assert_eq!(metric("requests_total{plan=\"free\"}"), 3);
    assert_eq!(metric("refused_total{plan=\"free\"}"), 2);
    assert_eq!(metric("requests_total{plan=\"gold\"}"), 1);
    assert_eq!(metric("refused_total{plan=\"gold\"}"), 0);
    let state = get(gateway.admin(), "/api/state", "").json();
    let caller = &state["refused_callers"][0];
    assert_eq!((&caller["consumer"], &caller["refused"]), (&"bread".into(), &2.into()));
    // Without a consumer, the hash alone.
    assert_eq!(client.get("/maybe", "").status, 200);
    assert_eq!(client.get("/maybe", "").status, 429);
    let state = get(gateway.admin(), "/api/state", "").json();
    assert_eq!(state["refused_callers"][1]["consumer"], Value::Null);
}

#[test]
fn a_plan_may_block_a_limit() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let yaml = rules(&upstream, "off", "off").replace("free: {each: 2}", "free: {exports: 0}");
        let gateway = Gateway::for_every_protocol(&yaml);
        let refused = protocol.get(&gateway, "/orders/1", key("bread"));
        assert_eq!(refused.status, 403, "{}", refused.head);
        let detail = "the plan of this consumer does not include this request";
        assert_eq!(refused.json()["detail"], detail);
        assert_eq!(protocol.get(&gateway, "/orders/1", key("acme")).status, 200);
        assert_eq!(protocol.get(&gateway, "/maybe", key("bread")).status, 200, "another limit");
        assert_eq!(upstream.request_count(), 2);
        // A dry run blocks nothing.
        let dry = yaml.replace("exports: {quota: 1,", "exports: {enforce: false, quota: 1,");
        let gateway = Gateway::for_every_protocol(&dry);
        assert_eq!(protocol.get(&gateway, "/orders/1", key("bread")).status, 200);
    });
}

#[test]
fn a_plan_precedes_a_tier_and_a_tier_may_name_a_plan() {
    let upstream = Upstream::hello();
    let tiers = "each: {tiers: [{match: {part: plan, values: [free]}, quota: 3}, {match: {part: consumer, values: \
                 [acme]}, quota: 9}], quota: 1,";
    let yaml = rules(&upstream, "off", "off")
        .replace("each: {quota: 1,", tiers)
        .replace("free: {each: 2}", "free: {}");
    let gateway = Gateway::start(&yaml);
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.get("/maybe", &key("acme")).number("x-ratelimit-limit"), 4, "the plan's");
    assert_eq!(client.get("/maybe", &key("bread")).number("x-ratelimit-limit"), 3, "the tier's");
}

#[test]
fn the_path_of_a_route_with_auth_may_be_counted() {
    let upstream = Upstream::hello();
    let yaml = rules(&upstream, "off", "off")
        .replace("limits: [each, exports]", "limits: [item]")
        .replace(
            "limits:\n",
            "limits:\n  item: {quota: 1, window: 1h, key: [consumer, 'path:id']}\n",
        );
    let gateway = Gateway::start(&yaml);
    let mut client = Client::connect(gateway.address());
    for (path, name, status) in [
        ("/orders/1", "acme", 200),
        ("/orders/1", "acme", 429),
        ("/orders/%31", "acme", 429),
        ("/orders/2", "acme", 200),
        ("/orders/1", "bread", 200),
    ] {
        assert_eq!(client.get(path, &key(name)).status, status, "{path} {name}");
    }
}

#[test]
fn the_log_explain_and_replay_name_the_consumer() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("a path").to_owned();
    let (log, config) = (path("access.log"), path("tidegate.yaml"));
    let upstream = Upstream::hello();
    let yaml = rules(&upstream, &log, "off");
    std::fs::write(&config, &yaml).expect("a file");
    {
        let gateway = Gateway::start(&yaml);
        let mut client = Client::connect(gateway.address());
        let requests = [
            ("/maybe", key("bread"), 200, "admitted"),
            ("/maybe", key("bread"), 200, "admitted"),
            ("/maybe", key("bread"), 429, "refused"),
            ("/maybe", String::new(), 200, "admitted"),
            ("/named", key("bread"), 403, "denied"),
            ("/named", key("nothing"), 401, "not_checked"),
        ];
        for (path, headers, status, _) in &requests {
            assert_eq!(client.get(path, headers).status, *status, "{path} {headers}");
        }
        gateway.stop();
        let text = read_lines(log.as_ref(), requests.len());
        for (line, (_, headers, _, admission)) in text.lines().zip(&requests) {
            let line: Value = serde_json::from_str(line).expect("JSON");
            let consumer = if headers.contains("bread") { "bread".into() } else { Value::Null };
            assert_eq!((&line["consumer"], &line["limit"]), (&consumer, &(*admission).into()));
        }
        assert!(!text.contains("key of"), "{text}");
    }
    let decisions = run(&["replay", &config, &log, "--decisions"]);
    let decided: Vec<bool> =
        ["admitted", "admitted", "refused", "admitted", "denied", "not_checked"]
            .iter()
            .zip(decisions.lines())
            .map(|(expected, line)| line.contains(expected))
            .collect();
    assert_eq!(decided, [true; 6], "{decisions}");
    let tried = run(&["replay", &config, &log, "--plan", "free=each:1"]);
    assert!(tried.contains("difference: 1 newly refused, 0 newly admitted"), "{tried}");
    let tried = run(&["replay", &config, &log, "--plan", "free=each:unlimited"]);
    assert!(tried.contains("difference: 0 newly refused, 1 newly admitted"), "{tried}");
    for (change, fault) in [
        ("fre=each:1", "unknown plan `fre`, expected `free`"),
        ("free=eech:1", "unknown limit `eech`, expected `each`"),
        ("free=each:many", "expected a quota such as 1000"),
        ("free=each:5/1m", "though the window of `each` is 1h"),
        ("free", "NAME=LIMIT:QUOTA"),
    ] {
        let arguments = ["replay", &config, &log, "--plan", change];
        let output = tidegate_command(directory.path(), &arguments).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(fault), "{change}: {text}");
    }
    let explained = run(&["explain", &config, "/orders/7", "--consumer", "acme"]);
    for part in
        ["consumer   acme, plan gold", "plan gold, with its own quota", "decision   admitted"]
    {
        assert!(explained.contains(part), "{part}: {explained}");
    }
    let by_key = run(&["explain", &config, "/orders/7", "-H", "x-api-key: key of bread"]);
    assert!(by_key.contains("consumer   bread, plan free"), "{by_key}");
    let refused = run(&["explain", &config, "/orders/7"]);
    assert!(refused.contains("response   401: the request has no credentials"), "{refused}");
    assert!(refused.contains("www-authenticate: "), "{refused}");
    let denied = run(&["explain", &config, "/named", "--consumer", "bread"]);
    assert!(denied.contains("decision   denied") && denied.contains("403"), "{denied}");
}

#[test]
fn an_open_route_is_as_before() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.get("/open", "").status, 200);
    assert!(upstream.request_texts()[0].to_ascii_lowercase().contains("get /open"));
}
