//! An address that guesses is refused before anything is verified.

use testkit::{
    backend::{MEMORY_AND_REDIS, on_each},
    client::Client,
    gateway::Gateway,
    protocol::Protocol,
    upstream::Upstream,
};
use tidegate::clock::{Clock, StoreTime, ms};

use super::rules;
use testkit::api_keys::key;

const START: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

#[test]
fn guesses_of_an_address_are_bounded() {
    on_each(&MEMORY_AND_REDIS, |backend| {
        let upstream = Upstream::hello();
        let clock = Clock::manual(START);
        let yaml = rules(&upstream, "off", "3/1m").replace("access_log: 'off'\n", "");
        let fleet = backend.start(&yaml, &clock);
        let gateway = &fleet.gateways[0];
        let get = |headers: &str| Protocol::Http1.get(gateway, "/gold", headers);
        // Missing credentials guess nothing.
        for _ in 0..5 {
            assert_eq!(get("").status, 401);
        }
        for guess in ["a", "b", "c"] {
            assert_eq!(get(&key(guess)).status, 401, "{guess}");
        }
        let refused = get(&key("acme"));
        assert_eq!(refused.status, 429, "nothing is verified, so the right key is refused as well");
        let problem = refused.json();
        assert_eq!(problem["violated-policies"], serde_json::json!(["keys~failures"]));
        let wait = refused.number("retry-after");
        assert!((1..=80).contains(&wait), "{wait}");
        assert_eq!(problem["retry-after"], wait);
        assert!(refused.header("www-authenticate").is_none());
        // A route without authentication is open.
        assert_eq!(Protocol::Http1.get(gateway, "/open", "").status, 200);
        clock.set(START + ms(wait * 1000));
        assert_eq!(get(&key("acme")).status, 200, "who waits is admitted");
    });
}

#[test]
fn failures_are_counted_by_address() {
    let upstream = Upstream::hello();
    let yaml = rules(&upstream, "off", "1/1m") + "client: {trusted_proxies: [127.0.0.0/8]}\n";
    let gateway = Gateway::start_at(&yaml, Clock::manual(START));
    let mut client = Client::connect(gateway.address());
    let mut get = |address: &str, name: &str| {
        client.get("/gold", &format!("X-Forwarded-For: {address}\r\n{}", key(name))).status
    };
    assert_eq!(get("192.0.2.1", "guess"), 401);
    assert_eq!(get("192.0.2.1", "acme"), 429);
    assert_eq!(get("192.0.2.2", "acme"), 200);
    assert_eq!(get("192.0.2.1", "acme"), 429);
}
