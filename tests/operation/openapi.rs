//! The `OpenAPI` description covers every request that the admin API answers, and the answers are
//! valid.

use serde_json::{Value, json};
use testkit::{
    client::{Client, Response, get},
    gateway::Gateway,
    redis_server::RedisServer,
};

const RULES: &str = "upstreams:
  hello: {respond: {body: hi}}
  app: {targets: ['http://127.0.0.1:1']}
limits:
  calls: {quota: 2, window: 1h, key: [token], candidate: {quota: 1}}
  costly:
    quota: 9
    window: 1m
    key: []
    cost: 'header:x-cost'
    max_cost: 3
    refund: [304]
    tiers: [{match: {part: client_ip, values: [10.0.0.0/8]}, quota: 5}]
client: {trusted_proxies: [127.0.0.2/32]}
throttle: {max_active: 1000, capacity: 1000, waiting_room: {}}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [calls, costly]}
  - {name: app, match: {path: /app}, upstream: app, headers: {request: {set: {x-a: b}}}}
  - {name: asked, match: {path: /asked}, decide: {}}
";

fn ask(gateway: &Gateway, method: &str, target: &str, body: &str) -> Response {
    let length = body.len();
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
    );
    Client::connect(gateway.admin()).send(format!("{head}{body}")).read_response()
}

fn document(gateway: &Gateway) -> Value {
    let response = ask(gateway, "GET", "/api/openapi.json", "");
    assert_eq!(response.header("content-type"), Some("application/json"));
    response.json()
}

/// The errors of `value` under `schema`, whose references point into `document`.
fn errors(document: &Value, schema: &Value, value: &Value) -> Vec<String> {
    let mut schema = schema.clone();
    schema["components"] = document["components"].clone();
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let faults = validator.iter_errors(value);
    faults.map(|fault| format!("{}: {fault}", fault.instance_path())).collect()
}

/// Checks that the document has `response` for the request.
fn check(document: &Value, path: &str, method: &str, response: &Response) {
    let operation = &document["paths"][path][method.to_ascii_lowercase()];
    let name = format!("{method} {path}: {}", response.status);
    let described = &operation["responses"][response.status.to_string()];
    assert!(described.is_object(), "{name} is not described: {}", response.text());
    let Some(contents) = described["content"].as_object() else {
        assert!(response.body.is_empty(), "{name}");
        return;
    };
    let sent = response.header("content-type").unwrap_or_default();
    let found = contents.iter().find(|(media, _)| sent.starts_with(&***media));
    let (media, content) = found.unwrap_or_else(|| panic!("{name}: {sent} is not described"));
    if media.contains("json") {
        let faults = errors(document, &content["schema"], &response.json());
        assert_eq!(faults, Vec::<String>::new(), "{name}: {}", response.text());
    }
}

#[test]
fn every_request_is_described_and_no_other_is_answered() {
    let gateway = Gateway::start(RULES);
    let document = document(&gateway);
    assert_eq!(document["openapi"], "3.1.0");
    assert!(document["components"].get("securitySchemes").is_none(), "it has no token");
    let paths = document["paths"].as_object().expect("paths");
    assert!(paths.len() >= 16, "{} paths", paths.len());
    let mut ids = Vec::new();
    for (path, operations) in paths {
        let target = path.replace("{name}", "calls");
        let operations = operations.as_object().expect("operations");
        for method in ["GET", "PUT", "POST", "DELETE", "PATCH"] {
            let described = operations.get(&method.to_ascii_lowercase());
            let mut client = Client::connect(gateway.admin());
            let head = format!(
                "{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
            );
            let (status, head) = client.send(head).read_head().expect("a head");
            assert_eq!(status == 405, described.is_none(), "{method} {path}: {status}");
            if status == 405 {
                let allowed = head.to_ascii_lowercase();
                let allowed =
                    allowed.lines().find_map(|line| line.strip_prefix("allow:")).expect("Allow");
                let allowed: Vec<_> =
                    allowed.trim().split(',').filter(|own| *own != "head").collect();
                assert_eq!(allowed.len(), operations.len(), "{path}: {allowed:?}");
                assert!(
                    allowed.iter().all(|own| operations.contains_key(*own)),
                    "{path}: {allowed:?}"
                );
            }
            ids.extend(described.map(|own| own["operationId"].as_str().expect("an id").to_owned()));
        }
    }
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "each request has an id of its own");
    // The error for an unknown path lists these paths.
    let unknown = ask(&gateway, "GET", "/nothing", "").json();
    let detail = unknown["detail"].as_str().expect("text");
    for path in paths.keys().filter(|path| !path.contains('.')) {
        assert!(detail.contains(path.as_str()), "{path}: {detail}");
    }
}

/// Checks the requests for consumers in Redis. Returns their names.
fn check_consumers(document: &Value) -> Vec<String> {
    let redis = RedisServer::start();
    let store = format!("store: {{redis: {{shards: [{{primary: '{}'}}]}}}}\n", redis.url());
    let gateway = Gateway::start(&format!("{store}consumers: {{redis: true}}\n{RULES}"));
    let (all, one, keys, key) = (
        "/api/consumers",
        "/api/consumers/{name}",
        "/api/consumers/{name}/keys",
        "/api/consumers/{name}/keys/{key}",
    );
    let record = r#"{"name": "acme", "plan": "gold", "labels": {"a": "b"}}"#;
    let mut checked = Vec::new();
    for (method, path, name, body, status) in [
        ("POST", all, "", record, 201),
        ("POST", all, "", record, 200),
        ("POST", all, "", "{}", 400),
        ("GET", one, "acme", "", 200),
        ("GET", one, "bread", "", 404),
        ("POST", keys, "acme", r#"{"id": "k"}"#, 201),
        ("POST", keys, "acme", "[]", 400),
        ("GET", one, "acme", "", 200),
        ("DELETE", key, "acme", "", 204),
        ("DELETE", key, "acme", "", 404),
        ("DELETE", one, "acme", "", 204),
        ("DELETE", one, "%FF", "", 400),
    ] {
        let target = path.replace("{name}", name).replace("{key}", "k");
        let response = ask(&gateway, method, &target, body);
        assert_eq!(response.status, status, "{method} {target}: {}", response.text());
        check(document, path, method, &response);
        checked.push(format!("{method} {path}"));
    }
    checked
}

#[test]
fn responses_are_valid() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("overrides.yaml");
    let gateway = Gateway::start(&format!("overrides: {{file: '{}'}}\n{RULES}", file.display()));
    let document = document(&gateway);
    for _ in 0..4 {
        get(gateway.address(), "/", "Authorization: a\r\n");
        get(gateway.address(), "/app", "");
    }
    let mut checked = Vec::new();
    let mut exchange = |method: &str, path: &str, query: &str, body: &str, status: u16| {
        let target = path.replace("{name}", "calls") + query;
        let response = ask(&gateway, method, &target, body);
        assert_eq!(response.status, status, "{method} {target}: {}", response.text());
        check(&document, path, method, &response);
        checked.push(format!("{method} {path}"));
    };
    for path in
        ["/", "/dashboard.css", "/dashboard.js", "/favicon.svg", "/healthz", "/readyz", "/metrics"]
    {
        exchange("GET", path, "", "", 200);
    }
    for path in ["config", "routes", "limits", "upstreams", "throttle", "state", "openapi.json"] {
        exchange("GET", &format!("/api/{path}"), "", "", 200);
    }
    let limit = "/api/limits/{name}";
    exchange("GET", limit, "?key=a", "", 200);
    exchange("GET", limit, "", "", 400);
    exchange("GET", "/api/limits/{name}", "-unknown", "", 404);
    exchange("DELETE", limit, "?key=a", "", 204);
    exchange("DELETE", limit, "?hash=1", "", 400);
    exchange("GET", "/api/blocks", "?count=5", "", 200);
    exchange("GET", "/api/blocks", "?count=x", "", 400);
    exchange("DELETE", "/api/blocks/{name}", "?key=a", "", 409);
    exchange("DELETE", "/api/blocks/{name}", "", "", 400);
    let both = format!("?hash={}&key=a", "0".repeat(32));
    for method in ["GET", "DELETE"] {
        exchange(method, limit, &both, "", 400);
        let operation = &document["paths"][limit][method.to_ascii_lowercase()];
        let described = operation["responses"]["400"]["description"].as_str().unwrap_or_default();
        assert!(described.contains("`hash` together with `key` or `client_ip`"), "{described}");
    }
    let body = r#"{"limit": "calls", "key": "a", "quota": 7, "reason": "launch"}"#;
    exchange("PUT", "/api/overrides", "", body, 200);
    exchange("GET", limit, "?key=a", "", 200);
    exchange("GET", "/api/overrides", "?count=1", "", 200);
    exchange("GET", "/api/overrides", "?count=0", "", 400);
    exchange("PUT", "/api/overrides", "", "{}", 400);
    exchange("PUT", "/api/overrides", "", r#"{"limit":"a","plan":"b","quota":1}"#, 404);
    let listed = ask(&gateway, "GET", "/api/overrides", "").json();
    let id = listed["overrides"][0]["id"].as_str().expect("an id");
    let own = "/api/overrides/{id}";
    for (id, status) in [(id, 204), (id, 404), ("1", 400)] {
        let response = ask(&gateway, "DELETE", &own.replace("{id}", id), "");
        assert_eq!(response.status, status, "{}", response.text());
        check(&document, own, "DELETE", &response);
    }
    std::fs::write(&file, "overrides: 7").expect("a file");
    exchange("PUT", "/api/overrides", "", body, 409);
    std::fs::remove_file(&file).expect("the file");
    exchange("PUT", "/api/throttle", "", "{\"mode\": \"on\"}", 200);
    exchange("PUT", "/api/throttle", "", "{\"waiting_room\": \"closed\"}", 200);
    exchange("PUT", "/api/throttle", "", "{\"mode\": \"open\"}", 400);
    exchange("PUT", "/api/log_level", "", "{\"level\": \"loud\"}", 400);
    exchange("GET", "/api/acme", "", "", 200);
    exchange("POST", "/api/acme/renew", "", "", 404);
    exchange("POST", "/api/acme/renew", "?name=a.test", "", 400);
    exchange("POST", "/api/reload", "", "", 200);
    gateway.write_configuration("routes: 5");
    exchange("POST", "/api/reload", "", "", 400);
    exchange("GET", "/api/state", "", "", 200);
    exchange("POST", "/api/consumers", "", r#"{"name": "a"}"#, 409);
    checked.extend(check_consumers(&document));
    let level = ask(&gateway, "GET", "/api/log_level", "");
    check(&document, "/api/log_level", "GET", &level);
    checked.extend(
        ["GET /api/log_level", "GET /api/events", "DELETE /api/overrides/{id}"].map(str::to_owned),
    );
    for (path, operations) in document["paths"].as_object().expect("paths") {
        for method in operations.as_object().expect("operations").keys() {
            let name = format!("{} {path}", method.to_ascii_uppercase());
            assert!(checked.contains(&name), "{name} is not tested");
        }
    }
}

#[test]
fn schemas_are_strict_enough_to_fail() {
    let gateway = Gateway::start(RULES);
    let document = document(&gateway);
    let schema = json!({"$ref": "#/components/schemas/GatewayState"});
    let state = ask(&gateway, "GET", "/api/state", "").json();
    assert_eq!(errors(&document, &schema, &state), Vec::<String>::new());
    for (pointer, value) in [
        ("/requests/latency/counts", json!("many")),
        ("/store/kind", json!("disk")),
        ("/throttle/mode", json!(7)),
        ("/limits/0/name", Value::Null),
        ("/upstreams/0/targets/0/in_flight", json!(-1)),
    ] {
        let mut faulty = state.clone();
        *faulty.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}: {state}")) = value;
        assert_eq!(errors(&document, &schema, &faulty).len(), 1, "{pointer}");
    }
    let mut missing = state;
    missing.as_object_mut().expect("an object").remove("connections");
    assert_eq!(errors(&document, &schema, &missing).len(), 1);
}
