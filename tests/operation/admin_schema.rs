//! The admin API accepts what its description allows, and nothing else: values at the bounds of
//! every member of every body and of every parameter, sent to a real gateway.

use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use serde_json::{Map, Value, json};
use testkit::{
    client::{Client, Response},
    gateway::Gateway,
    redis_server::RedisServer,
    yaml::fill,
};

const RULES: &str = "
store: {redis: {shards: [{primary: '{redis}'}]}}
consumers: {redis: true}
upstreams: {hello: {respond: {body: hi}}}
limits:
  calls: {quota: 2, window: 1m, key: [token], block: {after: 5, within: 1m, for: 1h}}
throttle: {max_active: 1000, capacity: 1000, waiting_room: {}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [calls]}]
";

const ARGON2: &str =
    "$argon2id$v=19$m=64,t=1,p=1$c2FsdHNhbHQ$ixpwwKn9ahZABsFdSCp89Bjv1gR+y5qCxswm94TuOzs";
const BCRYPT: &str = "$2y$04$ZTWSX.0UDtfHZJGRcCTlB.dkC9j.jI8zkjfa/2ndeFU.GgjBofqQG";

/// Beginnings of details that compare a value with the time, the configuration or another value,
/// which a schema cannot.
const COMPARED: [&str; 8] = [
    "the window of `calls`",
    "`until` has passed",
    "`key` has ",
    "each `key` that identifies a caller is empty",
    "is that of another key",
    "malformed credentials; expected the token",
    // A schema takes 7.0 for an integer.
    ".0`, expected a whole number",
    "the limit has no tiers",
];

/// Texts at the edges of what some member takes.
#[rustfmt::skip]
const TEXTS: [&str; 89] = [
    "", " ", "a", "A", "a ", " a", "a b", "a\nb", "a\u{7f}", "a\u{85}b", "a\u{ad}b", "a\u{200b}b", "a\u{202e}b",
    "\u{a0}a", "a\u{3000}", "\u{feff}a", "a\u{e0041}", "caf\u{e9}", "日本", "null", "2099-12-01", "2099-02-28",
    "2099-02-29", "2096-02-29", "2100-02-29", "2099-04-31", "2099-13-01", "2099-00-10", "2105-12-31", "2106-01-01",
    "2105-12-31T23:59:59Z", "2199-12-31T23:59:59Z", "2200-01-01", "2099-12-01T10:00:00Z", "2099-12-01T10:00:00",
    "2099-12-01T24:00:00Z", "2099-12-01T23:59:60Z", "2099-12-01T10:00:00.5Z", "2099-12-01T10:00:00.Z",
    "2099-12-01T10:00:00+01:00", "2099-12-01 10:00:00Z", "2000-01-01", "1969-12-31", "2099-1-1", "5", "0", "-1", "+5",
    "007", " 5", "5.0", "999", "1000", "1001", "65535", "65536", "9007199254740991", "9007199254740992", "5/1m",
    "5/60s", "0/1m", "05/1m", "5/01m", "5/m", "5/0s", "5/1h", "5/hour", "5/366d", "5/367d", "5/", "/1m", "unlimited",
    "Unlimited", "blocked", "auto", "on", "open", "info", "INFO", "loud", "info,tidegate_store=debug",
    "info, tidegate=debug", "=info", "a b=info", "info,", "tidegate=", "192.0.2.1", "::1", "fe80::1%eth0",
];

/// Longer texts, and values of other types.
fn values() -> Vec<Value> {
    let mut all: Vec<Value> = TEXTS.iter().map(|text| json!(text)).collect();
    for digit in ["0", "a", "F", "g"] {
        all.extend([31, 32, 33, 63, 64, 65].map(|length| json!(digit.repeat(length))));
    }
    for length in [127, 128, 129, 199, 200, 201] {
        all.push(json!("\u{e9}".repeat(length)));
    }
    let hashes = [
        ARGON2.to_owned(),
        BCRYPT.to_owned(),
        ARGON2.replace("m=64", "m=262144"),
        ARGON2.replace("m=64", "m=999999"),
        ARGON2.replace("t=1", "t=32"),
        ARGON2.replace("t=1", "t=33"),
        ARGON2.replace("t=1", "t=0"),
        ARGON2.replace("p=1", "p=17"),
        ARGON2.replace("2id", "2x"),
        BCRYPT.replace("$04$", "$14$"),
        BCRYPT.replace("$04$", "$15$"),
        BCRYPT.replace("$04$", "$03$"),
        BCRYPT.replace("$2y$", "$2z$"),
        BCRYPT.replace("qQG", "qQ"),
    ];
    all.extend(hashes.map(Value::from));
    let numbers = "[0, 1, -1, 1.0, 1.5, 7e0, 31, 32, 9007199254740991, 9007199254740992, 1e300, true, false, null]";
    let others =
        "[[], [\"a\"], [7], [null], [[]], [{}], {}, {\"a\": \"b\"}, {\"a\": 7}, {\"a\": null}]";
    for list in [numbers, others] {
        all.extend(serde_json::from_str::<Vec<Value>>(list).expect("JSON"));
    }
    all.extend([32, 33].map(|count| json!(vec!["a"; count])));
    all
}

/// A valid request, whose members are then replaced.
struct Base {
    method: &'static str,
    path: &'static str,
    body: Value,
}

fn bases() -> Vec<Base> {
    let hash = "0".repeat(64);
    let over = |body: Value| Base { method: "put", path: "/api/overrides", body };
    vec![
        over(
            json!({"limit": "calls", "consumer": "acme", "quota": 7, "until": "2099-12-01", "reason": "launch"}),
        ),
        over(json!({"limit": "calls", "plan": "gold", "quota": "7/1m", "client_ip": null})),
        over(json!({"limit": "calls", "hash": "a".repeat(32), "quota": "blocked", "key": null})),
        over(json!({"limit": "calls", "key": "", "client_ip": "::1", "quota": "unlimited"})),
        Base {
            method: "post",
            path: "/api/consumers",
            body: json!({"name": "acme", "plan": "gold", "billing_day": 5, "password": BCRYPT, "labels": {"a": "b"},
                         "disabled": false, "keys": [{"id": "k", "sha256": hash, "expires": "2027-01-01"}]}),
        },
        Base {
            method: "post",
            path: "/api/consumers/{name}/keys",
            body: json!({"id": "k", "sha256": hash, "expires": "2027-01-01"}),
        },
        Base { method: "put", path: "/api/throttle", body: json!({"mode": "on"}) },
        Base { method: "put", path: "/api/throttle", body: json!({"waiting_room": "open"}) },
        Base { method: "put", path: "/api/log_level", body: json!({"level": "info"}) },
    ]
}

fn ask(gateway: &Gateway, method: &str, target: &str, body: &str) -> Response {
    let (method, length) = (method.to_ascii_uppercase(), body.len());
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
    );
    Client::connect(gateway.admin()).send(format!("{head}{body}")).read_response()
}

fn document(gateway: &Gateway) -> Value {
    ask(gateway, "get", "/api/openapi.json", "").json()
}

fn validator(document: &Value, schema: &Value) -> jsonschema::Validator {
    let mut schema = schema.clone();
    schema["components"] = document["components"].clone();
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    jsonschema::options().should_validate_formats(true).build(&schema).expect("a schema")
}

/// Why the response disagrees with the description, of which the request is a valid or an invalid
/// example.
fn disagreement(is_valid: bool, response: &Response) -> Option<String> {
    let text = response.text();
    let is_compared = COMPARED.iter().any(|beginning| text.contains(beginning));
    let agrees = match response.status {
        // A 404 or a 409 is about what exists.
        200..300 | 404 | 409 => is_valid,
        400 => !is_valid || is_compared,
        _ => false,
    };
    (!agrees).then(|| format!("valid: {is_valid}, {}: {text}", response.status))
}

/// The places of members in a body, as JSON pointers: of its schema, and of the body itself.
fn places(document: &Value, schema: &Value, body: &Value, at: &str, found: &mut Vec<String>) {
    let name = schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/components/schemas/"));
    let schema = name.map_or(schema, |name| &document["components"]["schemas"][name]);
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        let place = format!("{at}/{name}");
        found.push(place.clone());
        places(document, member, &body[name], &place, found);
    }
    if let Some(items) = body.as_array().filter(|items| !items.is_empty()) {
        let place = format!("{at}/0");
        found.push(place.clone());
        places(document, &schema["items"], &items[0], &place, found);
    }
    if schema["additionalProperties"].is_object() {
        found.push(format!("{at}/a"));
    }
}

/// The body with another value at a place; without a value, the member is removed.
fn changed(body: &Value, place: &str, value: Option<&Value>) -> Option<Value> {
    let mut changed = body.clone();
    let (parent, name) = place.rsplit_once('/')?;
    match changed.pointer_mut(parent)? {
        Value::Object(members) => match value {
            Some(value) => drop(members.insert(name.to_owned(), value.clone())),
            None => drop(members.remove(name)?),
        },
        Value::Array(items) => match value {
            Some(value) => items[0] = value.clone(),
            None => items.clear(),
        },
        _ => return None,
    }
    Some(changed)
}

/// Sends variants of a valid body. Returns the requests whose responses disagree with the
/// description.
fn check_body(gateway: &Gateway, document: &Value, base: &Base) -> Vec<String> {
    let operation = &document["paths"][base.path][base.method];
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    let validator = validator(document, schema);
    let mut found = Vec::new();
    places(document, schema, &base.body, "", &mut found);
    assert!(!found.is_empty(), "{}: no members", base.path);
    let (mut bodies, values) = (vec![base.body.clone()], values());
    bodies.extend(values.iter().filter(|value| !value.is_object()).cloned());
    bodies.push(Value::Object(Map::new()));
    for place in &found {
        bodies.extend(changed(&base.body, place, None));
        bodies.extend(values.iter().filter_map(|value| changed(&base.body, place, Some(value))));
        let parent = place.rsplit_once('/').map_or("", |(parent, _)| parent);
        bodies.extend(changed(&base.body, &format!("{parent}/unknown"), Some(&json!("a"))));
    }
    let target = base.path.replace("{name}", "acme");
    let check = |body: &Value| {
        let response = ask(gateway, base.method, &target, &body.to_string());
        let what = disagreement(validator.is_valid(body), &response)?;
        Some(format!("{} {target} {body}: {what}", base.method))
    };
    bodies.iter().filter_map(check).collect()
}

/// Sends variants of a parameter in the query.
fn check_parameter(gateway: &Gateway, document: &Value, target: &str, query: &str) -> Vec<String> {
    let (path, method) = (target.replace("calls", "{name}"), "get");
    let (_, name) = query.rsplit_once('&').unwrap_or(("", query));
    let parameters = document["paths"][&path][method]["parameters"].as_array().expect("parameters");
    let own = parameters.iter().find(|own| own["name"] == *name).expect("the parameter");
    let validator = validator(document, &own["schema"]);
    let check = |value: &Value| {
        let text = value.as_str()?;
        let escaped = percent_encode(text.as_bytes(), NON_ALPHANUMERIC).to_string();
        let response = ask(gateway, method, &format!("{target}?{query}={escaped}"), "");
        let sent = if own["schema"]["type"] == "array" { json!([value]) } else { value.clone() };
        let what = disagreement(validator.is_valid(&sent), &response)?;
        Some(format!("{target}?{query}={text:?}: {what}"))
    };
    values().iter().filter_map(check).collect()
}

#[test]
fn the_api_accepts_what_its_description_allows() {
    let redis = RedisServer::start();
    let gateway = Gateway::start(&fill(RULES, [("redis", redis.url())]));
    let document = document(&gateway);
    let mut different = Vec::new();
    let bases = bases();
    for base in &bases {
        different.extend(check_body(&gateway, &document, base));
    }
    let one = "/api/limits/calls";
    let parameters = [
        ("/api/blocks", "count"),
        ("/api/overrides", "count"),
        ("/api/overrides", "after"),
        (one, "hash"),
        (one, "key=a&tier"),
        (one, "key=a&consumer"),
        (one, "key"),
        (one, "key=&client_ip"),
    ];
    for (target, query) in parameters {
        different.extend(check_parameter(&gateway, &document, target, query));
    }
    let first: Vec<&str> = different.iter().take(20).map(String::as_str).collect();
    assert!(first.is_empty(), "{} differ:\n{}", different.len(), first.join("\n"));
    // Every body is checked, and every parameter with a form.
    for (path, operations) in document["paths"].as_object().expect("paths") {
        for (method, operation) in operations.as_object().expect("operations") {
            let has_base = bases.iter().any(|base| base.path == path && base.method == method);
            assert_eq!(operation["requestBody"].is_object(), has_base, "{method} {path}");
            for own in operation["parameters"].as_array().into_iter().flatten() {
                let name = own["name"].as_str().expect("a name");
                let is_checked = parameters.iter().any(|(_, query)| query.ends_with(name));
                // Names and ids in paths are looked up: an unknown one is a 404, whatever its form.
                let is_free = own["in"] == "path" || own["schema"]["pattern"].is_null();
                assert!(is_checked || is_free, "{method} {path}: {name}");
            }
        }
    }
}
