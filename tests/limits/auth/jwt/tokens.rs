use serde_json::{Value, json};
use testkit::client::Client;
use testkit::gateway::Gateway;
use testkit::protocol::Protocol;
use testkit::upstream::Upstream;
use tidegate::clock::Clock;

use super::{Issued, KeyAnswer, KeyHost, NOW, START, bearer, claims, rules, token};
use testkit::api_keys::hash;

const PUBLIC: [&str; 9] =
    ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"];

fn last_head(upstream: &Upstream) -> String {
    upstream.request_texts().pop().expect("a request")
}

#[test]
fn tokens_of_every_algorithm_name_their_consumer() {
    let keys = PUBLIC.map(|algorithm| (algorithm, algorithm));
    let tokens = PUBLIC.map(|algorithm| token(algorithm, &format!("by {algorithm}"), json!({})));
    let issued = Issued::new(&keys, &tokens);
    let host = KeyHost::new(KeyAnswer::Set(issued.set(&PUBLIC)));
    let upstream = Upstream::hello();
    let more = format!(", algorithms: [{}]", PUBLIC.join(", "));
    let gateway = Gateway::start_at(&rules(&host.url(), &upstream, &more), Clock::manual(START));
    let mut client = Client::connect(gateway.address());
    for (index, algorithm) in PUBLIC.iter().enumerate() {
        for used in 1..=2 {
            let response = client.get("/", &issued.bearer(index));
            assert_eq!(response.status, 200, "{algorithm}: {}", response.head);
            assert_eq!(response.number("x-ratelimit-used"), used, "{algorithm}");
            let head = last_head(&upstream);
            let name = format!("X-Consumer-Name: by {algorithm}\r\n").to_ascii_lowercase();
            assert!(head.to_ascii_lowercase().contains(&name), "{head}");
            assert!(head.contains(&issued.tokens[index]), "the token stays: {head}");
        }
        assert_eq!(client.get("/", &issued.bearer(index)).status, 429, "{algorithm}");
    }
    // With other algorithms of the same types of keys, none is accepted.
    let others = Gateway::start_at(
        &rules(&host.url(), &upstream, ", algorithms: [RS256]"),
        Clock::manual(START),
    );
    let mut client = Client::connect(others.address());
    let accepted: Vec<&str> = (0..PUBLIC.len())
        .filter(|index| client.get("/", &issued.bearer(*index)).status == 200)
        .map(|index| PUBLIC[index])
        .collect();
    assert_eq!(accepted, ["RS256"]);
}

#[test]
fn tokens_that_are_not_valid_get_a_401() {
    let twice = claims("acme", json!({})).to_string().replace("\"sub\"", "\"sub\":\"x\",\"sub\"");
    let changed = |changes: Value| token("own", "acme", changes);
    let forged = |more: Value| {
        let mut forged = token("own", "acme", json!({}));
        forged.as_object_mut().expect("an object").extend(more.as_object().unwrap().clone());
        forged
    };
    let wrong = [
        changed(json!({"iss": "https://id.test.evil"})),
        changed(json!({"aud": "other"})),
        changed(json!({"aud": []})),
        changed(json!({"exp": NOW + 9_000_000_000_000_u64})),
        changed(json!({"nbf": NOW + 60})),
        changed(json!({"iat": NOW + 60})),
        changed(json!({"sub": ""})),
        changed(json!({"sub": "off"})),
        forged(json!({"claims": {"iss": "https://id.test", "aud": "orders", "sub": "acme"}})),
        forged(json!({"unsigned": true})),
        forged(json!({"header": {"alg": "HS256"}, "secret_of": "own", "as": "pem"})),
        forged(json!({"header": {"alg": "HS256"}, "secret_of": "own", "as": "jwk"})),
        forged(json!({"key": "other", "header": {"kid": "own", "jku": "http://127.0.0.1:1/"}})),
        forged(json!({"key": "other", "header": {"kid": "own", "x5u": "http://127.0.0.1:1/"}})),
        forged(json!({"header": {"crit": ["exp"]}})),
        forged(json!({"header": {"typ": "secevent+jwt"}})),
        forged(json!({"raw": twice})),
    ];
    let mut tokens = wrong.to_vec();
    tokens.push(changed(json!({"exp": NOW - 1})));
    tokens.push(changed(json!({})));
    tokens.push(forged(json!({"key": "other", "header": {"kid": "../own"}})));
    let issued = Issued::new(&[("own", "ES256"), ("other", "ES256")], &tokens);
    let host = KeyHost::new(KeyAnswer::Set(issued.set(&["own"])));
    let upstream = Upstream::hello();
    let yaml = rules(&host.url(), &upstream, ", algorithms: [ES256]");
    let gateway = Gateway::start_at(&yaml, Clock::manual(START));
    let mut client = Client::connect(gateway.address());
    let invalid = "the credentials are not valid";
    let mut assert_refused = |headers: &str, detail: &str| {
        let refused = client.get("/", headers);
        assert_eq!(refused.status, 401, "{headers}: {}", refused.head);
        assert_eq!(refused.json()["detail"], detail, "{headers}");
        let challenge = format!(
            "Bearer realm=\"login\", error=\"invalid_token\", error_description=\"{detail}\""
        );
        assert_eq!(refused.header("www-authenticate"), Some(&*challenge), "{headers}");
    };
    for index in 0..wrong.len() {
        assert_refused(&issued.bearer(index), invalid);
    }
    assert_refused(&issued.bearer(wrong.len()), "the token has expired");
    let good = &issued.tokens[wrong.len() + 1];
    for other in [
        "x".to_owned(),
        "a.b.c".to_owned(),
        format!("{good}="),
        format!("{good}.{good}"),
        good[..good.len() - 2].to_owned(),
        good.replacen('.', ".e30", 1),
        "A".repeat(20_000),
    ] {
        assert_refused(&bearer(&other), invalid);
    }
    let unknown = client.get("/", &issued.bearer(wrong.len() + 2));
    assert_eq!(unknown.status, 503, "a key of this name may be on its way");
    let missing = client.get("/", "Authorization: Basic YTpi\r\n");
    assert_eq!(missing.status, 401);
    assert_eq!(missing.header("www-authenticate"), Some("Bearer realm=\"login\""));
    let detail = "the request has no credentials; expected a signed token (JWT) in the header \
                  authorization (after `Bearer`)";
    assert_eq!(missing.json()["detail"], detail);
    assert_eq!(upstream.request_count(), 0);
    assert_eq!(client.get("/", &bearer(good)).status, 200);
    let twice = bearer(good) + &bearer(good);
    assert_eq!(client.get("/", &twice).status, 400);
    let grpc = "Content-Type: application/grpc\r\nTE: trailers\r\n".to_owned() + &issued.bearer(0);
    let gateway = Gateway::for_every_protocol_at(&yaml, Clock::manual(START));
    let refused = Protocol::Http2.get(&gateway, "/", grpc);
    assert_eq!((refused.status, refused.header("grpc-status")), (200, Some("16")));
}

#[test]
fn a_secret_verifies_hmac_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("secret");
    let secret = "0123456789abcdef0123456789abcdef";
    std::fs::write(&path, format!("{secret}\n")).expect("a file");
    let wrong = "0123456789abcdef0123456789abcdeX";
    let tokens = [
        token(secret, "acme", json!({})),
        token(wrong, "acme", json!({})),
        token("own", "acme", json!({})),
    ];
    let keys = [(secret, "HS256"), (wrong, "HS256"), ("own", "ES256")];
    let issued = Issued::new(&keys, &tokens);
    let upstream = Upstream::hello();
    let reference = format!("secret: 'file:{}'", path.display());
    let yaml = rules("-", &upstream, "").replace("jwks: '-'", &reference);
    let gateway = Gateway::start_at(&yaml, Clock::manual(START));
    let mut client = Client::connect(gateway.address());
    let statuses = [0, 1, 2].map(|index| client.get("/", &issued.bearer(index)).status);
    assert_eq!(statuses, [200, 401, 401]);
}

#[test]
fn keys_and_tokens_share_a_header() {
    let issued = Issued::new(&[("own", "EdDSA")], &[token("own", "acme", json!({}))]);
    let host = KeyHost::new(KeyAnswer::Set(issued.set(&["own"])));
    let upstream = Upstream::hello();
    let keys = "  keys: {api_key: {from: ['header:authorization']}, max_failures: off}\n";
    for order in ["[keys, login]", "[login, keys]"] {
        let yaml = rules(&host.url(), &upstream, "")
            .replace("auth:\n", &format!("auth:\n{keys}"))
            .replace("auth: [login]", &format!("auth: {order}"))
            .replace(
                "{name: off,",
                &format!("{{name: k, keys: [{{sha256: {}}}]}}, {{name: off,", hash("k")),
            );
        let gateway = Gateway::start_at(&yaml, Clock::manual(START));
        let mut client = Client::connect(gateway.address());
        let by_token = client.get("/", &issued.bearer(0));
        assert_eq!(by_token.status, 200, "{order}: {}", by_token.head);
        assert!(last_head(&upstream).contains(&issued.tokens[0]), "the token stays");
        let by_key = client.get("/", &bearer("key of k"));
        assert_eq!(by_key.status, 200, "{order}: {}", by_key.head);
        let head = last_head(&upstream).to_ascii_lowercase();
        assert!(head.contains("x-consumer-name: k\r\n") && !head.contains("key of k"), "{head}");
        assert_eq!(client.get("/", &bearer("a.b")).status, 401);
        assert_eq!(client.get("/", &bearer("a.b.c")).status, 401);
    }
}

#[test]
fn of_several_issuers_the_named_one_verifies() {
    let other = json!({"iss": "https://other.test"});
    let tokens = [
        token("own", "acme", json!({})),
        token("other", "acme", other.clone()),
        token("own", "acme", other),
        token("other", "acme", json!({})),
    ];
    let issued = Issued::new(&[("own", "EdDSA"), ("other", "EdDSA")], &tokens);
    let hosts = ["own", "other"].map(|name| KeyHost::new(KeyAnswer::Set(issued.set(&[name]))));
    let upstream = Upstream::hello();
    let second = format!(
        "auth:\n  second: {{jwt: {{issuer: 'https://other.test', audiences: [orders], jwks: '{}'}}, max_failures: off}}\n",
        hosts[1].url()
    );
    let yaml = rules(&hosts[0].url(), &upstream, "")
        .replace("auth:\n", &second)
        .replace("auth: [login]", "auth: [login, second]");
    let gateway = Gateway::start_at(&yaml, Clock::manual(START));
    let mut client = Client::connect(gateway.address());
    let statuses = [0, 1, 2, 3].map(|index| client.get("/", &issued.bearer(index)).status);
    // The other key may be among newer ones of that issuer.
    assert_eq!(statuses, [200, 200, 503, 503]);
}
