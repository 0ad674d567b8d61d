//! Envoy reports a cost when a stream is done (`apply_on_stream_done`): of a quota of 1,000, 300
//! hits after each request.

use std::fs;

use serde_json::{Value, json};
use testkit::{
    client::get, gateway::Gateway, redis_server::RedisServer, upstream::Upstream, wait::eventually,
    yaml::fill,
};

use super::{Edge, HOST, Page, service_of};
use crate::edge::Files;

const QUOTA: u64 = 1_000;
const HITS: u64 = 300;
const REQUESTS: u64 = 20;

/// Each limit has the name of the entry that it counts by, which is also the name of a header.
const LIMITS: [(&str, &str); 7] = [
    ("x-sliding", "algorithm: sliding_window"),
    ("x-strict", "algorithm: sliding_window, strict: true"),
    ("x-log", "algorithm: sliding_log"),
    ("x-fixed", "algorithm: fixed_window"),
    ("x-bucket", "algorithm: token_bucket"),
    ("x-leased-sliding", "algorithm: sliding_window, reserve: auto"),
    ("x-leased-fixed", "algorithm: fixed_window, reserve: 50"),
];

/// The gateway's limits in a domain that charges late hits.
fn native(store: &str) -> String {
    let limit = |(name, algorithm): &(&str, &str)| {
        format!(
            "  {name}: {{{algorithm}, quota: {QUOTA}, window: 1h, key: ['descriptor:{name}']}}\n"
        )
    };
    let names = LIMITS.map(|(name, _)| name).join(", ");
    format!(
        "{store}rate_limit_service:\n  address: 127.0.0.1:0\n  domains: {{edge: {{limits: [{names}], late_hits: charge}}}}\n\
         limits:\n{}upstreams: {{none: {{respond: {{}}}}}}\nroutes: [{{name: none, match: {{path: /none}}, upstream: none}}]\n",
        LIMITS.iter().map(limit).collect::<String>()
    )
}

/// The same quota in a file of envoyproxy/ratelimit, for `x-fixed`.
fn in_file(store: &str, files: &Files) -> String {
    let path = files.path("ratelimit.yaml");
    let rules = format!(
        "domain: edge\ndescriptors:\n  - key: x-fixed\n    rate_limit: {{unit: hour, requests_per_unit: {QUOTA}}}\n"
    );
    fs::write(&path, rules).expect("a file");
    fill(
        "
        rate_limit_service: {address: '127.0.0.1:0', domains: {edge: {file: '{file}'}}}
        upstreams: {none: {respond: {}}}
        routes: [{name: none, match: {path: /none}, upstream: none}]
        ",
        [("file", path.display().to_string())],
    ) + store
}

/// Makes Envoy ask with the entry of a header that the request has, and report hits when its stream
/// is done.
fn report_late(config: &mut Value) {
    let limits = LIMITS.iter().flat_map(|(name, _)| {
        let actions = json!([{"request_headers": {"header_name": name, "descriptor_key": name}}]);
        [
            json!({"actions": actions}),
            json!({
                "actions": actions, "apply_on_stream_done": true, "hits_addend": {"number": HITS},
            }),
        ]
    });
    let host = config.pointer_mut(HOST).and_then(Value::as_object_mut).expect("the host");
    host.remove("rate_limits").expect("its descriptors");
    let filter = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute",
        "rate_limits": limits.collect::<Vec<_>>(),
    });
    host.insert(
        "typed_per_filter_config".to_owned(),
        json!({"envoy.filters.http.ratelimit": filter}),
    );
}

/// Number of calls that a gateway has answered.
fn calls(gateway: &Gateway) -> u64 {
    gateway.metric("tidegate_requests_total{route=\"rate_limit_service:edge\"")
}

/// The requests of twenty that are admitted, if each is sent after the report of the one before.
fn admitted(edge: &Edge, gateway: &Gateway, name: &str) -> u64 {
    let mut admitted = 0;
    for _ in 0..REQUESTS {
        let before = calls(gateway);
        admitted +=
            u64::from(get(edge.address, "/orders", &format!("{name}: a\r\n")).status == 200);
        eventually("the stream is reported", || calls(gateway) == before + 2);
    }
    admitted
}

#[test]
fn late_costs_beyond_the_quota_are_charged() {
    let (page, application, redis) = (Page::read(), Upstream::hello(), RedisServer::start());
    let files = Files::new();
    let shared = format!("store: {{redis: {{shards: [{{primary: '{}'}}]}}}}\n", redis.url());
    for (store, configured) in [("memory", ""), ("redis", &*shared)] {
        let gateway = Gateway::start(&native(configured));
        let edge = Edge::start(&page, &application, service_of(&gateway), report_late);
        for (name, _) in LIMITS {
            let admitted = admitted(&edge, &gateway, name);
            // Three reports fit. A gateway may still admit from units that it has leased.
            let most = if name.contains("leased") && store == "redis" { 16 } else { 4 };
            assert!((4..=most).contains(&admitted), "{store}, {name}: {admitted}");
        }
        let gateway = Gateway::start(&in_file(configured, &files));
        let edge = Edge::start(&page, &application, service_of(&gateway), report_late);
        let admitted = admitted(&edge, &gateway, "x-fixed");
        assert_eq!(admitted, 4, "{store}, file");
    }
}
