//! Two gateways on one Redis follow an override under load, and through restarts.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use serde_json::json;
use testkit::{
    client::Client,
    gateway::Gateway,
    redis_server::RedisServer,
    wait::{eventually, sleep, timed},
    yaml::fill,
};

use super::{ACME, BREAD, ask, lift, list, quota, request, rules, set};

/// By what time all gateways follow.
const FOLLOWED: Duration = Duration::from_secs(2);

fn start(redis: &RedisServer) -> Gateway {
    Gateway::start(&fill(
        &rules(
            "store: {redis: {shards: [{primary: '{redis}'}], connect_timeout: 1s, response_timeout: 1s}}",
        ),
        [("redis", redis.url())],
    ))
}

/// Sends requests until `stop`, and counts the ones that got no answer of the limit.
fn load(gateway: &Gateway, stop: &AtomicBool, failed: &AtomicU64) {
    let mut client = Client::connect(gateway.address());
    while !stop.load(Ordering::Relaxed) {
        let response = client.get("/own", BREAD);
        if !matches!(response.status, 200 | 429) {
            failed.fetch_add(1, Ordering::Relaxed);
        }
        sleep(Duration::from_millis(2));
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "the figure is a part of the proof")]
fn all_gateways_follow_under_load_within_two_seconds() {
    let redis = RedisServer::start();
    let gateways = [start(&redis), start(&redis)];
    let (stop, failed) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut times: Vec<Duration> = thread::scope(|scope| {
        for gateway in &gateways {
            scope.spawn(|| load(gateway, &stop, &failed));
        }
        let mut times = Vec::new();
        for round in 0..30 {
            let (sender, follower) = (&gateways[round % 2], &gateways[1 - round % 2]);
            let wanted = 1_000_000 + round as u64;
            set(sender, &json!({"limit": "each", "consumer": "bread", "quota": wanted}));
            assert_eq!(quota(sender, BREAD).0, wanted, "at once where it was set");
            let ((), time) = timed(|| {
                eventually("the follower's quota", || quota(follower, BREAD).0 == wanted);
            });
            times.push(time);
            // So that the changes do not fall on the same moment of the poll.
            sleep(Duration::from_millis(37 * (round as u64 % 7)));
        }
        stop.store(true, Ordering::Relaxed);
        times
    });
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
    println!("followed after: p50 {:?}, p99 {:?}", at(0.5), at(0.99));
    assert!(at(0.99) < FOLLOWED, "{times:?}");
    assert_eq!(failed.load(Ordering::Relaxed), 0);
    // Both count in the same record, under the same quota.
    let seen = gateways.each_ref().map(|own| quota(own, BREAD));
    assert_eq!(seen[0].0, seen[1].0);
    assert!(seen[1].1 > seen[0].1);
}

#[test]
fn overrides_survive_restarts_of_gateways_and_of_redis() {
    let mut redis = RedisServer::start();
    let (first, second) = (start(&redis), start(&redis));
    let own = set(
        &first,
        &json!({"limit": "each", "consumer": "bread", "quota": 50, "reason": "launch"}),
    );
    set(&second, &json!({"limit": "each", "plan": "gold", "quota": "unlimited"}));
    eventually("both overrides", || {
        [&first, &second].iter().all(|gateway| list(gateway)["total"] == 2)
    });
    assert_eq!(quota(&first, BREAD), (50, 1));
    drop(first);
    let first = start(&redis);
    assert_eq!(quota(&first, BREAD), (50, 2), "from the first request on");
    // Redis restarts without data: the gateways still know, and write back what they know.
    redis.kill();
    // Each of the two gateways decides its share by itself meanwhile.
    assert_eq!(request(&second, "/own", BREAD).number("x-ratelimit-limit"), 25);
    redis.spawn();
    redis.wait_ready();
    eventually("the overrides are back", || {
        redis
            .try_command(&["HLEN", "tidegate:{overrides}"])
            .is_ok_and(|own| own == redis::Value::Int(3))
    });
    drop(second);
    let second = start(&redis);
    assert_eq!(quota(&second, BREAD).0, 50);
    assert_eq!(list(&second)["overrides"].as_array().map(Vec::len), Some(2));
    lift(&second, &own);
    assert_eq!(quota(&second, BREAD).0, 5);
    eventually("the other gateway", || quota(&first, BREAD).0 == 5);
}

#[test]
fn a_lost_redis_keeps_the_known_overrides_and_refuses_changes() {
    let mut redis = RedisServer::start();
    let gateway = start(&redis);
    set(&gateway, &json!({"limit": "each", "consumer": "bread", "quota": 50}));
    redis.kill();
    eventually("failed reads", || gateway.metric("tidegate_override_read_failures_total") >= 1);
    assert_eq!(list(&gateway)["total"], 1);
    let body = json!({"limit": "each", "consumer": "bread", "quota": 60}).to_string();
    let refused = ask(&gateway, "PUT /api/overrides", &body);
    assert_eq!(refused.status, 503, "{}", refused.text());
    redis.spawn();
    redis.wait_ready();
    eventually("a change", || ask(&gateway, "PUT /api/overrides", &body).status == 200);
    assert_eq!(quota(&gateway, BREAD).0, 60);
}

#[test]
fn units_that_were_leased_under_the_old_quota_are_not_spent_under_the_new_one() {
    let redis = RedisServer::start();
    let yaml = "
store: {redis: {shards: [{primary: '{redis}'}], connect_timeout: 1s, response_timeout: 1s}}
upstreams: {hello: {respond: {body: hello}}}
limits: {caller: {quota: 1000, window: 1h, resolution: 1, key: ['header:x-caller'], reserve: 200}}
routes: [{name: open, match: {path: /open}, upstream: hello, limits: [caller]}]
";
    let gateways = [0, 1].map(|_| Gateway::start(&fill(yaml, [("redis", redis.url())])));
    let ask_both = || gateways.each_ref().map(|own| request(own, "/open", "X-Caller: a\r\n"));
    for _ in 0..10 {
        assert!(ask_both().iter().all(|response| response.status == 200));
    }
    // Both hold units of the old quota. Under the lowered one nothing more is admitted, once it is followed.
    set(&gateways[0], &json!({"limit": "caller", "key": "a", "quota": 15}));
    assert_eq!(request(&gateways[0], "/open", "X-Caller: a\r\n").status, 429);
    eventually("the other gateway", || {
        request(&gateways[1], "/open", "X-Caller: a\r\n").number("x-ratelimit-limit") == 15
    });
    assert!(ask_both().iter().all(|response| response.status == 429));
    // Raised: the cached denial was of the old quota, and does not count.
    set(&gateways[0], &json!({"limit": "caller", "key": "a", "quota": 2000}));
    let admitted = request(&gateways[0], "/open", "X-Caller: a\r\n");
    assert_eq!((admitted.status, admitted.number("x-ratelimit-limit")), (200, 2000));
    eventually("the other gateway", || {
        request(&gateways[1], "/open", "X-Caller: a\r\n").status == 200
    });
}

#[test]
fn records_that_another_program_wrote_do_no_harm() {
    let redis = RedisServer::start();
    let gateway = start(&redis);
    let own = set(&gateway, &json!({"limit": "each", "consumer": "bread", "quota": 50}));
    let field = |field: &str, value: &str| {
        redis.command::<i64>(&["HSET", "tidegate:{overrides}", field, value]);
    };
    field("rubbish", "{");
    field(
        "00000000000000000000000000000000",
        "{\"limit\":\"each\",\"consumer\":\"x\",\"quota\":1}",
    );
    field("version", "7");
    eventually("the other version", || {
        ask(&gateway, "GET /api/state", "").json()["overrides"]["version"] == 3
    });
    assert_eq!(quota(&gateway, BREAD).0, 50);
    assert_eq!(list(&gateway)["total"], 1);
    // Another type: reads fail and change nothing, and the next change replaces it by what is known.
    redis.command::<i64>(&["DEL", "tidegate:{overrides}"]);
    redis.command::<()>(&["SET", "tidegate:{overrides}", "text"]);
    eventually("failed reads", || gateway.metric("tidegate_override_read_failures_total") >= 1);
    assert_eq!(quota(&gateway, BREAD).0, 50);
    set(&gateway, &json!({"limit": "each", "consumer": "acme", "quota": 70}));
    assert_eq!(
        ask(&gateway, &format!("DELETE /api/overrides/{}", own["id"].as_str().unwrap()), "").status,
        204
    );
}

#[test]
fn a_change_after_a_loss_of_the_data_lifts_no_other_override() {
    let redis = RedisServer::start();
    let gateways = [start(&redis), start(&redis)];
    set(&gateways[0], &json!({"limit": "each", "consumer": "bread", "quota": "blocked"}));
    let status = |gateway: &Gateway| Client::connect(gateway.address()).get("/own", BREAD).status;
    eventually("the follower", || status(&gateways[1]) == 403);
    for (round, lost) in ["FLUSHALL", "SET", "FLUSHALL"].into_iter().enumerate() {
        if lost == "SET" {
            redis.command::<()>(&["DEL", "tidegate:{overrides}"]);
            redis.command::<()>(&["SET", "tidegate:{overrides}", "text"]);
        } else {
            redis.command::<()>(&[lost]);
        }
        // At once, before a poll finds the loss.
        let wanted = 100 + round as u64;
        set(&gateways[round % 2], &json!({"limit": "each", "consumer": "acme", "quota": wanted}));
        for gateway in &gateways {
            eventually("the change", || quota(gateway, ACME).0 == wanted);
            assert_eq!(status(gateway), 403, "{lost}");
        }
    }
}
