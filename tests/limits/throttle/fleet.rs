use testkit::{gateway::Gateway, redis_server::RedisServer, wait::eventually};

use super::{MINUTE, ThrottleFleet, assert_throttled_response, operator::put_mode, tokens};

const SETTINGS: &str = "max_active: 60, resume_below: 54, capacity: 1000";

/// Sends every token to every gateway: one round per gateway, each shifted by one.
fn ask_at_every_gateway(fleet: &ThrottleFleet, name: &str, count: u64) {
    for shift in 0..fleet.gateways.len() {
        let shifted = std::iter::repeat_n(format!("{name}-0"), shift);
        fleet.ask_all(shifted.chain(tokens(name, count)), 200);
    }
}

fn assert_unknown_tokens_refused(fleet: &ThrottleFleet) {
    for at in 0..fleet.gateways.len() {
        let now = fleet.clock.store_time().as_unix_ms();
        assert_throttled_response(&fleet.ask(at, "newcomer", "/a"), 60, now);
        assert_throttled_response(&fleet.ask(at, "", "/a"), 60, now);
    }
}

#[test]
fn activity_at_one_gateway_is_known_to_three() {
    let redis = RedisServer::start();
    let fleet = ThrottleFleet::on_redis(&redis, 3, SETTINGS);
    fleet.fill("user", 65);
    assert_unknown_tokens_refused(&fleet);
    ask_at_every_gateway(&fleet, "user", 65);
    let resets: Vec<u64> =
        (0..3).map(|at| fleet.ask(at, "newcomer", "/a").number("X-RateLimit-Reset")).collect();
    assert!(resets.iter().all(|reset| reset.abs_diff(resets[0]) <= 1), "{resets:?}");
}

#[test]
fn active_users_are_never_refused_and_idle_users_expire() {
    let redis = RedisServer::start();
    let fleet = ThrottleFleet::on_redis(&redis, 3, SETTINGS);
    fleet.fill("user", 65);
    for gateway in &fleet.gateways {
        put_mode(gateway, "on");
    }
    assert_eq!(fleet.ask(0, "user-60", "/a").status, 200, "its last request");
    for minute in 1..=45 {
        fleet.advance(MINUTE);
        // Every few minutes, each time through another gateway.
        for user in (0..60).filter(|user| (user + minute) % 7 == 0) {
            let response = fleet.ask(minute % 3, &format!("user-{user}"), "/a");
            assert_eq!(response.status, 200, "user-{user} in minute {minute}: {}", response.head);
        }
    }
    for at in 0..3 {
        assert_eq!(fleet.ask(at, "user-60", "/a").status, 429, "idle for 45 minutes");
    }
}

#[test]
fn a_new_gateway_is_not_ready_until_it_has_loaded_the_filter() {
    let redis = RedisServer::start();
    let mut fleet = ThrottleFleet::on_redis(&redis, 2, SETTINGS);
    fleet.fill("user", 65);
    // Some tokens in an older minute, some in the current one. Step by step: a gateway whose write
    // conflicted may write a minute some ticks later.
    for _ in 0..90 {
        fleet.tick();
    }
    ask_at_every_gateway(&fleet, "user", 40);
    fleet.tick();
    drop(fleet.gateways.remove(0));
    redis.suspend();
    let fresh = Gateway::for_every_protocol_at(&fleet.yaml, fleet.clock.clone());
    fleet.gateways.push(fresh);
    assert!(!fleet.is_ready(1), "it has loaded nothing");
    assert_eq!(
        fleet.ask(1, "bad-newcomer", "/free").status,
        401,
        "a gateway that has loaded nothing admits every token"
    );
    put_mode(&fleet.gateways[1], "on");
    assert_eq!(fleet.ask(1, "bad-newcomer", "/free").status, 401, "even in mode `on`");
    redis.resume();
    eventually("it is ready", || fleet.is_ready(1));
    ask_at_every_gateway(&fleet, "user", 65);
    assert_eq!(fleet.ask(1, "stranger", "/free").status, 429);
    assert_eq!(fleet.state(1)["complete"], true);
}

#[test]
fn activity_before_the_first_load_reaches_all() {
    let redis = RedisServer::start();
    let mut fleet = ThrottleFleet::on_redis(&redis, 1, SETTINGS);
    assert_eq!(fleet.ask(0, "user", "/free").status, 200);
    fleet.tick();
    redis.suspend();
    fleet.gateways.push(Gateway::for_every_protocol_at(&fleet.yaml, fleet.clock.clone()));
    assert_eq!(fleet.ask(1, "early", "/free").status, 200);
    redis.resume();
    eventually("it is ready", || fleet.is_ready(1));
    // It hashed `early` under the shared secret from the first request on.
    assert_eq!(fleet.state(1)["complete"], true);
    fleet.tick();
    fleet.tick();
    for at in 0..2 {
        put_mode(&fleet.gateways[at], "on");
        assert_eq!(fleet.ask(at, "early", "/free").status, 200);
        assert_eq!(fleet.ask(at, "user", "/free").status, 200);
        assert_eq!(fleet.ask(at, "newcomer", "/free").status, 429);
    }
}

#[test]
fn without_redis_gateways_use_local_filters_and_merge_later() {
    let mut redis = RedisServer::start();
    let fleet = ThrottleFleet::on_redis(&redis, 3, SETTINGS);
    fleet.fill("user", 65);
    redis.kill();
    for _ in 0..3 {
        fleet.tick();
    }
    for at in 0..3 {
        for token in tokens("user", 65) {
            assert_eq!(fleet.ask(at, &token, "/free").status, 200, "{token}");
        }
        assert_eq!(fleet.ask(at, "newcomer", "/free").status, 429);
        assert!(fleet.is_ready(at), "a lost Redis must not make a gateway unready");
    }
    put_mode(&fleet.gateways[0], "off");
    assert_eq!(fleet.ask(0, "late", "/free").status, 200);
    put_mode(&fleet.gateways[0], "auto");
    fleet.advance(5 * MINUTE);
    assert_eq!(fleet.ask(1, "late", "/free").status, 429, "unknown to the other gateways");
    // Redis restarts empty.
    redis.restart();
    let mut known = false;
    for _ in 0..40 {
        fleet.tick();
        known = (1..3).all(|at| fleet.ask(at, "late", "/free").status == 200);
        if known {
            break;
        }
    }
    assert!(known, "activity during the outage is merged");
    let mut fleet = fleet;
    for _ in 0..40 {
        fleet.tick();
    }
    fleet.gateways.clear();
    fleet.add_gateway();
    put_mode(&fleet.gateways[0], "on");
    for token in tokens("user", 65) {
        assert_eq!(fleet.ask(0, &token, "/free").status, 200, "{token} is not in Redis");
    }
}

#[test]
fn corrupt_filters_in_redis_are_ignored_and_counted() {
    let redis = RedisServer::start();
    let fleet = ThrottleFleet::on_redis(&redis, 2, SETTINGS);
    fleet.fill("user", 65);
    let mut minutes: Vec<String> = redis.command(&["KEYS", "tidegate:{throttle}:[0-9]*"]);
    // Not the logs of a minute.
    minutes.retain(|key| !key.contains(":log:"));
    assert!(!minutes.is_empty());
    for (corruption, reason) in [
        (vec!["HSET", "KEY", "value", ""], "malformed"),
        (vec!["HSET", "KEY", "value", "\u{1}\u{1f}\u{8b}"], "malformed"),
        (vec!["SET", "KEY", "no hash"], "type"),
        (vec!["HDEL", "KEY", "value"], "type"),
    ] {
        let refused = format!("tidegate_throttle_refused_payloads_total{{reason=\"{reason}\"");
        let count = || -> u64 { fleet.gateways.iter().map(|g| g.metric(&refused)).sum() };
        let before = count();
        for key in &minutes {
            let command: Vec<&str> = corruption
                .iter()
                .map(|&part| if part == "KEY" { key.as_str() } else { part })
                .collect();
            let _: redis::Value = redis.command(&command);
        }
        for _ in 0..40 {
            fleet.tick();
            if count() > before {
                break;
            }
        }
        assert!(count() > before, "{corruption:?} was not detected");
        ask_at_every_gateway(&fleet, "user", 65);
        assert_unknown_tokens_refused(&fleet);
    }
}

#[test]
fn redis_stores_no_token() {
    let redis = RedisServer::start();
    let fleet = ThrottleFleet::on_redis(&redis, 1, SETTINGS);
    let secret = "a-secret-that-is-long-enough-to-be-found";
    assert_eq!(fleet.ask(0, secret, "/free").status, 200);
    fleet.tick();
    let keys: Vec<String> = redis.command(&["KEYS", "*"]);
    assert!(keys.iter().any(|key| key.contains("{throttle}")), "{keys:?}");
    for key in &keys {
        assert!(!key.contains(secret));
        let ttl: i64 = redis.command(&["PTTL", key]);
        // The probe's key is short-lived: it may have expired since `KEYS`.
        if ttl != -1 && key.ends_with(":probe") {
            continue;
        }
        assert!(ttl > 0, "{key} does not expire");
        let dump: Option<Vec<u8>> = redis.command(&["DUMP", key]);
        let dump = dump.unwrap_or_default();
        assert!(!dump.windows(8).any(|part| secret.as_bytes().windows(8).any(|s| s == part)));
    }
}
