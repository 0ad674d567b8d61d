//! What a cost costs that is known at the end: beside a route whose limit has the same key and no
//! such cost, in one run.
//!
//! `cargo bench --profile release --bench budgets`
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock and waits")]

mod client;
mod gateway;
mod upstream;

use std::{thread, time::Instant};

use testkit::load::cpu;

use self::{
    client::{Client, answer_all},
    gateway::{Gateway, Store},
};

/// The two routes: one whose limit has no cost that is known at the end, and one whose limit has.
const ROUTES: [&str; 2] = ["flat", "usage"];

/// The sizes of the measurements.
struct Size {
    rounds: usize,
    requests: u64,
    streams: usize,
}

fn main() {
    // Without this flag, as in `cargo test`, each benchmark runs only briefly.
    let is_measuring = std::env::args().any(|arg| arg == "--bench");
    let size = if is_measuring {
        Size { rounds: 15, requests: 20_000, streams: 400 }
    } else {
        Size { rounds: 1, requests: 40, streams: 20 }
    };
    cpu::pin(cpu::LOAD_CPU);
    cpu_of_a_response(&size);
    first_event(&size);
    settling(&size);
    calls_to_redis(&size);
    memory_in_flight(&size);
}

/// The CPU of a response of 2 KiB of JSON that ends with its usage.
fn cpu_of_a_response(size: &Size) {
    let gateway = Gateway::start(Store::Memory);
    let mut costs = [Vec::new(), Vec::new()];
    for _ in 0..size.rounds {
        for (route, costs) in ROUTES.iter().zip(&mut costs) {
            let path = format!("/{route}/json");
            answer_all(gateway.address(), &path, size.requests / 20);
            let before = gateway.process.cpu_time();
            answer_all(gateway.address(), &path, size.requests);
            let spent = gateway.process.cpu_time().saturating_sub(before);
            costs.push(spent.as_secs_f64() * 1e6 / size.requests as f64);
        }
    }
    let mut ratios: Vec<f64> =
        costs[1].iter().zip(&costs[0]).map(|(with, flat)| with / flat).collect();
    let [flat, with] = costs.each_mut().map(|costs| quantile(costs, 0.5));
    let ratio = quantile(&mut ratios, 0.5);
    println!(
        "CPU of a response of 2 KiB: {flat:.2} us without usage, {with:.2} us with, median ratio {ratio:.3}"
    );
}

/// The time from a request to the first event of a stream.
fn first_event(size: &Size) {
    let gateway = Gateway::start(Store::Memory);
    let mut times = [Vec::new(), Vec::new()];
    let mut clients = ROUTES.map(|_| Client::connect(gateway.address()));
    for _ in 0..size.requests / 10 {
        for ((route, client), times) in ROUTES.iter().zip(&mut clients).zip(&mut times) {
            let started = Instant::now();
            client.send(&format!("/{route}/events"), "a");
            client.read_until(b"\n\n\r\n");
            times.push(started.elapsed().as_secs_f64() * 1e6);
            client.read_until(b"0\r\n\r\n");
        }
    }
    for (route, times) in ROUTES.iter().zip(&mut times) {
        let [median, p99] = [0.5, 0.99].map(|share| quantile(times, share));
        println!("first event, {route}: median {median:.0} us, p99 {p99:.0} us");
    }
}

/// The time from the last byte of a response until the counter has its cost, while other callers
/// are served.
fn settling(size: &Size) {
    for store in [Store::Memory, Store::Redis] {
        let gateway = Gateway::start(store);
        let mut times = Vec::new();
        thread::scope(|scope| {
            let others =
                scope.spawn(|| answer_all(gateway.address(), "/usage/json", size.requests));
            let mut client = Client::connect(gateway.address());
            let mut used = 0;
            while !others.is_finished() || times.is_empty() {
                client.send("/usage/json", "settling");
                client.read_response();
                let ended = Instant::now();
                used += upstream::COST;
                while client.used("settling") != used {}
                times.push(ended.elapsed().as_secs_f64() * 1e3);
            }
        });
        let [median, p99] = [0.5, 0.99].map(|share| quantile(&mut times, share));
        let count = times.len();
        println!("settled in {store:?}: median {median:.2} ms, p99 {p99:.2} ms ({count} requests)");
    }
}

/// The calls to Redis of a request.
fn calls_to_redis(size: &Size) {
    let gateway = Gateway::start(Store::Redis);
    let requests = size.requests / 10;
    for route in ROUTES {
        answer_all(gateway.address(), &format!("/{route}/json"), 40);
        let before = gateway.settled_calls();
        answer_all(gateway.address(), &format!("/{route}/json"), requests);
        let calls = gateway.settled_calls() - before;
        println!("calls to Redis, {route}: {:.3} a request", calls as f64 / requests as f64);
    }
}

/// The memory of a request whose response is a stream that has not ended.
fn memory_in_flight(size: &Size) {
    for route in ROUTES {
        let gateway = Gateway::start(Store::Memory);
        let path = format!("/{route}/held");
        let hold = |count| -> Vec<Client> {
            let mut clients: Vec<_> =
                (0..count).map(|_| Client::connect(gateway.address())).collect();
            for client in &mut clients {
                client.send(&path, "a");
                client.read_until(b"\n\n\r\n");
            }
            clients
        };
        let warm = hold(size.streams / 10);
        let before = gateway.process.resident_bytes();
        let held = hold(size.streams);
        let after = gateway.process.resident_bytes();
        let each = after.saturating_sub(before) / held.len() as u64;
        println!("memory of a stream in flight, {route}: {each} bytes");
        drop(warm);
    }
}

/// The value below which `share` of the values are.
fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share).round() as usize]
}
