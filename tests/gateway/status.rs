/// Configurations, secrets, and a store that is lost.
mod edges;
/// What the operator reads and resets.
mod operator;

use std::net::SocketAddr;

use serde_json::Value;
use tidegate::clock::Clock;

use crate::{
    client::{Client, Reply},
    gateway::Gateway,
    stage::{Fleet, on_every_store},
};

/// The time at which these tests begin.
const NOW: u64 = 1_700_000_000_000;

const ALGORITHMS: [&str; 5] = [
    "algorithm: sliding_window, resolution: 6",
    "algorithm: sliding_window, strict: true",
    "algorithm: sliding_log",
    "algorithm: fixed_window",
    "algorithm: token_bucket",
];

/// A route under the limit `calls`, and one that tells of it.
fn telling(limit: &str) -> String {
    format!(
        "client: {{token: [header:authorization], trusted_proxies: [127.0.0.0/8]}}
upstreams: {{hello: {{respond: {{body: hello}}}}}}
limits: {{calls: {{{limit}}}}}
routes:
  - {{name: all, match: {{path: '/{{*rest}}'}}, upstream: hello, limits: [calls]}}
  - {{name: rate-limit, match: {{path: /rate_limit}}, status: [calls]}}
"
    )
}

/// What the limit `calls` tells on the status route.
fn told(reply: &Reply) -> [u64; 4] {
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.header("cache-control"), Some("no-store"));
    numbers(&reply.json()["resources"]["calls"], ["limit", "remaining", "used", "reset"])
}

fn numbers<const N: usize>(object: &Value, names: [&str; N]) -> [u64; N] {
    names.map(|name| object[name].as_u64().unwrap_or_else(|| panic!("no {name} in {object}")))
}

/// The same in an answer's headers.
fn headers(reply: &Reply) -> [u64; 4] {
    ["limit", "remaining", "used", "reset"].map(|name| reply.number(&format!("x-ratelimit-{name}")))
}

/// Asks the admin of one gateway. `target` is what follows `/api/limits`.
fn admin(gateway: &Gateway, method: &str, target: &str, headers: &str) -> Reply {
    admin_at(gateway.admin(), method, target, headers)
}

fn admin_at(address: SocketAddr, method: &str, target: &str, headers: &str) -> Reply {
    let mut client = Client::connect(address);
    client
        .send(format!("{method} /api/limits{target} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n"));
    client.reply()
}

/// What every gateway's admin tells of `target`, in the form of [`told`].
fn operators(fleet: &Fleet, target: &str) -> [u64; 4] {
    let mut all = fleet.gateways.iter().map(|gateway| {
        let reply = admin(gateway, "GET", target, "");
        assert_eq!(reply.status, 200, "{}", reply.text());
        let state = reply.json();
        let [limit, remaining, used] = numbers(&state, ["limit", "remaining", "used"]);
        let reset = state["reset_at_ms"].as_u64().expect("a reset");
        let reset = reset.max(state["retry_at_ms"].as_u64().unwrap_or(0)).div_ceil(1000);
        assert_eq!(state["blocked"], Value::from(remaining == 0));
        assert_eq!(state["retry_at_ms"].is_null(), remaining > 0, "{state}");
        [limit, remaining, used, reset]
    });
    let first = all.next().expect("a gateway");
    assert!(all.all(|other| other == first));
    first
}

#[test]
fn what_is_told_is_what_the_headers_say_and_asking_charges_nothing() {
    for algorithm in ALGORITHMS {
        let yaml = telling(&format!("{algorithm}, quota: 4, window: 1h, key: [token]"));
        on_every_store(|stage| {
            let clock = Clock::manual(NOW);
            let fleet = stage.start(&yaml, &clock);
            let ask = || told(&fleet.get_as("Bearer a", "/rate_limit"));
            for _ in 0..100 {
                assert_eq!(ask(), [4, 4, 0, NOW / 1000], "{algorithm}");
            }
            for used in 1..=4 {
                let reply = fleet.get_as("Bearer a", "/x");
                assert_eq!((reply.status, reply.number("x-ratelimit-used")), (200, used));
                assert_eq!(ask(), headers(&reply), "{algorithm}");
                assert_eq!(operators(&fleet, "/calls?key=Bearer%20a"), ask(), "{algorithm}");
                clock.set(NOW + 7_001 * used);
            }
            for _ in 0..100 {
                ask();
            }
            clock.set(NOW + 30_000);
            let refused = fleet.get_as("bearer  a", "/x");
            assert_eq!(refused.status, 429, "{algorithm}");
            assert_eq!(ask(), headers(&refused), "{algorithm}");
            assert_eq!(operators(&fleet, "/calls?key=bearer++a"), ask(), "{algorithm}");
            let [_, remaining, used, _] = told(&fleet.get_as("Bearer b", "/rate_limit"));
            assert_eq!((remaining, used), (4, 0), "another caller");
            // Expired, and not yet swept: a caller never seen.
            clock.set(NOW + 3 * 3_600_000);
            assert_eq!(ask(), [4, 4, 0, clock.now() / 1000], "{algorithm}");
            assert_eq!(operators(&fleet, "/calls?key=Bearer+a"), ask(), "{algorithm}");
        });
    }
}

#[test]
fn the_time_to_come_again_is_told_to_the_operator() {
    for algorithm in ALGORITHMS {
        let yaml = telling(&format!("{algorithm}, quota: 4, window: 1m, key: [], cost: 3"));
        on_every_store(|stage| {
            let clock = Clock::manual(NOW + 123);
            let fleet = stage.start(&yaml, &clock);
            assert_eq!(fleet.get("/x", "").status, 200);
            let state = admin(&fleet.gateways[0], "GET", "/calls", "").json();
            assert_eq!((&state["remaining"], &state["blocked"]), (&1.into(), &true.into()));
            assert_eq!(state["now_ms"], NOW + 123);
            let retry_at = state["retry_at_ms"].as_u64().expect("a time");
            clock.set(retry_at - 1);
            assert_eq!(fleet.get("/x", "").status, 429, "{algorithm}: a ms too early");
            clock.set(retry_at);
            assert_eq!(fleet.get("/x", "").status, 200, "{algorithm}");
        });
    }
}

#[test]
fn a_callers_own_quota_and_key_are_told() {
    let yaml = telling(
        "quota: 3, window: 1h, key: [token, client_ip], cost: header:X-Cost, tiers: [
            {match: {part: 'header:x-plan', values: [gold]}, quota: 10},
            {match: {part: token, values: [vip]}, quota: 20}]",
    );
    on_every_store(|stage| {
        let fleet = stage.start(&yaml, &Clock::manual(NOW));
        for (who, more, quota, tier) in [
            ("plain", "", 3, ""),
            ("golden", "X-Plan: gold\r\n", 10, "&tier=0"),
            ("vip", "", 20, "&tier=1"),
            ("far", "X-Forwarded-For: 2001:db8::7\r\n", 3, ""),
        ] {
            let sent = format!("Authorization: {who}\r\n{more}");
            let paid = headers(&fleet.get("/x", &format!("{sent}X-Cost: 2\r\n")));
            assert_eq!(paid[..3], [quota, quota - 2, 2], "{who}");
            // A cost that makes no sense is none here: nothing is charged.
            let state = told(&fleet.get("/rate_limit", &format!("{sent}X-Cost: no\r\n")));
            assert_eq!(state, paid, "{who}");
            let address = if who == "far" { "2001:db8::99" } else { "127.0.0.1" };
            let target = format!("/calls?key={who}&key={address}{tier}");
            assert_eq!(operators(&fleet, &target), paid, "{who}");
        }
        let elsewhere = told(&fleet.get_as("golden", "/rate_limit"));
        assert_eq!(elsewhere[..3], [3, 1, 2], "without the header, what is used stays");
        let twice = "Authorization: a\r\nAuthorization: b\r\n";
        assert_eq!(fleet.get("/rate_limit", twice).status, 400);
    });
}

#[test]
fn a_caller_without_a_token_reads_the_count_of_its_address() {
    let yaml = telling("quota: 3, window: 1h, key: [token]");
    on_every_store(|stage| {
        let fleet = stage.start(&yaml, &Clock::manual(NOW));
        let paid = headers(&fleet.get("/x", ""));
        assert_eq!(told(&fleet.get("/rate_limit", "")), paid);
        assert_eq!(operators(&fleet, "/calls?key=&client_ip=127.0.0.1"), paid);
        let other = told(&fleet.get("/rate_limit", "X-Forwarded-For: 192.0.2.1\r\n"));
        assert_eq!(other[2], 0);
    });
}

#[test]
fn the_route_itself_is_charged_as_any_other() {
    let yaml = "upstreams: {hello: {respond: {body: hello}}}
limits:
  calls: {quota: 5, window: 1h, key: ['path:team']}
  status: {quota: 2, window: 1h, key: []}
  shadow: {quota: 1, window: 1h, key: [], enforce: false, candidate: {quota: 7}}
routes:
  - {name: all, match: {path: '/teams/{team}'}, upstream: hello, limits: [calls, shadow]}
  - {name: rate-limit, match: {path: '/teams/{team}/limits'}, status: [shadow, calls], limits: [status]}
";
    on_every_store(|stage| {
        let fleet = stage.start(yaml, &Clock::manual(NOW));
        for team in ["a", "a", "b"] {
            assert_eq!(fleet.get(&format!("/teams/{team}"), "").status, 200);
        }
        for (team, used, left) in [("a", 2, 1), ("b", 1, 0)] {
            let reply = fleet.get(&format!("/teams/{team}/limits"), "");
            assert_eq!(told(&reply)[2], used, "{team}");
            assert_eq!(reply.header("x-ratelimit-resource"), Some("status"));
            assert_eq!(reply.number("x-ratelimit-remaining"), left);
            let resources = &reply.json()["resources"];
            assert_eq!(resources.as_object().map(serde_json::Map::len), Some(2), "{resources}");
            assert_eq!(resources["shadow"]["remaining"], 0, "it is asked for by name");
        }
        let refused = fleet.get("/teams/a/limits", "");
        assert_eq!(refused.status, 429);
        assert_eq!(refused.json()["violated-policies"], serde_json::json!(["status"]));
    });
}

#[test]
fn other_methods_are_answered_alike() {
    let gateway = Gateway::start_at(&telling("quota: 3, window: 1h"), Clock::manual(NOW));
    let mut client = Client::connect(gateway.address());
    client.send("HEAD /rate_limit HTTP/1.1\r\nHost: a\r\n\r\n");
    let (status, head) = client.head().expect("a head");
    assert!(status == 200 && head.to_ascii_lowercase().contains("content-length: "), "{head}");
    client.send("POST /rate_limit HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!(told(&client.reply())[..3], [3, 3, 0]);
    assert_eq!(
        told(&client.get("/rate_limit", ""))[..3],
        [3, 3, 0],
        "the body was read to its end"
    );
}
