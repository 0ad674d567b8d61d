//! Limits that count by parts of which a request to the status route does not say the value.

use serde_json::Value;
use testkit::{
    backend::{MEMORY_BY_PROTOCOL_AND_REDIS, on_each},
    client::Response,
    gateway::Gateway,
    protocol::AnyClient,
};
use tidegate::clock::Clock;

use super::NOW;

const RULES: &str = "
    upstreams: {hello: {respond: {body: hello}}}
    limits:
      by-model: {quota: 5, window: 1h, key: ['json:model']}
      by-both: {quota: 5, window: 1h, key: [token, 'json:model']}
      by-route: {quota: 5, window: 1h, key: [token, route]}
      by-path: {quota: 5, window: 1h, key: [token, path]}
      by-item: {quota: 5, window: 1h, key: ['path:id']}
      by-method: {quota: 5, window: 1h, key: [token, method]}
      own: {quota: 5, window: 1h, key: [token, route]}
    routes:
      - {name: all, match: {path: '/items/{id}'}, upstream: hello, limits: [by-model, by-both, by-route, by-path, by-item, by-method, own]}
      - {name: usage, match: {path: '/usage/{id}'}, status: [by-model, by-both, by-route, by-path, by-item, by-method, own], limits: [own]}
    ";

/// The `used` of each limit, in the order of the route; `None` for null.
fn used(response: &Response) -> Vec<Option<u64>> {
    assert_eq!(response.status, 200, "{}", response.text());
    let json = response.json();
    let resources = json["resources"].as_object().expect("limits").clone();
    let names = ["by-model", "by-both", "by-route", "by-path", "by-item", "by-method", "own"];
    assert_eq!(resources.len(), names.len(), "{json}");
    names.map(|name| resources[name].get("used").and_then(Value::as_u64)).to_vec()
}

#[test]
fn a_counter_that_the_request_does_not_name_is_null() {
    on_each(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
        let fleet = backend.start(RULES, &Clock::manual(NOW));
        let mut client: AnyClient = fleet.connect(0);
        let fields = "Authorization: Bearer a\r\nContent-Type: application/json\r\n";
        let mut ask = |method: &str, path: &str, body: &str| client.ask(method, path, fields, body);
        for _ in 0..2 {
            assert_eq!(ask("POST", "/items/7", r#"{"model":"gpt"}"#).status, 200);
        }
        // A GET without a body names no model, and no request to this route names the route and the
        // path of others.
        let plain = [None, None, None, None, Some(2), Some(0), Some(1)];
        assert_eq!(used(&ask("GET", "/usage/7", "")), plain);
        let plain = [None, None, None, None, Some(2), Some(2), Some(2)];
        assert_eq!(used(&ask("POST", "/usage/7", "{}")), plain);
        let named = [Some(2), Some(2), None, None, Some(2), Some(2), Some(3)];
        assert_eq!(used(&ask("POST", "/usage/7", r#"{"model":"gpt"}"#)), named);
        let other = [Some(0), Some(0), None, None, Some(0), Some(2), Some(4)];
        assert_eq!(used(&ask("POST", "/usage/8", r#"{"model":"other"}"#)), other);
    });
}

#[test]
fn a_body_that_cannot_be_read_is_refused() {
    let gateway = Gateway::start_at(RULES, Clock::manual(NOW));
    let mut client = AnyClient::connect(testkit::protocol::Protocol::Http1, &gateway);
    let json = "Content-Type: application/json\r\n";
    assert_eq!(client.ask("POST", "/usage/7", json, "{").status, 400);
    assert_eq!(client.ask("POST", "/usage/7", json, r#"{"model":[]}"#).status, 400);
    assert_eq!(client.ask("POST", "/usage/7", "", "model=gpt").status, 400);
}
