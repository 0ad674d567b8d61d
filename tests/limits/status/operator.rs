//! The admin API of limits: what it reports, and resets.

use serde_json::json;
use testkit::{
    backend::{MEMORY_BY_PROTOCOL_AND_REDIS, on_each},
    client::get,
    gateway::Gateway,
    yaml::fill,
};
use tidegate::clock::Clock;

use super::{NOW, THREE_PER_TOKEN, admin, admin_state, headers, status_of};

#[test]
fn a_reset_takes_effect_on_every_gateway() {
    for algorithm in super::ALGORITHMS {
        let yaml = fill(
            "
            upstreams: {hello: {respond: {body: hello}}}
            limits:
              calls: {{algorithm}, quota: 3, window: 1h, key: [token], candidate: {quota: 2}}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [calls]}
              - {name: rate-limit, match: {path: /rate_limit}, status: [calls]}
            ",
            [("algorithm", algorithm)],
        );
        on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
            let fleet = backend.start(&yaml, &Clock::manual(NOW));
            for who in ["a", "b"] {
                for _ in 0..4 {
                    fleet.get_as(who, "/x");
                }
            }
            let reset = admin(&fleet.gateways[0], "DELETE", "/calls?key=a", "");
            assert_eq!((reset.status, &*reset.body), (204, &b""[..]), "{algorithm}");
            assert_eq!(admin_state(&fleet, "/calls?key=a")[..3], [3, 3, 0]);
            assert_eq!(status_of(&fleet.get_as("a", "/rate_limit"))[..3], [3, 3, 0]);
            for used in 1..=3 {
                let response = fleet.get_as("a", "/x");
                assert_eq!(headers(&response)[..3], [3, 3 - used, used], "{algorithm}");
            }
            assert_eq!(fleet.get_as("a", "/x").status, 429);
            assert_eq!(fleet.get_as("b", "/x").status, 429, "another caller's counter is kept");
            // The shadow limit admitted two of each caller, and two after the reset, which
            // therefore covers it.
            let listed = |gateway: &Gateway| {
                let limits = admin(gateway, "GET", "", "").json();
                let decided = &limits["limits"][0]["candidate"]["decisions"];
                [&decided["admitted"], &decided["would_refuse"]].map(|n| n.as_u64().unwrap_or(0))
            };
            let sums = fleet.gateways.iter().map(listed);
            let [admitted, would] =
                sums.fold([0, 0], |sum, own| [sum[0] + own[0], sum[1] + own[1]]);
            assert_eq!((admitted, would), (6, 7), "{algorithm}");
        });
    }
}

#[test]
fn a_caller_is_found_by_its_key_hash() {
    on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
        let Some(redis) = backend.redis_server() else { return };
        let fleet = backend.start(THREE_PER_TOKEN, &Clock::manual(NOW));
        let charged = headers(&fleet.get_as("a", "/x"));
        let names: Vec<String> = redis.command(&["KEYS", "tidegate:{*}:calls:*"]);
        let [name] = &names[..] else { panic!("{names:?}") };
        let hash = &name["tidegate:{".len()..][..32];
        assert_eq!(admin_state(&fleet, &format!("/calls?hash={hash}")), charged);
        let target = format!("/calls?hash={}", hash.to_ascii_uppercase());
        assert_eq!(admin(&fleet.gateways[1], "DELETE", &target, "").status, 204);
        let names: Vec<String> = redis.command(&["KEYS", "tidegate:{*}:calls:*"]);
        assert!(names.is_empty(), "{names:?}");
        assert_eq!(headers(&fleet.get_as("a", "/x")), charged, "the counter starts again");
    });
}

#[test]
fn a_limit_is_reported_with_its_decisions() {
    let gateway = Gateway::start_at(
        "
        upstreams: {hello: {respond: {body: hello}}}
        limits:
          calls:
            quota: 2
            window: 1m
            resolution: 3
            strict: true
            key: [token, 'header:X-Team', 'path:id']
            cost: header:X-Cost
            max_cost: 2
            tiers: [{match: {part: token, values: [tok-1, tok-2]}, quota: 50},
                    {match: {part: client_ip, values: [10.0.0.0/8]}, quota: 70},
                    {match: {part: route, values: [c]}, quota: unlimited}]
            candidate: {quota: 1}
            refund: [304]
            on_failure: closed
          watched: {algorithm: token_bucket, quota: 1, window: 1h, key: [], enforce: false}
        routes:
          - {name: a, match: {path: '/a/{id}'}, upstream: hello, limits: [calls, watched]}
          - {name: b, match: {path: '/b/{id}'}, upstream: hello, limits: [calls]}
        ",
        Clock::manual(NOW),
    );
    for path in ["/a/5", "/b/5", "/b/5"] {
        get(gateway.address(), path, "Authorization: t\r\n");
    }
    get(gateway.address(), "/a/6", "Authorization: t\r\n");
    let response = admin(&gateway, "GET", "", "");
    assert!(!response.text().contains("tok-"), "the values of a tier may be secret");
    let decided = |admitted: u32, refused: u32, would_refuse: u32| json!({"admitted": admitted, "refused": refused, "unknown": 0, "would_refuse": would_refuse});
    let wanted = json!({"limits": [
        {
            "name": "calls", "algorithm": "sliding_window", "quota": 2, "window_ms": 60_000, "calendar": null,
            "resolution": 3, "strict": true, "key": ["token", "header:x-team", "path:id"],
            "cost": {"header": "x-cost", "max_cost": 2},
            "tiers": [
                {"part": "token", "values": 2, "quota": 50},
                {"part": "client_ip", "values": 1, "quota": 70},
                {"part": "route", "values": 1, "quota": null},
            ],
            "enforce": true, "refund": ["304"], "charge_on": null, "block": null, "on_failure": "closed",
            "candidate": {"quota": 1, "decisions": decided(2, 0, 2)},
            "decisions": decided(3, 1, 0), "settled": null,
        },
        {
            "name": "watched", "algorithm": "token_bucket", "quota": 1, "window_ms": 3_600_000, "calendar": null,
            "resolution": 1, "strict": false, "key": [], "cost": 1, "tiers": [],
            "enforce": false, "refund": [], "charge_on": null, "block": null, "on_failure": "local", "candidate": null,
            "decisions": decided(1, 0, 1), "settled": null,
        },
    ]});
    assert_eq!(response.json(), wanted);
    let state = admin(&gateway, "GET", "/watched", "").json();
    assert_eq!((&state["remaining"], &state["blocked"]), (&0.into(), &false.into()), "{state}");
    assert_eq!(
        admin(&gateway, "GET", "/calls?key=t&key=&key=5", "").json()["used"],
        2,
        "an empty `key` stands for an absent part"
    );
    let uncounted = admin(&gateway, "GET", "/calls?key=t&key=&key=5&tier=2", "");
    assert_eq!(uncounted.status, 400);
    assert!(uncounted.text().contains("are not limited"), "{}", uncounted.text());
}

#[test]
fn invalid_requests_are_rejected_without_effect() {
    let gateway = Gateway::start_at(
        "
        upstreams: {hello: {respond: {body: hello}}}
        limits:
          calls: {quota: 3, window: 1h, key: [token, client_ip]}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [calls]}
          - {name: rate-limit, match: {path: /rate_limit}, status: [calls]}
        ",
        Clock::manual(NOW),
    );
    get(gateway.address(), "/x", "Authorization: a\r\n");
    let hash = "0".repeat(32);
    for (target, status, word) in [
        ("/nothing".to_owned(), 404, "/api/limits"),
        ("/calls~candidate".to_owned(), 404, "/api/limits"),
        ("/calls".to_owned(), 400, "expected 2, in this order: token, client_ip"),
        ("/calls?key=a".to_owned(), 400, "expected 2"),
        ("/calls?key=a&key=127.0.0.1&key=b".to_owned(), 400, "expected 2"),
        ("/calls?key=a&key=home".to_owned(), 400, "192.0.2.1"),
        ("/calls?key=a&key=127.0.0.1&tier=0".to_owned(), 400, "expected no `tier`"),
        ("/calls?key=a&key=127.0.0.1&kye=a".to_owned(), 400, "expected `key`, `hash`"),
        (format!("/calls?hash={hash}0"), 400, "32 hexadecimal"),
        (format!("/calls?hash=+{}", &hash[1..]), 400, "32 hexadecimal"),
        ("/calls?hash=".to_owned(), 400, "32 hexadecimal"),
        (format!("/calls?hash={hash}&hash={hash}"), 400, "expected it once"),
        (format!("/calls?hash={hash}&key=a"), 400, "`hash` alone"),
    ] {
        for method in ["GET", "DELETE"] {
            let response = admin(&gateway, method, &target, "");
            assert_eq!(response.status, status, "{method} {target}");
            assert_eq!(response.header("content-type"), Some("application/problem+json"));
            let detail = response.json()["detail"].as_str().expect("a text").to_owned();
            assert!(detail.contains(word), "{method} {target}: {detail}");
        }
    }
    let target = "/calls?key=a&key=127.0.0.1";
    let forged = admin(&gateway, "DELETE", target, "Origin: http://elsewhere.test\r\n");
    assert_eq!(forged.status, 403);
    assert_eq!(admin(&gateway, "POST", target, "Content-Length: 0\r\n").status, 405);
    assert_eq!(admin(&gateway, "GET", target, "").json()["used"], 1, "nothing was reset");
}

#[test]
fn empty_keys_need_an_address() {
    let gateway = Gateway::start(THREE_PER_TOKEN);
    let response = admin(&gateway, "GET", "/calls?key=", "");
    assert_eq!(response.status, 400);
    assert!(response.text().contains("client_ip"), "{}", response.text());
    assert_eq!(admin(&gateway, "GET", "/calls?key=&client_ip=::1", "").status, 200);
}
