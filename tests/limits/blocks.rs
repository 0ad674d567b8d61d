//! `charge_on` and `block`: a login route with parallel guesses, blocks in memory and in Redis.

use std::{sync::Mutex, thread, time::Duration};

use testkit::{
    backend::{Fleet, MEMORY_AND_REDIS, MEMORY_AND_TOPOLOGIES, on_all_at_once},
    client::{Client, Response},
    gateway::Gateway,
    upstream::Upstream,
    wait::eventually,
    yaml::fill,
};
use tidegate::clock::Clock;

use crate::policies::{NOW, status_upstream};

/// Ten failures an hour; three refusals within a minute block for a quarter of an hour.
const LOGIN: &str = "
    upstreams: {app: {targets: ['{upstream}'], retries: 0}}
    limits:
      login:
        algorithm: {algorithm}
        quota: 10
        window: 5m
        key: [token]
        charge_on: [401, 403, 422, 500-599]
        block: {after: 3, within: 1m, for: 15m}
    routes:
      - {name: login, match: {path: '/{*rest}'}, upstream: app, limits: [login]}
    ";

fn login(upstream: &Upstream, algorithm: &str) -> String {
    fill(LOGIN, [("algorithm", algorithm), ("upstream", &*upstream.target())])
}

/// Sends the same request on many connections at once.
fn at_once(fleet: &Fleet, count: usize, path: &str) -> Vec<u16> {
    let statuses = Mutex::new(Vec::new());
    let mut clients: Vec<_> = (0..count).map(|number| fleet.connect(number)).collect();
    thread::scope(|scope| {
        for client in &mut clients {
            let statuses = &statuses;
            scope.spawn(move || {
                let status = client.get(path, "Authorization: guess\r\n").status;
                statuses.lock().expect("not poisoned").push(status);
            });
        }
    });
    statuses.into_inner().expect("not poisoned")
}

fn count(statuses: &[u16], status: u16) -> usize {
    statuses.iter().filter(|one| **one == status).count()
}

#[test]
fn parallel_guesses_reach_the_upstream_as_often_as_the_quota() {
    let upstream = status_upstream();
    on_all_at_once(&MEMORY_AND_TOPOLOGIES, |backend| {
        for algorithm in ["sliding_window", "fixed_window"] {
            let fleet = backend.start(&login(&upstream, algorithm), &Clock::manual(NOW));
            let statuses = at_once(&fleet, 200, "/401");
            assert_eq!(count(&statuses, 401), 10, "{algorithm}: {statuses:?}");
            assert_eq!(count(&statuses, 429), 190, "{algorithm}");
        }
    });
}

#[test]
fn only_listed_statuses_are_charged() {
    let upstream = status_upstream();
    on_all_at_once(&MEMORY_AND_TOPOLOGIES, |backend| {
        for algorithm in ["sliding_window", "sliding_log", "fixed_window", "token_bucket"] {
            let fleet = backend.start(&login(&upstream, algorithm), &Clock::manual(NOW));
            let ask = |path: &str| fleet.get_in_order(path, "Authorization: a\r\n");
            for status in [200, 204, 302, 404, 200, 404, 302, 200, 200, 200, 200, 200] {
                let response = ask(&format!("/{status}"));
                assert_eq!(response.status, status, "{algorithm}");
                assert_eq!(response.number("x-ratelimit-remaining"), 10, "{algorithm}: {status}");
            }
            for (failures, status) in [401, 403, 422, 500, 599].into_iter().enumerate() {
                let response = ask(&format!("/{status}"));
                let expected = 9 - failures as u64;
                assert_eq!(response.number("x-ratelimit-remaining"), expected, "{status}");
            }
        }
    });
}

/// Asserts that `response` is a refusal by a block with this `Retry-After`.
fn assert_blocked(response: &Response, seconds: u64) {
    assert_eq!(response.status, 429);
    let problem = response.json();
    assert_eq!(problem["type"], "urn:tidegate:problem:blocked", "{problem}");
    let detail = format!("login exceeded too often; this caller is blocked; retry in {seconds} s");
    assert_eq!(problem["detail"], detail);
    assert_eq!(problem["violated-policies"], serde_json::json!(["login"]));
    assert_eq!(response.number("retry-after"), seconds);
    assert_eq!(response.number("x-ratelimit-remaining"), 0);
    assert_eq!(response.number("x-ratelimit-reset"), NOW.as_unix_ms() / 1_000 + 900);
}

#[test]
fn a_block_begins_after_its_refusals_and_ends_in_time() {
    let upstream = status_upstream();
    on_all_at_once(&MEMORY_AND_REDIS, |backend| {
        let clock = Clock::manual(NOW);
        let fleet = backend.start(&login(&upstream, "fixed_window"), &clock);
        let mut client = fleet.connect(0);
        let mut ask =
            |path: &str, token: &str| client.get(path, format!("Authorization: {token}\r\n"));
        for _ in 0..10 {
            assert_eq!(ask("/401", "a").status, 401);
        }
        for _ in 0..2 {
            let refused = ask("/401", "a");
            assert_eq!(refused.json()["title"], "Quota exceeded");
            assert_eq!(refused.number("retry-after"), 300);
        }
        assert_blocked(&ask("/401", "a"), 900);
        clock.advance(Duration::from_mins(10));
        assert_blocked(&ask("/200", "a"), 300);
        assert_eq!(ask("/200", "b").status, 200, "another caller");
        clock.advance(Duration::from_millis(299_999));
        assert_blocked(&ask("/200", "a"), 1);
        clock.advance(Duration::from_millis(1));
        let admitted = ask("/200", "a");
        assert_eq!(admitted.status, 200, "its quota allows it");
        assert_eq!(admitted.number("x-ratelimit-remaining"), 10, "blocked requests do not count");
    });
}

/// A request to the admin API.
fn admin(gateway: &Gateway, line: &str) -> Response {
    let head = format!("{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    Client::connect(gateway.admin()).send(head).read_response()
}

#[test]
fn the_admin_api_lists_blocks_and_lifts_them() {
    let upstream = status_upstream();
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("access.log");
    let yaml = format!("access_log: {}\n{}", log.display(), login(&upstream, "fixed_window"));
    let gateway = Gateway::start_at(&yaml, Clock::manual(NOW));
    let mut client = Client::connect(gateway.address());
    let mut ask = |path: &str| client.get(path, "Authorization: a\r\n");
    let empty = admin(&gateway, "GET /api/blocks").json();
    assert_eq!((&empty["total"], &empty["blocks"]), (&0.into(), &serde_json::json!([])));
    for _ in 0..15 {
        ask("/401");
    }
    let list = admin(&gateway, "GET /api/blocks").json();
    let block = &list["blocks"][0];
    assert_eq!((&list["total"], &block["limit"]), (&1.into(), &"login".into()));
    assert_eq!(block["until_ms"], NOW.as_unix_ms() + 900_000);
    assert_eq!(gateway.metric("tidegate_limit_blocks_total{limit=\"login\"}"), 1);
    assert_eq!(gateway.metric("tidegate_limit_blocked_total{route=\"login\",limit=\"login\"}"), 2);
    let caller = admin(&gateway, "GET /api/limits/login?key=a").json();
    assert_eq!(caller["blocked_until_ms"], NOW.as_unix_ms() + 900_000);
    let hash = block["hash"].as_str().expect("a hash").to_owned();
    assert_eq!(caller["hash"], hash);
    for (line, status) in [
        ("GET /api/blocks?count=0", 400),
        ("GET /api/blocks?limit=login", 400),
        ("DELETE /api/blocks/other?key=a", 404),
        ("DELETE /api/blocks/login", 400),
    ] {
        assert_eq!(admin(&gateway, line).status, status, "{line}");
    }
    assert_eq!(admin(&gateway, &format!("DELETE /api/blocks/login?hash={hash}")).status, 204);
    assert_eq!(admin(&gateway, "GET /api/blocks").json()["total"], 0);
    let refused = ask("/200");
    assert_eq!((refused.status, &refused.json()["title"]), (429, &"Quota exceeded".into()));
    assert_eq!(admin(&gateway, "DELETE /api/limits/login?key=a").status, 204);
    assert_eq!(ask("/200").status, 200);
    gateway.stop();
    let lines = || std::fs::read_to_string(&log).expect("a log");
    eventually("the log is written", || lines().matches("\"limit\":\"blocked\"").count() == 2);
    assert_eq!(lines().matches("\"limit\":\"refused\"").count(), 4, "{}", lines());
}

#[test]
fn gateways_share_a_block_which_outlives_them() {
    let upstream = status_upstream();
    on_all_at_once(&MEMORY_AND_REDIS, |backend| {
        if backend.is_memory() {
            return;
        }
        let clock = Clock::manual(NOW);
        let yaml = login(&upstream, "fixed_window");
        let fleet = backend.start(&yaml, &clock);
        for _ in 0..15 {
            fleet.connect(0).get("/401", "Authorization: a\r\n");
        }
        for number in 0..6 {
            let other = || fleet.connect(number).get("/200", "Authorization: a\r\n");
            eventually("each gateway blocks", || other().json()["title"] == "Blocked");
            assert_blocked(&other(), 900);
        }
        fleet.reload(&yaml.replace("after: 3", "after: 4"));
        assert_blocked(&fleet.connect(1).get("/200", "Authorization: a\r\n"), 900);
        drop(fleet);
        let restarted = backend.start(&yaml, &clock);
        let first = restarted.connect(0).get("/200", "Authorization: a\r\n");
        assert_blocked(&first, 900);
    });
}
