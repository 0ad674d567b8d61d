//! Authentication of routes: API keys, client certificates, consumers and their plans.

/// Names and passwords.
mod basic;
/// Client certificates.
mod certificates;
/// The file of consumers, and the commands.
mod consumers_file;
/// Failures of an address.
mod failures;
/// What reaches the upstream.
mod forwarded;
/// Signed tokens.
mod jwt;
/// Limits, plans and tiers of consumers.
mod plans;
/// Consumers in Redis.
mod redis_consumers;
/// Reloads.
mod reload;
/// Credentials in outputs.
mod secrets;
/// Services that decide.
mod service;
/// The answers of oauth2-proxy and Authelia.
mod sso_answers;
/// The throttle on routes that authenticate.
mod throttle;

use testkit::api_keys::hash;
use testkit::api_keys::key;
use testkit::{
    client::Response,
    gateway::Gateway,
    protocol::{Protocol, on_every_protocol},
    upstream::Upstream,
    yaml::fill,
};

/// The routes of most tests. The keys are `key of NAME`.
const RULES: &str = "
access_log: '{log}'
auth:
  keys: {api_key: {from: [header:x-api-key, header:authorization, query:key, cookie:key]}, max_failures: {failures}}
consumers:
  entries:
    - {name: acme, plan: gold, keys: [{id: '2026-11', sha256: {acme}}]}
    - {name: bread, plan: free, keys: [{sha256: {bread}}]}
    - {name: late, keys: [{sha256: {late}, expires: 2001-01-01}]}
    - {name: off, keys: [{sha256: {off}}], disabled: true}
plans: {free: {each: 2}, gold: {each: 4/1h, exports: unlimited}}
upstreams: {app: {targets: ['{target}']}}
limits:
  each: {quota: 1, window: 1h, key: [consumer]}
  exports: {quota: 1, window: 1h, key: [consumer]}
routes:
  - {name: orders, match: {path: '/orders/{id}'}, upstream: app, auth: [keys], limits: [each, exports]}
  - {name: maybe, match: {path: /maybe}, upstream: app, auth: [keys], auth_optional: true, limits: [each]}
  - {name: gold, match: {path: /gold}, upstream: app, auth: [keys], consumers: {plans: [gold], names: [bread]}}
  - {name: named, match: {path: /named}, upstream: app, auth: [keys], consumers: {names: [acme]}}
  - {name: open, match: {path: /open}, upstream: app}
";

/// [`RULES`], with the hashes of its keys.
fn rules(upstream: &Upstream, log: &str, failures: &str) -> String {
    let values = [
        ("target", upstream.target()),
        ("log", log.to_owned()),
        ("failures", failures.to_owned()),
        ("acme", hash("acme")),
        ("bread", hash("bread")),
        ("late", hash("late")),
        ("off", hash("off")),
    ];
    fill(RULES, values)
}

fn start(upstream: &Upstream) -> Gateway {
    Gateway::for_every_protocol(&rules(upstream, "off", "off"))
}

#[test]
fn a_key_admits_its_consumer() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = start(&upstream);
        let status = |path: &str, headers: &str| protocol.get(&gateway, path, headers).status;
        for (path, headers) in [
            ("/maybe", key("acme")),
            ("/gold", key("acme")),
            ("/gold", key("bread")),
            ("/named", key("acme")),
            ("/gold", "Authorization: bearer key of acme\r\n".to_owned()),
            ("/gold?a=1&key=key+of+acme", String::new()),
            ("/gold", "Cookie: a=1; key=key%20of%20acme\r\n".to_owned()),
            ("/maybe", String::new()),
            ("/open", key("nothing")),
        ] {
            assert_eq!(status(path, &headers), 200, "{path} {headers}");
        }
        let forwarded = upstream.request_count();
        assert_eq!(status("/named", &key("bread")), 403);
        assert_eq!(upstream.request_count(), forwarded);
    });
}

fn assert_problem(refused: &Response, status: u16, title: &str, detail: &str) {
    assert_eq!(refused.status, status, "{}", refused.head);
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    let problem = refused.json();
    assert_eq!((&problem["type"], &problem["title"]), (&"about:blank".into(), &title.into()));
    assert_eq!(problem["detail"], detail);
}

#[test]
fn requests_without_valid_credentials_get_a_challenge() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = start(&upstream);
        let get = |path: &str, headers: &str| protocol.get(&gateway, path, headers);
        let missing = "the request has no credentials; expected an API key in the header x-api-key or the header \
                       authorization (after `Bearer`) or the query parameter key or the cookie key";
        let refused = get("/orders/1", "");
        assert_problem(&refused, 401, "Unauthorized", missing);
        assert!(refused.head.contains("Bearer realm=\"keys\"\r\n"), "{}", refused.head);
        let own = "ApiKey realm=\"keys\", in=\"header\", name=\"x-api-key\"\r\n";
        assert!(refused.head.contains(own), "{}", refused.head);
        assert!(refused.header("x-ratelimit-limit").is_none(), "{}", refused.head);
        // One text for all of them: it does not help guessing.
        let invalid = "the credentials are not valid";
        for name in ["late", "off", "nothing"] {
            for path in ["/orders/1", "/maybe"] {
                let refused = get(path, &key(name));
                assert_problem(&refused, 401, "Unauthorized", invalid);
                let bearer = "Bearer realm=\"keys\", error=\"invalid_token\", error_description=\"the \
                              credentials are not valid\"\r\n";
                assert!(refused.head.contains(bearer), "{}", refused.head);
            }
        }
        let twice = key("acme") + &key("acme");
        assert_eq!(get("/orders/1", &twice).status, 400);
        let denied = get("/named", &key("bread"));
        assert_problem(&denied, 403, "Forbidden", "this consumer is not allowed to use this route");
        assert_eq!(upstream.request_count(), 0);
    });
}

#[test]
fn refusals_are_counted_by_reason() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&rules(&upstream, "off", "3/1m"));
    let get =
        |path: &str, headers: &str| testkit::client::get(gateway.address(), path, headers).status;
    let statuses = [
        get("/orders/1", ""),
        get("/orders/1", &key("acme")),
        get("/maybe", ""),
        get("/named", &key("bread")),
        get("/orders/1", &key("nothing")),
        get("/orders/1", &key("late")),
        get("/named", ""),
        get("/orders/1", &key("off")),
        get("/orders/1", &key("acme")),
    ];
    assert_eq!(statuses, [401, 200, 200, 403, 401, 401, 401, 401, 429]);
    for (route, reason, count) in [
        ("orders", "missing", 1),
        ("orders", "invalid", 3),
        ("orders", "too_many_failures", 1),
        ("named", "missing", 1),
        ("named", "consumer_not_allowed", 1),
    ] {
        let name = format!("tidegate_auth_rejected_total{{route=\"{route}\",reason=\"{reason}\"}}");
        assert_eq!(gateway.metric(&name), count, "{name}");
    }
    assert_eq!(gateway.metric("tidegate_auth_rejected_total{"), 7, "no other reason or route");
}

#[test]
fn a_grpc_client_reads_the_refusal_in_its_status() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    let grpc = "Content-Type: application/grpc\r\nTE: trailers\r\n";
    let refused = Protocol::Http2.get(&gateway, "/orders/1", grpc);
    assert_eq!((refused.status, refused.header("grpc-status")), (200, Some("16")));
    assert!(refused.head.contains("www-authenticate: Bearer"), "{}", refused.head);
    let denied = Protocol::Http2.get(&gateway, "/named", grpc.to_owned() + &key("bread"));
    assert_eq!((denied.status, denied.header("grpc-status")), (200, Some("7")));
}
