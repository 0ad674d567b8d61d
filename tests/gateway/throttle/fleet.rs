use super::{Crowd, MINUTE, check_refusal, tokens};
use crate::{gateway::Gateway, redis_server::RedisServer, wait::eventually};

const SETTINGS: &str = "max_active: 60, resume_below: 54, capacity: 1000";

/// Every token at every gateway: as many rounds as there are gateways, each shifted by one.
fn ask_everywhere(crowd: &Crowd, name: &str, count: u64) {
    for shift in 0..crowd.gateways.len() {
        let shifted = std::iter::repeat_n(format!("{name}-0"), shift);
        crowd.ask_all(shifted.chain(tokens(name, count)), 200);
    }
}

fn check_newcomers(crowd: &Crowd) {
    for at in 0..crowd.gateways.len() {
        let now = crowd.clock.now();
        check_refusal(&crowd.ask(at, "newcomer", "/a"), 60, now);
        check_refusal(&crowd.ask(at, "", "/a"), 60, now);
    }
}

#[test]
fn three_gateways_know_what_one_has_seen() {
    let redis = RedisServer::start();
    let crowd = Crowd::start(3, Some(&redis), SETTINGS);
    crowd.fill("user", 65);
    check_newcomers(&crowd);
    ask_everywhere(&crowd, "user", 65);
    let resets: Vec<u64> =
        (0..3).map(|at| crowd.ask(at, "newcomer", "/a").number("X-RateLimit-Reset")).collect();
    assert!(resets.iter().all(|reset| reset.abs_diff(resets[0]) <= 1), "{resets:?}");
}

#[test]
fn nobody_who_stays_active_is_ever_refused_and_who_leaves_is_forgotten() {
    let redis = RedisServer::start();
    let crowd = Crowd::start(3, Some(&redis), SETTINGS);
    crowd.fill("user", 65);
    for gateway in &crowd.gateways {
        gateway.put_mode("on");
    }
    assert_eq!(crowd.ask(0, "user-60", "/a").status, 200, "the last time that it is seen");
    for minute in 1..=45 {
        crowd.pass(MINUTE);
        // Every few minutes, each time at another gateway.
        for user in (0..60).filter(|user| (user + minute) % 7 == 0) {
            let reply = crowd.ask(minute % 3, &format!("user-{user}"), "/a");
            assert_eq!(reply.status, 200, "user-{user} in minute {minute}: {}", reply.head);
        }
    }
    for at in 0..3 {
        assert_eq!(crowd.ask(at, "user-60", "/a").status, 429, "idle for 45 minutes");
    }
}

#[test]
fn a_fresh_gateway_is_not_ready_until_it_knows_what_the_others_know() {
    let redis = RedisServer::start();
    let mut crowd = Crowd::start(2, Some(&redis), SETTINGS);
    crowd.fill("user", 65);
    // Some of it in an older minute, some in this one.
    crowd.pass(3 * MINUTE);
    ask_everywhere(&crowd, "user", 40);
    crowd.tick();
    drop(crowd.gateways.remove(0));
    redis.suspend();
    let fresh = Gateway::start_at(&crowd.yaml, crowd.clock.clone());
    crowd.gateways.push(fresh);
    assert!(!crowd.is_ready(1), "it has loaded nothing");
    assert_eq!(crowd.ask(1, "bad-newcomer", "/free").status, 401, "and lets everybody in");
    crowd.gateways[1].put_mode("on");
    assert_eq!(crowd.ask(1, "bad-newcomer", "/free").status, 401, "even if it is told not to");
    redis.resume();
    eventually("it is ready", || crowd.is_ready(1));
    ask_everywhere(&crowd, "user", 65);
    assert_eq!(crowd.ask(1, "stranger", "/free").status, 429);
    assert_eq!(crowd.state(1)["complete"], true);
}

#[test]
fn who_was_seen_before_the_others_could_be_asked_is_known_to_all() {
    let redis = RedisServer::start();
    let mut crowd = Crowd::start(1, Some(&redis), SETTINGS);
    assert_eq!(crowd.ask(0, "user", "/free").status, 200);
    crowd.tick();
    redis.suspend();
    crowd.gateways.push(Gateway::start_at(&crowd.yaml, crowd.clock.clone()));
    assert_eq!(crowd.ask(1, "early", "/free").status, 200);
    redis.resume();
    eventually("it is ready", || crowd.is_ready(1));
    // It hashed `early` under the secret of all from the first request on.
    assert_eq!(crowd.state(1)["complete"], true);
    crowd.tick();
    crowd.tick();
    for at in 0..2 {
        crowd.gateways[at].put_mode("on");
        assert_eq!(crowd.ask(at, "early", "/free").status, 200);
        assert_eq!(crowd.ask(at, "user", "/free").status, 200);
        assert_eq!(crowd.ask(at, "newcomer", "/free").status, 429);
    }
}

#[test]
fn without_redis_each_goes_on_with_what_it_knows_and_then_they_catch_up() {
    let mut redis = RedisServer::start();
    let crowd = Crowd::start(3, Some(&redis), SETTINGS);
    crowd.fill("user", 65);
    redis.kill();
    for _ in 0..3 {
        crowd.tick();
    }
    for at in 0..3 {
        for token in tokens("user", 65) {
            assert_eq!(crowd.ask(at, &token, "/free").status, 200, "{token}");
        }
        assert_eq!(crowd.ask(at, "newcomer", "/free").status, 429);
        assert!(crowd.is_ready(at), "a lost Redis makes no gateway unready");
    }
    crowd.gateways[0].put_mode("off");
    assert_eq!(crowd.ask(0, "late", "/free").status, 200);
    crowd.gateways[0].put_mode("auto");
    crowd.pass(5 * MINUTE);
    assert_eq!(crowd.ask(1, "late", "/free").status, 429, "nobody could tell");
    // It comes back empty.
    redis.restart();
    let mut known = false;
    for _ in 0..40 {
        crowd.tick();
        known = (1..3).all(|at| crowd.ask(at, "late", "/free").status == 200);
        if known {
            break;
        }
    }
    assert!(known, "what was seen meanwhile is told when Redis is back");
    let mut crowd = crowd;
    for _ in 0..40 {
        crowd.tick();
    }
    crowd.gateways.clear();
    crowd.join();
    crowd.gateways[0].put_mode("on");
    for token in tokens("user", 65) {
        assert_eq!(crowd.ask(0, &token, "/free").status, 200, "{token} was not told again");
    }
}

#[test]
fn poison_in_redis_does_no_harm_and_is_counted() {
    let redis = RedisServer::start();
    let crowd = Crowd::start(2, Some(&redis), SETTINGS);
    crowd.fill("user", 65);
    let minutes: Vec<String> = redis.command(&["KEYS", "tidegate:{throttle}:[0-9]*"]);
    assert!(!minutes.is_empty());
    for (poison, reason) in [
        (vec!["HSET", "KEY", "value", ""], "malformed"),
        (vec!["HSET", "KEY", "value", "\u{1}\u{1f}\u{8b}"], "malformed"),
        (vec!["SET", "KEY", "no hash"], "type"),
        (vec!["HDEL", "KEY", "value"], "type"),
    ] {
        let refused = format!("tidegate_throttle_refused_payloads_total{{reason=\"{reason}\"");
        let count = || -> u64 { crowd.gateways.iter().map(|g| g.metric(&refused)).sum() };
        let before = count();
        for key in &minutes {
            let command: Vec<&str> = poison
                .iter()
                .map(|&part| if part == "KEY" { key.as_str() } else { part })
                .collect();
            let _: redis::Value = redis.command(&command);
        }
        for _ in 0..40 {
            crowd.tick();
            if count() > before {
                break;
            }
        }
        assert!(count() > before, "{poison:?} was not noticed");
        ask_everywhere(&crowd, "user", 65);
        check_newcomers(&crowd);
    }
}

#[test]
fn redis_learns_no_token() {
    let redis = RedisServer::start();
    let crowd = Crowd::start(1, Some(&redis), SETTINGS);
    let secret = "a-secret-that-is-long-enough-to-be-found";
    assert_eq!(crowd.ask(0, secret, "/free").status, 200);
    crowd.tick();
    let keys: Vec<String> = redis.command(&["KEYS", "*"]);
    assert!(keys.iter().any(|key| key.contains("{throttle}")), "{keys:?}");
    for key in &keys {
        assert!(!key.contains(secret));
        let ttl: i64 = redis.command(&["PTTL", key]);
        // The probe's may be over by now.
        if ttl == -2 && key.ends_with(":probe") {
            continue;
        }
        assert!(ttl > 0, "{key} stays for ever");
        let dump: Option<Vec<u8>> = redis.command(&["DUMP", key]);
        let dump = dump.unwrap_or_default();
        assert!(!dump.windows(8).any(|part| secret.as_bytes().windows(8).any(|s| s == part)));
    }
}
