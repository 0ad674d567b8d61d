use std::thread;

use testkit::{
    client::{Client, Response},
    gateway::Gateway,
    upstream::Upstream,
};

use super::{Asker, Page, QUOTA, tally};
use crate::{
    envoy::rate_limits::{self, Edge, service_of},
    server::Server,
};

/// A door for each proxy, and one limit.
const DOORS: &str = "
client: {trusted_proxies: [127.0.0.1/32]}
limits: {per-caller: {quota: 100, window: 1m, key: [client_ip]}}
routes:
  - {name: nginx, match: {path: /nginx}, limits: [per-caller], decide: {refuse_status: 403}}
  - {name: caddy, match: {path: /decide}, limits: [per-caller], decide: {}}
";

#[test]
fn nginx_and_caddy_share_one_quota() {
    let gateway = Gateway::start(DOORS);
    let nginx = Page::read("decide/nginx.md").block("nginx");
    let nginx = nginx.replace("http://tidegate/decide", "http://tidegate/nginx");
    let caddy = Page::read("decide/caddy.md").block("caddyfile");
    let askers = [
        Asker::start_before(gateway.address(), &nginx, Server::nginx),
        Asker::start_before(gateway.address(), &caddy, Server::caddy),
    ];
    let responses: Vec<Response> = thread::scope(|scope| {
        let both = askers.each_ref().map(|asker| scope.spawn(|| asker.in_parallel(QUOTA)));
        both.into_iter().flat_map(|one| one.join().expect("no panic")).collect()
    });
    let admitted = responses.iter().filter(|response| response.status == 200).count();
    let refused = responses.iter().filter(|response| response.status == 429).count();
    assert_eq!((admitted, refused), (QUOTA, QUOTA), "{}", tally(&responses));
    let forwarded: usize = askers.iter().map(|asker| asker.application.request_count()).sum();
    assert_eq!(forwarded, QUOTA);
}

/// The limit of a consumer, for a door of HTTP and for Envoy's calls.
const CONSUMER_DOORS: &str = "
auth: {keys: {api_key: {from: [header:x-api-key]}}}
consumers:
  entries:
    - {name: acme, keys: [{sha256: c018c41c1afaf2c0b66c64f97d0ee135657b699ad260f299234cd40a5d625e0e}]}
limits: {per-consumer: {quota: 100, window: 1m, key: [consumer]}}
client: {trusted_proxies: [127.0.0.1/32]}
routes:
  - {name: nginx, match: {path: /decide}, auth: [keys], limits: [per-consumer], decide: {refuse_status: 403}}
rate_limit_service:
  address: 127.0.0.1:0
  domains: {edge: {limits: [per-consumer], consumer: 'descriptor:user'}}
";

#[test]
fn nginx_and_envoys_rate_limit_service_share_the_quota_of_a_consumer() {
    let gateway = Gateway::start(CONSUMER_DOORS);
    let nginx = Page::read("decide/nginx.md").block("nginx");
    let asker = Asker::start_before(gateway.address(), &nginx, Server::nginx);
    let application = Upstream::hello();
    let page = rate_limits::Page::read();
    let edge = Edge::start(&page, &application, service_of(&gateway), |_| {});
    let (asker, edge) = (&asker, &edge);
    let responses: Vec<Response> = thread::scope(|scope| {
        let by_nginx = scope.spawn(|| asker.in_parallel_with("X-Api-Key: example-key\r\n", QUOTA));
        let by_envoy: Vec<_> = (0..20)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = Client::connect(edge.address);
                    let ask = |_| client.get("/items/7", "X-User: acme\r\n");
                    (0..QUOTA / 20).map(ask).collect::<Vec<_>>()
                })
            })
            .collect();
        let by_envoy = by_envoy.into_iter().flat_map(|one| one.join().expect("no panic"));
        let mut all: Vec<Response> = by_envoy.collect();
        all.extend(by_nginx.join().expect("no panic"));
        all
    });
    let count = |status| responses.iter().filter(|response| response.status == status).count();
    assert_eq!((count(200), count(429)), (QUOTA, QUOTA), "{}", tally(&responses));
    assert_eq!(asker.application.request_count() + application.request_count(), QUOTA);
    assert!(application.request_count() > 0 && asker.application.request_count() > 0);
}
