//! Errors in the form that the clients of model APIs and of MCP read.

use serde_json::{Value, json};
use testkit::{
    gateway::Gateway,
    protocol::{AnyClient, on_every_protocol},
};

const RULES: &str = "
workers: 1
auth: {keys: {api_key: {}}}
consumers: {entries: []}
upstreams: {hello: {respond: {body: hello}}}
limits:
  tokens: {quota: 1, window: 1h, key: [path], cost: {preset: openai}}
  messages: {quota: 1, window: 1h, key: [path], cost: {preset: anthropic}}
  calls: {quota: 1, window: 1h, key: [path]}
routes:
  - {name: openai, match: {path: /openai}, upstream: hello, limits: [tokens], max_body: 100B}
  - {name: anthropic, match: {path: /anthropic}, upstream: hello, limits: [messages]}
  - {name: gemini, match: {path: /gemini}, upstream: hello, limits: [calls], refuse_as: gemini}
  - {name: problem, match: {path: /problem}, upstream: hello, limits: [tokens], refuse_as: problem}
  - {name: own, match: {path: /own}, upstream: hello, limits: [tokens], error_bodies: {'429': {body: own, content_type: text/plain}}}
  - {name: keys, match: {path: /keys}, upstream: hello, limits: [tokens], auth: [keys]}
  - {name: mcp, match: {path: '/mcp/{id}'}, upstream: hello, limits: [calls], refuse_as: json-rpc}
  - {name: mcp-keys, match: {path: /mcp-keys}, upstream: hello, limits: [calls], auth: [keys], refuse_as: json-rpc}
";

fn post(client: &mut AnyClient, path: &str, body: &str) -> (u16, Value) {
    let response = client.ask("POST", path, "Content-Type: application/json\r\n", body);
    (response.status, serde_json::from_slice(&response.body).unwrap_or_default())
}

/// The body of the second request, which its limit refuses.
fn refused(client: &mut AnyClient, path: &str) -> Value {
    assert_eq!(post(client, path, "{\"max_tokens\":1}").0, 200, "{path}");
    let (status, body) = post(client, path, "{\"max_tokens\":1}");
    assert_eq!(status, 429, "{path}");
    body
}

#[test]
fn the_clients_of_model_apis_read_why_they_are_refused() {
    on_every_protocol(|protocol| {
        let gateway = Gateway::for_every_protocol(RULES);
        let client = &mut protocol.connect(&gateway);
        for (path, limit) in [("/openai", "tokens"), ("/anthropic", "messages")] {
            let body = refused(client, path);
            let seconds = body["retry-after"].as_u64().expect("seconds");
            assert!(seconds > 3_000, "{body}");
            let message = format!("{limit} exceeded; retry in {seconds} s");
            let error = json!({"message": message, "type": "rate_limit_error", "code": "rate_limit_exceeded"});
            assert_eq!((&body["error"], &body["status"]), (&error, &429.into()), "{path}");
            assert_eq!(body["violated-policies"], json!([limit]));
        }
        let (status, body) = post(client, "/openai", &format!("{{\"a\":\"{}\"}}", "x".repeat(100)));
        assert_eq!((status, &body["error"]["type"]), (413, &"request_too_large".into()));
        let (status, body) = post(client, "/keys", "{}");
        assert_eq!((status, &body["error"]["code"]), (401, &"invalid_api_key".into()));
        let body = refused(client, "/gemini");
        assert_eq!(
            (&body["error"]["code"], &body["error"]["status"]),
            (&429.into(), &"RESOURCE_EXHAUSTED".into())
        );
        assert_eq!(refused(client, "/problem")["error"], Value::Null);
        assert_eq!(refused(client, "/own"), Value::Null, "not JSON");
        let page = client.ask("POST", "/openai", "Accept: text/html\r\n", "");
        assert!(page.text().starts_with("<!doctype html>"), "{}", page.text());
    });
}

#[test]
fn an_mcp_client_gets_an_error_of_json_rpc() {
    on_every_protocol(|protocol| {
        let gateway = Gateway::for_every_protocol(RULES);
        let client = &mut protocol.connect(&gateway);
        let call =
            |id: &str| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\"}}");
        for (index, (body, id)) in [
            (call("7"), json!(7)),
            (call("\"a\\\"b\""), json!("a\"b")),
            (call("null"), Value::Null),
            (
                "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}".to_owned(),
                Value::Null,
            ),
            (format!("[{}]", call("7")), Value::Null),
            (String::new(), Value::Null),
        ]
        .into_iter()
        .enumerate()
        {
            let path = format!("/mcp/{index}");
            assert_eq!(post(client, &path, &body).0, 200, "{body}");
            let (status, refused) = post(client, &path, &body);
            assert_eq!(
                (status, &refused["jsonrpc"], &refused["id"]),
                (429, &"2.0".into(), &id),
                "{body}"
            );
            let error = &refused["error"];
            assert_eq!(error["code"], -32029);
            let seconds = &error["data"]["retry-after"];
            assert_eq!(error["message"], format!("calls exceeded; retry in {seconds} s"));
            assert_eq!(error["data"]["status"], 429);
        }
        let response =
            client.ask("POST", "/mcp/0", "Content-Type: application/json\r\n", call("1"));
        assert_eq!(response.header("content-type"), Some("application/json"));
        assert!(response.header("retry-after").is_some());
        let (status, refused) = post(client, "/mcp-keys", &call("7"));
        assert_eq!(
            (status, &refused["error"]["code"], &refused["id"]),
            (401, &(-32001).into(), &Value::Null)
        );
        // The server says what is wrong with a body of which the gateway needs only the id.
        assert_eq!(post(client, "/mcp/9", "{").0, 200);
    });
}
