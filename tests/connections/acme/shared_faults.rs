//! Redis fails, or has damaged values, while gateways share a certificate.

use std::{fs, time::Duration};

use serde_json::Value;
use testkit::{
    client::get,
    gateway::Gateway,
    redis_server::RedisServer,
    wait::{eventually, sleep},
};

use super::{
    A, FAILED, ISSUED, names_and_issuer, post,
    shared::{FIRST, GATE, Gate, SECOND, SharedSetting},
    state,
};

const CERTIFICATES: &str = "tidegate:{acme}:certificates";
const VERSIONS: &str = "tidegate:{acme}:versions";
const CONFLICTS: &str = "tidegate_acme_storage_conflicts";
const FAILURES: &str = "tidegate_acme_storage_failures_total";

fn note(gateway: &Gateway) -> Value {
    get(gateway.admin(), "/readyz", "").json()["certificate_storage_note"].take()
}

/// The name of the only certificate in Redis.
fn name(redis: &RedisServer) -> String {
    let mut names: Vec<String> = redis.command(&["HKEYS", CERTIFICATES]);
    assert_eq!(names.len(), 1);
    names.remove(0)
}

/// Replaces the certificate, as another gateway does.
fn replace(redis: &RedisServer, record: &str, version: &str) {
    let name = name(redis);
    let _: i64 = redis.command(&["HSET", CERTIFICATES, &name, record]);
    let _: i64 = redis.command(&["HSET", VERSIONS, &name, version]);
}

fn record(redis: &RedisServer) -> Vec<u8> {
    redis.command(&["HGET", CERTIFICATES, &name(redis)])
}

#[test]
fn certificates_stay_while_redis_is_lost_and_are_written_back() {
    let mut shared = SharedSetting::new();
    let gateways = shared.issued();
    let first = shared.setting.shown(&gateways[0]);
    shared.redis.kill();
    for gateway in &gateways {
        eventually("a note", || note(gateway).to_string().contains("Redis cannot be used"));
        assert!(gateway.metric(FAILURES) > 0);
        assert_eq!(get(gateway.admin(), "/readyz", "").status, 200);
        assert_eq!(shared.setting.shown(gateway), first);
    }
    // It has lost its data.
    shared.redis.restart();
    eventually("the certificate is written back", || {
        shared.redis.command::<i64>(&["HLEN", CERTIFICATES]) == 1
    });
    eventually("no note", || gateways.iter().all(|own| note(own).is_null()));
    let third = shared.start("127.0.0.4");
    assert_eq!(shared.setting.shown(&third), first);
    // A renewal that an operator wants meanwhile waits.
    shared.redis.kill();
    post(&gateways[0], "/api/acme/renew");
    eventually("a note", || !note(&gateways[0]).is_null());
    assert_eq!(shared.setting.pebble.orders(), 1);
    shared.redis.restart();
    eventually("a new certificate", || shared.is_renewed(&gateways, &first));
    assert_eq!(shared.setting.pebble.orders(), 2);
}

#[test]
fn a_redis_that_refuses_writes_is_named_and_asked_less_often() {
    let shared = SharedSetting::new();
    let _: String = shared.redis.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let gateways = [shared.start(FIRST), shared.start(SECOND)];
    for gateway in &gateways {
        eventually("the reason", || {
            let error = state(gateway)["last_error"].to_string();
            error.contains("Redis cannot be used for certificates: server")
        });
    }
    let failures = gateways.each_ref().map(|own| own.metric(FAILURES));
    sleep(Duration::from_secs(3));
    assert_eq!(gateways.each_ref().map(|own| own.metric(FAILURES)), failures);
    let _: String = shared.redis.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    eventually("both have a certificate, and no reason", || {
        let reports = gateways.each_ref().map(state);
        let is_well = |own: &Value| own["last_error"].is_null() && own["expires_at"].is_u64();
        reports.iter().all(is_well)
    });
    assert_eq!(shared.setting.pebble.orders(), 1);
}

#[test]
fn a_certificate_that_was_issued_without_redis_is_written_later() {
    let mut shared = SharedSetting::new();
    let gateways = shared.issued();
    let first = shared.setting.shown(&gateways[0]);
    let gate = Gate::new(shared.setting.ports.tls);
    shared.lead_to(GATE);
    post(&gateways[0], "/api/acme/renew");
    gate.wait();
    shared.redis.kill();
    // The authority is asked again 16 s after it could begin, when the lease has expired.
    sleep(Duration::from_secs(12));
    gate.open();
    gateways[0].wait_for_metric(ISSUED, 2);
    assert_ne!(shared.setting.shown(&gateways[0]), first);
    assert_eq!(shared.setting.shown(&gateways[1]), first);
    shared.redis.restart();
    eventually("both have it", || shared.is_renewed(&gateways, &first));
    assert_eq!(shared.setting.pebble.orders(), 2);
}

#[test]
fn an_order_ends_if_its_lease_is_lost() {
    let shared = SharedSetting::new();
    let gateways = shared.issued();
    let first = shared.setting.shown(&gateways[0]);
    let gate = Gate::new(shared.setting.ports.tls);
    shared.lead_to(GATE);
    post(&gateways[0], "/api/acme/renew");
    gate.wait();
    // As after a pause of the gateway that is longer than its lease.
    let lease = format!("tidegate:{{acme}}:lease:{}", name(&shared.redis));
    let _: String = shared.redis.command(&["SET", &lease, "another"]);
    gateways[0].wait_for_metric(FAILED, 1);
    let error = state(&gateways[0])["last_error"].to_string();
    assert!(error.contains("the lease of the order in Redis was lost"), "{error}");
    assert_eq!(shared.setting.shown(&gateways[0]), first);
    gate.open();
    let kept: String = shared.redis.command(&["GET", &lease]);
    assert_eq!(kept, "another", "it is not this gateway's");
    let _: i64 = shared.redis.command(&["DEL", &lease]);
    shared.lead_to(SECOND);
    post(&gateways[1], "/api/acme/renew");
    eventually("a new certificate", || shared.is_renewed(&gateways, &first));
}

#[test]
fn a_gateway_starts_without_redis() {
    let mut shared = SharedSetting::with_redis(RedisServer::not_started());
    let gateway = shared.start(FIRST);
    let (names, issuer) = names_and_issuer(&shared.setting.shown(&gateway));
    assert!(names == [A] && issuer.contains("until the first ACME order"), "{issuer}");
    let ready = get(gateway.admin(), "/readyz", "");
    assert_eq!(ready.status, 200);
    assert_eq!(ready.json()["awaited_certificates"][0], A);
    eventually("a note", || note(&gateway).to_string().contains("none is ordered"));
    assert_eq!(shared.setting.pebble.orders(), 0);
    shared.redis.restart();
    gateway.wait_for_metric(ISSUED, 1);
    eventually("no note", || note(&gateway).is_null());
}

#[test]
fn damaged_values_are_replaced() {
    let shared = SharedSetting::new();
    let [first, second] = shared.issued();
    let (old, good) = (shared.setting.shown(&first), record(&shared.redis));
    for (version, bad) in
        ["", "x", "plain\n", "plain\n-----BEGIN CERTIFICATE-----\nAA=="].into_iter().enumerate()
    {
        replace(&shared.redis, bad, &version.to_string());
        eventually("a gateway writes its own", || record(&shared.redis) == good);
    }
    eventually("both are well", || {
        [&first, &second].iter().all(|own| state(own)["last_error"].is_null())
    });
    assert_eq!(shared.setting.pebble.orders(), 1);
    assert_eq!(shared.setting.shown(&second), old);
    // Responses that are none, and a state of another type.
    let responses = "tidegate:{acme}:responses";
    let _: i64 =
        shared.redis.command(&["ZADD", responses, "+inf", "\u{ff}\u{0}", "+inf", "plain\nx"]);
    post(&first, "/api/acme/renew");
    first.wait_for_metric(ISSUED, 2);
    let _: i64 = shared.redis.command(&["DEL", responses]);
    let _: String = shared.redis.command(&["SET", responses, "x"]);
    eventually("a note", || note(&first).to_string().contains("(server)"));
    let _: i64 = shared.redis.command(&["DEL", responses]);
    eventually("no note", || note(&first).is_null());
    drop([first, second]);
    // Without a gateway that has it, a new one is ordered.
    replace(&shared.redis, "plain\nx", "y");
    let third = shared.start(FIRST);
    third.wait_for_metric(ISSUED, 1);
    assert_ne!(shared.setting.shown(&third), old);
}

#[test]
fn a_damaged_account_is_reported() {
    let shared = SharedSetting::new();
    drop(shared.issued());
    let keys: Vec<String> = shared.redis.command(&["KEYS", "tidegate:{acme}:account:*"]);
    assert_eq!(keys.len(), 1);
    let name = name(&shared.redis);
    let _: i64 = shared.redis.command(&["DEL", CERTIFICATES, VERSIONS]);
    for (bad, expected) in [
        ("x", format!("the record `{}` in Redis is no record", keys[0])),
        ("plain\n{}", format!("remove the key `{}` in Redis for a new account", keys[0])),
    ] {
        let _: String = shared.redis.command(&["SET", &keys[0], bad]);
        let _: i64 = shared.redis.command(&["DEL", &format!("tidegate:{{acme}}:lease:{name}")]);
        let gateway = shared.start(FIRST);
        gateway.wait_for_metric(FAILED, 1);
        let error = state(&gateway)["last_error"].to_string();
        assert!(error.contains(&expected), "{error}");
    }
}

/// The configuration of a gateway with this `storage_key`.
fn with_key(shared: &SharedSetting, host: &str, key: &str) -> String {
    let file = shared.setting.storage.path().join("key");
    fs::write(&file, key).expect("a file");
    let key = format!("storage_key: 'file:{}'\n        storage:", file.display());
    shared.yaml(host, A, "tls-alpn-01").replace("storage:", &key)
}

#[test]
fn an_account_that_was_sealed_with_another_key_is_noted() {
    let shared = SharedSetting::new();
    let first = Gateway::start(&with_key(&shared, FIRST, "0123456789abcdef0123456789abcdef"));
    first.wait_for_metric(ISSUED, 1);
    drop(first);
    let _: i64 = shared.redis.command(&["DEL", CERTIFICATES, VERSIONS]);
    let other = "another-secret-of-the-same-length";
    let gateway = Gateway::start(&with_key(&shared, FIRST, other));
    gateway.wait_for_metric(FAILED, 1);
    let account: Vec<String> = shared.redis.command(&["KEYS", "tidegate:{acme}:account:*"]);
    let noted = note(&gateway).to_string();
    assert!(noted.contains(&account[0]) && noted.contains("same `storage_key`"), "{noted}");
    assert_eq!(gateway.metric(CONFLICTS), 1);
    let _: i64 = shared.redis.command(&["DEL", &account[0]]);
    post(&gateway, "/api/acme/renew");
    gateway.wait_for_metric(ISSUED, 1);
    assert!(note(&gateway).is_null());
}

#[test]
fn records_are_sealed_with_the_operators_key() {
    let shared = SharedSetting::new();
    let with_key = |host: &str, key: &str| with_key(&shared, host, key);
    let keyed = |host: &str, key: &str| Gateway::start(&with_key(host, key));
    let key = "0123456789abcdef0123456789abcdef\n";
    let first = keyed(FIRST, key);
    first.wait_for_metric(ISSUED, 1);
    let second = keyed(SECOND, key);
    let shown = shared.setting.shown(&first);
    assert_eq!(shared.setting.shown(&second), shown);
    for name in shared.redis.command::<Vec<String>>(&["KEYS", "tidegate:{acme}:account:*"]) {
        let stored: Vec<u8> = shared.redis.command(&["GET", &name]);
        assert!(stored.starts_with(b"aes-256-gcm\n"));
    }
    let sealed = record(&shared.redis);
    assert!(sealed.starts_with(b"aes-256-gcm\n"));
    assert!(memchr::memmem::find(&sealed, b"PRIVATE KEY").is_none());
    drop(second);
    // Gateways with another key, or without one, use nothing and order nothing, until an operator
    // wants it.
    for (other, expected) in [
        (Some("another-secret-of-the-same-length"), "another `storage_key`, or damaged"),
        (None, "is sealed, and `storage_key` is not set"),
    ] {
        let gateway = other.map_or_else(|| shared.start(SECOND), |other| keyed(SECOND, other));
        let error = state(&gateway)["last_error"].to_string();
        assert!(error.contains(expected) && error.contains("tidegate acme renew"), "{error}");
        let note = note(&gateway).to_string();
        assert!(note.contains(expected) && note.contains("same `storage_key`"), "{note}");
        assert_eq!(gateway.metric(CONFLICTS), 1);
        assert_eq!(get(gateway.admin(), "/readyz", "").status, 200);
        assert!(names_and_issuer(&shared.setting.shown(&gateway)).1.contains("until the first"));
        sleep(Duration::from_secs(2));
        assert_eq!(shared.setting.pebble.orders(), 1);
        assert_eq!(record(&shared.redis), sealed);
    }
    // What an attacker writes to Redis is not presented.
    replace(&shared.redis, "plain\n-----BEGIN CERTIFICATE-----\n", "other");
    eventually("a fault", || {
        let error = state(&first)["last_error"].to_string();
        error.contains("is not sealed, although `storage_key` is set")
    });
    assert_eq!(shared.setting.shown(&first), shown);
    post(&first, "/api/acme/renew");
    first.wait_for_metric(ISSUED, 2);
    assert!(state(&first)["last_error"].is_null() && note(&first).is_null());
    assert_eq!(first.metric(CONFLICTS), 0);
    assert!(record(&shared.redis).starts_with(b"aes-256-gcm\n"));
    let fault = first.reload(&with_key(FIRST, "0123456789abcdef")).expect_err("a fault");
    assert!(fault.contains("shorter than 32 bytes: 16") && !fault.contains("abcdef"), "{fault}");
}
