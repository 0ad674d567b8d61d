//! The status route, and the admin API of limits.

/// Reloads, secrets, and outages of the store.
mod edges;
/// The admin API's reads and resets.
mod operator;
/// Limits that count by parts which a request to the status route may lack.
mod parts;

use std::net::SocketAddr;

use serde_json::Value;
use testkit::{
    backend::{Fleet, MEMORY_BY_PROTOCOL_AND_REDIS, on_each},
    client::{Client, Response},
    gateway::Gateway,
    protocol::on_every_protocol,
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime, ms};

/// The start of the manual clock.
const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

const ALGORITHMS: [&str; 5] = [
    "algorithm: sliding_window, resolution: 6",
    "algorithm: sliding_window, strict: true",
    "algorithm: sliding_log",
    "algorithm: fixed_window",
    "algorithm: token_bucket",
];

/// Three calls an hour for each token, and a status route.
const THREE_PER_TOKEN: &str = "
client: {trusted_proxies: [127.0.0.0/8]}
upstreams: {hello: {respond: {body: hello}}}
limits:
  calls: {quota: 3, window: 1h, key: [token]}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [calls]}
  - {name: rate-limit, match: {path: /rate_limit}, status: [calls]}
";

/// Limit, remaining, used and reset of `calls` by the status route.
fn status_of(response: &Response) -> [u64; 4] {
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(response.header("cache-control"), Some("no-store"));
    numbers(&response.json()["resources"]["calls"], ["limit", "remaining", "used", "reset"])
}

fn numbers<const N: usize>(object: &Value, names: [&str; N]) -> [u64; N] {
    names.map(|name| object[name].as_u64().unwrap_or_else(|| panic!("no {name} in {object}")))
}

/// Limit, remaining, used and reset by the headers of a response.
fn headers(response: &Response) -> [u64; 4] {
    ["limit", "remaining", "used", "reset"]
        .map(|name| response.number(&format!("x-ratelimit-{name}")))
}

/// Queries one gateway's admin API. `target` follows `/api/limits`.
fn admin(gateway: &Gateway, method: &str, target: &str, headers: &str) -> Response {
    admin_at(gateway.admin(), method, target, headers)
}

fn admin_at(address: SocketAddr, method: &str, target: &str, headers: &str) -> Response {
    let mut client = Client::connect(address);
    client
        .send(format!("{method} /api/limits{target} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n"));
    client.read_response()
}

/// The state of `target` by the admin API, which must be the same on every gateway.
fn admin_state(fleet: &Fleet, target: &str) -> [u64; 4] {
    let mut all = fleet.gateways.iter().map(|gateway| {
        let response = admin(gateway, "GET", target, "");
        assert_eq!(response.status, 200, "{}", response.text());
        let state = response.json();
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
fn the_status_matches_the_headers_and_charges_nothing() {
    for algorithm in ALGORITHMS {
        let yaml = fill(
            "
            upstreams: {hello: {respond: {body: hello}}}
            limits:
              calls: {{algorithm}, quota: 4, window: 1h, key: [token]}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [calls]}
              - {name: rate-limit, match: {path: /rate_limit}, status: [calls]}
            ",
            [("algorithm", algorithm)],
        );
        on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
            let clock = Clock::manual(NOW);
            let fleet = backend.start(&yaml, &clock);
            let ask = || status_of(&fleet.get_as("Bearer a", "/rate_limit"));
            for _ in 0..100 {
                assert_eq!(ask(), [4, 4, 0, NOW.as_unix_ms() / 1000], "{algorithm}");
            }
            for used in 1..=4 {
                let response = fleet.get_as("Bearer a", "/x");
                assert_eq!((response.status, response.number("x-ratelimit-used")), (200, used));
                assert_eq!(ask(), headers(&response), "{algorithm}");
                assert_eq!(admin_state(&fleet, "/calls?key=Bearer%20a"), ask(), "{algorithm}");
                clock.set(NOW + ms(7_001 * used));
            }
            for _ in 0..100 {
                ask();
            }
            clock.set(NOW + ms(30_000));
            let refused = fleet.get_as("bearer  a", "/x");
            assert_eq!(refused.status, 429, "{algorithm}");
            assert_eq!(ask(), headers(&refused), "{algorithm}");
            assert_eq!(admin_state(&fleet, "/calls?key=bearer++a"), ask(), "{algorithm}");
            let [_, remaining, used, _] = status_of(&fleet.get_as("Bearer b", "/rate_limit"));
            assert_eq!((remaining, used), (4, 0), "another caller");
            // An expired counter, not yet swept, is reported like an unknown caller.
            clock.set(NOW + ms(3 * 3_600_000));
            assert_eq!(ask(), [4, 4, 0, clock.store_time().as_unix_ms() / 1000], "{algorithm}");
            assert_eq!(admin_state(&fleet, "/calls?key=Bearer+a"), ask(), "{algorithm}");
        });
    }
}

#[test]
fn retry_at_is_reported_to_the_operator() {
    for algorithm in ALGORITHMS {
        let yaml = fill(
            "
            upstreams: {hello: {respond: {body: hello}}}
            limits:
              calls: {{algorithm}, quota: 4, window: 1m, key: [], cost: 3}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [calls]}
              - {name: rate-limit, match: {path: /rate_limit}, status: [calls]}
            ",
            [("algorithm", algorithm)],
        );
        on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
            let clock = Clock::manual(NOW + ms(123));
            let fleet = backend.start(&yaml, &clock);
            assert_eq!(fleet.get("/x", "").status, 200);
            let state = admin(&fleet.gateways[0], "GET", "/calls", "").json();
            assert_eq!((&state["remaining"], &state["blocked"]), (&1.into(), &true.into()));
            assert_eq!(state["now_ms"], (NOW + ms(123)).as_unix_ms());
            let retry_at = state["retry_at_ms"].as_u64().expect("a time");
            let retry_at = StoreTime::from_unix_ms(retry_at);
            clock.set(retry_at - ms(1));
            assert_eq!(fleet.get("/x", "").status, 429, "{algorithm}: a ms too early");
            clock.set(retry_at);
            assert_eq!(fleet.get("/x", "").status, 200, "{algorithm}");
        });
    }
}

#[test]
fn a_callers_quota_and_key_are_reported() {
    let yaml = "
        client: {trusted_proxies: [127.0.0.0/8]}
        upstreams: {hello: {respond: {body: hello}}}
        limits:
          calls:
            quota: 3
            window: 1h
            key: [token, client_ip]
            cost: header:X-Cost
            tiers:
              - {match: {part: 'header:x-plan', values: [gold]}, quota: 10}
              - {match: {part: token, values: [vip]}, quota: 20}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [calls]}
          - {name: rate-limit, match: {path: /rate_limit}, status: [calls]}
        ";
    on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
        let fleet = backend.start(yaml, &Clock::manual(NOW));
        for (who, more, quota, tier) in [
            ("plain", "", 3, ""),
            ("golden", "X-Plan: gold\r\n", 10, "&tier=0"),
            ("vip", "", 20, "&tier=1"),
            ("far", "X-Forwarded-For: 2001:db8::7\r\n", 3, ""),
        ] {
            let sent = format!("Authorization: {who}\r\n{more}");
            let charged = headers(&fleet.get("/x", &format!("{sent}X-Cost: 2\r\n")));
            assert_eq!(charged[..3], [quota, quota - 2, 2], "{who}");
            // The status route charges nothing and ignores an invalid cost.
            let state = status_of(&fleet.get("/rate_limit", &format!("{sent}X-Cost: no\r\n")));
            assert_eq!(state, charged, "{who}");
            let address = if who == "far" { "2001:db8::99" } else { "127.0.0.1" };
            let target = format!("/calls?key={who}&key={address}{tier}");
            assert_eq!(admin_state(&fleet, &target), charged, "{who}");
        }
        let elsewhere = status_of(&fleet.get_as("golden", "/rate_limit"));
        assert_eq!(elsewhere[..3], [3, 1, 2], "without the header, the usage stays");
        let twice = "Authorization: a\r\nAuthorization: b\r\n";
        assert_eq!(fleet.get("/rate_limit", twice).status, 400);
    });
}

#[test]
fn a_caller_without_a_token_gets_the_status_of_its_address() {
    on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
        let fleet = backend.start(THREE_PER_TOKEN, &Clock::manual(NOW));
        let charged = headers(&fleet.get("/x", ""));
        assert_eq!(status_of(&fleet.get("/rate_limit", "")), charged);
        assert_eq!(admin_state(&fleet, "/calls?key=&client_ip=127.0.0.1"), charged);
        let other = status_of(&fleet.get("/rate_limit", "X-Forwarded-For: 192.0.2.1\r\n"));
        assert_eq!(other[2], 0);
    });
}

#[test]
fn the_status_route_is_charged_by_its_own_limits() {
    let yaml = "
        upstreams: {hello: {respond: {body: hello}}}
        limits:
          calls: {quota: 5, window: 1h, key: ['path:team']}
          status: {quota: 2, window: 1h, key: []}
          shadow: {quota: 1, window: 1h, key: [], enforce: false, candidate: {quota: 7}}
        routes:
          - {name: all, match: {path: '/teams/{team}'}, upstream: hello, limits: [calls, shadow]}
          - {name: rate-limit, match: {path: '/teams/{team}/limits'}, status: [shadow, calls], limits: [status]}
        ";
    on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
        let fleet = backend.start(yaml, &Clock::manual(NOW));
        for team in ["a", "a", "b"] {
            assert_eq!(fleet.get(&format!("/teams/{team}"), "").status, 200);
        }
        for (team, used, left) in [("a", 2, 1), ("b", 1, 0)] {
            let response = fleet.get(&format!("/teams/{team}/limits"), "");
            assert_eq!(status_of(&response)[2], used, "{team}");
            assert_eq!(response.header("x-ratelimit-resource"), Some("status"));
            assert_eq!(response.number("x-ratelimit-remaining"), left);
            let resources = &response.json()["resources"];
            assert_eq!(resources.as_object().map(serde_json::Map::len), Some(2), "{resources}");
            assert_eq!(resources["shadow"]["remaining"], 0, "`status` may name a shadow limit");
        }
        let refused = fleet.get("/teams/a/limits", "");
        assert_eq!(refused.status, 429);
        assert_eq!(refused.json()["violated-policies"], serde_json::json!(["status"]));
    });
}

#[test]
fn the_status_route_handles_every_method() {
    let gateway = Gateway::for_every_protocol_at(THREE_PER_TOKEN, Clock::manual(NOW));
    on_every_protocol(|protocol| {
        let mut client = protocol.connect(&gateway);
        let head = client.ask("HEAD", "/rate_limit", "", "");
        assert!(head.status == 200 && head.number("content-length") > 0, "{}", head.head);
        let post = client.ask("POST", "/rate_limit", "", "hello");
        assert_eq!(status_of(&post)[..3], [3, 3, 0]);
        assert_eq!(
            status_of(&client.get("/rate_limit", ""))[..3],
            [3, 3, 0],
            "the body was read to its end"
        );
    });
}
