//! Outages of one Redis: what each failure policy responds, and how gateways recover.

/// Outages while requests are sent.
mod load;

use std::time::Duration;

use testkit::{
    client::{Response, get},
    gateway::Gateway,
    redis_server::RedisServer,
    upstream::Upstream,
    wait::{eventually, timed},
    yaml::fill,
};

/// The response timeout for tests in which Redis hangs.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Slack above a timeout, for a busy machine.
const GRACE: Duration = Duration::from_secs(4);

const POLICIES: [&str; 3] = ["local", "open", "closed"];

/// A limit and a route for each policy.
const EACH_POLICY: &str = "
store:
  redis:
    shards: [{primary: '{redis}'}]
    connect_timeout: {timeout}ms
    response_timeout: {timeout}ms
upstreams: {hello: {respond: {body: hello}}}
limits:
  local: {quota: {quota}, window: 24h, resolution: 1, key: [], on_failure: local}
  open: {quota: {quota}, window: 24h, resolution: 1, key: [], on_failure: open}
  closed: {quota: {quota}, window: 24h, resolution: 1, key: [], on_failure: closed}
routes:
  - {name: local, match: {path: /local}, upstream: hello, limits: [local]}
  - {name: open, match: {path: /open}, upstream: hello, limits: [open]}
  - {name: closed, match: {path: /closed}, upstream: hello, limits: [closed]}
";

/// Timeouts so long that a machine that is busy with other tests does not look like a lost Redis.
fn start(redis: &RedisServer, quota: u64) -> Gateway {
    start_with(redis, quota, Duration::from_secs(5))
}

/// The same with a short `timeout`, for a Redis that will hang.
fn start_with(redis: &RedisServer, quota: u64, timeout: Duration) -> Gateway {
    let (quota, timeout) = (quota.to_string(), timeout.as_millis().to_string());
    let values = [("redis", redis.url()), ("quota", quota), ("timeout", timeout)];
    Gateway::start(&fill(EACH_POLICY, values))
}

fn store(gateway: &Gateway) -> serde_json::Value {
    let response = get(gateway.admin(), "/readyz", "");
    assert_eq!(response.status, 200, "a lost store must not make a gateway unready");
    response.json()["store"].clone()
}

/// The value of a metric with one label.
fn metric(gateway: &Gateway, line: &str) -> u64 {
    let text = get(gateway.admin(), "/metrics", "").text();
    let value = text.lines().find_map(|own| own.strip_prefix(line)?.strip_prefix(' '));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {line} in\n{text}"))
}

fn has_rate_limit_headers(response: &Response) -> bool {
    response.head.to_ascii_lowercase().contains("x-ratelimit")
}

/// Waits until both gateways have registered in Redis.
fn wait_registered(gateways: &[Gateway; 2]) {
    eventually("both gateways are registered", || {
        gateways.iter().all(|gateway| store(gateway)["gateways"] == 2)
    });
}

/// Asserts the response of each policy during an outage.
fn assert_policies(gateway: &Gateway) {
    let closed = get(gateway.address(), "/closed", "");
    assert_eq!(closed.status, 503);
    assert_eq!(closed.header("Content-Type"), Some("application/problem+json"));
    let kind = closed.json()["type"].as_str().expect("a type").to_owned();
    assert!(kind.ends_with("store-unavailable"), "{kind}");
    assert!(closed.number("Retry-After") >= 1 && !has_rate_limit_headers(&closed));
    let open = get(gateway.address(), "/open", "");
    assert_eq!(open.status, 200);
    assert!(!has_rate_limit_headers(&open), "no headers without Redis: {}", open.head);
    let local = get(gateway.address(), "/local", "");
    assert!(matches!(local.status, 200 | 429) && has_rate_limit_headers(&local));
}

/// Sends requests until the breakers of both workers are open: new connections reach both
/// eventually.
fn open_every_breaker(gateway: &Gateway) {
    eventually("every worker has an open breaker", || {
        let response = get(gateway.address(), "/local", "");
        assert!(response.status < 500);
        store(gateway)["workers_without_redis"] == 2
    });
}

/// Waits until all workers use Redis again and the gateways share their counters.
fn wait_recovered(gateways: &[Gateway]) {
    for gateway in gateways {
        eventually("Redis is reconnected", || {
            let store = store(gateway);
            store["healthy"] == true && store["workers_without_redis"] == 0
        });
    }
    let local = || gateways.iter().map(|g| g.metric("tidegate_store_fallbacks_total")).sum::<u64>();
    for path in ["/local", "/open", "/closed"] {
        eventually("decisions are shared again", || {
            let before = local();
            // Twice per gateway, so that even a single one gives two responses to compare.
            let ask = |gateway: &Gateway| get(gateway.address(), path, "");
            let responses: Vec<_> = gateways.iter().chain(gateways).map(ask).collect();
            let used = |response: &Response| response.number("X-RateLimit-Used");
            // Requests admitted meanwhile count: the quota may be exhausted.
            let is_full =
                path == "/local" && responses.iter().all(|response| response.status == 429);
            responses.iter().all(has_rate_limit_headers)
                && local() == before
                && (is_full || responses.windows(2).all(|two| used(&two[1]) == used(&two[0]) + 1))
        });
    }
}

#[test]
fn without_redis_at_start_each_policy_applies_until_it_connects() {
    let mut redis = RedisServer::not_started();
    let gateways = [start(&redis, 10), start(&redis, 10)];
    for gateway in &gateways {
        assert_eq!(store(gateway)["kind"], "redis");
        open_every_breaker(gateway);
        assert_eq!(store(gateway)["healthy"], false);
        assert_policies(gateway);
        let address = gateway.address();
        eventually("the local quota is exhausted", || get(address, "/local", "").status == 429);
        let refused = get(address, "/local", "");
        assert_eq!(refused.number("X-RateLimit-Remaining"), 0);
        assert_eq!(refused.number("X-RateLimit-Limit"), 10, "no other gateway is registered");
        for _ in 0..20 {
            assert_eq!(get(address, "/open", "").status, 200);
        }
        for (line, least) in [
            ("tidegate_store_workers_without_redis", 2),
            ("tidegate_store_failures_total{kind=\"open\"}", 20),
            ("tidegate_store_fallbacks_total{policy=\"local\"}", 10),
            ("tidegate_store_fallbacks_total{policy=\"open\"}", 21),
            ("tidegate_store_fallbacks_total{policy=\"closed\"}", 1),
        ] {
            assert!(metric(gateway, line) >= least, "{line}");
        }
        assert_eq!(store(gateway)["lost_shards"][0], redis.address());
        let up = format!("tidegate_store_shard_up{{shard=\"{}\"}}", redis.address());
        assert_eq!(metric(gateway, &up), 0);
    }
    redis.restart();
    wait_recovered(&gateways);
    // Gateways that started without Redis use the same keys. Redis counts only what it has decided.
    eventually("the shared quota is exhausted", || {
        gateways.iter().all(|gateway| {
            let response = get(gateway.address(), "/local", "");
            response.status == 429 && response.number("X-RateLimit-Used") == 10
        })
    });
    let calls = format!("tidegate_store_shard_calls_total{{shard=\"{}\"}}", redis.address());
    assert!(gateways.iter().all(|gateway| metric(gateway, &calls) > 0));
}

#[test]
fn an_idle_gateway_detects_the_outage() {
    let mut redis = RedisServer::start();
    let gateway = start(&redis, 1_000_000);
    eventually("Redis decides", || {
        let decided = |_| has_rate_limit_headers(&get(gateway.address(), "/open", ""));
        store(&gateway)["healthy"] == true && (0..16).all(decided)
    });
    redis.kill();
    eventually("the outage is reported", || store(&gateway)["healthy"] == false);
    eventually("each worker detects it", || store(&gateway)["workers_without_redis"] == 2);
    redis.restart();
    eventually("the recovery is reported", || store(&gateway)["healthy"] == true);
}

#[test]
fn an_open_limit_removes_the_upstreams_rate_limit_headers() {
    let upstream = Upstream::with_response(
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-RateLimit-Limit: 999\r\n\
         X-RateLimit-Remaining: 998\r\n\r\nok",
    );
    let gateway = Gateway::start(&fill(
        "
        store: {redis: {shards: [{primary: 'redis://127.0.0.1:1'}]}}
        upstreams: {origin: {targets: ['{target}']}}
        limits: {small: {quota: 1, window: 1h, on_failure: open}}
        routes: [{name: a, match: {path: /a}, upstream: origin, limits: [small]}]
        ",
        [("target", upstream.target())],
    ));
    for _ in 0..3 {
        let response = get(gateway.address(), "/a", "");
        assert_eq!(response.status, 200);
        assert!(!has_rate_limit_headers(&response), "{}", response.head);
    }
}

#[test]
fn each_policy_applies_while_redis_hangs() {
    let redis = RedisServer::start();
    let gateway = start_with(&redis, 1_000, RESPONSE_TIMEOUT);
    get(gateway.address(), "/local", "");
    redis.suspend();
    open_every_breaker(&gateway);
    let failed = |kind| gateway.metric(&format!("tidegate_store_failures_total{{kind=\"{kind}\""));
    let before = ["timeout", "open"].map(failed);
    assert_policies(&gateway);
    let [timeouts, opens] = before;
    assert_eq!(
        ["timeout", "open"].map(failed),
        [timeouts, opens + 3],
        "an open breaker delays no request"
    );
    redis.resume();
    wait_recovered(&[gateway]);
}

#[test]
fn every_key_in_redis_expires() {
    let redis = RedisServer::start();
    let gateways = [start(&redis, 5), start(&redis, 5)];
    wait_registered(&gateways);
    for gateway in &gateways {
        for policy in POLICIES.repeat(5) {
            get(gateway.address(), &format!("/{policy}"), "");
        }
    }
    let keys: Vec<String> = redis.command(&["KEYS", "*"]);
    let limits = keys.iter().filter(|key| key.contains('{')).count();
    assert_eq!(limits, POLICIES.len(), "{keys:?}");
    for key in &keys {
        let ttl: i64 = redis.command(&["PTTL", key]);
        // The probe's key is short-lived: it may have expired since `KEYS`, or in this millisecond.
        assert!(ttl > 0 || (ttl != -1 && key.ends_with(":probe")), "{key}: {ttl}");
    }
}

#[test]
fn the_local_share_divides_the_quota_by_the_last_gateway_count() {
    let mut redis = RedisServer::start();
    let gateways = [start(&redis, 11), start(&redis, 11)];
    wait_registered(&gateways);
    redis.kill();
    for gateway in &gateways {
        open_every_breaker(gateway);
        eventually("the share is exhausted", || get(gateway.address(), "/local", "").status == 429);
        let refused = get(gateway.address(), "/local", "");
        assert_eq!(refused.number("X-RateLimit-Limit"), 6);
        assert_eq!(refused.number("X-RateLimit-Used"), 6);
    }
    redis.restart();
    wait_recovered(&gateways);
    assert_eq!(get(gateways[0].address(), "/local", "").number("X-RateLimit-Limit"), 11);
}

/// Requests are decided before the gateway count or a reply of Redis is known.
#[test]
fn the_start_does_not_wait_for_a_hung_redis() {
    // The listener never accepts: connections are established and never answered.
    let hung = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let yaml = fill(
        "
        store:
          redis:
            shards: [{primary: 'redis://{hung}'}]
            connect_timeout: 8s
            response_timeout: 8s
        upstreams: {hello: {respond: {body: hello}}}
        throttle: {max_active: 10, capacity: 1000}
        routes: [{name: hello, match: {path: /}, upstream: hello}]
        ",
        [("hung", hung.local_addr().expect("an address"))],
    );
    let (gateway, took) = timed(|| Gateway::start(&yaml));
    assert!(took < GRACE, "{took:?}");
    assert_eq!(get(gateway.address(), "/", "").status, 200);
}
