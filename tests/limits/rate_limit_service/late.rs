//! What has happened: hits that are reported late, and hits that are given back.

use testkit::{
    backend::{MEMORY_AND_REDIS, MEMORY_AND_TOPOLOGIES, on_each},
    client::get,
    gateway::Gateway,
    rate_limit_client::{descriptor, given_back, with_hits},
};
use tidegate::{clock::Clock, rate_limit_service::messages::RateLimitDescriptor};

use super::{NOW, connect_first};

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
