//! Two gateways on one Redis follow an override under load, and through restarts.

use std::{
    fs,
    net::SocketAddr,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use serde_json::json;
use testkit::commands::run;
use testkit::{
    client::Client,
    gateway::Gateway,
    redis_server::RedisServer,
    wait::{eventually, sleep, timed},
    yaml::fill,
};

use super::{ACME, BREAD, ask, lift, list, quota, request, rules, set};
use crate::tidegate_command;

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

/// Ends a load, even if its test panics.
struct StopOnDrop<'s>(&'s AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Clients of two gateways that are restarted meanwhile.
#[derive(Default)]
struct Clients {
    addresses: Mutex<[Option<SocketAddr>; 2]>,
    stop: AtomicBool,
    answered: AtomicU64,
    failed: AtomicU64,
}

impl Clients {
    fn know(&self, index: usize, gateway: Option<&Gateway>) {
        self.addresses.lock().expect("no panic")[index] = gateway.map(Gateway::address);
    }

    /// Sends requests to one of the gateways until the end, each on a connection of its own.
    fn send(&self, index: usize) {
        while !self.stop.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(2));
            let address = self.addresses.lock().expect("no panic")[index];
            let Some(mut client) = address.and_then(|own| Client::try_connect(own).ok()) else {
                continue;
            };
            client.send(format!("GET /own HTTP/1.1\r\nHost: a\r\n{BREAD}\r\n"));
            // A gateway that stops may close a new connection without an answer.
            let Some(response) = client.try_read_response() else { continue };
            let is_own = matches!(response.status, 200 | 429);
            let counter = if is_own { &self.answered } else { &self.failed };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The time until `follower` has this quota.
fn follow(follower: &Gateway, wanted: u64) -> Duration {
    timed(|| eventually("the follower's quota", || quota(follower, BREAD).0 == wanted)).1
}

#[test]
fn overrides_are_followed_under_load_through_restarts_of_each_and_of_redis() {
    let mut redis = RedisServer::start();
    let mut gateways = [start(&redis), start(&redis)];
    let clients = Clients::default();
    (0..2).for_each(|index| clients.know(index, Some(&gateways[index])));
    let set_quota = |gateway: &Gateway, wanted: u64| {
        set(gateway, &json!({"limit": "each", "consumer": "bread", "quota": wanted}))
    };
    let mut times = Vec::new();
    thread::scope(|scope| {
        // Dropped at the end, or by a panic: the threads end then.
        let _stop = StopOnDrop(&clients.stop);
        (0..2).for_each(|index| {
            drop(scope.spawn({
                let clients = &clients;
                move || clients.send(index)
            }));
        });
        for round in 0..4 {
            let wanted = 1_000_000 + round as u64;
            let (sender, other) = (round % 2, 1 - round % 2);
            set_quota(&gateways[sender], wanted);
            times.push(follow(&gateways[other], wanted));
            // The other one starts again, and knows it with its first request.
            clients.know(other, None);
            gateways[other].stop();
            gateways[other] = start(&redis);
            clients.know(other, Some(&gateways[other]));
            assert_eq!(quota(&gateways[other], BREAD).0, wanted, "{round}");
            // Redis starts again without data, in every second round.
            if round % 2 == 1 {
                redis.kill();
                redis.spawn();
                redis.wait_ready();
                eventually("the override is back", || {
                    let count = redis.try_command(&["HLEN", "tidegate:{overrides}"]);
                    count.is_ok_and(|own| own == redis::Value::Int(2))
                });
                for gateway in &gateways {
                    eventually("Redis counts", || quota(gateway, BREAD).0 == wanted);
                }
            }
        }
        let last = set_quota(&gateways[0], 5_000_000);
        times.push(follow(&gateways[1], 5_000_000));
        lift(&gateways[1], &last);
        times.push(follow(&gateways[0], 5));
    });
    assert!(times.iter().all(|time| *time < FOLLOWED), "{times:?}");
    assert_eq!(clients.failed.load(Ordering::Relaxed), 0);
    let answered = clients.answered.load(Ordering::Relaxed);
    assert!(answered > 100, "{answered} requests meanwhile");
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
    // Both hold units of the old quota. Under the lowered one nothing more is admitted, once it is
    // followed.
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
    // Another type: reads fail and change nothing, and the next change replaces it by what is
    // known.
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

#[test]
fn explain_reads_what_the_admin_api_lists() {
    let redis = RedisServer::start();
    let gateway = start(&redis);
    set(&gateway, &json!({"limit": "each", "consumer": "bread", "quota": 50, "reason": "launch"}));
    set(
        &gateway,
        &json!({"limit": "caller", "key": "a secret", "quota": 7, "until": "2099-12-01"}),
    );
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let store = format!("store: {{redis: {{shards: [{{primary: '{}'}}]}}}}", redis.url());
    fs::write(path("t.yaml"), rules(&store)).expect("a file");
    let pages = ["?count=1".to_owned(), {
        let first = ask(&gateway, "GET /api/overrides?count=1", "").json();
        format!("?after={}", first["next"].as_str().expect("another page"))
    }];
    let pages = pages.map(|query| ask(&gateway, &format!("GET /api/overrides{query}"), "").text());
    fs::write(path("now.json"), pages.concat()).expect("a file");
    let (config, list) = (path("t.yaml"), path("now.json"));
    let explain = |more: &[&str]| {
        run(&[&["explain", "--config", &config, "--overrides", &list][..], more].concat())
    };
    let text = explain(&["--consumer", "bread", "/own"]);
    assert!(text.contains("override   each, consumer bread: 50 (launch)\n"), "{text}");
    let text = explain(&["--header", "x-caller: a secret", "/open"]);
    assert!(text.contains(": 7 until 2099-12-01T00:00:00Z\n"), "{text}");
    assert!(text.contains("limit      caller: sliding_window, 7 in 1h"), "{text}");
    // Half of a list would explain wrongly.
    fs::write(&list, &pages[0]).expect("a file");
    let fault = |list: &str| {
        let arguments = ["explain", "--config", &config, "--overrides", list, "/open"];
        let output = tidegate_command(directory.path(), &arguments).output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = fault(&list);
    assert!(code == Some(1) && text.contains("now.json:1:1: 1 of 2 overrides, expected"), "{text}");
    let (code, text) = fault(&path("missing.json"));
    assert!(code == Some(1) && text.contains("missing.json: the file does not exist"), "{text}");
}
