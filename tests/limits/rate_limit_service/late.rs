//! What has happened: hits that are reported late, and hits that are given back.

use std::time::Duration;

use prost::Message;
use testkit::{
    backend::{MEMORY_AND_REDIS, MEMORY_AND_TOPOLOGIES, on_each},
    client::{Client, get},
    gateway::Gateway,
    http2_client::{Http2Client, request},
    rate_limit_client::{Decided, GRPC_FIELDS, RateLimitClient, descriptor, given_back, with_hits},
    redis_server::RedisServer,
    wait::{eventually, sleep},
    yaml::{fill, without_indentation},
};
use tidegate::clock::ms;
use tidegate::{
    clock::Clock,
    grpc::frame_message,
    rate_limit_service::{
        SHOULD_RATE_LIMIT,
        messages::{RateLimitDescriptor, RateLimitRequest},
    },
};

use super::{NOW, connect, connect_first, consumers::put_override};

/// `edge` charges late hits, `strict` refuses them.
const RULES: &str = "
    rate_limit_service:
      address: 127.0.0.1:0
      domains:
        edge:
          limits: [{quota: blocked, match: {user: mallory, route: '*'}}, tokens, route, running, dry]
          late_hits: charge
        strict: {limits: [tokens, route, running]}
    limits:
      tokens: {quota: 100, window: 1m, algorithm: fixed_window, key: ['descriptor:user']}
      route: {quota: 10, window: 1m, algorithm: fixed_window, key: ['descriptor:user', 'descriptor:route']}
      running: {algorithm: concurrency, quota: 5, window: 30s, key: ['descriptor:run']}
      dry: {quota: 10, window: 1m, algorithm: fixed_window, key: ['descriptor:dry'], enforce: false}
    upstreams: {app: {respond: {}}}
    routes: [{name: all, upstream: app}]
";

/// The units that a key has used; `None` without an answer of the store.
fn try_used(gateway: &Gateway, limit: &str, keys: &[&str]) -> Option<u64> {
    let keys: Vec<String> = keys.iter().map(|key| format!("key={key}")).collect();
    let path = format!("/api/limits/{limit}?{}", keys.join("&"));
    let response = get(gateway.admin(), &path, "");
    (response.status == 200).then(|| response.json()["used"].as_u64()).flatten()
}

fn used(gateway: &Gateway, limit: &str, keys: &[&str]) -> u64 {
    try_used(gateway, limit, keys).expect("a count")
}

fn takes_permits(decided: &Decided) -> bool {
    let metadata = decided.0.dynamic_metadata.as_ref();
    metadata.is_some_and(|metadata| metadata.fields.contains_key("permits"))
}

#[test]
fn a_permit_comes_back_whatever_the_other_descriptors_say() {
    on_each(&MEMORY_AND_TOPOLOGIES, |backend| {
        let fleet = backend.start(RULES, &Clock::manual(NOW));
        let mut client = connect_first(&fleet);
        let cases = [
            ("late hits that fit", "edge", 0, with_hits("user=a", 20)),
            ("late hits that do not fit", "edge", 0, with_hits("user=b", 200)),
            ("a hit that does not fit", "edge", 100, descriptor("user=c")),
            ("refused late hits", "strict", 0, with_hits("user=d", 200)),
            ("a blocked hit", "edge", 0, descriptor("user=mallory,route=x")),
            ("blocked late hits", "edge", 0, with_hits("user=mallory,route=x", 5)),
            ("a peek that finds nothing", "edge", 100, with_hits("user=e", 0)),
        ];
        for (index, (what, domain, before, other)) in cases.into_iter().enumerate() {
            let job = format!("run={index}");
            client.ask("edge", vec![with_hits(&job, 2)]);
            client.ask("edge", vec![with_hits_of(&other, before)]);
            let decided = client.ask(domain, vec![other, given_back(&job, 1)]);
            assert_eq!(decided.is_ok(), index == 0, "{what}");
            assert_eq!(decided.statuses()[1], "ok 4", "{what}");
            let left = client.ask("edge", vec![with_hits(&job, 0)]).statuses();
            assert_eq!(left, ["ok 4"], "{what}");
        }
    });
}

/// The same entries with other hits.
fn with_hits_of(own: &RateLimitDescriptor, hits: u64) -> RateLimitDescriptor {
    let entries = own.entries.clone();
    RateLimitDescriptor { entries, ..with_hits("", hits) }
}

#[test]
fn hits_are_given_back_before_the_others_are_charged() {
    on_each(&MEMORY_AND_REDIS, |backend| {
        let fleet = backend.start(RULES, &Clock::manual(NOW));
        let mut client = connect_first(&fleet);
        client.ask("edge", vec![with_hits("user=a", 60)]);
        let call = vec![given_back("user=a", 20), with_hits("user=a,route=x", 30)];
        assert_eq!(client.ask("edge", call).statuses(), ["ok 60", "over"]);
        assert_eq!(used(&fleet.gateways[0], "tokens", &["a"]), 40);
        let call = vec![with_hits("user=a", 90), given_back("user=a", 35)];
        let decided = client.ask("edge", call);
        assert_eq!(decided.statuses(), ["ok 5", "ok 5"], "both show what is left");
        assert!(decided.is_ok());
    });
}

/// Each descriptor of a report is charged once.
#[test]
fn a_report_is_charged_as_a_whole() {
    on_each(&MEMORY_AND_TOPOLOGIES, |backend| {
        let fleet = backend.start(RULES, &Clock::manual(NOW));
        let gateway = &fleet.gateways[0];
        let mut client = connect_first(&fleet);
        let mut ask = |domain: &str, call: Vec<RateLimitDescriptor>| client.ask(domain, call);
        let counts =
            |user: &str| (used(gateway, "tokens", &[user]), used(gateway, "route", &[user, "x"]));
        let both = |user: &str, tokens: u64, route: u64| {
            let own = format!("user={user}");
            vec![with_hits(&own, tokens), with_hits(&format!("{own},route=x"), route)]
        };
        let decided = ask("edge", both("a", 1, 50));
        assert_eq!(decided.statuses(), ["ok 99", "over"]);
        assert_eq!(counts("a"), (1, 50), "a single hit that fits");
        assert_eq!(ask("edge", both("b", 100, 50)).statuses(), ["ok 0", "over"]);
        assert_eq!(counts("b"), (100, 50), "hits that fit");
        ask("edge", vec![with_hits("user=c,route=x", 10)]);
        assert_eq!(ask("edge", both("c", 50, 1)).statuses(), ["ok 50", "over"]);
        assert_eq!(counts("c"), (50, 11), "a single hit that does not fit");
        ask("edge", vec![with_hits("user=d,route=x", 10)]);
        assert!(!ask("edge", both("d", 50, 0)).is_ok());
        assert_eq!(counts("d"), (50, 10), "beside a peek that finds nothing");
        assert_eq!(ask("edge", both("e", 150, 50)).statuses(), ["over", "over"]);
        assert_eq!(counts("e"), (150, 50), "two that do not fit");
        let blocked = vec![with_hits("user=f", 150), descriptor("user=mallory,route=x")];
        assert_eq!(ask("edge", blocked).statuses(), ["over", "over"]);
        assert_eq!(counts("f"), (150, 0), "beside one that is blocked");
        assert!(!ask("edge", both("g", 1, 2)).statuses().is_empty());
        assert_eq!(counts("g"), (1, 2), "all fit");
        assert_eq!(ask("strict", both("h", 1, 50)).statuses()[1], "over");
        // Over several shards, what one of them has charged is refunded in the background.
        eventually("a refused call is not charged", || counts("h") == (0, 0));
    });
}

/// A request holds a permit, and a report is no request.
#[test]
fn a_refused_report_takes_no_permit() {
    on_each(&MEMORY_AND_REDIS, |backend| {
        let fleet = backend.start(RULES, &Clock::manual(NOW));
        let gateway = &fleet.gateways[0];
        let mut client = connect_first(&fleet);
        let refused = client.ask("edge", vec![with_hits("user=a", 150), descriptor("run=a")]);
        assert!(!refused.is_ok() && !takes_permits(&refused));
        assert_eq!((used(gateway, "running", &["a"]), used(gateway, "tokens", &["a"])), (0, 150));
        client.ask("edge", vec![with_hits("run=b", 5)]);
        let refused = client.ask("edge", vec![with_hits("user=b", 50), descriptor("run=b")]);
        assert_eq!(refused.refused_by().as_deref(), Some("running"));
        assert_eq!(refused.statuses(), ["ok 50", "over"]);
        assert_eq!((used(gateway, "running", &["b"]), used(gateway, "tokens", &["b"])), (5, 50));
        let several = client.ask("edge", vec![descriptor("user=c"), with_hits("run=b", 2)]);
        assert!(!several.is_ok());
        assert_eq!(used(gateway, "tokens", &["c"]), 0, "several permits are no report");
        let admitted = client.ask("edge", vec![with_hits("user=c", 50), descriptor("run=c")]);
        assert!(admitted.is_ok() && takes_permits(&admitted));
    });
}

/// A limit that is not enforced counts as if it were.
#[test]
fn late_hits_are_charged_to_limits_that_are_not_enforced() {
    on_each(&MEMORY_AND_REDIS, |backend| {
        let fleet = backend.start(RULES, &Clock::manual(NOW));
        let mut client = connect_first(&fleet);
        for (hits, total) in [(8, 8), (8, 16), (30, 46)] {
            let decided = client.ask("edge", vec![with_hits("dry=a", hits), descriptor("user=a")]);
            assert!(decided.is_ok());
            assert_eq!(used(&fleet.gateways[0], "dry", &["a"]), total);
        }
        assert!(client.ask("edge", vec![descriptor("dry=a")]).is_ok());
        assert_eq!(used(&fleet.gateways[0], "dry", &["a"]), 46, "one hit is a request");
        assert_eq!(used(&fleet.gateways[0], "tokens", &["a"]), 3);
    });
}

#[test]
fn the_answer_to_late_hits_shows_the_counts_after_them() {
    for algorithm in [
        "algorithm: sliding_window",
        "algorithm: sliding_window, strict: true",
        "algorithm: sliding_log",
        "algorithm: fixed_window",
        "algorithm: token_bucket",
        "algorithm: fixed_window, reserve: 5",
        "algorithm: sliding_window, reserve: auto",
        "algorithm: fixed_window, block: {after: 3, within: 1m, for: 5m}",
    ] {
        on_each(&MEMORY_AND_REDIS, |backend| {
            let rules = RULES.replace(
                "{quota: 100, window: 1m, algorithm: fixed_window,",
                &format!("{{quota: 100, window: 1m, {algorithm},"),
            );
            for (user, before, hits) in [("a", 0, 150), ("b", 60, 60), ("c", 100, 2)] {
                let clock = Clock::manual(NOW);
                let fleet = backend.start(&rules, &clock);
                let mut client = connect_first(&fleet);
                let what = format!("{algorithm}, {before} and {hits}");
                let own = format!("user={user}");
                client.ask("edge", vec![with_hits(&own, before)]);
                let other = format!("{own},route={before}");
                let call = vec![with_hits(&own, hits), with_hits(&other, 4)];
                let refused = client.ask("edge", call);
                assert_eq!(refused.statuses(), ["over", "ok 6"], "{what}");
                assert_eq!(refused.header("x-ratelimit-limit"), Some("100"), "{what}");
                assert_eq!(refused.header("x-ratelimit-remaining"), Some("0"), "{what}");
                let total = (before + hits).to_string();
                assert_eq!(refused.header("x-ratelimit-used"), Some(&*total), "{what}");
                let seconds = refused.header("retry-after").expect("a time").parse::<u64>();
                let wait = 1_000 * seconds.expect("seconds");
                let reset = refused.0.statuses[0].duration_until_reset.expect("a duration");
                assert!(reset.seconds >= 1, "{what}");
                clock.set(NOW + ms(wait));
                // More hits than the quota never fit.
                let again = if hits > 100 { 1 } else { hits };
                let decided = client.ask("edge", vec![with_hits(&own, again)]);
                assert!(decided.is_ok(), "{what}: refused after {wait} ms");
            }
        });
    }
}

#[test]
fn late_hits_of_a_blocked_caller_are_charged() {
    on_each(&MEMORY_AND_REDIS, |backend| {
        let rules = RULES.replace(
            "{quota: 100, window: 1m,",
            "{quota: 100, window: 1m, block: {after: 1, within: 1m, for: 5m},",
        );
        let clock = Clock::manual(NOW);
        let fleet = backend.start(&rules, &clock);
        let mut client = connect_first(&fleet);
        client.ask("edge", vec![with_hits("user=a", 100)]);
        assert!(!client.ask("edge", vec![descriptor("user=a")]).is_ok(), "the block begins");
        for (seconds, total) in [(0, 150), (61, 50)] {
            clock.set(NOW + ms(1_000 * seconds));
            let refused = client.ask("edge", vec![with_hits("user=a", 50)]);
            assert_eq!(refused.statuses(), ["over"]);
            let wait = (300 - seconds).to_string();
            assert_eq!(refused.header("retry-after"), Some(&*wait), "the end of the block");
            assert_eq!(used(&fleet.gateways[0], "tokens", &["a"]), total);
        }
        clock.set(NOW + ms(300_000));
        assert!(client.ask("edge", vec![descriptor("user=a")]).is_ok());
    });
}

/// A store in Redis, and limits with the failure `policy`.
fn with_redis(redis: &RedisServer, policy: &str, timeout: &str) -> String {
    fill(
        "
        store:
          redis: {shards: [{primary: '{redis}'}], connect_timeout: {timeout}, response_timeout: {timeout}}
        rate_limit_service:
          address: 127.0.0.1:0
          domains: {edge: {limits: [tokens, running], late_hits: charge}}
        limits:
          tokens: {quota: 100, window: 24h, algorithm: fixed_window, key: ['descriptor:user'], on_failure: {policy}}
          running: {algorithm: concurrency, quota: 5, window: 1h, key: ['descriptor:run'], on_failure: {policy}}
        upstreams: {app: {respond: {}}}
        routes: [{name: all, upstream: app}]
        ",
        [("redis", redis.url()), ("policy", policy.into()), ("timeout", timeout.into())],
    )
}

fn report(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "edge".into(), descriptors, hits_addend: 0 }
}

/// While Redis gives no answer, late hits are counted by the gateway (`local`) or kept until Redis
/// is back, and permits that are given back are kept too.
#[test]
fn nothing_that_has_happened_is_lost_with_redis() {
    for (policy, code, in_redis) in
        [("local", None, 60), ("open", None, 210), ("closed", Some(14), 210)]
    {
        let redis = RedisServer::start();
        let gateway = Gateway::start(&with_redis(&redis, policy, "500ms"));
        let mut client = connect(&gateway);
        client.ask("edge", vec![with_hits("user=a", 60), with_hits("run=a", 2)]);
        redis.suspend();
        eventually("Redis is lost", || {
            let _ = client.try_ask(&report(vec![descriptor("user=z")]));
            gateway.metric("tidegate_store_fallbacks_total") > 0
        });
        let call = report(vec![with_hits("user=a", 150), given_back("run=a", 1)]);
        let failed = client.try_ask(&call).err().map(|failure| failure.code);
        assert_eq!(failed, code, "{policy}");
        if policy == "local" {
            let again = client.ask("edge", vec![descriptor("user=a")]);
            assert_eq!(again.statuses(), ["over"], "its own share is overdrawn");
        }
        redis.resume();
        eventually(&format!("{policy}: Redis has counted all"), || {
            try_used(&gateway, "tokens", &["a"]) == Some(in_redis)
                && try_used(&gateway, "running", &["a"]) == Some(1)
        });
        sleep(Duration::from_millis(300));
        assert_eq!(used(&gateway, "tokens", &["a"]), in_redis, "{policy}: once each");
    }
}

/// Envoy cancels a call that takes longer than its timeout.
#[test]
fn a_cancelled_report_is_charged() {
    let redis = RedisServer::start();
    let gateway = Gateway::start(&with_redis(&redis, "local", "5s"));
    connect(&gateway).ask("edge", vec![with_hits("run=a", 2)]);
    redis.suspend();
    let service = gateway.server.rate_limit_service.expect("the service");
    let mut client = Http2Client::connect(service);
    let call = report(vec![with_hits("user=a", 150), given_back("run=a", 1)]);
    let mut exchange =
        client.start(request("POST", SHOULD_RATE_LIMIT, GRPC_FIELDS), false).expect("a stream");
    exchange.send(&frame_message(&call.encode_to_vec()), true).expect("a body");
    sleep(Duration::from_millis(300));
    exchange.reset();
    sleep(Duration::from_millis(100));
    redis.resume();
    eventually("the call is charged", || {
        (used(&gateway, "tokens", &["a"]), used(&gateway, "running", &["a"])) == (150, 1)
    });
    let mut client = RateLimitClient::connect(service);
    assert_eq!(client.ask("edge", vec![descriptor("user=a")]).statuses(), ["over"]);
}

/// Sets an override of the key `a`, and returns its path.
fn set_override(gateway: &Gateway, limit: &str, quota: &str) -> String {
    let body = format!(r#"{{"limit": "{limit}", "key": "a", "quota": "{quota}", "until": null}}"#);
    let put = put_override(gateway, &body);
    assert!(put.status < 300, "{}", put.text());
    format!("/api/overrides/{}", put.json()["id"].as_str().expect("an id"))
}

/// What was taken before an override comes back under it, and what is reported under a block has
/// happened.
#[test]
fn an_override_loses_no_report() {
    for (quota, charged) in [("blocked", 8), ("unlimited", 3)] {
        on_each(&MEMORY_AND_REDIS, |backend| {
            // Without Redis, overrides are in a file.
            let folder = tempfile::tempdir().expect("a folder");
            let place = format!("overrides: {{file: '{}/o.yaml'}}\n", folder.path().display());
            let place = if backend.redis_server().is_some() { String::new() } else { place };
            let fleet = backend.start(&(place + &without_indentation(RULES)), &Clock::manual(NOW));
            let gateway = &fleet.gateways[0];
            let mut client = connect_first(&fleet);
            let mut ask = |own: RateLimitDescriptor| client.ask("edge", vec![own]).is_ok();
            assert!((0..3).all(|_| ask(descriptor("run=a"))) && ask(with_hits("user=a", 4)));
            let paths = ["running", "tokens"].map(|limit| set_override(gateway, limit, quota));
            assert!((0..3).all(|_| ask(given_back("run=a", 1))), "{quota}");
            assert!(ask(given_back("user=a", 1)));
            assert_eq!(ask(with_hits("user=a", 5)), quota == "unlimited");
            assert_eq!(ask(descriptor("run=a")), quota == "unlimited");
            for path in paths {
                let delete = format!("DELETE {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
                assert!(Client::connect(gateway.admin()).send(delete).read_response().status < 300);
            }
            let counts = (used(gateway, "running", &["a"]), used(gateway, "tokens", &["a"]));
            assert_eq!(counts, (0, charged), "{quota}");
        });
    }
}

/// What only counts decides nothing, so Envoy must not show it to clients.
#[test]
fn a_candidate_is_in_no_status() {
    let rules = RULES.replace(
        "quota: 100, window: 1m, algorithm: fixed_window,",
        "quota: 100, window: 1m, algorithm: fixed_window, candidate: {quota: 5},",
    );
    let gateway = Gateway::start_at(&without_indentation(&rules), Clock::manual(NOW));
    let mut client = connect(&gateway);
    assert_eq!(client.ask("edge", vec![with_hits("user=a", 7)]).statuses(), ["ok 93"]);
    let dry = client.ask("edge", vec![with_hits("dry=a", 12)]);
    assert_eq!((dry.0.statuses[0].current_limit.clone(), dry.is_ok()), (None, true));
}
