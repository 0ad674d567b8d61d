//! What authentication costs: the CPU of a request with a limit on a route with each way to
//! authenticate, and of the same request on a route without `auth`, in one run of the binary.
//! Rounds alternate between the two. Then the same with a million consumers, each request with
//! another key; and the calls to Redis for consumers that are kept there.
//!
//! `cargo bench --profile release --bench authentication`
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::{fmt::Write as _, fs, io::Write as _, path::Path, time::Duration};

use aws_lc_rs::hmac;
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use testkit::{
    load::{Load, Origin},
    process::{Process, gateway_command},
    redis_server::RedisServer,
    upstream::Upstream,
};
use tidegate::{auth::KeyHash, clock};

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
  - {name: bare, match: {path: /bare}, upstream: app}
  - {name: open, match: {path: /open}, upstream: app, limits: [address]}
  - {name: keys, match: {path: /keys}, upstream: app, auth: [keys], limits: [consumer]}
  - {name: staff, match: {path: /staff}, upstream: app, auth: [staff], limits: [consumer]}
  - {name: login, match: {path: /login}, upstream: app, auth: [login], limits: [consumer]}
  - {name: sso, match: {path: /sso}, upstream: app, auth: [sso], limits: [consumer]}
  - {name: cached, match: {path: /cached}, upstream: app, auth: [cached], limits: [consumer]}
";

/// The consumers of the second part, and of the third.
const CONSUMERS: u64 = 1_000_000;
const STORED: u64 = 2_000;

const MANY: &str = "
listen: [{address: '127.0.0.1:0'}]
admin: {address: '127.0.0.1:0'}
workers: 1
auth: {keys: {api_key: {}}}
consumers: {file: consumers.yaml}
limits:
  address: {quota: 4000000000, window: 1h}
  consumer: {quota: 4000000000, window: 1h, key: [consumer]}
upstreams: {app: {targets: ['http://{target}']}}
routes:
  - {name: open, match: {path: /open}, upstream: app, limits: [address]}
  - {name: keys, match: {path: /keys}, upstream: app, auth: [keys], limits: [address]}
  - {name: counted, match: {path: /counted}, upstream: app, auth: [keys], limits: [consumer]}
";

const IN_REDIS: &str = "
listen: [{address: '127.0.0.1:0'}]
admin: {address: '127.0.0.1:0'}
workers: 1
store: {redis: {shards: [{primary: '{redis}'}]}}
auth: {keys: {api_key: {}}}
consumers: {redis: true}
upstreams: {app: {targets: ['http://{target}']}}
routes:
  - {name: open, match: {path: /open}, upstream: app}
  - {name: keys, match: {path: /keys}, upstream: app, auth: [keys]}
";

/// Writes the credentials of a request with this number.
type Credentials = dyn Fn(u64, &mut Vec<u8>) + Sync;

/// A row of a table: its name, and its request's path and credentials.
type Row<'c> = (&'static str, &'static str, &'c Credentials);

fn main() {
    let origin = Origin::start().expect("an origin");
    let target = origin.address().to_string();
    each_way(&target);
    a_million_consumers(&target);
    consumers_in_redis(&target);
}

fn start(directory: &Path, yaml: &str) -> Process {
    fs::write(directory.join("t.yaml"), yaml).expect("a file");
    let binary = env!("CARGO_BIN_EXE_tidegate");
    Process::start(gateway_command(binary, directory, &["serve", "t.yaml"]))
}

/// Prints a row for each of `rows`: the CPU of its request, and of the same one on `/open`.
fn print_table(process: &Process, rows: &[Row<'_>]) {
    println!("| authentication | us a request | without | ratio |\n|---|---:|---:|---:|");
    for (name, path, credentials) in rows {
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            with.push(cost(process, path, *credentials));
            without.push(cost(process, "/open", *credentials));
        }
        let (with, without) = (median(&mut with), median(&mut without));
        println!("| {name} | {with:.2} | {without:.2} | {:.3} |", with / without);
    }
    println!();
}

fn each_way(target: &str) {
    let service = Upstream::with_handler(|_, socket| {
        let answer = b"HTTP/1.1 200 OK\r\nX-User: acme\r\nContent-Length: 0\r\n\r\n";
        socket.write_all(answer).is_ok()
    });
    let password = format!("Authorization: Basic {}\r\n", STANDARD.encode("acme:open sesame"));
    let token = format!("Authorization: Bearer {}\r\n", token());
    let always = |text: &str| {
        let text = text.as_bytes().to_vec();
        move |_: u64, bytes: &mut Vec<u8>| bytes.extend_from_slice(&text)
    };
    let key = always("X-Api-Key: a key of the bench\r\n");
    let (password, token) = (always(&password), always(&token));
    let cookie = always("Cookie: session=1\r\n");
    let rows: [Row<'_>; 5] = [
        ("API key", "/keys", &key),
        ("signed token, known", "/login", &token),
        ("password, known", "/staff", &password),
        ("service, remembered", "/cached", &cookie),
        ("service, asked each time", "/sso", &cookie),
    ];
    let hash = KeyHash::of(b"a key of the bench").to_string();
    let yaml = RULES
        .replace("{hash}", &hash)
        .replace("{target}", target)
        .replace("{service}", &service.address.to_string());
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("secret"), SECRET).expect("a file");
    let process = start(directory.path(), &yaml);
    println!("CPU of the gateway, medians of {ROUNDS} rounds of {REQUESTS} requests.\n");
    print_table(&process, &rows);
    let (mut bare, mut limited) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(cost(&process, "/bare", &key));
        limited.push(cost(&process, "/keys", &key));
    }
    let share = median(&mut bare) / median(&mut limited);
    println!(
        "With a limit and an API key: {share:.2} of the requests a second of a route with neither.\n"
    );
}

/// The key of this number, far from that of the number before it in any order.
fn key_of(number: u64) -> u64 {
    number.wrapping_mul(7_919) % CONSUMERS
}

fn a_million_consumers(target: &str) {
    let mut text = String::new();
    for number in 0..CONSUMERS {
        let hash = KeyHash::of(format!("key {number}").as_bytes());
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "- name: customer-{number:07}\n  keys:\n    - {{id: 2026-11, sha256: {hash}}}\n"
        );
    }
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("consumers.yaml"), text).expect("a file");
    let begin = clock::instant();
    let process = start(directory.path(), &MANY.replace("{target}", target));
    let started = begin.elapsed();
    let memory = process.resident_bytes() >> 20;
    println!(
        "{CONSUMERS} consumers: serves {started:.2?} after its start, {memory} MiB resident.\n"
    );
    let credentials = |number, bytes: &mut Vec<u8>| {
        let _ = write!(bytes, "X-Api-Key: key {}\r\n", key_of(number));
    };
    let rows: [Row<'_>; 2] = [
        ("another key of a million each time", "/keys", &credentials),
        ("the same, each with a counter of its own", "/counted", &credentials),
    ];
    print_table(&process, &rows);
}

fn consumers_in_redis(target: &str) {
    let redis = RedisServer::start();
    let directory = tempfile::tempdir().expect("a directory");
    let yaml = IN_REDIS.replace("{target}", target).replace("{redis}", &redis.url());
    let process = start(directory.path(), &yaml);
    for number in 0..STORED {
        let hash = KeyHash::of(format!("key {number}").as_bytes());
        let record =
            format!("{{\"name\": \"customer-{number}\", \"keys\": [{{\"sha256\": \"{hash}\"}}]}}");
        let created = testkit::client::Client::connect(process.admin)
            .send(format!(
                "POST /api/consumers HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{record}",
                record.len()
            ))
            .read_response();
        assert_eq!(created.status, 201, "{}", created.text());
    }
    let credentials = |number: u64, bytes: &mut Vec<u8>| {
        let _ = write!(bytes, "X-Api-Key: key {}\r\n", number % STORED);
    };
    let calls = || {
        let info: String = redis.command(&["INFO", "commandstats"]);
        let line = info.lines().find(|line| line.starts_with("cmdstat_getrange:"));
        let count = line.and_then(|line| line.split(['=', ',']).nth(1));
        count.map_or(0, |count| count.parse::<u64>().expect("a number"))
    };
    for name in ["cold", "warm"] {
        let before = calls();
        run(&process, "/keys", STORED, &credentials);
        let each = (calls() - before) as f64 / STORED as f64;
        println!("Consumers in Redis, {name}: {each:.2} calls a request.");
    }
    println!();
    print_table(&process, &[("API key in Redis, known", "/keys", &credentials)]);
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
fn cost(process: &Process, path: &str, credentials: &Credentials) -> f64 {
    run(process, path, REQUESTS / 20, credentials);
    let before = process.cpu_time();
    run(process, path, REQUESTS, credentials);
    process.cpu_time().saturating_sub(before).as_secs_f64() * 1e6 / REQUESTS as f64
}

/// Sends requests, which must all be admitted.
fn run(process: &Process, path: &str, requests: u64, credentials: &Credentials) {
    let within = Duration::from_mins(2);
    let load = Load { target: process.address, connections: 16, requests, within };
    let write = |number, bytes: &mut Vec<u8>| {
        let line = format!("GET {path} HTTP/1.1\r\nHost: bench.example\r\nAccept: */*\r\n");
        bytes.extend_from_slice(line.as_bytes());
        credentials(number, bytes);
        bytes.extend_from_slice(b"\r\n");
    };
    let tally = load.run_each(write).expect("responses");
    assert_eq!(tally.statuses.get(&200), Some(&requests), "{path}: {:?}", tally.statuses);
}

fn median(costs: &mut [f64]) -> f64 {
    costs.sort_by(f64::total_cmp);
    costs[costs.len() / 2]
}
