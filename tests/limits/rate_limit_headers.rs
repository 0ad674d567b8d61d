//! The promises of the rate-limit headers, on memory and on every Redis topology.

use testkit::{
    backend::{
        Backend, Fleet, MEMORY_AND_REDIS, MEMORY_AND_TOPOLOGIES, MEMORY_BY_PROTOCOL_AND_TOPOLOGIES,
        on_all_at_once, on_each,
    },
    client::{Client, Response},
    gateway::wait_for_first_reports,
    upstream::Upstream,
    wait::sleep,
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime, ms};

/// The two forms of the headers.
mod forms;
/// Random histories.
mod histories;
/// Quotas up to 2^53 - 1.
mod large_quotas;
/// Reloads that change a quota.
mod quota_changes;
/// What the reset means, for every algorithm.
mod resets;

/// 2023, on a whole second and the start of a sub-window of 2 s.
const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

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
        let yaml = "
            upstreams: {hello: {respond: {body: hello}}}
            limits:
              per-caller: {quota: 5, window: 10s, key: [token]}
            routes:
              - {name: a, match: {path: /a}, upstream: hello, limits: [per-caller]}
            ";
        let fleet = backend.start(yaml, &Clock::manual(NOW + ms(500)));
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
        let yaml = "
            upstreams: {gone: {targets: ['http://127.0.0.1:1']}}
            limits: {small: {quota: 1, window: 10s}}
            routes: [{name: a, match: {path: /a}, upstream: gone, limits: [small]}]
            ";
        let fleet = backend.start(yaml, &Clock::manual(NOW));
        let response = fleet.get("/a", "");
        assert_eq!((response.status, response.number("X-RateLimit-Remaining")), (502, 0));
        assert!(!advertised(&fleet.get("/a", "")).admitted);
    });
}

/// The page for clients lists which responses have rate headers; requests whose limits were not
/// checked are not charged.
#[test]
fn responses_before_the_limits_have_no_rate_limit_headers() {
    let upstream = Upstream::hello();
    let yaml = fill(
        "
        client: {trusted_proxies: [127.0.0.1]}
        upstreams: {app: {targets: ['{upstream}']}}
        limits:
          small: {quota: 5, window: 1h, key: [], cost: 'header:x-cost', max_cost: 3}
        routes:
          - name: a
            match: {path: /a}
            upstream: app
            limits: [small]
            max_body: 10B
            deny: [192.0.2.0/24]
            cors: {origins: ['https://a.example']}
        ",
        [("upstream", upstream.target())],
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
        let yaml = "
            upstreams: {hello: {respond: {body: hello}}}
            limits:
              broad: {quota: 5000, window: 1h}
              narrow: {quota: 1, window: 1h}
            routes:
              - {name: both, match: {path: /both}, upstream: hello, limits: [broad, narrow]}
              - {name: broad, match: {path: /broad}, upstream: hello, limits: [broad]}
            ";
        let fleet = backend.start(yaml, &Clock::manual(NOW));
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
        let yaml = "
            upstreams: {hello: {respond: {body: hello}}}
            limits:
              cheap: {quota: 8, window: 1h}
              dear: {quota: 40, window: 1h, cost: 10}
            routes:
              - {name: a, match: {path: /a}, upstream: hello, limits: [cheap, dear]}
            ";
        let fleet = backend.start(yaml, &Clock::manual(NOW));
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
        let yaml = "
            upstreams: {hello: {respond: {body: hello}}}
            limits:
              dear: {quota: 10, window: 10s, cost: 4}
            routes:
              - {name: a, match: {path: /a}, upstream: hello, limits: [dear]}
            ";
        let fleet = backend.start(yaml, &clock);
        for used in [4, 8] {
            assert_eq!(advertised(&fleet.get("/a", "")).used, used);
        }
        for _ in 0..3 {
            let advertised = advertised(&fleet.get("/a", ""));
            assert_eq!((advertised.admitted, advertised.remaining, advertised.used), (false, 2, 8));
        }
        let seconds = advertised(&fleet.get("/a", "")).retry_after.expect("a wait");
        clock.set(NOW + ms(seconds * 1000) - ms(1000));
        assert!(
            !advertised(&fleet.get("/a", "")).admitted,
            "Retry-After is not longer than needed"
        );
        clock.set(NOW + ms(seconds * 1000));
        assert!(advertised(&fleet.get("/a", "")).admitted);
    });
}

#[test]
fn one_request_is_one_redis_call_and_no_key_is_in_clear_text() {
    let backend = Backend::redis();
    let redis = backend.redis_server().expect("it is one Redis");
    let yaml = "
        upstreams: {hello: {respond: {body: hello}}}
        limits:
          a: {quota: 9, window: 1m, key: [token]}
          b: {quota: 9, window: 1m, key: ['header:x-who', 'cookie:sid']}
          c: {quota: 9, window: 1m}
        routes:
          - {name: a, match: {path: /a}, upstream: hello, limits: [a, b, c]}
        ";
    let fleet = backend.start(yaml, &Clock::manual(NOW));
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
    const LIMITS: [&str; 5] = ["window", "strict", "log", "fixed", "bucket"];
    let yaml = "
        upstreams: {hello: {respond: {body: hello}}}
        limits:
          window: {quota: 5, window: 10s, key: [token]}
          strict: {quota: 5, window: 10s, strict: true, key: [token]}
          log: {algorithm: sliding_log, quota: 5, window: 10s, key: [token]}
          fixed: {algorithm: fixed_window, quota: 5, window: 10s, key: [token]}
          bucket: {algorithm: token_bucket, quota: 5, window: 10s, key: [token]}
        routes:
          - {name: window, match: {path: /window}, upstream: hello, limits: [window]}
          - {name: strict, match: {path: /strict}, upstream: hello, limits: [strict]}
          - {name: log, match: {path: /log}, upstream: hello, limits: [log]}
          - {name: fixed, match: {path: /fixed}, upstream: hello, limits: [fixed]}
          - {name: bucket, match: {path: /bucket}, upstream: hello, limits: [bucket]}
        ";
    on_all_at_once(&MEMORY_AND_TOPOLOGIES, |backend| {
        for limit in LIMITS {
            let clock = Clock::manual(NOW + ms(300));
            let (fleet, path) = (backend.start(yaml, &clock), format!("/{limit}"));
            for used in 1..=5 {
                let advertised = advertised(&fleet.get_as("alice", &path));
                assert_eq!(
                    (advertised.admitted, advertised.used, advertised.limit),
                    (true, used, 5),
                    "{limit}"
                );
            }
            let refused = exhaust(&fleet, "alice", &path);
            clock.set(NOW + ms(300) + ms(refused.retry_after.expect("a wait") * 1_000));
            assert!(
                advertised(&fleet.get_as("alice", &path)).admitted,
                "{limit}: after Retry-After"
            );
            let second = exhaust(&fleet, "alice", &path);
            assert!(second.reset >= refused.reset, "{limit}: the reset moved back");
            clock.set(StoreTime::from_unix_ms(second.reset * 1_000));
            assert!(advertised(&fleet.get_as("alice", &path)).admitted, "{limit}: at the reset");
        }
    });
}

#[test]
fn retry_after_admits_in_real_time() {
    on_all_at_once(&MEMORY_AND_TOPOLOGIES, |backend| {
        let yaml = "
            upstreams: {hello: {respond: {body: hello}}}
            limits:
              small: {quota: 3, window: 1s, resolution: 2, key: [token]}
            routes:
              - {name: a, match: {path: /a}, upstream: hello, limits: [small]}
            ";
        // The other tests wait by a manual clock; this one shows that real clocks agree with it.
        let clock = Clock::system();
        let fleet = backend.start(yaml, &clock);
        let refused = exhaust(&fleet, "alice", "/a");
        sleep(std::time::Duration::from_secs(refused.retry_after.expect("a wait")));
        assert!(advertised(&fleet.get_as("alice", "/a")).admitted);
        let reset = exhaust(&fleet, "bob", "/a").reset;
        let wait = (reset * 1000).saturating_sub(clock.store_time().as_unix_ms());
        assert!(wait <= 4_000, "{wait} ms");
        sleep(std::time::Duration::from_millis(wait));
        assert!(advertised(&fleet.get_as("bob", "/a")).admitted);
    });
}
