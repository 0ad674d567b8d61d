use std::time::Duration;

use serde_json::json;
use testkit::client::{Client, Response, get};
use testkit::gateway::Gateway;
use testkit::upstream::{ResponseGate, Upstream};
use testkit::wait::eventually;
use tidegate::clock::Clock;

use super::{Issued, KeyAnswer, KeyHost, NOW, START, bearer, json_response, rules, token};

/// More than the pause between two fetches for unknown keys.
const PAUSE: Duration = Duration::from_secs(11);

fn metric(gateway: &Gateway, name: &str) -> u64 {
    gateway.metric(&format!("tidegate_jwt_key_set_{name}{{method=\"login\"}}"))
}

/// Asks on a new connection, because idle ones time out when the clock is moved.
fn ask(gateway: &Gateway, issued: &Issued, index: usize) -> Response {
    get(gateway.address(), "/", &format!("Connection: close\r\n{}", issued.bearer(index)))
}

/// Rules without a limit.
fn open_rules(jwks: &str, upstream: &Upstream) -> String {
    rules(jwks, upstream, "").replace(", limits: [each]", "")
}

#[test]
fn explain_says_that_it_fetches_no_keys() {
    let upstream = Upstream::hello();
    let keys = KeyHost::new(KeyAnswer::Close);
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("t.yaml");
    std::fs::write(&config, rules(&keys.url(), &upstream, "")).expect("a file");
    let config = config.display().to_string();
    let issued = Issued::new(&[("a", "ES256")], &[token("a", "acme", json!({}))]);
    let header = issued.bearer(0);
    let explain = |more: &[&str]| {
        let fixed = ["explain", "--config", &config, "-H", header.trim_end()];
        testkit::commands::run(&[&fixed[..], more, &["/"]].concat())
    };
    let text = explain(&[]);
    assert!(
        text.contains("consumer   undecided: the keys of the token's issuer are at a URL"),
        "{text}"
    );
    assert!(!text.contains("503"), "{text}");
    let text = explain(&["--consumer", "acme"]);
    assert!(text.contains("consumer   acme") && !text.contains("undecided"), "{text}");
}

#[test]
fn rotated_keys_are_found_and_dropped_ones_forgotten() {
    let tokens = [token("old", "acme", json!({})), token("new", "acme", json!({}))];
    let issued = Issued::new(&[("old", "ES256"), ("new", "ES256")], &tokens);
    let host = KeyHost::new(KeyAnswer::Set(issued.set(&["old"])));
    let upstream = Upstream::hello();
    let clock = Clock::simulated(START);
    let gateway = Gateway::start_at(&open_rules(&host.url(), &upstream), clock.clone());
    let ask = |index| ask(&gateway, &issued, index);
    assert_eq!(ask(0).status, 200);
    assert_eq!(ask(1).status, 503, "it may be newer than the fetch a moment ago");
    assert_eq!(host.server.request_count(), 1);
    // Both keys: a token of the new one leads to it, and none of the old one is verified anew.
    host.answer(KeyAnswer::Set(issued.set(&["old", "new"])));
    clock.advance(PAUSE);
    eventually("no refusal of the new key", || [200, 503].contains(&ask(1).status));
    eventually("the new key", || ask(1).status == 200);
    assert_eq!(host.server.request_count(), 2);
    assert_eq!(ask(0).status, 200);
    // The old key is dropped: its tokens are refused, although they were verified before.
    host.answer(KeyAnswer::Set(issued.set(&["new"])));
    clock.advance(Duration::from_mins(11));
    eventually("the next fetch", || host.server.request_count() == 3);
    eventually("the old key is gone", || ask(0).status == 503);
    clock.advance(PAUSE);
    eventually("a later fetch has not brought it back", || ask(0).status == 401);
    assert_eq!(ask(1).status, 200);
}

#[test]
fn a_key_that_is_replaced_under_its_name_is_found() {
    let issue = || Issued::new(&[("own", "ES256")], &[token("own", "acme", json!({}))]);
    let (before, after) = (issue(), issue());
    let host = KeyHost::new(KeyAnswer::Set(before.set(&["own"])));
    let upstream = Upstream::hello();
    let clock = Clock::simulated(START);
    let gateway = Gateway::start_at(&open_rules(&host.url(), &upstream), clock.clone());
    assert_eq!((ask(&gateway, &before, 0).status, ask(&gateway, &after, 0).status), (200, 401));
    host.answer(KeyAnswer::Set(after.set(&["own"])));
    clock.advance(PAUSE);
    eventually("the new key", || ask(&gateway, &after, 0).status == 200);
    assert_eq!(ask(&gateway, &before, 0).status, 401, "it is forgotten");
    assert_eq!(host.server.request_count(), 2);
}

#[test]
fn unknown_keys_cause_few_fetches() {
    let tokens: Vec<_> = (0..30)
        .map(|index| {
            let mut token = token("other", "acme", json!({}));
            token["header"] = json!({"kid": format!("k{index}")});
            token
        })
        .chain([token("own", "acme", json!({}))])
        .collect();
    let issued = Issued::new(&[("own", "EdDSA"), ("other", "EdDSA")], &tokens);
    let host = KeyHost::new(KeyAnswer::Set(issued.set(&["own"])));
    let upstream = Upstream::hello();
    let clock = Clock::simulated(START);
    let gateway = Gateway::start_at(&open_rules(&host.url(), &upstream), clock.clone());
    let ask = |index| ask(&gateway, &issued, index);
    for index in 0..30 {
        assert_eq!(ask(index).status, 503, "the key may be newer than the first fetch");
        assert_eq!(ask(30).status, 200, "the known key");
    }
    assert_eq!(host.server.request_count(), 1, "a moment ago");
    clock.advance(PAUSE);
    eventually("another fetch has not brought the key", || ask(0).status == 401);
    for _ in 0..2 {
        clock.advance(PAUSE);
        for index in 0..30 {
            assert_eq!(ask(index).status, 401, "{index}");
        }
        assert_eq!(host.server.request_count(), 2);
    }
}

#[test]
fn the_last_keys_stay_while_the_server_fails() {
    let issued =
        Issued::new(&[("own", "EdDSA")], &[token("own", "acme", json!({"exp": NOW + 90_000}))]);
    let host = KeyHost::new(KeyAnswer::Set(issued.set(&["own"])));
    let upstream = Upstream::hello();
    let clock = Clock::simulated(START);
    let yaml = open_rules(&host.url(), &upstream);
    let gateway = Gateway::start_at(&yaml, clock.clone());
    let ask = |index| ask(&gateway, &issued, index);
    assert_eq!(ask(0).status, 200);
    assert_eq!(
        (metric(&gateway, "fetched_timestamp_seconds"), metric(&gateway, "failures_total")),
        (NOW, 0)
    );
    let gate = ResponseGate::default();
    let redirect = format!(
        "HTTP/1.1 302 Found\r\nLocation: {}/other\r\nContent-Length: 0\r\n\r\n",
        host.url()
    );
    let large = json_response(&format!("{{\"keys\": [], \"x\": \"{}\"}}", "x".repeat(300_000)));
    let answers = [
        KeyAnswer::Close,
        KeyAnswer::Raw("HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n".to_owned()),
        KeyAnswer::Raw(redirect),
        KeyAnswer::Raw(large),
        KeyAnswer::Raw("rubbish\r\n\r\n".to_owned()),
        KeyAnswer::Set("<html>".to_owned()),
        KeyAnswer::Set("{\"keys\": []}".to_owned()),
        KeyAnswer::Set("{\"keys\": [{\"kty\": \"oct\", \"k\": \"AAAA\"}]}".to_owned()),
        KeyAnswer::Hang(gate.clone()),
    ];
    for (index, answer) in answers.into_iter().enumerate() {
        host.answer(answer);
        let asked = host.server.request_count();
        clock.advance(Duration::from_mins(11));
        eventually("a fetch", || host.server.request_count() > asked);
        if matches!(*host.answer.lock().expect("no panic"), KeyAnswer::Hang(_)) {
            clock.advance(PAUSE);
        }
        eventually("its failure", || metric(&gateway, "failures_total") > index as u64);
        assert_eq!(ask(0).status, 200, "{index}");
        assert!(!upstream.request_texts().iter().any(|text| text.contains("/other")));
    }
    assert_eq!(metric(&gateway, "fetched_timestamp_seconds"), NOW);
    // A reload changes nothing about the keys.
    gateway.reload(&yaml.replace("quota: 2", "quota: 3")).expect("a valid configuration");
    assert_eq!(ask(0).status, 200);
    gate.open();
    host.answer(KeyAnswer::Set(issued.set(&["own"])));
    eventually("it is back", || {
        clock.advance(Duration::from_secs(61));
        metric(&gateway, "fetched_timestamp_seconds") > NOW
    });
}

#[test]
fn a_server_that_hangs_delays_nothing_else() {
    let tokens = [
        token("own", "acme", json!({})),
        token("free", "acme", json!({"iss": "https://free.test"})),
    ];
    let issued = Issued::new(&[("own", "EdDSA"), ("free", "EdDSA")], &tokens);
    let gate = ResponseGate::default();
    let host = KeyHost::new(KeyAnswer::Hang(gate.clone()));
    let free = KeyHost::new(KeyAnswer::Set(issued.set(&["free"])));
    let upstream = Upstream::hello();
    let second = format!(
        "auth:\n  free: {{jwt: {{issuer: 'https://free.test', audiences: [orders], jwks: '{}'}}}}\n",
        free.url()
    );
    let yaml = open_rules(&host.url(), &upstream)
        .replace("auth:\n", &second)
        .replace("auth: [login]", "auth: [login, free]");
    let gateway = Gateway::start_at(&yaml, Clock::manual(START));
    let mut client = Client::connect(gateway.address());
    let waiting = client.get("/", &issued.bearer(0));
    assert_eq!((waiting.status, waiting.number("retry-after")), (503, 1), "{}", waiting.head);
    let detail = "the token cannot be verified: the keys of its issuer are not available yet";
    assert_eq!(waiting.json()["detail"], detail);
    assert_eq!(client.get("/", &bearer("x")).status, 503, "nothing can be verified");
    assert_eq!(client.get("/", &issued.bearer(1)).status, 200, "another issuer");
    assert_eq!(get(gateway.admin(), "/healthz", "").status, 200);
    assert_eq!(upstream.request_count(), 1);
    host.answer(KeyAnswer::Set(issued.set(&["own"])));
    gate.open();
    eventually("its keys", || client.get("/", &issued.bearer(0)).status == 200);
}

#[test]
fn a_key_file_is_watched() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("jwks.json");
    let tokens = [token("old", "acme", json!({})), token("new", "acme", json!({}))];
    let issued = Issued::new(&[("old", "RS256"), ("new", "RS256")], &tokens);
    let write = |content: &str| {
        let next = path.with_extension("next");
        std::fs::write(&next, content).expect("a file");
        std::fs::rename(&next, &path).expect("the file in its place");
    };
    write(&issued.set(&["old"]));
    let upstream = Upstream::hello();
    let gateway = Gateway::start_at(
        &open_rules(&path.display().to_string(), &upstream),
        Clock::manual(START),
    );
    let mut client = Client::connect(gateway.address());
    let mut statuses = || [0, 1].map(|index| client.get("/", &issued.bearer(index)).status);
    assert_eq!(statuses(), [200, 401]);
    write("{\"keys\": []}");
    eventually("the fault", || gateway.metric("tidegate_reloads_total{outcome=\"faulty\"}") >= 1);
    assert_eq!(statuses(), [200, 401], "a faulty file changes nothing");
    let state = get(gateway.admin(), "/api/state", "").text();
    assert!(state.contains("none of the 0 keys of the key set can be used"), "{state}");
    write(&issued.set(&["new"]));
    eventually("the new key", || statuses() == [401, 200]);
}

#[test]
fn keys_are_discovered_at_the_issuer() {
    let upstream = Upstream::hello();
    let issued = Issued::new(&[("own", "EdDSA")], &[]);
    let set = issued.set(&["own"]);
    for (is_own, scheme, status) in [(true, "http", 200), (false, "http", 503), (true, "ftp", 503)]
    {
        let (jwks, host) = (set.clone(), std::sync::Arc::new(std::sync::OnceLock::<String>::new()));
        let own = std::sync::Arc::clone(&host);
        let server = Upstream::with_handler(move |request, socket| {
            let issuer = own.get().cloned().unwrap_or_default();
            let named = if is_own { issuer.clone() } else { "https://evil.test".to_owned() };
            let uri = format!("{}/keys", issuer.replace("http", scheme));
            let document = json!({"issuer": named, "jwks_uri": uri}).to_string();
            let is_document = request.starts_with(b"GET /.well-known/openid-configuration ");
            super::write(socket, &json_response(if is_document { &document } else { &jwks }))
        });
        host.set(server.target()).expect("unset");
        let yaml = open_rules("discover", &upstream).replace("https://id.test", &server.target());
        let gateway = Gateway::start_at(&yaml, Clock::manual(START));
        let mut client = Client::connect(gateway.address());
        // The keys were made before the issuer had an address, so any answer but 503 shows them.
        let answer = client.get("/", &bearer("a.b.c")).status;
        assert_eq!(answer, if status == 200 { 401 } else { 503 }, "{is_own} {scheme}");
    }
}
