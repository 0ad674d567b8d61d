//! Tiers: callers with a quota of their own.

use testkit::backend::{MEMORY_BY_PROTOCOL_AND_REDIS, on_each};
use tidegate::clock::Clock;

use super::{NOW, fill_upstream, status_upstream};

#[test]
fn tiers_raise_the_quota() {
    let upstream = status_upstream();
    let yaml = fill_upstream(
        "
        client: {trusted_proxies: [127.0.0.0/8]}
        upstreams: {app: {targets: ['{upstream}'], retries: 0}}
        limits:
          calls:
            quota: 3
            window: 1h
            key: [token]
            tiers:
              - {match: {part: 'header:x-plan', values: [gold, platinum]}, quota: 10}
              - {match: {part: token, values: [vip]}, quota: 20}
              - {match: {part: client_ip, values: [10.0.0.0/8]}, quota: 30}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
        ",
        &upstream,
    );
    on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        for (who, headers, quota) in [
            ("plain", "", 3),
            ("golden", "X-Plan: gold\r\n", 10),
            ("precious", "X-Plan: platinum\r\n", 10),
            ("pretender", "X-Plan: golden\r\n", 3),
            ("unlisted", "X-Plan:\r\n", 3),
            ("vip", "", 20),
            ("colleague", "X-Forwarded-For: 10.1.2.3\r\n", 30),
            ("stranger", "X-Forwarded-For: 11.1.2.3\r\n", 3),
        ] {
            let headers = format!("Authorization: Bearer {who}\r\n{headers}");
            let first = fleet.get("/200", &headers);
            assert_eq!(first.number("x-ratelimit-limit"), quota, "{who}");
            assert_eq!(first.number("x-ratelimit-remaining"), quota - 1, "{who}");
            for _ in 1..quota {
                assert_eq!(fleet.get("/200", &headers).status, 200, "{who}");
            }
            assert_eq!(fleet.get("/200", &headers).status, 429, "{who}");
        }
    });
}

#[test]
fn an_unlimited_tier_is_neither_counted_nor_refused() {
    let upstream = status_upstream();
    let yaml = fill_upstream(
        "
        client: {trusted_proxies: [127.0.0.0/8]}
        upstreams: {app: {targets: ['{upstream}'], retries: 0}}
        limits:
          calls:
            quota: 2
            window: 1h
            key: [token]
            candidate: {quota: 1}
            tiers:
              - {match: {part: token, values: [probe]}, quota: unlimited}
              - {match: {part: client_ip, values: [10.0.0.0/8]}, quota: unlimited}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
        ",
        &upstream,
    );
    on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        for headers in ["Authorization: Bearer probe\r\n", "X-Forwarded-For: 10.1.2.3\r\n"] {
            for _ in 0..5 {
                let free = fleet.get("/200", headers);
                assert_eq!(free.status, 200, "{headers}");
                assert_eq!(free.header("x-ratelimit-limit"), None, "{headers}");
            }
        }
        for (status, used) in [(200, 1), (200, 2), (429, 2)] {
            let counted = fleet.get_as("user", "/200");
            assert_eq!((counted.status, counted.number("x-ratelimit-used")), (status, used));
        }
    });
}

#[test]
fn two_tokens_are_counted_by_the_one_that_is_limited() {
    let upstream = status_upstream();
    let yaml = fill_upstream(
        "
        client: {token: [header:authorization, cookie:session]}
        upstreams: {app: {targets: ['{upstream}'], retries: 0}}
        limits:
          calls:
            quota: 2
            window: 1h
            key: [token]
            tiers:
              - {match: {part: token, values: [probe]}, quota: unlimited}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
        ",
        &upstream,
    );
    on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        let both = "Authorization: Bearer probe\r\nCookie: session=user\r\n";
        for status in [200, 200, 429] {
            assert_eq!(fleet.get("/200", both).status, status);
        }
    });
}

#[test]
fn a_change_of_tier_keeps_the_usage() {
    let upstream = status_upstream();
    let yaml = fill_upstream(
        "
        upstreams: {app: {targets: ['{upstream}'], retries: 0}}
        limits:
          calls:
            quota: 3
            window: 1h
            key: [token]
            tiers:
              - {match: {part: 'header:x-plan', values: [gold, platinum]}, quota: 10}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls]}
        ",
        &upstream,
    );
    on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        for _ in 0..3 {
            assert_eq!(fleet.get_as("user", "/200").status, 200);
        }
        assert_eq!(fleet.get_as("user", "/200").status, 429);
        let promoted = fleet.get("/200", "Authorization: user\r\nX-Plan: gold\r\n");
        assert_eq!((promoted.status, promoted.number("x-ratelimit-used")), (200, 4));
        let back = fleet.get_as("user", "/200");
        assert_eq!((back.status, back.number("x-ratelimit-limit")), (429, 3));
    });
}
