//! The two forms of the headers; how they go with the upstream's own headers, and with CORS.

use std::io::Write as _;

use testkit::{
    backend::{MEMORY_BY_PROTOCOL_AND_TOPOLOGIES, on_all_at_once},
    upstream::Upstream,
    yaml::fill,
};
use tidegate::clock::{Clock, ms};

use super::{NOW, advertised};

const BOTH_FORMS: &str = "
headers: {standard: draft-11}
upstreams: {hello: {respond: {body: hello}}}
limits:
  per-caller: {quota: 5, window: 10s, resolution: 5, key: [token]}
  all: {quota: 100, window: 90s, resolution: 1, key: []}
routes:
  - {name: a, match: {path: /a}, upstream: hello, limits: [per-caller, all]}
";

const STANDARD_FORM: &str = "
headers: {x_ratelimit: false, standard: draft-11}
upstreams: {hello: {respond: {body: hello}}}
limits:
  per-caller: {quota: 5, window: 10s, resolution: 5, key: [token]}
  all: {quota: 100, window: 90s, resolution: 1, key: []}
routes:
  - {name: a, match: {path: /a}, upstream: hello, limits: [per-caller, all]}
";

const NO_FORM: &str = "
headers: {x_ratelimit: false}
upstreams: {hello: {respond: {body: hello}}}
limits:
  per-caller: {quota: 5, window: 10s, resolution: 5, key: [token]}
  all: {quota: 100, window: 90s, resolution: 1, key: []}
routes:
  - {name: a, match: {path: /a}, upstream: hello, limits: [per-caller, all]}
";

#[test]
fn the_standard_headers_are_exact() {
    on_all_at_once(&MEMORY_BY_PROTOCOL_AND_TOPOLOGIES, |backend| {
        let clock = Clock::manual(NOW + ms(1));
        let fleet = backend.start(BOTH_FORMS, &clock);
        let response = fleet.get_as("alice", "/a");
        let policy = r#""per-caller";q=5;w=10, "all";q=100;w=90"#;
        assert_eq!(response.header("RateLimit-Policy"), Some(policy));
        // A sub-window of 2 s expires 12 s after its start. The current one of 90 s began before
        // NOW.
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
        // If `all` is on another shard, its charge is refunded in the background and not
        // advertised.
        assert!(
            advertised == state || backend.is_sharded() && advertised == refuses,
            "{advertised}"
        );
    });
}

#[test]
fn each_form_of_the_headers_is_a_choice() {
    on_all_at_once(&MEMORY_BY_PROTOCOL_AND_TOPOLOGIES, |backend| {
        let fleet = backend.start(BOTH_FORMS, &Clock::manual(NOW + ms(1)));
        let head = fleet.get_as("bob", "/a").head.to_ascii_lowercase();
        assert!(
            head.contains("\r\nx-ratelimit-limit:") && head.contains("\r\nratelimit:"),
            "{head}"
        );
        fleet.reload(STANDARD_FORM);
        let response = fleet.get_as("bob", "/a");
        assert!(response.header("RateLimit").is_some() && !response.head.contains("x-ratelimit"));
        fleet.reload(NO_FORM);
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
        let yaml = fill(
            "
            headers: {standard: draft-11}
            upstreams: {origin: {targets: ['{upstream}']}}
            limits: {small: {quota: 3, window: 10s}}
            routes: [{name: a, match: {path: /a}, upstream: origin, limits: [small]}]
            ",
            [("upstream", upstream.target())],
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
fn rate_limit_headers_of_the_upstream_can_be_kept() {
    let upstream = Upstream::with_handler(|request, socket| {
        let own = match request {
            request if request.starts_with(b"GET /x ") => {
                "X-RateLimit-Limit: 999\r\nX-RateLimit-Remaining: 998\r\n"
            }
            request if request.starts_with(b"GET /draft ") => "RateLimit: \"core\";r=1;t=9\r\n",
            _ => "",
        };
        let response = format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n{own}\r\nok");
        socket.write_all(response.as_bytes()).is_ok()
    });
    on_all_at_once(&MEMORY_BY_PROTOCOL_AND_TOPOLOGIES, |backend| {
        let yaml = fill(
            "
            headers: {standard: draft-11, upstream: keep}
            upstreams: {origin: {targets: ['{upstream}']}}
            limits: {small: {quota: 3, window: 10s}}
            routes: [{name: a, match: {path: '/{*rest}'}, upstream: origin, limits: [small]}]
            ",
            [("upstream", upstream.target())],
        );
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        let own = fleet.get("/x", "");
        assert_eq!(own.number("X-RateLimit-Limit"), 999);
        assert_eq!(own.number("X-RateLimit-Remaining"), 998);
        assert_eq!(own.header("X-RateLimit-Used"), None, "no mixture of two limits: {}", own.head);
        assert!(own.header("RateLimit").is_some_and(|value| value.starts_with("\"small\";r=2")));
        let draft = fleet.get("/draft", "");
        assert_eq!(draft.header("RateLimit"), Some("\"core\";r=1;t=9"));
        assert_eq!(draft.header("RateLimit-Policy"), None);
        assert_eq!(draft.number("X-RateLimit-Remaining"), 1);
        assert_eq!(advertised(&fleet.get("/none", "")).remaining, 0, "the upstream has none");
        let refused = fleet.get("/x", "");
        assert!(!advertised(&refused).admitted, "a refusal is the gateway's own");
    });
}

#[test]
fn cors_exposes_the_headers() {
    on_all_at_once(&MEMORY_BY_PROTOCOL_AND_TOPOLOGIES, |backend| {
        let yaml = "
            upstreams: {hello: {respond: {body: hello}}}
            limits:
              small: {quota: 1, window: 10s}
            routes:
              - {name: a, match: {path: /a}, upstream: hello, limits: [small]}
            ";
        let fleet = backend.start(yaml, &Clock::manual(NOW));
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
