//! Libraries that verify signed tokens decode base64 leniently. All spellings of a valid token must
//! share one quota.

use std::net::SocketAddr;

use testkit::{
    client::{Client, Response},
    gateway::Gateway,
    random::SplitMix64,
    yaml::fill,
};

use crate::server::Server;

const QUOTA: usize = 3;
const SPELLINGS: usize = 500;
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The places of a token in a request.
const PLACES: [&str; 3] = ["Authorization: Bearer ", "X-Token: ", "Cookie: session="];

fn post(address: SocketAddr, path: &str, body: &str) -> String {
    let mut client = Client::connect(address);
    client.send(format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    let response = client.read_response();
    assert_eq!(response.status, 200, "{path}: {}", response.text());
    response.text()
}

/// Spellings of `token` that a lenient decoder may accept; the first is the token itself.
fn spellings(token: &str, random: &mut SplitMix64) -> Vec<String> {
    let start = token.rfind('.').expect("a signature") + 1;
    let (signed, signature) = token.split_at(start);
    let mut all = vec![token.to_owned()];
    let last = signature.bytes().last().expect("a signature");
    let value = ALPHABET.iter().position(|byte| *byte == last).expect("base64url");
    for bits in 1..16 {
        let last = char::from(ALPHABET[value ^ bits]);
        all.push(format!("{signed}{}{last}", &signature[..signature.len() - 1]));
    }
    all.push(format!("{signed}{}", signature.replace('-', "+").replace('_', "/")));
    for padding in 1..4 {
        all.push(format!("{token}{}", "=".repeat(padding)));
    }
    let other = b"!~*:|$^`{}()@?<>#&'%[]=/+";
    while all.len() < SPELLINGS {
        let mut text = signature.to_owned();
        for _ in 0..=random.below(3) {
            let byte = char::from(other[random.below(other.len() as u64) as usize]);
            text.insert(random.below(text.len() as u64 + 1) as usize, byte);
        }
        if random.one_in(4) {
            text = format!("{signature}==junk{}", random.below(1_000_000));
        }
        all.push(format!("{signed}{text}"));
    }
    all
}

/// Asserts that spellings of a token that the library accepts have one quota; at least `expected`
/// of them are accepted.
fn assert_one_quota(upstream: SocketAddr, library: &str, expected: usize) {
    let mut random = SplitMix64(7);
    // A limit for each place of the token.
    let names = ["a", "b", "c"];
    let gateway = Gateway::start(&fill(
        "
        client: {token: [header:authorization, header:x-token, cookie:session]}
        upstreams: {app: {targets: ['http://{upstream}']}}
        limits:
          a: {algorithm: sliding_log, quota: {quota}, window: 1h, key: [token]}
          b: {algorithm: sliding_log, quota: {quota}, window: 1h, key: [token]}
          c: {algorithm: sliding_log, quota: {quota}, window: 1h, key: [token]}
        routes:
          - {name: a, match: {path: '/{library}/a'}, upstream: app, limits: [a]}
          - {name: b, match: {path: '/{library}/b'}, upstream: app, limits: [b]}
          - {name: c, match: {path: '/{library}/c'}, upstream: app, limits: [c]}
        ",
        [("upstream", &*upstream.to_string()), ("quota", &QUOTA.to_string()), ("library", library)],
    ));
    let token = post(upstream, &format!("/{library}/issue"), "alice");
    let all = spellings(&token, &mut random);
    let list = serde_json::to_string(&all).expect("JSON");
    let accepted = post(upstream, &format!("/{library}/accepted"), &list);
    let accepted: Vec<String> = serde_json::from_str(&accepted).expect("JSON");
    assert!(accepted.len() >= expected, "{library} accepts {} spellings", accepted.len());
    assert_eq!(accepted[0], token);
    for (place, name) in PLACES.into_iter().zip(names) {
        let mut client = Client::connect(gateway.address());
        let mut ask = |token: &str| -> Response {
            client.get(&format!("/{library}/{name}"), &format!("{place}{token}\r\n"))
        };
        let statuses: Vec<u16> = accepted.iter().map(|token| ask(token).status).collect();
        let served = statuses.iter().filter(|status| **status == 200).count();
        assert_eq!(statuses[0], 200, "{library}, {place}");
        assert!(served <= QUOTA, "{library}, {place}: {served} of {} are served", statuses.len());
        let again: Vec<u16> = (0..=QUOTA).map(|_| ask(&token).status).collect();
        assert_eq!(again.last(), Some(&429), "{library}, {place}: {again:?}");
    }
}

#[test]
fn a_token_has_one_quota_behind_the_libraries_of_python() {
    let (_server, upstream) = Server::script("verify_token.py", &[]);
    // Except for padding, PyJWT decodes strictly since 2.11.
    assert_one_quota(upstream, "pyjwt", 2);
    for library in ["python-jose", "authlib", "flask", "flask-compressed", "itsdangerous"] {
        assert_one_quota(upstream, library, 200);
    }
}

#[test]
fn a_token_has_one_quota_behind_jose_for_node() {
    let (_server, upstream) = Server::script("verify_token.cjs", &[]);
    for library in ["jose", "jose-rsa", "jose-encrypted"] {
        assert_one_quota(upstream, library, 4);
    }
}
