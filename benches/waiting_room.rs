//! What a waiting client costs: the CPU of a request with a ticket and of one without, beside the
//! throttle's 429 without a room and a limit's 429; the memory of the gateway and its calls to
//! Redis by the number of waiting clients.
//!
//! `cargo bench --profile release --bench waiting_room`
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::{collections::BTreeMap, fs, io::Write as _, time::Duration};

use tempfile::TempDir;
use testkit::{
    bench::median,
    client::{Client, get},
    load::{Load, cpu},
    process::{Process, gateway_command},
    redis_server::RedisServer,
    wait::{eventually, sleep},
};

const ROUNDS: usize = 9;
/// Clients that wait.
const CLIENTS: [u64; 2] = [100, 100_000];

const RULES: &str = "
listen: [{address: '127.0.0.1:0'}]
admin: {address: '127.0.0.1:0'}
workers: 1
{store}
upstreams: {app: {respond: {body: {body}}}}
limits:
  one: {quota: 1, window: 24h, key: []}
  each: {quota: 1, window: 24h, key: [token]}
throttle: {max_active: 10, capacity: 100000, mode: on{room}}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: app}
  - {name: limited, match: {path: /limited}, upstream: app, limits: [one], throttle: false}
  - {name: by_token, match: {path: /items/limited}, upstream: app, limits: [each], throttle: false}
";

struct Gateway {
    process: Process,
    _directory: TempDir,
}

impl Gateway {
    fn start(room: &str, store: &str) -> Self {
        let yaml = RULES.replace("{room}", room).replace("{store}", store);
        // The load expects responses of this length.
        let yaml = yaml.replace("{body}", &"x".repeat(100));
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("t.yaml"), yaml).expect("a file");
        let binary = env!("CARGO_BIN_EXE_tidegate");
        cpu::pin(cpu::TESTED_CPU);
        let process =
            Process::start(gateway_command(binary, directory.path(), &["serve", "t.yaml"]));
        cpu::pin(cpu::LOAD_CPU);
        if !room.is_empty() {
            let body = r#"{"waiting_room":"closed"}"#;
            let closed = Client::connect(process.admin)
                .send(format!(
                    "PUT /api/throttle HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                ))
                .read_response();
            assert_eq!(closed.status, 200, "{}", closed.text());
        }
        Self { process, _directory: directory }
    }

    /// CPU of a refused request, in us.
    fn cost(&self, requests: u64, write: impl Fn(u64, &mut Vec<u8>) + Sync) -> f64 {
        self.refuse(requests / 20, &write);
        let before = self.process.cpu_time();
        self.refuse(requests, &write);
        self.process.cpu_time().saturating_sub(before).as_secs_f64() * 1e6 / requests as f64
    }

    fn refuse(&self, requests: u64, write: impl Fn(u64, &mut Vec<u8>) + Sync) {
        let statuses = self.send(requests, write);
        let refused = statuses.get(&429).copied().unwrap_or_default();
        assert!(refused + 1 >= requests, "{statuses:?}");
    }

    /// Sends requests that use up quotas.
    fn use_up(&self, requests: u64, write: impl Fn(u64, &mut Vec<u8>) + Sync) {
        let statuses = self.send(requests, write);
        assert_eq!(statuses.get(&200).copied().unwrap_or_default(), requests, "{statuses:?}");
    }

    fn send(&self, requests: u64, write: impl Fn(u64, &mut Vec<u8>) + Sync) -> BTreeMap<u16, u64> {
        let within = Duration::from_mins(2);
        let load = Load { target: self.process.address, connections: 16, requests, within };
        load.run_each(write).expect("responses").statuses
    }
}

fn main() {
    // Without this flag, as in `cargo test`, the benchmark runs only briefly.
    let is_measuring = std::env::args().any(|argument| argument == "--bench");
    let (requests, rounds) = if is_measuring { (20_000, ROUNDS) } else { (100, 1) };
    costs(requests, rounds);
    for clients in CLIENTS {
        by_number(if is_measuring { clients } else { 10 });
    }
}

/// A request of a client with a token of its own.
fn newcomer(number: u64, bytes: &mut Vec<u8>) {
    // Writing to a vector cannot fail.
    let _ = write!(
        bytes,
        "GET /items/1 HTTP/1.1\r\nHost: bench.example\r\nUser-Agent: bench\r\nAccept: */*\r\n\
         Authorization: Bearer user-{number}\r\n\r\n"
    );
}

fn costs(requests: u64, rounds: usize) {
    let room = Gateway::start(", waiting_room: {}", "");
    let without = Gateway::start("", "");
    let mut client = Client::connect(room.process.address);
    let tickets: Vec<String> = (0..1_000)
        .map(|number| {
            let response = client.get("/", &format!("Authorization: Bearer user-{number}\r\n"));
            response.header("x-tidegate-ticket").expect("a ticket").to_owned()
        })
        .collect();
    let waiting = |number: u64, bytes: &mut Vec<u8>| {
        let user = number % 1_000;
        let ticket = &tickets[user as usize];
        let _ = write!(
            bytes,
            "GET /items/1 HTTP/1.1\r\nHost: bench.example\r\nUser-Agent: bench\r\nAccept: */*\r\n\
             Authorization: Bearer user-{user}\r\nX-Tidegate-Ticket: {ticket}\r\n\r\n"
        );
    };
    let limited = |_: u64, bytes: &mut Vec<u8>| {
        bytes.extend_from_slice(
            b"GET /limited HTTP/1.1\r\nHost: bench.example\r\nUser-Agent: bench\r\nAccept: */*\r\n\
              Authorization: Bearer user\r\n\r\n",
        );
    };
    let limited_each = |number: u64, bytes: &mut Vec<u8>| {
        let _ = write!(
            bytes,
            "GET /items/limited HTTP/1.1\r\nHost: bench.example\r\nUser-Agent: bench\r\nAccept: */*\r\n\
             Authorization: Bearer user-{}\r\n\r\n",
            number % 1_000
        );
    };
    without.use_up(1_000, limited_each);
    let mut rows: [Vec<f64>; 5] = Default::default();
    for _ in 0..rounds {
        rows[0].push(without.cost(requests, limited));
        rows[1].push(without.cost(requests, limited_each));
        rows[2].push(without.cost(requests, newcomer));
        rows[3].push(room.cost(requests, waiting));
        rows[4].push(room.cost(requests, newcomer));
    }
    let [limit, by_token, throttle, waiting, newcomers] = rows.map(median);
    println!(
        "| a 429 | CPU us | / a limit's of all | / a limit's by token |\n|---|---:|---:|---:|"
    );
    for (name, cost) in [
        ("of a limit of all requests", limit),
        ("of a limit by token", by_token),
        ("of the throttle without a room", throttle),
        ("to a client that waits, with its ticket", waiting),
        ("to a newcomer, which gets a ticket", newcomers),
    ] {
        println!("| {name} | {cost:.2} | {:.2} | {:.2} |", cost / limit, cost / by_token);
    }
    println!();
}

/// Memory, and calls to Redis in ten seconds, after this many clients have got a ticket.
fn by_number(clients: u64) {
    let redis = RedisServer::start();
    let store = format!("store: {{redis: {{shards: [{{primary: '{}'}}]}}}}", redis.url());
    let gateway = Gateway::start(", waiting_room: {}", &store);
    eventually("it has read its filters", || {
        get(gateway.process.address, "/", "Authorization: Bearer user\r\n").status == 429
    });
    gateway.refuse(100, |_, bytes| newcomer(0, bytes));
    let before = gateway.process.resident_bytes();
    gateway.refuse(clients, newcomer);
    let memory = gateway.process.resident_bytes().saturating_sub(before) / 1024;
    sleep(Duration::from_secs(3));
    let calls = redis.script_calls();
    sleep(Duration::from_secs(10));
    let calls = (redis.script_calls() - calls) as f64 / 10.0;
    println!("{clients} waiting clients: {memory} KiB more, {calls:.1} calls to Redis a second");
}
