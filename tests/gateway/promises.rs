use tidegate::clock::Clock;

use crate::{
    client::Reply,
    redis_server::RedisServer,
    stage::{Fleet, Stage, on_every_topology},
    upstream::Upstream,
    wait::pause,
};

mod histories;

/// 2023, on a whole second and the start of a sub-window of 2 s.
const NOW: u64 = 1_700_000_000_000;

/// A configuration with these `limits` and `routes`; the gateway itself answers.
fn rules(limits: &str, routes: &str) -> String {
    format!(
        "upstreams: {{hello: {{respond: {{body: hello}}}}}}
limits: {{{limits}}}
routes: [{routes}]
"
    )
}

/// A route to the gateway itself.
fn route(path: &str, limits: &str) -> String {
    let name = path.trim_start_matches('/');
    format!("{{name: {name}, match: {{path: {path}}}, upstream: hello, limits: [{limits}]}}")
}

/// What an answer of a limited route tells, found to be in itself true.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Told {
    admitted: bool,
    limit: u64,
    remaining: u64,
    used: u64,
    reset: u64,
    resource: String,
    retry_after: Option<u64>,
}

/// Reads and checks what holds for every answer whose quota was not lowered.
fn told(reply: &Reply) -> Told {
    let told = told_of_any(reply);
    assert_eq!(told.limit, told.used + told.remaining, "{}", reply.head);
    told
}

fn told_of_any(reply: &Reply) -> Told {
    let told = Told {
        admitted: reply.status == 200,
        limit: reply.number("X-RateLimit-Limit"),
        remaining: reply.number("X-RateLimit-Remaining"),
        used: reply.number("X-RateLimit-Used"),
        reset: reply.number("X-RateLimit-Reset"),
        resource: reply.header("X-RateLimit-Resource").expect("a resource").to_owned(),
        retry_after: reply.header("Retry-After").map(|_| reply.number("Retry-After")),
    };
    assert!(reply.header("X-Request-Id").is_some(), "{}", reply.head);
    if told.admitted {
        assert_eq!(told.retry_after, None, "{}", reply.head);
        return told;
    }
    assert_eq!(reply.status, 429, "{}", reply.head);
    assert_eq!(reply.header("Content-Type"), Some("application/problem+json"));
    let problem = reply.json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!((&problem["title"], &problem["status"]), (&"Quota exceeded".into(), &429.into()));
    assert_eq!(problem["request-id"].as_str(), reply.header("X-Request-Id"));
    let violated = problem["violated-policies"].as_array().expect("the policies");
    assert!(violated.iter().any(|name| *name == told.resource.as_str()), "{problem}");
    assert_eq!(problem["retry-after"].as_u64(), told.retry_after);
    assert!(told.retry_after.is_none_or(|seconds| seconds >= 1));
    told
}

#[test]
fn every_limited_answer_carries_the_whole_family() {
    on_every_topology(|stage| {
        let yaml =
            rules("per-caller: {quota: 5, window: 10s, key: [token]}", &route("/a", "per-caller"));
        let fleet = stage.start(&yaml, &Clock::manual(NOW + 500));
        for used in 1..=5 {
            let told = told(&fleet.get_as("alice", "/a"));
            assert!(told.admitted);
            assert_eq!((told.limit, told.used, told.remaining), (5, used, 5 - used));
            assert_eq!((told.reset, &*told.resource), (NOW / 1000 + 12, "per-caller"));
        }
        for _ in 0..3 {
            let told = told(&fleet.get_as("alice", "/a"));
            assert!(!told.admitted);
            assert_eq!((told.remaining, told.used, told.reset), (0, 5, NOW / 1000 + 12));
            assert!((1..=12).contains(&told.retry_after.expect("a wait")));
        }
        assert_eq!(told(&fleet.get_as("bob", "/a")).used, 1, "callers do not share");
        let head = fleet.get_as("carol", "/a").head.to_ascii_lowercase();
        assert!(!head.contains("\r\nratelimit"), "the standard form is opt-in: {head}");
        assert!(!head.contains("access-control"), "nobody asked from another site: {head}");
    });
}

#[test]
fn an_answer_that_failed_is_limited_too() {
    on_every_topology(|stage| {
        let yaml = "upstreams: {gone: {targets: [\"http://127.0.0.1:1\"]}}
limits: {few: {quota: 1, window: 10s}}
routes: [{name: a, match: {path: /a}, upstream: gone, limits: [few]}]
";
        let fleet = stage.start(yaml, &Clock::manual(NOW));
        let reply = fleet.get("/a", "");
        assert_eq!((reply.status, reply.number("X-RateLimit-Remaining")), (502, 0));
        assert!(!told(&fleet.get("/a", "")).admitted);
    });
}

#[test]
fn several_limits_are_charged_all_or_none() {
    on_every_topology(|stage| {
        let limits = "broad: {quota: 5000, window: 1h}, narrow: {quota: 1, window: 1h}";
        let routes = [route("/both", "broad, narrow"), route("/broad", "broad")].join(", ");
        let fleet = stage.start(&rules(limits, &routes), &Clock::manual(NOW));
        assert!(told(&fleet.get("/both", "")).admitted);
        for _ in 0..1_000 {
            let told = told(&fleet.get("/both", ""));
            assert_eq!((told.admitted, &*told.resource), (false, "narrow"));
        }
        let told = told(&fleet.get("/broad", ""));
        assert_eq!((told.used, &*told.resource), (2, "broad"));
    });
}

#[test]
fn the_limit_with_the_fewest_requests_left_is_shown() {
    on_every_topology(|stage| {
        let limits = "cheap: {quota: 8, window: 1h}, dear: {quota: 40, window: 1h, cost: 10}";
        let fleet = stage.start(&rules(limits, &route("/a", "cheap, dear")), &Clock::manual(NOW));
        for left in [30, 20, 10, 0] {
            let told = told(&fleet.get("/a", ""));
            assert_eq!((&*told.resource, told.remaining, told.limit), ("dear", left, 40));
        }
        let refused = fleet.get("/a", "");
        assert_eq!(refused.json()["violated-policies"], serde_json::json!(["dear"]));
        assert_eq!(told(&refused).resource, "dear");
    });
}

#[test]
fn a_cost_above_what_remains_is_refused_and_not_charged() {
    on_every_topology(|stage| {
        let clock = Clock::manual(NOW);
        let yaml = rules("dear: {quota: 10, window: 10s, cost: 4}", &route("/a", "dear"));
        let fleet = stage.start(&yaml, &clock);
        for used in [4, 8] {
            assert_eq!(told(&fleet.get("/a", "")).used, used);
        }
        for _ in 0..3 {
            let told = told(&fleet.get("/a", ""));
            assert_eq!((told.admitted, told.remaining, told.used), (false, 2, 8));
        }
        let seconds = told(&fleet.get("/a", "")).retry_after.expect("a wait");
        clock.set(NOW + seconds * 1000 - 1000);
        assert!(!told(&fleet.get("/a", "")).admitted, "it was not told to wait too long");
        clock.set(NOW + seconds * 1000);
        assert!(told(&fleet.get("/a", "")).admitted);
    });
}

#[test]
fn the_standard_form_is_exact() {
    on_every_topology(|stage| {
        let limits = "per-caller: {quota: 5, window: 10s, resolution: 5, key: [token]}, \
                      all: {quota: 100, window: 90s, resolution: 1, key: []}";
        let rules = rules(limits, &route("/a", "per-caller, all"));
        let clock = Clock::manual(NOW + 1);
        let fleet = stage.start(&format!("headers: {{standard: draft-11}}\n{rules}"), &clock);
        let reply = fleet.get_as("alice", "/a");
        let policy = r#""per-caller";q=5;w=10, "all";q=100;w=90"#;
        assert_eq!(reply.header("RateLimit-Policy"), Some(policy));
        // Sub-windows of 2 s: gone after the sixth. Those of 90 s begin 20 s before NOW.
        let until = 180 - NOW / 1000 % 90;
        let state = format!(r#""per-caller";r=4;t=12, "all";r=99;t={until}"#);
        assert_eq!(reply.header("RateLimit"), Some(&*state));
        assert_eq!(told(&reply).remaining, 4);
        for _ in 0..4 {
            fleet.get_as("alice", "/a");
        }
        let refused = fleet.get_as("alice", "/a");
        assert!(!told(&refused).admitted);
        let refuses = r#""per-caller";r=0;t=12"#;
        let state = format!(r#"{refuses}, "all";r=95;t={until}"#);
        let told = refused.header("RateLimit").expect("the standard form");
        // What another place has charged for a refused request is given back behind it, and not told of.
        assert!(told == state || stage.has_places() && told == refuses, "{told}");

        fleet.reload(&format!("headers: {{x_ratelimit: false, standard: draft-11}}\n{rules}"));
        let reply = fleet.get_as("bob", "/a");
        assert!(reply.header("RateLimit").is_some() && !reply.head.contains("x-ratelimit"));
        fleet.reload(&format!("headers: {{x_ratelimit: false}}\n{rules}"));
        let head = fleet.get_as("bob", "/a").head;
        assert!(!head.to_ascii_lowercase().contains("ratelimit"), "{head}");
    });
}

#[test]
fn an_upstreams_headers_of_the_same_names_are_replaced() {
    let upstream = Upstream::answering(
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-RateLimit-Limit: 999\r\n\
         X-Ratelimit-Remaining: 998\r\nx-ratelimit-remaining: 997\r\nX-RateLimit-Used: 1\r\n\
         X-RateLimit-Reset: 12\r\nX-RateLimit-Resource: core\r\nRateLimit: \"x\";r=1\r\n\
         RateLimit-Policy: \"x\";q=1\r\nAccess-Control-Expose-Headers: X-Own\r\n\r\nok",
    );
    on_every_topology(|stage| {
        let yaml = format!(
            "headers: {{standard: draft-11}}
upstreams: {{origin: {{targets: [{}]}}}}
limits: {{few: {{quota: 3, window: 10s}}}}
routes: [{{name: a, match: {{path: /a}}, upstream: origin, limits: [few]}}]
",
            upstream.target()
        );
        let fleet = stage.start(&yaml, &Clock::manual(NOW));
        let reply = fleet.get("/a", "");
        let told = told(&reply);
        assert_eq!((told.limit, told.remaining, &*told.resource), (3, 2, "few"));
        assert_eq!(reply.header("RateLimit-Policy"), Some(r#""few";q=3;w=10"#));
        assert!(reply.header("RateLimit").is_some_and(|value| value.starts_with("\"few\";r=2")));
        assert_eq!(reply.header("Access-Control-Expose-Headers"), Some("X-Own"));
    });
}

#[test]
fn a_browser_of_another_site_may_read_the_headers() {
    on_every_topology(|stage| {
        let yaml = rules("few: {quota: 1, window: 10s}", &route("/a", "few"));
        let fleet = stage.start(&yaml, &Clock::manual(NOW));
        for status in [200, 429] {
            let reply = fleet.get("/a", "Origin: https://shop.example\r\n");
            assert_eq!(reply.status, status);
            let exposed = reply.header("Access-Control-Expose-Headers").expect("a list");
            for name in ["Limit", "Remaining", "Used", "Reset", "Resource"] {
                assert!(exposed.contains(&format!("X-RateLimit-{name}")), "{name} in {exposed}");
            }
            assert!(exposed.contains("Retry-After"), "{exposed}");
        }
    });
}

#[test]
fn a_changed_quota_keeps_what_was_used() {
    on_every_topology(|stage| {
        let clock = Clock::manual(NOW);
        let with = |quota: u32, cost: u32| {
            let limit = format!("few: {{quota: {quota}, window: 10s, cost: {cost}}}");
            rules(&limit, &route("/a", "few"))
        };
        let fleet = stage.start(&with(10, 1), &clock);
        for _ in 0..6 {
            fleet.get("/a", "");
        }
        fleet.reload(&with(20, 1));
        let raised = told(&fleet.get("/a", ""));
        assert_eq!((raised.limit, raised.used, raised.remaining), (20, 7, 13));
        fleet.reload(&with(4, 1));
        let lowered = told_of_any(&fleet.get("/a", ""));
        assert_eq!((lowered.admitted, lowered.limit), (false, 4));
        assert_eq!((lowered.used, lowered.remaining), (7, 0), "overdrawn by the lowered quota");
        // The same with a cost that the lowered quota holds, but not its rest.
        fleet.reload(&with(8, 3));
        let dear = told(&fleet.get("/a", ""));
        assert_eq!((dear.admitted, dear.used, dear.remaining), (false, 7, 1));
        clock.set(dear.reset * 1000);
        assert!(told(&fleet.get("/a", "")).admitted, "the reset of a changed quota is true too");
        fleet.reload(&with(4, 1));
        let seconds = told_of_any(&fleet.get("/a", "")).retry_after;
        if let Some(seconds) = seconds {
            clock.set(clock.now() + seconds * 1000);
            assert!(told(&fleet.get("/a", "")).admitted);
        }
    });
}

#[test]
fn one_request_is_one_call_of_redis_and_no_key_is_in_clear() {
    let stage = Stage::Redis(RedisServer::start());
    let Stage::Redis(redis) = &stage else { unreachable!() };
    let limits = "a: {quota: 9, window: 1m, key: [token]}, b: {quota: 9, window: 1m, \
                  key: [\"header:x-who\", \"cookie:sid\"]}, c: {quota: 9, window: 1m}";
    let fleet = stage.start(&rules(limits, &route("/a", "a, b, c")), &Clock::manual(NOW));
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

/// Burns a caller's quota and gives the refusal.
fn exhaust(fleet: &Fleet, token: &str, path: &str) -> Told {
    loop {
        let told = told(&fleet.get_as(token, path));
        if !told.admitted {
            return told;
        }
    }
}

#[test]
fn every_algorithm_tells_the_truth() {
    const SHAPES: [&str; 5] = [
        "quota: 5, window: 10s",
        "quota: 5, window: 10s, strict: true",
        "quota: 5, window: 10s, algorithm: sliding_log",
        "quota: 5, window: 10s, algorithm: fixed_window",
        "quota: 5, window: 10s, algorithm: token_bucket",
    ];
    on_every_topology(|stage| {
        let of = |n: usize| format!("l{n}: {{{}, key: [token]}}", SHAPES[n]);
        let limits: Vec<_> = (0..SHAPES.len()).map(of).collect();
        let routes: Vec<_> =
            (0..SHAPES.len()).map(|n| route(&format!("/{n}"), &format!("l{n}"))).collect();
        let rules = rules(&limits.join(", "), &routes.join(", "));
        for (n, shape) in SHAPES.iter().enumerate() {
            let clock = Clock::manual(NOW + 300);
            let (fleet, path) = (stage.start(&rules, &clock), format!("/{n}"));
            for used in 1..=5 {
                let told = told(&fleet.get_as("alice", &path));
                assert_eq!((told.admitted, told.used, told.limit), (true, used, 5), "{shape}");
            }
            let refused = exhaust(&fleet, "alice", &path);
            clock.set(NOW + 300 + refused.retry_after.expect("a wait") * 1_000);
            assert!(told(&fleet.get_as("alice", &path)).admitted, "{shape}: after Retry-After");
            let told_last = exhaust(&fleet, "alice", &path);
            assert!(told_last.reset >= refused.reset, "{shape}: the reset moved back");
            clock.set(told_last.reset * 1_000);
            assert!(told(&fleet.get_as("alice", &path)).admitted, "{shape}: at the reset");
        }
    });
}

#[test]
fn who_waits_is_admitted_in_real_time() {
    on_every_topology(|stage| {
        let limit = "few: {quota: 3, window: 2s, resolution: 2, key: [token]}";
        let clock = Clock::system();
        let fleet = stage.start(&rules(limit, &route("/a", "few")), &clock);
        let refused = exhaust(&fleet, "alice", "/a");
        pause(std::time::Duration::from_secs(refused.retry_after.expect("a wait")));
        assert!(told(&fleet.get_as("alice", "/a")).admitted);
        let reset = exhaust(&fleet, "bob", "/a").reset;
        let wait = (reset * 1000).saturating_sub(clock.now());
        assert!(wait <= 4_000, "{wait} ms");
        pause(std::time::Duration::from_millis(wait));
        assert!(told(&fleet.get_as("bob", "/a")).admitted);
    });
}
