//! The throttle on routes that authenticate: a consumer is the user, whatever its keys.

use testkit::{
    client::{Client, get},
    gateway::Gateway,
    upstream::Upstream,
    wait::eventually,
};
use tidegate::clock::{Clock, StoreTime};

use super::rules;
use testkit::api_keys::{hash, key};

const START: StoreTime = StoreTime::from_unix_ms(1_700_000_050_000);

#[test]
fn only_an_authenticated_consumer_becomes_active() {
    let upstream = Upstream::hello();
    let second = format!("{{name: acme, plan: gold, keys: [{{sha256: {}}}, ", hash("acme again"));
    let yaml = rules(&upstream, "off", "off").replace("{name: acme, plan: gold, keys: [", &second)
        + "throttle: {max_active: 10, capacity: 1000}\n";
    let clock = Clock::manual(START);
    let gateway = Gateway::start_at(&yaml, clock);
    eventually("it is ready", || get(gateway.admin(), "/readyz", "").status == 200);
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.get("/gold", &key("acme")).status, 200);
    assert_eq!(client.get("/gold", &key("invented")).status, 401);
    assert_eq!(client.get("/gold", "").status, 401);
    assert_eq!(client.get("/maybe", "Authorization: Basic YTpi\r\n").status, 200);
    assert_eq!(gateway.metric("tidegate_throttle_recorded_total"), 1, "the consumer alone");
    let forced = Client::connect(gateway.admin())
        .send("PUT /api/throttle HTTP/1.1\r\nHost: localhost\r\nContent-Length: 13\r\n\r\n{\"mode\":\"on\"}")
        .read_response();
    assert_eq!(forced.status, 200, "{}", forced.head);
    eventually("it throttles", || client.get("/open", "").status == 429);
    assert_eq!(client.get("/gold", &key("acme")).status, 200, "it is active");
    let rotated = client.get("/gold", &key("acme again"));
    assert_eq!(rotated.status, 200, "another key of an active consumer");
    for name in ["bread", "invented"] {
        let refused = client.get("/gold", &key(name));
        assert_eq!(refused.status, 429, "{name}: an unknown and an invented key look alike");
        assert_eq!(refused.json()["title"], "Temporary reduced capacity");
    }
}
