use testkit::{
    backend::{
        Backend, Fleet, MEMORY_AND_REDIS, MEMORY_AND_TOPOLOGIES, MEMORY_BY_PROTOCOL_AND_TOPOLOGIES,
        on_all_at_once, on_each,
    },
    client::{Client, Response},
    gateway::wait_for_first_reports,
    upstream::Upstream,
    wait::sleep,
};
use tidegate::clock::{Clock, StoreTime};

mod histories;

/// 2023, on a whole second and the start of a sub-window of 2 s.
const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

/// A configuration with these `limits` and `routes` and fixed responses.
fn rules(limits: &str, routes: &str) -> String {
    format!(
        "upstreams: {{hello: {{respond: {{body: hello}}}}}}
limits: {{{limits}}}
routes: [{routes}]
"
    )
}

/// A route with a fixed response.
fn route(path: &str, limits: &str) -> String {
    let name = path.trim_start_matches('/');
    format!("{{name: {name}, match: {{path: {path}}}, upstream: hello, limits: [{limits}]}}")
}

/// The rate-limit headers of a response, checked for consistency.
#[derive(Clone, Debug, Eq, PartialEq)]
struct AdvertisedLimit {
    admitted: bool,
    limit: u64,
    remaining: u64,
    used: u64,
    reset: u64,
    resource: String,
    retry_after: Option<u64>,
}

/// Reads the headers and checks the invariants that hold unless the quota was lowered.
fn advertised(response: &Response) -> AdvertisedLimit {
    let advertised = advertised_unchecked(response);
    assert_eq!(advertised.limit, advertised.used + advertised.remaining, "{}", response.head);
    advertised
}

fn advertised_unchecked(response: &Response) -> AdvertisedLimit {
    let advertised = AdvertisedLimit {
        admitted: response.status == 200,
        limit: response.number("X-RateLimit-Limit"),
        remaining: response.number("X-RateLimit-Remaining"),
        used: response.number("X-RateLimit-Used"),
        reset: response.number("X-RateLimit-Reset"),
        resource: response.header("X-RateLimit-Resource").expect("a resource").to_owned(),
        retry_after: response.header("Retry-After").map(|_| response.number("Retry-After")),
    };
    assert!(response.header("X-Request-Id").is_some(), "{}", response.head);
    if advertised.admitted {
        assert_eq!(advertised.retry_after, None, "{}", response.head);
        return advertised;
    }
    assert_eq!(response.status, 429, "{}", response.head);
    assert_eq!(response.header("Content-Type"), Some("application/problem+json"));
    let problem = response.json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!((&problem["title"], &problem["status"]), (&"Quota exceeded".into(), &429.into()));
    assert_eq!(problem["request-id"].as_str(), response.header("X-Request-Id"));
    let violated = problem["violated-policies"].as_array().expect("the policies");
    assert!(violated.iter().any(|name| *name == advertised.resource.as_str()), "{problem}");
    assert_eq!(problem["retry-after"].as_u64(), advertised.retry_after);
    assert!(advertised.retry_after.is_none_or(|seconds| seconds >= 1));
    advertised
}

#[test]
fn every_limited_response_has_all_rate_limit_headers() {
    on_all_at_once(&MEMORY_BY_PROTOCOL_AND_TOPOLOGIES, |backend| {
        let yaml =
            rules("per-caller: {quota: 5, window: 10s, key: [token]}", &route("/a", "per-caller"));
        let fleet = backend.start(&yaml, &Clock::manual(NOW + 500));
        for used in 1..=5 {
            let advertised = advertised(&fleet.get_as("alice", "/a"));
            assert!(advertised.admitted);
            assert_eq!(
                (advertised.limit, advertised.used, advertised.remaining),
                (5, used, 5 - used)
            );
            assert_eq!(
                (advertised.reset, &*advertised.resource),
                (NOW.as_unix_ms() / 1000 + 12, "per-caller")
            );
        }
        for _ in 0..3 {
            let advertised = advertised(&fleet.get_as("alice", "/a"));
            assert!(!advertised.admitted);
            assert_eq!(
                (advertised.remaining, advertised.used, advertised.reset),
                (0, 5, NOW.as_unix_ms() / 1000 + 12)
            );
            assert!((1..=12).contains(&advertised.retry_after.expect("a wait")));
        }
        assert_eq!(advertised(&fleet.get_as("bob", "/a")).used, 1, "callers do not share");
        let head = fleet.get_as("carol", "/a").head.to_ascii_lowercase();
        assert!(!head.contains("\r\nratelimit"), "the standard form is opt-in: {head}");
        assert!(!head.contains("access-control"), "no cross-origin request: {head}");
    });
}

#[test]
fn failed_responses_have_rate_limit_headers() {
    on_all_at_once(&MEMORY_BY_PROTOCOL_AND_TOPOLOGIES, |backend| {
        let yaml = "upstreams: {gone: {targets: [\"http://127.0.0.1:1\"]}}
limits: {small: {quota: 1, window: 10s}}
routes: [{name: a, match: {path: /a}, upstream: gone, limits: [small]}]
";
        let fleet = backend.start(yaml, &Clock::manual(NOW));
        let response = fleet.get("/a", "");
        assert_eq!((response.status, response.number("X-RateLimit-Remaining")), (502, 0));
        assert!(!advertised(&fleet.get("/a", "")).admitted);
    });
}

/// The page for clients lists which responses have rate headers; requests whose limits were not checked are not
/// charged.
#[test]
fn responses_before_the_limits_have_no_rate_limit_headers() {
    let upstream = Upstream::hello();
    let yaml = format!(
        "upstreams: {{app: {{targets: [\"{}\"]}}}}
limits: {{small: {{quota: 5, window: 1h, key: [], cost: 'header:x-cost', max_cost: 3}}}}
routes:
  - {{name: a, match: {{path: /a}}, upstream: app, limits: [small], max_body: 10B, deny: [192.0.2.0/24],
      cors: {{origins: ['https://a.example']}}}}
client: {{trusted_proxies: [127.0.0.1]}}
",
        upstream.target()
    );
    on_each(&MEMORY_AND_REDIS, |backend| {
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        let has_headers =
            |response: &Response| response.head.to_ascii_lowercase().contains("\r\nx-ratelimit-");
        for (path, headers, status) in [
            ("/a", "X-Cost: nothing\r\nX-Forwarded-For: 198.51.100.1\r\n", 400),
            ("/a", "X-Forwarded-For: 192.0.2.7\r\n", 403),
            ("/b", "", 404),
            ("/a", "Expect: something\r\nX-Forwarded-For: 198.51.100.1\r\n", 417),
        ] {
            let response = fleet.get(path, headers);
            assert_eq!((response.status, has_headers(&response)), (status, false), "{headers}");
        }
        let send = |request: &str| {
            Client::connect(fleet.gateways[0].address()).send(request).read_response()
        };
        let long = send(
            "POST /a HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 198.51.100.1\r\nContent-Length: 11\r\n\r\n",
        );
        assert_eq!((long.status, has_headers(&long)), (413, false));
        let preflight = send(
            "OPTIONS /a HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 198.51.100.1\r\nOrigin: https://a.example\r\n\
             Access-Control-Request-Method: GET\r\n\r\n",
        );
        assert!(preflight.status < 300 && !has_headers(&preflight), "{}", preflight.head);

        let first = fleet.get("/a", "X-Forwarded-For: 198.51.100.1\r\n");
        assert_eq!((first.status, first.number("X-RateLimit-Used")), (200, 1), "none was charged");
        let chunked = send(
            "POST /a HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 198.51.100.1\r\nTransfer-Encoding: chunked\r\n\r\n\
             b\r\n01234567890\r\n0\r\n\r\n",
        );
        assert_eq!((chunked.status, chunked.number("X-RateLimit-Used")), (413, 2));
    });
}

#[test]
fn several_limits_are_charged_all_or_none() {
    on_all_at_once(&MEMORY_AND_TOPOLOGIES, |backend| {
        let limits = "broad: {quota: 5000, window: 1h}, narrow: {quota: 1, window: 1h}";
        let routes = [route("/both", "broad, narrow"), route("/broad", "broad")].join(", ");
        let fleet = backend.start(&rules(limits, &routes), &Clock::manual(NOW));
        assert!(advertised(&fleet.get("/both", "")).admitted);
        for _ in 0..1_000 {
            let advertised = advertised(&fleet.get("/both", ""));
            assert_eq!((advertised.admitted, &*advertised.resource), (false, "narrow"));
        }
        let advertised = advertised(&fleet.get("/broad", ""));
        assert_eq!((advertised.used, &*advertised.resource), (2, "broad"));
    });
}

#[test]
fn the_limit_with_the_fewest_remaining_is_advertised() {
    on_all_at_once(&MEMORY_BY_PROTOCOL_AND_TOPOLOGIES, |backend| {
        let limits = "cheap: {quota: 8, window: 1h}, dear: {quota: 40, window: 1h, cost: 10}";
        let fleet = backend.start(&rules(limits, &route("/a", "cheap, dear")), &Clock::manual(NOW));
        for left in [30, 20, 10, 0] {
            let advertised = advertised(&fleet.get("/a", ""));
            assert_eq!(
                (&*advertised.resource, advertised.remaining, advertised.limit),
                ("dear", left, 40)
            );
        }
        let refused = fleet.get("/a", "");
        assert_eq!(refused.json()["violated-policies"], serde_json::json!(["dear"]));
        assert_eq!(advertised(&refused).resource, "dear");
    });
}

#[test]
fn a_cost_above_what_remains_is_refused_and_not_charged() {
    on_all_at_once(&MEMORY_BY_PROTOCOL_AND_TOPOLOGIES, |backend| {
        let clock = Clock::manual(NOW);
        let yaml = rules("dear: {quota: 10, window: 10s, cost: 4}", &route("/a", "dear"));
        let fleet = backend.start(&yaml, &clock);
        for used in [4, 8] {
            assert_eq!(advertised(&fleet.get("/a", "")).used, used);
        }
        for _ in 0..3 {
            let advertised = advertised(&fleet.get("/a", ""));
            assert_eq!((advertised.admitted, advertised.remaining, advertised.used), (false, 2, 8));
        }
        let seconds = advertised(&fleet.get("/a", "")).retry_after.expect("a wait");
        clock.set(NOW + seconds * 1000 - 1000);
        assert!(
            !advertised(&fleet.get("/a", "")).admitted,
            "Retry-After is not longer than needed"
        );
        clock.set(NOW + seconds * 1000);
        assert!(advertised(&fleet.get("/a", "")).admitted);
    });
}

#[test]
fn the_standard_headers_are_exact() {
    on_all_at_once(&MEMORY_BY_PROTOCOL_AND_TOPOLOGIES, |backend| {
        let limits = "per-caller: {quota: 5, window: 10s, resolution: 5, key: [token]}, \
                      all: {quota: 100, window: 90s, resolution: 1, key: []}";
        let rules = rules(limits, &route("/a", "per-caller, all"));
        let clock = Clock::manual(NOW + 1);
        let fleet = backend.start(&format!("headers: {{standard: draft-11}}\n{rules}"), &clock);
        let response = fleet.get_as("alice", "/a");
        let policy = r#""per-caller";q=5;w=10, "all";q=100;w=90"#;
        assert_eq!(response.header("RateLimit-Policy"), Some(policy));
        // A sub-window of 2 s expires 12 s after its start. The current one of 90 s began before NOW.
        let until = 180 - NOW.as_unix_ms() / 1000 % 90;
        let state = format!(r#""per-caller";r=4;t=12, "all";r=99;t={until}"#);
        assert_eq!(response.header("RateLimit"), Some(&*state));
        assert_eq!(advertised(&response).remaining, 4);
        for _ in 0..4 {
            fleet.get_as("alice", "/a");
        }
        let refused = fleet.get_as("alice", "/a");
        assert!(!advertised(&refused).admitted);
        let refuses = r#""per-caller";r=0;t=12"#;
        let state = format!(r#"{refuses}, "all";r=95;t={until}"#);
        let advertised = refused.header("RateLimit").expect("the standard form");
        // If `all` is on another shard, its charge is refunded in the background and not advertised.
        assert!(
            advertised == state || backend.is_sharded() && advertised == refuses,
            "{advertised}"
        );

        fleet.reload(&format!("headers: {{x_ratelimit: false, standard: draft-11}}\n{rules}"));
        let response = fleet.get_as("bob", "/a");
        assert!(response.header("RateLimit").is_some() && !response.head.contains("x-ratelimit"));
        fleet.reload(&format!("headers: {{x_ratelimit: false}}\n{rules}"));
        let head = fleet.get_as("bob", "/a").head;
        assert!(!head.to_ascii_lowercase().contains("ratelimit"), "{head}");
    });
}

#[test]
fn rate_limit_headers_of_the_upstream_are_replaced() {
    let upstream = Upstream::with_response(
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-RateLimit-Limit: 999\r\n\
         X-Ratelimit-Remaining: 998\r\nx-ratelimit-remaining: 997\r\nX-RateLimit-Used: 1\r\n\
         X-RateLimit-Reset: 12\r\nX-RateLimit-Resource: core\r\nRateLimit: \"x\";r=1\r\n\
         RateLimit-Policy: \"x\";q=1\r\nAccess-Control-Expose-Headers: X-Own\r\n\r\nok",
    );
    on_all_at_once(&MEMORY_BY_PROTOCOL_AND_TOPOLOGIES, |backend| {
        let yaml = format!(
            "headers: {{standard: draft-11}}
upstreams: {{origin: {{targets: [{}]}}}}
limits: {{small: {{quota: 3, window: 10s}}}}
routes: [{{name: a, match: {{path: /a}}, upstream: origin, limits: [small]}}]
",
            upstream.target()
        );
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        let response = fleet.get("/a", "");
        let advertised = advertised(&response);
        assert_eq!(
            (advertised.limit, advertised.remaining, &*advertised.resource),
            (3, 2, "small")
        );
        assert_eq!(response.header("RateLimit-Policy"), Some(r#""small";q=3;w=10"#));
        assert!(
            response.header("RateLimit").is_some_and(|value| value.starts_with("\"small\";r=2"))
        );
        assert_eq!(response.header("Access-Control-Expose-Headers"), Some("X-Own"));
    });
}

#[test]
fn cors_exposes_the_headers() {
    on_all_at_once(&MEMORY_BY_PROTOCOL_AND_TOPOLOGIES, |backend| {
        let yaml = rules("small: {quota: 1, window: 10s}", &route("/a", "small"));
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        for status in [200, 429] {
            let response = fleet.get("/a", "Origin: https://shop.example\r\n");
            assert_eq!(response.status, status);
            let exposed = response.header("Access-Control-Expose-Headers").expect("a list");
            for name in ["Limit", "Remaining", "Used", "Reset", "Resource"] {
                assert!(exposed.contains(&format!("X-RateLimit-{name}")), "{name} in {exposed}");
            }
            assert!(exposed.contains("Retry-After"), "{exposed}");
        }
    });
}

#[test]
fn a_changed_quota_keeps_the_usage() {
    on_all_at_once(&MEMORY_BY_PROTOCOL_AND_TOPOLOGIES, |backend| {
        let clock = Clock::manual(NOW);
        let with = |quota: u32, cost: u32| {
            let limit = format!("small: {{quota: {quota}, window: 10s, cost: {cost}}}");
            rules(&limit, &route("/a", "small"))
        };
        let fleet = backend.start(&with(10, 1), &clock);
        for _ in 0..6 {
            fleet.get("/a", "");
        }
        fleet.reload(&with(20, 1));
        let raised = advertised(&fleet.get("/a", ""));
        assert_eq!((raised.limit, raised.used, raised.remaining), (20, 7, 13));
        fleet.reload(&with(4, 1));
        let lowered = advertised_unchecked(&fleet.get("/a", ""));
        assert_eq!((lowered.admitted, lowered.limit), (false, 4));
        assert_eq!((lowered.used, lowered.remaining), (7, 0), "overdrawn by the lowered quota");
        // The same with a cost within the lowered quota but above its remainder.
        fleet.reload(&with(8, 3));
        let dear = advertised(&fleet.get("/a", ""));
        assert_eq!((dear.admitted, dear.used, dear.remaining), (false, 7, 1));
        clock.set(StoreTime::from_unix_ms(dear.reset * 1000));
        assert!(
            advertised(&fleet.get("/a", "")).admitted,
            "the reset is exact after a changed quota"
        );
        fleet.reload(&with(4, 1));
        let seconds = advertised_unchecked(&fleet.get("/a", "")).retry_after;
        if let Some(seconds) = seconds {
            clock.set(clock.store_time() + seconds * 1000);
            assert!(advertised(&fleet.get("/a", "")).admitted);
        }
    });
}

#[test]
fn one_request_is_one_redis_call_and_no_key_is_in_clear_text() {
    let backend = Backend::redis();
    let redis = backend.redis_server().expect("it is one Redis");
    let limits = "a: {quota: 9, window: 1m, key: [token]}, b: {quota: 9, window: 1m, \
                  key: [\"header:x-who\", \"cookie:sid\"]}, c: {quota: 9, window: 1m}";
    let fleet = backend.start(&rules(limits, &route("/a", "a, b, c")), &Clock::manual(NOW));
    wait_for_first_reports(redis, &fleet.gateways.iter().collect::<Vec<_>>());
    let headers = "Authorization: hunter2\r\nX-Who: hunter2\r\nCookie: sid=hunter2\r\n";
    fleet.get("/a", headers);
    let calls = || {
        let stats: String = redis.command(&["INFO", "commandstats"]);
        let calls = |name: &str| {
            let line = stats.lines().find_map(|line| line.strip_prefix(name));
            let count = line.and_then(|line| line.split_once("calls=")?.1.split(',').next());
            count.map_or(0, |count| count.parse::<u64>().expect("a number"))
        };
        calls("cmdstat_evalsha:")
    };
    let before = calls();
    for _ in 0..20 {
        fleet.get("/a", headers);
    }
    let wanted = 8 + fleet.gateways.len() as u64;
    assert_eq!(calls() - before, wanted, "8 admitted, and each gateway's first refusal");

    let keys: Vec<String> = redis.command(&["KEYS", "*"]);
    assert!(keys.len() >= 4, "{keys:?}");
    for key in keys {
        assert!(!key.contains("hunter2") && !key.contains("127.0.0.1"), "{key}");
        let kind: String = redis.command(&["TYPE", &key]);
        if kind == "string" {
            let value: Vec<u8> = redis.command(&["GET", &key]);
            assert!(!value.windows(7).any(|part| part == b"hunter2"), "{key}");
        }
    }
}

/// Exhausts a caller's quota; returns the refusal.
fn exhaust(fleet: &Fleet, token: &str, path: &str) -> AdvertisedLimit {
    loop {
        let advertised = advertised(&fleet.get_as(token, path));
        if !advertised.admitted {
            return advertised;
        }
    }
}

#[test]
fn every_algorithm_advertises_exact_numbers() {
    const SHAPES: [&str; 5] = [
        "quota: 5, window: 10s",
        "quota: 5, window: 10s, strict: true",
        "quota: 5, window: 10s, algorithm: sliding_log",
        "quota: 5, window: 10s, algorithm: fixed_window",
        "quota: 5, window: 10s, algorithm: token_bucket",
    ];
    on_all_at_once(&MEMORY_AND_TOPOLOGIES, |backend| {
        let of = |n: usize| format!("l{n}: {{{}, key: [token]}}", SHAPES[n]);
        let limits: Vec<_> = (0..SHAPES.len()).map(of).collect();
        let routes: Vec<_> =
            (0..SHAPES.len()).map(|n| route(&format!("/{n}"), &format!("l{n}"))).collect();
        let rules = rules(&limits.join(", "), &routes.join(", "));
        for (n, shape) in SHAPES.iter().enumerate() {
            let clock = Clock::manual(NOW + 300);
            let (fleet, path) = (backend.start(&rules, &clock), format!("/{n}"));
            for used in 1..=5 {
                let advertised = advertised(&fleet.get_as("alice", &path));
                assert_eq!(
                    (advertised.admitted, advertised.used, advertised.limit),
                    (true, used, 5),
                    "{shape}"
                );
            }
            let refused = exhaust(&fleet, "alice", &path);
            clock.set(NOW + 300 + refused.retry_after.expect("a wait") * 1_000);
            assert!(
                advertised(&fleet.get_as("alice", &path)).admitted,
                "{shape}: after Retry-After"
            );
            let second = exhaust(&fleet, "alice", &path);
            assert!(second.reset >= refused.reset, "{shape}: the reset moved back");
            clock.set(StoreTime::from_unix_ms(second.reset * 1_000));
            assert!(advertised(&fleet.get_as("alice", &path)).admitted, "{shape}: at the reset");
        }
    });
}

#[test]
fn retry_after_admits_in_real_time() {
    on_all_at_once(&MEMORY_AND_TOPOLOGIES, |backend| {
        let limit = "small: {quota: 3, window: 1s, resolution: 2, key: [token]}";
        // The other tests wait by a manual clock; this one shows that real clocks agree with it.
        let clock = Clock::system();
        let fleet = backend.start(&rules(limit, &route("/a", "small")), &clock);
        let refused = exhaust(&fleet, "alice", "/a");
        sleep(std::time::Duration::from_secs(refused.retry_after.expect("a wait")));
        assert!(advertised(&fleet.get_as("alice", "/a")).admitted);
        let reset = exhaust(&fleet, "bob", "/a").reset;
        let wait = (reset * 1000).saturating_sub(clock.now());
        assert!(wait <= 4_000, "{wait} ms");
        sleep(std::time::Duration::from_millis(wait));
        assert!(advertised(&fleet.get_as("bob", "/a")).admitted);
    });
}
