//! Calls by the client that grpcio has, in clear and over TLS.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use prost::Message;
use serde_json::{Value, json};
use testkit::{
    gateway::Gateway, interpreters, rate_limit_client::descriptor, tls::Authority, yaml::fill,
};
use tidegate::rate_limit_service::{
    SHOULD_RATE_LIMIT,
    messages::{RateLimitRequest, RateLimitResponse, ResponseCode},
};

use super::RULES;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn asks(domain: &str, text: &str) -> String {
    let call = RateLimitRequest {
        domain: domain.into(),
        descriptors: vec![descriptor(text)],
        hits_addend: 0,
    };
    hex(&call.encode_to_vec())
}

/// The outcomes of calls with these messages.
fn call(address: SocketAddr, method: &str, messages: &[String], tls: &[&str]) -> Vec<Value> {
    let mut command = interpreters::python();
    command.arg("rate_limit.py").current_dir(scripts());
    command.arg(address.to_string()).arg(method).args(messages);
    if !tls.is_empty() {
        command.arg("--tls").args(tls);
    }
    let output = command.output().expect("a client");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The decision of a call, and what its first descriptor has left.
fn decision(outcome: &Value) -> (ResponseCode, u32) {
    assert_eq!(outcome["code"], "OK", "{outcome}");
    let reply = outcome["reply"].as_str().expect("a message");
    let digits = |at: usize| u8::from_str_radix(&reply[at..at + 2], 16).expect("digits");
    let bytes: Vec<u8> = (0..reply.len()).step_by(2).map(digits).collect();
    let response = RateLimitResponse::decode(&bytes[..]).expect("a response");
    (response.overall_code(), response.statuses[0].limit_remaining)
}

#[test]
fn calls_of_grpcio_are_decided() {
    let gateway = Gateway::start(RULES);
    let address = gateway.server.rate_limit_service.expect("the service");
    let mut messages = vec![asks("edge", "user=a"); 6];
    messages.extend([asks("", "user=a"), asks("unknown", "user=a"), "ff".to_owned()]);
    let outcomes = call(address, SHOULD_RATE_LIMIT, &messages, &[]);
    let (decided, others) = outcomes.split_at(6);
    for (left, outcome) in [4, 3, 2, 1, 0].into_iter().zip(decided) {
        assert_eq!(decision(outcome), (ResponseCode::Ok, left));
    }
    assert_eq!(decision(&decided[5]), (ResponseCode::OverLimit, 0));
    let failed = json!({"code": "UNKNOWN", "details": "rate limit domain must not be empty"});
    assert_eq!(others[0], failed);
    assert_eq!(decision(&others[1]).0, ResponseCode::Ok);
    assert_eq!(others[2]["code"], "INVALID_ARGUMENT", "{}", others[2]);

    let health = call(address, "/grpc.health.v1.Health/Check", &[String::new()], &[]);
    assert_eq!(health, [json!({"code": "OK", "reply": "0801"})]);
    let other = call(address, "/other.Service/Method", &[String::new()], &[]);
    assert_eq!(other[0]["code"], "UNIMPLEMENTED", "{other:?}");
}

#[test]
fn a_client_that_learns_the_service_by_reflection_calls_it() {
    let gateway = Gateway::start(RULES);
    let address = gateway.server.rate_limit_service.expect("the service");
    let mut command = interpreters::python();
    command.arg("reflected.py").current_dir(scripts()).arg(address.to_string());
    let user = json!({"entries": [{"key": "user", "value": "a"}], "hits_addend": "2"});
    let own = json!({"requests_per_unit": 9, "unit": "DAY"});
    let own = json!({"entries": [{"key": "other", "value": "b"}], "limit": own});
    let call = json!({"domain": "edge", "descriptors": [user, own], "hits_addend": 3});
    let output = command.arg(call.to_string()).output().expect("a client");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");

    let services = ["envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health"];
    assert_eq!(found["services"], json!(services));
    // The published messages are older than these fields, which Envoy 1.40 has.
    let newer = [
        "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.is_negative_hits",
        "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride.unit_multiplier",
        "envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.unit_multiplier",
    ];
    assert_eq!(found["differences"], json!(newer.map(|name| format!("{name}: not published"))));
    assert!(found["fields"].as_u64() >= Some(40), "{}", found["fields"]);
    let [first, second] = found["replies"].as_array().expect("replies").as_slice() else {
        panic!("{found}")
    };
    for (reply, left) in [(first, [3, 6]), (second, [1, 3])] {
        assert_eq!(reply["overall_code"], "OK", "{reply}");
        for (status, left) in reply["statuses"].as_array().expect("statuses").iter().zip(left) {
            assert_eq!((&status["code"], &status["limit_remaining"]), (&json!("OK"), &json!(left)));
        }
        let limits = [0, 1].map(|index| reply["statuses"][index]["current_limit"].clone());
        let named = |limit: &Value| (limit["requests_per_unit"].clone(), limit["unit"].clone());
        assert_eq!(named(&limits[0]), (json!(5), json!("MINUTE")));
        assert_eq!(named(&limits[1]), (json!(9), json!("DAY")));
    }
}

/// The folder of the clients.
fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/grpc")
}

#[test]
fn the_listener_serves_tls_and_asks_for_certificates_of_clients() {
    let directory = tempfile::tempdir().expect("a directory");
    let authority = Authority::new("test");
    let files = authority.issue(&["limits.test"]).write(directory.path(), "server");
    let own = authority.issue(&["envoy.test"]).write(directory.path(), "client");
    let authorities = authority.write(directory.path(), "ca");
    let yaml = "
        rate_limit_service:
          address: 127.0.0.1:0
          tls: {certificates: [{ {entry}, client_ca: {ca} }]}
          domains: {edge: {limits: [per-user]}}
        limits: {per-user: {quota: 5, window: 1m, algorithm: fixed_window, key: [descriptor:user]}}
        upstreams: {app: {respond: {}}}
        routes: [{name: all, upstream: app}]
    ";
    let ca = authorities.display().to_string();
    let gateway = Gateway::start(&fill(yaml, [("entry", files.entry()), ("ca", ca.clone())]));
    let address = gateway.server.rate_limit_service.expect("the service");
    let [cert, key] = [&own.cert, &own.key].map(|path| path.display().to_string());
    let ask = |tls: &[&str]| call(address, SHOULD_RATE_LIMIT, &[asks("edge", "user=a")], tls);
    let outcome = &ask(&[&ca, "limits.test", &cert, &key])[0];
    assert_eq!(decision(outcome), (ResponseCode::Ok, 4));
    assert_eq!(ask(&[&ca, "limits.test"])[0]["code"], "UNAVAILABLE", "without a certificate");
    assert_eq!(ask(&[])[0]["code"], "UNAVAILABLE", "in clear");
}
