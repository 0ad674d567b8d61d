use std::thread;

use testkit::{client::Response, gateway::Gateway};

use super::{Asker, Page, QUOTA, tally};
use crate::server::Server;

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
