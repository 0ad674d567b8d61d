use std::time::Duration;

use serde_json::json;
use testkit::client::{Client, get};
use testkit::gateway::Gateway;
use testkit::upstream::Upstream;
use testkit::wait::eventually;
use tidegate::clock::{Clock, ms};

use super::{Issued, KeyAnswer, KeyHost, START, bearer, rules, token};

#[test]
fn records_and_claims_give_plans() {
    let tokens = [
        token("own", "acme", json!({"plan": "free"})),
        token("own", "bread", json!({"plan": "free"})),
        token("own", "crumb", json!({"plan": "glod"})),
        token("own", "off", json!({})),
    ];
    let issued = Issued::new(&[("own", "EdDSA")], &tokens);
    let host = KeyHost::new(KeyAnswer::Set(issued.set(&["own"])));
    let upstream = Upstream::hello();
    let yaml = rules(&host.url(), &upstream, ", plan: 'claim:plan'");
    let gateway = Gateway::start_at(&yaml, Clock::manual(START));
    let mut client = Client::connect(gateway.address());
    let limits =
        [0, 1, 2].map(|index| client.get("/", &issued.bearer(index)).number("x-ratelimit-limit"));
    assert_eq!(limits, [5, 3, 2], "the record's plan, the claim's, none");
    assert_eq!(client.get("/", &issued.bearer(3)).status, 401, "a disabled record");
}

/// Without a prefix, a user whom the issuer calls `acme` is the customer `acme` of the gateway's
/// records.
#[test]
fn a_prefix_keeps_the_names_of_an_issuer_apart() {
    let issued = Issued::new(&[("own", "EdDSA")], &[token("own", "acme", json!({}))]);
    let host = KeyHost::new(KeyAnswer::Set(issued.set(&["own"])));
    let upstream = Upstream::hello();
    let plain = rules(&host.url(), &upstream, "");
    let prefixed = plain.replace("max_failures: off", "prefix: 'sso:'\n    max_failures: off");
    assert_ne!(plain, prefixed);
    let recorded = prefixed.replace("{name: off", "{name: 'sso:acme', plan: free}, {name: off");
    assert_ne!(recorded, prefixed);
    for (rules, quota, name) in
        [(&plain, 5, "acme"), (&prefixed, 2, "sso:acme"), (&recorded, 3, "sso:acme")]
    {
        let gateway = Gateway::start_at(rules, Clock::manual(START));
        let mut client = Client::connect(gateway.address());
        // The second time, the token is known.
        for used in 1..=2 {
            let admitted = client.get("/", &issued.bearer(0));
            assert_eq!(admitted.number("x-ratelimit-limit"), quota, "{name}");
            assert_eq!(admitted.number("x-ratelimit-used"), used, "{name}");
            let head = upstream.request_texts().pop().expect("a request").to_ascii_lowercase();
            assert!(head.contains(&format!("x-consumer-name: {name}\r\n")), "{head}");
        }
    }
}

#[test]
fn claims_are_counted_and_forwarded() {
    let tenant =
        |name: &str, level: u32| json!({"tenant": name, "level": level, "roles": ["a", "b"]});
    let tokens = [
        token("own", "one", tenant("t1", 1)),
        token("own", "two", tenant("t1", 1)),
        token("own", "three", tenant("t2", 2)),
        token("own", "four", json!({})),
    ];
    let issued = Issued::new(&[("own", "EdDSA")], &tokens);
    let host = KeyHost::new(KeyAnswer::Set(issued.set(&["own"])));
    let upstream = Upstream::hello();
    let tiers =
        "tiers: [{match: {part: 'claim:level', values: ['2']}, quota: 9}], key: ['claim:tenant']}";
    let headers =
        "headers: {request: {set: {x-tenant: '{claim.tenant}', x-roles: '{claim.roles}'}}}, limits";
    let yaml = rules(&host.url(), &upstream, "")
        .replace("key: [consumer]}", tiers)
        .replace("limits: [each]", &format!("{headers}: [each]"));
    let gateway = Gateway::start_at(&yaml, Clock::manual(START));
    let mut client = Client::connect(gateway.address());
    let mut ask = |index: usize| client.get("/", &(issued.bearer(index) + "X-Tenant: forged\r\n"));
    assert_eq!((ask(0).number("x-ratelimit-used"), ask(1).number("x-ratelimit-used")), (1, 2));
    assert_eq!(ask(0).status, 429, "the tenant's quota");
    let third = ask(2);
    assert_eq!((third.number("x-ratelimit-limit"), third.number("x-ratelimit-used")), (9, 1));
    let head = upstream.request_texts().pop().expect("a request").to_ascii_lowercase();
    assert!(head.contains("x-tenant: t2\r\n") && head.contains("x-roles: a,b\r\n"), "{head}");
    assert_eq!(ask(3).number("x-ratelimit-used"), 1, "without the claim, the address is counted");
    let head = upstream.request_texts().pop().expect("a request").to_ascii_lowercase();
    assert!(!head.contains("x-tenant"), "an empty field is not written: {head}");
}

#[test]
fn a_token_without_a_required_claim_gets_a_403() {
    let tokens = [
        token("own", "acme", json!({"scope": "orders:read x", "role": ["user", "admin"]})),
        token("own", "acme", json!({"scope": "orders:readx", "role": "admin"})),
        token("own", "acme", json!({"role": "admin"})),
        token("own", "acme", json!({"scope": ["orders:read"], "role": "user admin"})),
    ];
    let issued = Issued::new(&[("own", "EdDSA")], &tokens);
    let host = KeyHost::new(KeyAnswer::Set(issued.set(&["own"])));
    let upstream = Upstream::hello();
    let yaml = rules(&host.url(), &upstream, ", require: {scope: ['orders:read'], role: [admin]}")
        .replace("max_failures: off", "max_failures: 1/1m");
    let gateway = Gateway::start_at(&yaml, Clock::manual(START));
    let mut client = Client::connect(gateway.address());
    for index in [1, 2, 1] {
        let refused = client.get("/", &issued.bearer(index));
        assert_eq!(refused.status, 403, "{}", refused.head);
        let challenge =
            "Bearer realm=\"login\", error=\"insufficient_scope\", scope=\"orders:read\"";
        assert_eq!(refused.header("www-authenticate"), Some(challenge));
        let detail = "this request needs a token with the scope orders:read";
        assert_eq!(refused.json()["detail"], detail);
    }
    let refused = client.get("/", &issued.bearer(3));
    assert_eq!((refused.status, refused.header("www-authenticate")), (403, None));
    assert_eq!(refused.json()["detail"], "the token lacks a claim that this request needs");
    assert_eq!(client.get("/", &issued.bearer(0)).status, 200, "a 403 is no guess");
}

#[test]
fn a_flood_of_invented_tokens_costs_others_nothing() {
    let issued = Issued::new(&[("own", "ES256")], &[token("own", "acme", json!({}))]);
    let host = KeyHost::new(KeyAnswer::Set(issued.set(&["own"])));
    let upstream = Upstream::hello();
    let yaml = rules(&host.url(), &upstream, "")
        .replace("max_failures: off", "max_failures: 20/1m")
        .replace("quota: 2", "quota: 1000")
        .replace("gold: {each: 5}", "gold: {}")
        + "client: {trusted_proxies: [127.0.0.0/8]}\n";
    let gateway = Gateway::start_at(&yaml, Clock::manual(START));
    let mut client = Client::connect(gateway.address());
    let mut ask = |address: &str, token: &str| {
        client.get("/", &format!("X-Forwarded-For: {address}\r\n{}", bearer(token))).status
    };
    let (signed, _) = issued.tokens[0].rsplit_once('.').expect("a signature");
    let mut statuses = Vec::new();
    for index in 0..200 {
        let invented = format!("{signed}.{index:086}");
        statuses.push(ask("192.0.2.66", &invented));
        assert_eq!(ask("192.0.2.1", &issued.tokens[0]), 200, "{index}");
    }
    assert_eq!(statuses[..20], [401; 20], "each is verified");
    assert!(statuses[20..].iter().all(|status| *status == 429), "{statuses:?}");
    assert_eq!(upstream.request_count(), 200);
    assert_eq!(host.server.request_count(), 1, "no other fetch");
}

#[test]
fn the_throttle_admits_active_consumers() {
    let tokens = [
        token("own", "acme", json!({})),
        token("own", "acme", json!({"jti": "second"})),
        token("own", "bread", json!({})),
    ];
    let issued = Issued::new(&[("own", "EdDSA")], &tokens);
    let host = KeyHost::new(KeyAnswer::Set(issued.set(&["own"])));
    let upstream = Upstream::hello();
    let yaml = rules(&host.url(), &upstream, "")
        .replace("max_failures: off", "max_failures: 3/1m")
        .replace("quota: 2", "quota: 1000")
        + "throttle: {max_active: 10, capacity: 1000}\n";
    let clock = Clock::manual(START);
    let gateway = Gateway::start_at(&yaml, clock.clone());
    eventually("it is ready", || get(gateway.admin(), "/readyz", "").status == 200);
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.get("/", &issued.bearer(0)).status, 200);
    let forced = Client::connect(gateway.admin())
        .send("PUT /api/throttle HTTP/1.1\r\nHost: localhost\r\nContent-Length: 13\r\n\r\n{\"mode\":\"on\"}")
        .read_response();
    assert_eq!(forced.status, 200, "{}", forced.head);
    eventually("it throttles", || client.get("/", &issued.bearer(2)).status == 429);
    assert_eq!(client.get("/", &issued.bearer(1)).status, 200, "another token of the consumer");
    let (signed, _) = issued.tokens[0].rsplit_once('.').expect("a signature");
    let mut forge = |index: u32| client.get("/", &bearer(&format!("{signed}.{index:086}"))).status;
    let statuses = [0, 1, 2, 3].map(&mut forge);
    assert_eq!(statuses, [401, 401, 401, 429], "failures are counted while it throttles");
    clock.set(START + ms(Duration::from_mins(2).as_millis() as u64));
}
