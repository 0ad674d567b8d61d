//! What authentication costs: the CPU of a request with a limit on a route with each way to authenticate, and of the same
//! request on a route without `auth`, in one run of the binary. Rounds alternate between the two.
//!
//! `cargo bench --profile release --bench authentication`
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::{fs, io::Write as _, time::Duration};

use aws_lc_rs::hmac;
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use testkit::{
    load::{Load, Origin},
    process::{Process, gateway_command},
    upstream::Upstream,
};
use tidegate::auth::KeyHash;

/// The secret of the signed token.
const SECRET: &str = "a secret of at least thirty-two bytes";

/// The requests of one measurement, and the number of measurements.
const REQUESTS: u64 = 20_000;
const ROUNDS: usize = 7;

const RULES: &str = "
listen: [{address: '127.0.0.1:0'}]
admin: {address: '127.0.0.1:0'}
workers: 1
auth:
  keys: {api_key: {}}
  staff: {basic: {}}
  login: {jwt: {issuer: bench, audiences: [bench], secret: 'file:secret', algorithms: [HS256]}}
  sso: {forward: {to: 'http://{service}/', consumer: 'header:x-user', timeout: 10s}}
  cached: {forward: {to: 'http://{service}/', consumer: 'header:x-user', timeout: 10s, cache: 1h}}
consumers:
  entries:
    - name: acme
      keys: [{sha256: {hash}}]
      password: $argon2id$v=19$m=64,t=1,p=1$c2FsdHNhbHQ$ixpwwKn9ahZABsFdSCp89Bjv1gR+y5qCxswm94TuOzs
limits:
  address: {quota: 4000000000, window: 1h}
  consumer: {quota: 4000000000, window: 1h, key: [consumer]}
upstreams: {app: {targets: ['http://{target}']}}
routes:
  - {name: open, match: {path: /open}, upstream: app, limits: [address]}
  - {name: keys, match: {path: /keys}, upstream: app, auth: [keys], limits: [consumer]}
  - {name: staff, match: {path: /staff}, upstream: app, auth: [staff], limits: [consumer]}
  - {name: login, match: {path: /login}, upstream: app, auth: [login], limits: [consumer]}
  - {name: sso, match: {path: /sso}, upstream: app, auth: [sso], limits: [consumer]}
  - {name: cached, match: {path: /cached}, upstream: app, auth: [cached], limits: [consumer]}
";

/// A row of the table: its name, and its request's path and credentials.
type Row = (&'static str, &'static str, String);

fn main() {
    let origin = Origin::start().expect("an origin");
    let service = Upstream::with_handler(|_, socket| {
        let answer = b"HTTP/1.1 200 OK\r\nX-User: acme\r\nContent-Length: 0\r\n\r\n";
        socket.write_all(answer).is_ok()
    });
    let key = "X-Api-Key: a key of the bench\r\n".to_owned();
    let password = STANDARD.encode("acme:open sesame");
    let cookie = "Cookie: session=1\r\n".to_owned();
    let token = format!("Authorization: Bearer {}\r\n", token());
    let rows: [Row; 5] = [
        ("API key", "/keys", key),
        ("signed token, known", "/login", token),
        ("password, known", "/staff", format!("Authorization: Basic {password}\r\n")),
        ("service, remembered", "/cached", cookie.clone()),
        ("service, asked each time", "/sso", cookie),
    ];
    let hash = KeyHash::of(b"a key of the bench").to_string();
    let yaml = RULES
        .replace("{hash}", &hash)
        .replace("{target}", &origin.address().to_string())
        .replace("{service}", &service.address.to_string());
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("t.yaml"), yaml).expect("a file");
    fs::write(directory.path().join("secret"), SECRET).expect("a file");
    let binary = env!("CARGO_BIN_EXE_tidegate");
    let process = Process::start(gateway_command(binary, directory.path(), &["serve", "t.yaml"]));
    println!("CPU of the gateway, medians of {ROUNDS} rounds of {REQUESTS} requests.\n");
    println!("| authentication | us a request | without | ratio |\n|---|---:|---:|---:|");
    for (name, path, credentials) in &rows {
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            with.push(cost(&process, path, credentials));
            without.push(cost(&process, "/open", credentials));
        }
        let (with, without) = (median(&mut with), median(&mut without));
        println!("| {name} | {with:.2} | {without:.2} | {:.3} |", with / without);
    }
}

/// A token that is valid until 2100.
fn token() -> String {
    let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let claims = r#"{"iss":"bench","aud":"bench","sub":"acme","exp":4102444800,"scope":"orders:read orders:write"}"#;
    let signed = format!("{}.{}", encode(br#"{"alg":"HS256"}"#), encode(claims.as_bytes()));
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    format!("{signed}.{}", encode(hmac::sign(&key, signed.as_bytes()).as_ref()))
}

/// The CPU of a request, in us.
fn cost(process: &Process, path: &str, credentials: &str) -> f64 {
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: bench.example\r\nAccept: */*\r\n{credentials}\r\n");
    let run = |requests| {
        let within = Duration::from_mins(2);
        let load = Load { target: process.address, connections: 16, requests, within };
        let tally = load.run_with(request.as_bytes()).expect("responses");
        assert_eq!(tally.statuses.get(&200), Some(&requests), "{path}: {:?}", tally.statuses);
    };
    run(REQUESTS / 20);
    let before = process.cpu_time();
    run(REQUESTS);
    process.cpu_time().saturating_sub(before).as_secs_f64() * 1e6 / REQUESTS as f64
}

fn median(costs: &mut [f64]) -> f64 {
    costs.sort_by(f64::total_cmp);
    costs[costs.len() / 2]
}
