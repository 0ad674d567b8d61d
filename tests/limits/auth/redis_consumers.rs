//! Consumers that are kept in Redis, and the admin API that changes them.

use std::{fs, io::Write as _, thread, time::Duration};

use aws_lc_rs::hmac;
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use serde_json::{Value, json};
use testkit::{
    backend::{Backend, MEMORY_AND_TOPOLOGIES, on_each},
    client::{Client, Response},
    gateway::Gateway,
    redis_server::RedisServer,
    upstream::Upstream,
    wait::{eventually, sleep, timed},
    yaml::fill,
};
use tidegate::clock::ms;
use tidegate::{
    auth::KeyHash,
    clock::{Clock, StoreTime},
};

use crate::tidegate_command;

const START: StoreTime = StoreTime::from_unix_ms(1_700_000_050_000);

/// A key's failures are counted only where the method says so.
const RULES: &str = "
auth:
  keys: {api_key: {}, max_failures: off}
  counted: {api_key: {from: [header:x-counted]}, max_failures: 3/1m}
  staff: {basic: {}, max_failures: off}
consumers: {redis: true}
plans: {free: {each: 2}, gold: {each: 40}}
limits: {each: {quota: 5, window: 1h, key: [consumer]}}
upstreams: {hello: {respond: {body: hello}}}
routes:
  - {name: own, match: {path: /own}, upstream: hello, auth: [keys], limits: [each]}
  - {name: bare, match: {path: /bare}, upstream: hello, auth: [keys]}
  - {name: counted, match: {path: /counted}, upstream: hello, auth: [counted]}
  - {name: staff, match: {path: /staff}, upstream: hello, auth: [staff], limits: [each]}
  - {name: gold, match: {path: /gold}, upstream: hello, auth: [keys], consumers: {plans: [gold]}}
";

/// The password is `open sesame`.
const PASSWORD: &str = "$2y$04$ZTWSX.0UDtfHZJGRcCTlB.dkC9j.jI8zkjfa/2ndeFU.GgjBofqQG";

const STORE: &str =
    "store: {redis: {shards: [{primary: '{redis}'}], connect_timeout: 1s, response_timeout: 1s}}";

fn start(redis: &RedisServer, clock: &Clock) -> Gateway {
    let yaml = fill(&format!("{STORE}{RULES}"), [("redis", redis.url())]);
    Gateway::start_at(&yaml, clock.clone())
}

fn clock() -> Clock {
    Clock::manual(START)
}

fn pass(clock: &Clock, count: u64) {
    clock.set(clock.store_time() + ms(count));
}

fn hash(key: &str) -> String {
    KeyHash::of(key.as_bytes()).to_string()
}

fn ask(gateway: &Gateway, line: &str, body: &str) -> Response {
    let length = body.len();
    let head =
        format!("{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}");
    Client::connect(gateway.admin()).send(head).read_response()
}

/// Asks, and returns the status and the body.
fn answer(gateway: &Gateway, line: &str, body: &Value) -> (u16, Value) {
    let response = ask(gateway, line, &body.to_string());
    let body = if response.body.is_empty() { Value::Null } else { response.json() };
    (response.status, body)
}

/// Creates a consumer with the key `key of NAME`.
fn create(gateway: &Gateway, name: &str, plan: &str) {
    let record = json!({"name": name, "plan": plan, "keys": [{"id": "one", "sha256": hash(&format!("key of {name}"))}]});
    let (status, body) = answer(gateway, "POST /api/consumers", &record);
    assert_eq!(status, 201, "{body}");
}

fn with_key(gateway: &Gateway, path: &str, key: &str) -> Response {
    Client::connect(gateway.address()).get(path, &format!("X-Api-Key: {key}\r\n"))
}

fn status(gateway: &Gateway, key: &str) -> u16 {
    with_key(gateway, "/bare", key).status
}

fn calls(gateway: &Gateway) -> u64 {
    gateway.metric("tidegate_consumer_calls_total")
}

#[test]
fn a_consumer_that_is_created_is_used_by_all_gateways() {
    let (redis, clock) = (RedisServer::start(), clock());
    let gateways = [start(&redis, &clock), start(&redis, &clock)];
    create(&gateways[0], "acme", "gold");
    create(&gateways[1], "bread", "platinum");
    for gateway in &gateways {
        let admitted = with_key(gateway, "/own", "key of acme");
        assert_eq!((admitted.status, admitted.number("x-ratelimit-limit")), (200, 40));
        assert_eq!(with_key(gateway, "/gold", "key of acme").status, 200);
        // A plan that the configuration lacks counts as none.
        assert_eq!(with_key(gateway, "/own", "key of bread").number("x-ratelimit-limit"), 5);
        assert_eq!(with_key(gateway, "/gold", "key of bread").status, 403);
        let refused = with_key(gateway, "/own", "key of nothing");
        assert_eq!(refused.status, 401);
        assert_eq!(refused.json()["detail"], "the credentials are not valid");
        assert!(refused.header("www-authenticate").is_some());
    }
    assert_eq!(with_key(&gateways[1], "/own", "key of acme").number("x-ratelimit-used"), 3);
    let (status, shown) = answer(&gateways[1], "GET /api/consumers/bread", &Value::Null);
    assert_eq!(status, 200);
    let notes = shown["notes"][0].as_str().expect("a note");
    assert!(notes.contains("no plan `platinum`"), "{notes}");
    assert_eq!(shown["keys"][0]["sha256"], hash("key of bread"));
    let count = ask(&gateways[0], "GET /api/limits/each?key=acme", "").json();
    assert_eq!((count["limit"].as_u64(), count["used"].as_u64()), (Some(40), Some(3)));
    for name in ["bread", "nothing"] {
        let count = ask(&gateways[0], &format!("GET /api/limits/each?key={name}"), "").json();
        assert_eq!(count["limit"], 5, "{name}");
    }
}

#[test]
fn a_warm_request_makes_no_call() {
    let (redis, clock) = (RedisServer::start(), clock());
    let gateway = start(&redis, &clock);
    create(&gateway, "acme", "gold");
    let before = calls(&gateway);
    assert_eq!(status(&gateway, "key of acme"), 200);
    assert_eq!(calls(&gateway) - before, 2, "cold: the key's record and the consumer's");
    let server = || redis.command::<String>(&["INFO", "commandstats"]);
    let ranges = |info: &str| {
        let line = info.lines().find(|line| line.starts_with("cmdstat_getrange:"));
        line.map(|line| line.split([':', ',']).nth(1).unwrap_or_default().to_owned())
    };
    let (warm, of_server) = (calls(&gateway), ranges(&server()));
    for _ in 0..20 {
        assert_eq!(status(&gateway, "key of acme"), 200);
    }
    pass(&clock, 29_999);
    assert_eq!(status(&gateway, "key of acme"), 200);
    assert_eq!((calls(&gateway), ranges(&server())), (warm, of_server));
    pass(&clock, 1);
    assert_eq!(status(&gateway, "key of acme"), 200);
    assert_eq!(calls(&gateway) - warm, 2, "after 30 s");
    // An invented key costs one call in 5 s.
    let before = calls(&gateway);
    for ms in [0, 1, 4_998] {
        pass(&clock, ms);
        assert_eq!(status(&gateway, "invented"), 401);
    }
    assert_eq!(calls(&gateway) - before, 1);
    pass(&clock, 1);
    assert_eq!(status(&gateway, "invented"), 401);
    assert_eq!(calls(&gateway) - before, 2);
    assert_eq!(gateway.metric("tidegate_consumer_lookups_total{outcome=\"found\"}"), 2);
    assert_eq!(gateway.metric("tidegate_consumer_lookups_total{outcome=\"unknown\"}"), 2);
}

#[test]
fn keys_are_added_and_removed() {
    let (redis, clock) = (RedisServer::start(), clock());
    let gateways = [start(&redis, &clock), start(&redis, &clock)];
    let [first, second] = &gateways;
    create(first, "acme", "gold");
    // Both know the first key.
    assert_eq!(gateways.each_ref().map(|own| status(own, "key of acme")), [200, 200]);
    let keys = "POST /api/consumers/acme/keys";
    let (made, body) =
        answer(first, keys, &json!({"id": "two", "expires": "2023-11-14T22:14:20Z"}));
    assert_eq!(made, 201, "{body}");
    let key = body["key"].as_str().expect("a key").to_owned();
    assert_eq!(body["sha256"], hash(&key));
    assert_eq!(gateways.each_ref().map(|own| status(own, &key)), [200, 200]);
    let (_, shown) = answer(second, "GET /api/consumers/acme", &Value::Null);
    assert_eq!(shown["keys"].as_array().map(Vec::len), Some(2));
    assert!(!shown.to_string().contains(&key), "{shown}");
    // A hash that exists; twice is the same as once.
    let given = json!({"id": "three", "sha256": hash("mine").to_uppercase()});
    assert_eq!(answer(first, keys, &given).0, 201);
    assert_eq!(answer(first, keys, &given).0, 200);
    assert_eq!(status(second, "mine"), 200);
    create(second, "bread", "free");
    let taken = answer(second, "POST /api/consumers/bread/keys", &json!({"sha256": hash("mine")}));
    assert_eq!(taken.0, 409, "{}", taken.1);
    let record = json!({"name": "other", "keys": [{"sha256": hash("mine")}]});
    assert_eq!(answer(second, "POST /api/consumers", &record).0, 409);
    assert_eq!(answer(second, "GET /api/consumers/other", &Value::Null).0, 404);
    // Judged at each request: no record is read again.
    let warm = calls(second);
    pass(&clock, 3_000);
    assert_eq!(status(second, &key), 200);
    pass(&clock, 7_000);
    assert_eq!(status(second, &key), 401, "expired");
    assert_eq!(calls(second), warm);
    // Here at once, elsewhere within 30 s.
    assert_eq!(answer(first, "DELETE /api/consumers/acme/keys/one", &Value::Null).0, 204);
    assert_eq!((status(first, "key of acme"), status(second, "key of acme")), (401, 200));
    assert_eq!(status(first, "mine"), 200);
    pass(&clock, 30_000);
    assert_eq!(status(second, "key of acme"), 401);
    let of_hash = format!("DELETE /api/consumers/acme/keys/{}", hash("mine"));
    assert_eq!(answer(second, &of_hash, &Value::Null).0, 204);
    assert_eq!(answer(second, &of_hash, &Value::Null).0, 404);
    assert_eq!(status(second, "mine"), 401);
    // The hash is free now.
    assert_eq!(answer(second, "POST /api/consumers", &record).0, 201);
    assert_eq!(status(second, "mine"), 200);
}

#[test]
fn an_unknown_key_becomes_valid_within_five_seconds() {
    let (redis, clock) = (RedisServer::start(), clock());
    let [first, second] = [start(&redis, &clock), start(&redis, &clock)];
    assert_eq!([&first, &second].map(|own| status(own, "key of acme")), [401, 401]);
    create(&first, "acme", "gold");
    assert_eq!((status(&first, "key of acme"), status(&second, "key of acme")), (200, 401));
    pass(&clock, 5_000);
    assert_eq!(status(&second, "key of acme"), 200);
}

#[test]
fn a_consumer_is_replaced_disabled_and_deleted() {
    let (redis, clock) = (RedisServer::start(), clock());
    let gateways = [start(&redis, &clock), start(&redis, &clock)];
    let [first, second] = &gateways;
    create(first, "acme", "gold");
    let both = || gateways.each_ref().map(|own| status(own, "key of acme"));
    assert_eq!(both(), [200, 200]);
    let mut record = json!({"name": "acme", "disabled": true, "labels": {"team": "shop"},
        "keys": [{"sha256": hash("key of acme")}]});
    assert_eq!(answer(first, "POST /api/consumers", &record).0, 200);
    assert_eq!(both(), [401, 200]);
    pass(&clock, 30_000);
    assert_eq!(both(), [401, 401]);
    record["disabled"] = false.into();
    record["keys"] = json!([{"sha256": hash("another key")}]);
    let (status_code, body) = answer(second, "POST /api/consumers", &record);
    assert_eq!((status_code, &body["labels"]["team"]), (200, &"shop".into()));
    assert_eq!(status(second, "another key"), 200);
    pass(&clock, 30_000);
    assert_eq!(both(), [401, 401], "the first key is gone");
    assert_eq!(status(first, "another key"), 200);
    assert_eq!(answer(second, "DELETE /api/consumers/acme", &Value::Null).0, 204);
    assert_eq!(answer(second, "DELETE /api/consumers/acme", &Value::Null).0, 404);
    assert_eq!((status(first, "another key"), status(second, "another key")), (200, 401));
    pass(&clock, 30_000);
    assert_eq!(status(first, "another key"), 401);
    assert_eq!(
        redis.command::<Vec<String>>(&["KEYS", "tidegate:{consumers-*"]),
        Vec::<String>::new()
    );
}

#[test]
fn a_new_plan_leaves_a_consumer_its_credentials() {
    let (redis, clock) = (RedisServer::start(), clock());
    let gateway = start(&redis, &clock);
    create(&gateway, "acme", "free");
    let record = json!({"name": "acme", "plan": "gold"});
    let (replaced, body) = answer(&gateway, "POST /api/consumers", &record);
    assert_eq!(
        (replaced, &body["plan"], body["keys"].as_array().map(Vec::len)),
        (200, &"gold".into(), Some(1))
    );
    assert_eq!(with_key(&gateway, "/gold", "key of acme").status, 200);
    let record = json!({"name": "acme", "plan": "gold", "keys": []});
    assert_eq!(answer(&gateway, "POST /api/consumers", &record).0, 200);
    assert_eq!(status(&gateway, "key of acme"), 401, "the request removed the key");
}

#[test]
fn who_is_known_goes_on_while_redis_is_down() {
    let (mut redis, clock) = (RedisServer::start(), clock());
    let gateway = start(&redis, &clock);
    for name in ["acme", "bread", "late"] {
        create(&gateway, name, "gold");
    }
    assert_eq!(["key of acme", "key of bread"].map(|key| status(&gateway, key)), [200, 200]);
    assert_eq!(answer(&gateway, "DELETE /api/consumers/bread", &Value::Null).0, 204);
    assert_eq!(status(&gateway, "key of bread"), 401);
    redis.kill();
    pass(&clock, 31_000);
    for _ in 0..3 {
        assert_eq!(status(&gateway, "key of acme"), 200);
    }
    assert!(gateway.metric("tidegate_consumer_lookups_total{outcome=\"stale\"}") >= 3);
    for key in ["key of late", "invented", "key of bread"] {
        let refused = with_key(&gateway, "/bare", key);
        assert_eq!((refused.status, refused.number("retry-after")), (503, 1), "{key}");
        assert_eq!(refused.json()["detail"], "the consumers cannot be read");
    }
    let (refused, body) = answer(&gateway, "POST /api/consumers", &json!({"name": "new"}));
    assert_eq!(refused, 503, "{body}");
    pass(&clock, 570_000);
    assert_eq!(status(&gateway, "key of acme"), 503, "ten minutes after it was read");
    redis.spawn();
    redis.wait_ready();
    eventually("the gateway reads again", || {
        pass(&clock, 1_000);
        status(&gateway, "invented") == 401
    });
    // Redis has lost its data.
    assert_eq!(status(&gateway, "key of acme"), 401);
}

#[test]
fn passwords_are_verified_after_the_lookup() {
    let (redis, clock) = (RedisServer::start(), clock());
    let gateway = start(&redis, &clock);
    let record = json!({"name": "caf\u{e9} {1}", "plan": "free", "password": PASSWORD});
    let (created, body) = answer(&gateway, "POST /api/consumers", &record);
    assert_eq!((created, &body["has_password"]), (201, &true.into()));
    assert!(!body.to_string().contains("$2y$"), "{body}");
    assert_eq!(answer(&gateway, "POST /api/consumers", &json!({"name": "bare"})).0, 201);
    let get = |name: &str, password: &str| {
        let credentials = STANDARD.encode(format!("{name}:{password}"));
        Client::connect(gateway.address())
            .get("/staff", &format!("Authorization: Basic {credentials}\r\n"))
    };
    let admitted = get("caf\u{e9} {1}", "open sesame");
    assert_eq!((admitted.status, admitted.number("x-ratelimit-limit")), (200, 2));
    let warm = calls(&gateway);
    assert_eq!(get("caf\u{e9} {1}", "open sesame").status, 200);
    assert_eq!(calls(&gateway), warm);
    for (name, password) in [
        ("caf\u{e9} {1}", "wrong"),
        ("bare", ""),
        ("nothing", "open sesame"),
        (" a", "a"),
        ("", ""),
    ] {
        assert_eq!(get(name, password).status, 401, "{name}");
    }
}

#[test]
fn failures_of_an_address_are_bounded() {
    let (redis, clock) = (RedisServer::start(), clock());
    let gateway = start(&redis, &clock);
    create(&gateway, "acme", "gold");
    let get = |key: &str| {
        Client::connect(gateway.address()).get("/counted", &format!("X-Counted: {key}\r\n")).status
    };
    assert_eq!(["a", "b", "a"].map(get), [401; 3], "each guess counts, read or known");
    let before = calls(&gateway);
    assert_eq!((get("key of acme"), get("c")), (429, 429));
    assert_eq!(calls(&gateway), before);
    pass(&clock, 80_000);
    assert_eq!(get("key of acme"), 200);
}

#[test]
fn odd_names_stay_within_their_records() {
    let (redis, clock) = (RedisServer::start(), clock());
    let gateway = start(&redis, &clock);
    let names = [
        "a b",
        "a/b",
        "{consumers-0}:name:acme",
        "}:key:",
        "caf\u{e9}",
        "a%2Fb",
        "*",
        "..",
        "'\"\\",
    ];
    let path = |name: &str| {
        let escape = |byte: u8| match byte {
            b'a'..=b'z' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        };
        format!("/api/consumers/{}", name.bytes().map(escape).collect::<String>())
    };
    for name in names {
        create(&gateway, name, "gold");
        assert_eq!(status(&gateway, &format!("key of {name}")), 200, "{name}");
    }
    for name in names {
        let (found, shown) = answer(&gateway, &format!("GET {}", path(name)), &Value::Null);
        assert_eq!((found, &shown["name"]), (200, &name.into()), "{name}");
        let keys = format!("POST {}/keys", path(name));
        assert_eq!(answer(&gateway, &keys, &json!({"id": "x y/z"})).0, 201, "{name}");
        let of_id = format!("DELETE {}/keys/x%20y%2Fz", path(name));
        assert_eq!(answer(&gateway, &of_id, &Value::Null).0, 204, "{name}");
        let deleted = answer(&gateway, &format!("DELETE {}", path(name)), &Value::Null);
        assert_eq!(deleted.0, 204, "{name}");
        assert_eq!(status(&gateway, &format!("key of {name}")), 401, "{name}");
    }
    for name in [" a", "a\t", "", &"x".repeat(129)] {
        let refused = answer(&gateway, "POST /api/consumers", &json!({"name": name}));
        assert_eq!(refused.0, 400, "{name}: {}", refused.1);
    }
    assert_eq!(answer(&gateway, "GET /api/consumers/%FF", &Value::Null).0, 400);
    assert_eq!(answer(&gateway, "GET /api/consumers/%0A", &Value::Null).0, 404);
}

#[test]
fn records_that_another_program_wrote_do_no_harm() {
    let (redis, clock) = (RedisServer::start(), clock());
    let gateway = start(&redis, &clock);
    create(&gateway, "acme", "gold");
    let name_key = "tidegate:{consumers-8}:name:acme";
    let text: String = redis.command(&["GET", name_key]);
    let set = |text: &str| {
        redis.command::<()>(&["SET", name_key, text]);
        pass(&clock, 30_000);
    };
    for malformed in ["{", "[]", "\u{0}", &text.replace("acme", "other"), &"x".repeat(1 << 20)] {
        set(malformed);
        assert_eq!(status(&gateway, "key of acme"), 401, "{malformed:.40}");
    }
    assert_eq!(answer(&gateway, "GET /api/consumers/acme", &Value::Null).0, 409);
    assert_eq!(answer(&gateway, "POST /api/consumers/acme/keys", &json!({})).0, 409);
    redis.command::<()>(&["DEL", name_key]);
    redis.command::<i64>(&["LPUSH", name_key, "a"]);
    pass(&clock, 30_000);
    assert_eq!(status(&gateway, "key of acme"), 401, "another type");
    assert!(gateway.metric("tidegate_consumer_lookups_total{outcome=\"malformed\"}") >= 5);
    // Created again, it is as before.
    create(&gateway, "acme", "gold");
    assert_eq!(status(&gateway, "key of acme"), 200);
    // A key's record alone gives nothing, nor does one that names another consumer.
    for (tag, key, owner) in
        [("{consumers-d}", "unlisted", "acme"), ("{consumers-9}", "odd", "no one")]
    {
        let record = format!("tidegate:{tag}:key:{}", hash(key));
        redis.command::<()>(&["SET", &record, owner]);
        assert_eq!(status(&gateway, key), 401);
    }
}

#[test]
fn records_are_spread_over_shards() {
    on_each(&MEMORY_AND_TOPOLOGIES[2..], |backend: &Backend| {
        let clock = clock();
        let fleet = backend.start(RULES, &clock);
        let [first, second] = &fleet.gateways[..] else { panic!("two gateways") };
        for number in 0..24 {
            create(first, &format!("consumer {number}"), "gold");
        }
        for number in 0..24 {
            let key = format!("key of consumer {number}");
            assert_eq!([first, second].map(|own| status(own, &key)), [200, 200], "{key}");
            let deleted = format!("DELETE /api/consumers/consumer%20{number}");
            assert_eq!(answer(second, &deleted, &Value::Null).0, 204);
            assert_eq!(status(second, &key), 401);
        }
    });
}

#[test]
fn without_the_setting_the_api_names_it() {
    let gateway = Gateway::start(
        "upstreams: {hello: {respond: {body: hi}}}\nroutes: [{name: all, upstream: hello}]\n",
    );
    for line in [
        "POST /api/consumers",
        "GET /api/consumers/a",
        "DELETE /api/consumers/a",
        "POST /api/consumers/a/keys",
        "DELETE /api/consumers/a/keys/b",
    ] {
        let (refused, body) = answer(&gateway, line, &json!({"name": "a"}));
        assert_eq!(refused, 409, "{line}");
        assert!(body["detail"].as_str().is_some_and(|it| it.contains("consumers: {redis: true}")));
    }
}

#[test]
fn a_service_names_consumers_in_redis() {
    let (redis, clock) = (RedisServer::start(), clock());
    let service = Upstream::with_handler(|request, socket| {
        let text = String::from_utf8_lossy(request).into_owned();
        let user = text.lines().find_map(|line| line.strip_prefix("cookie: user="));
        let user = user.unwrap_or_default();
        let answer = format!("HTTP/1.1 200 OK\r\nX-User: {user}\r\nContent-Length: 0\r\n\r\n");
        socket.write_all(answer.as_bytes()).is_ok()
    });
    let rules = RULES.replace(
        "  keys: {api_key: {}, max_failures: off}",
        "  keys: {forward: {to: '{service}/', request_headers: [cookie], consumer: 'header:x-user', cache: {cache}}, \
         max_failures: off}",
    );
    for cache in ["0s", "1h"] {
        let values =
            [("redis", redis.url()), ("service", service.target()), ("cache", cache.to_owned())];
        let gateway = Gateway::start_at(&fill(&format!("{STORE}{rules}"), values), clock.clone());
        create(&gateway, "acme", "gold");
        let get = |name: &str| {
            Client::connect(gateway.address()).get("/own", &format!("Cookie: user={name}\r\n"))
        };
        for _ in 0..2 {
            let admitted = get("acme");
            assert_eq!((admitted.status, admitted.number("x-ratelimit-limit")), (200, 40));
            // A service vouches for names without a record.
            assert_eq!(get("guest").status, 200);
        }
        let disabled = json!({"name": "acme", "disabled": true});
        assert_eq!(answer(&gateway, "POST /api/consumers", &disabled).0, 200);
        assert_eq!(get("acme").status, 401);
        assert_eq!(answer(&gateway, "DELETE /api/consumers/acme", &Value::Null).0, 204);
    }
}

#[test]
fn a_consumer_in_redis_becomes_active_and_an_invented_key_does_not() {
    let (redis, clock) = (RedisServer::start(), clock());
    let upstream = Upstream::hello();
    let rules = RULES.replace("{respond: {body: hello}}", "{targets: ['{target}']}");
    let throttled = format!("{STORE}{rules}throttle: {{max_active: 10, capacity: 1000}}\n");
    let values = [("redis", redis.url()), ("target", upstream.target())];
    let gateway = Gateway::start_at(&fill(&throttled, values), clock);
    eventually("it is ready", || {
        testkit::client::get(gateway.admin(), "/readyz", "").status == 200
    });
    create(&gateway, "acme", "gold");
    create(&gateway, "bread", "gold");
    assert_eq!((status(&gateway, "key of acme"), status(&gateway, "invented")), (200, 401));
    // The consumer alone.
    gateway.wait_for_metric("tidegate_throttle_recorded_total", 1);
    assert_eq!(answer(&gateway, "PUT /api/throttle", &json!({"mode": "on"})).0, 200);
    eventually("it throttles", || status(&gateway, "invented") == 429);
    // An unknown consumer and an invented key look alike.
    let all = ["key of acme", "key of bread", "another"].map(|key| status(&gateway, key));
    assert_eq!(all, [200, 429, 429]);
}

#[test]
fn concurrent_lookups_of_a_key_are_one_and_a_hanging_redis_holds_no_one_up() {
    let (redis, clock) = (RedisServer::start(), clock());
    let gateway = start(&redis, &clock);
    create(&gateway, "acme", "gold");
    let before = calls(&gateway);
    let all = |key: &str, expected: u16| {
        thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| assert_eq!(status(&gateway, key), expected));
            }
        });
    };
    redis.suspend();
    let waiting = thread::scope(|scope| {
        let waiting: Vec<_> =
            (0..16).map(|_| scope.spawn(|| status(&gateway, "key of acme"))).collect();
        sleep(Duration::from_millis(100));
        redis.resume();
        waiting.into_iter().map(|one| one.join().expect("a status")).collect::<Vec<_>>()
    });
    assert_eq!(waiting, [200; 16]);
    assert_eq!(calls(&gateway) - before, 2);
    pass(&clock, 31_000);
    redis.suspend();
    // The first ones wait until the call times out; from then on no request waits.
    all("key of acme", 200);
    let ((), time) = timed(|| {
        all("key of acme", 200);
        all("invented", 503);
    });
    assert!(time < Duration::from_millis(900), "{time:?}");
    redis.resume();
    eventually("it reads again", || {
        pass(&clock, 1_000);
        status(&gateway, "invented") == 401
    });
    all("key of acme", 200);
}

#[test]
fn the_commands_read_no_record() {
    let directory = tempfile::tempdir().expect("a directory");
    let yaml = fill(&format!("{STORE}{RULES}"), [("redis", "redis://127.0.0.1:9".to_owned())]);
    fs::write(directory.path().join("t.yaml"), yaml).expect("a file");
    fs::write(directory.path().join("key"), "a key\n").expect("a file");
    let output = |arguments: &[&str]| {
        let mut command = tidegate_command(directory.path(), arguments);
        command.stdin(fs::File::open(directory.path().join("key")).expect("a file"));
        let output = command.output().expect("it runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let checked = output(&["check", "t.yaml"]);
    assert!(
        checked.contains("\n  consumers: in Redis; each is read when it sends a request\n"),
        "{checked}"
    );
    let key = output(&["key", "check", "--config", "t.yaml"]);
    assert!(key.ends_with("\nconsumer   not looked up: the consumers are in Redis\n"), "{key}");
    let named = output(&["explain", "t.yaml", "/own", "--consumer", "acme"]);
    assert!(named.contains("\nconsumer   acme\n           consumers are in Redis, "), "{named}");
    let unnamed = output(&["explain", "t.yaml", "/own", "-H", "X-Api-Key: a"]);
    assert!(
        !unnamed.contains("\nconsumer ") && unnamed.contains("where no record is read"),
        "{unnamed}"
    );
    let open = output(&["explain", "t.yaml", "/nothing"]);
    assert!(!open.contains("Redis"), "{open}");
}

/// A token that names a consumer, signed with `secret`.
fn token(secret: &str, consumer: &str) -> String {
    let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let expiry = START.as_unix_ms() / 1000 + 3_600;
    let claims = json!({"iss": "https://id", "aud": "orders", "sub": consumer, "plan": "free", "exp": expiry});
    let text =
        format!("{}.{}", encode(br#"{"alg":"HS256"}"#), encode(claims.to_string().as_bytes()));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    format!("{text}.{}", encode(hmac::sign(&key, text.as_bytes()).as_ref()))
}

#[test]
fn a_signed_token_names_a_consumer_in_redis() {
    let (redis, clock) = (RedisServer::start(), clock());
    let secret = "a secret of at least thirty-two bytes";
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), secret).expect("a file");
    let rules = RULES.replace(
        "  keys: {api_key: {}, max_failures: off}",
        "  keys: {jwt: {issuer: 'https://id', audiences: [orders], secret: 'file:{secret}', algorithms: [HS256], \
         consumer: 'claim:sub', plan: 'claim:plan'}, max_failures: off}",
    );
    let values = [("redis", redis.url()), ("secret", file.path().display().to_string())];
    let gateway = Gateway::start_at(&fill(&format!("{STORE}{rules}"), values), clock);
    create(&gateway, "acme", "gold");
    let get = |name: &str| {
        let token = token(secret, name);
        Client::connect(gateway.address())
            .get("/own", &format!("Authorization: Bearer {token}\r\n"))
    };
    for _ in 0..2 {
        // The record's plan comes before the token's.
        let own = get("acme");
        assert_eq!((own.status, own.number("x-ratelimit-limit")), (200, 40), "{}", own.text());
        let other = get("guest");
        assert_eq!((other.status, other.number("x-ratelimit-limit")), (200, 2));
    }
    let disabled = json!({"name": "acme", "disabled": true});
    assert_eq!(answer(&gateway, "POST /api/consumers", &disabled).0, 200);
    assert_eq!([get("acme").status, get("acme").status], [401, 401], "read, then known");
}
