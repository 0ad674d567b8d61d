//! What a decision for Envoy costs: latency and CPU by rate and store, by the number of
//! descriptors, the memory of idle connections, and the CPU of Envoy and the gateway together,
//! beside each alone.
//!
//! `cargo bench --profile release --bench rate_limit_service`
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock and waits")]

mod behind_envoy;
mod calls;
mod gateway;

use std::time::Duration;

use testkit::load::cpu;

use self::{
    calls::{Calls, Driver},
    gateway::{Gateway, Store},
};

/// The sizes of the measurements.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    /// The duration of each measured load.
    duration: Duration,
    /// Idle connections.
    connections: usize,
    /// Requests through Envoy, in each round.
    requests: u64,
    rounds: usize,
}

fn main() {
    // Without this flag, as in `cargo test`, each benchmark runs only briefly.
    let is_measuring = std::env::args().any(|arg| arg == "--bench");
    let size = if is_measuring {
        let duration = Duration::from_secs(10);
        Size { duration, connections: 1_000, requests: 20_000, rounds: 7 }
    } else {
        let duration = Duration::from_millis(100);
        Size { duration, connections: 10, requests: 40, rounds: 1 }
    };
    cpu::pin(cpu::LOAD_CPU);
    by_rate(size);
    by_descriptors(size);
    idle_connections(size);
    behind_envoy::measure(size);
}

/// Latency and CPU at two rates, by store.
fn by_rate(size: Size) {
    println!(
        "| store | calls a second | p50 us | p99 us | p99.9 us | CPU us a call | calls to Redis a decision |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|");
    for store in [Store::Memory, Store::Redis, Store::Leases] {
        for rate in [5_000, 20_000] {
            let gateway = Gateway::start(store);
            let driver = Driver::connect(gateway.service, 8);
            let calls = |duration| Calls { descriptors: 1, rate, duration };
            driver.run(&calls(size.duration / 5));
            let (cpu, redis) = (gateway.process.cpu_time(), gateway.redis_calls());
            let run = driver.run(&calls(size.duration));
            let cpu = gateway.process.cpu_time().saturating_sub(cpu).as_secs_f64() * 1e6;
            let redis = gateway.redis_calls() - redis;
            let count = run.latencies.len() as f64;
            let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|share| run.quantile(share));
            let name = store.name();
            println!(
                "| {name} | {:.0} | {p50:.0} | {p99:.0} | {p999:.0} | {:.1} | {:.3} |",
                run.rate(),
                cpu / count,
                redis as f64 / count
            );
        }
    }
}

/// CPU and calls to Redis by the number of descriptors.
fn by_descriptors(size: Size) {
    println!("\n| descriptors a call | memory: CPU us | Redis: CPU us | calls to Redis |");
    println!("|---:|---:|---:|---:|");
    let gateways = [Store::Memory, Store::Redis].map(Gateway::start);
    for descriptors in [1, 4, 16, 64] {
        let mut cells = Vec::new();
        for gateway in &gateways {
            let driver = Driver::connect(gateway.service, 8);
            let calls = |duration| Calls { descriptors, rate: 500, duration };
            driver.run(&calls(size.duration / 10));
            let (cpu, redis) = (gateway.process.cpu_time(), gateway.redis_calls());
            let run = driver.run(&calls(size.duration / 2));
            let cpu = gateway.process.cpu_time().saturating_sub(cpu).as_secs_f64() * 1e6;
            let count = run.latencies.len() as f64;
            cells.push((cpu / count, (gateway.redis_calls() - redis) as f64 / count));
        }
        let [(memory, _), (redis, calls)] = cells[..] else { return };
        println!("| {descriptors} | {memory:.1} | {redis:.1} | {calls:.2} |");
    }
}

/// The memory of connections that have asked once.
fn idle_connections(size: Size) {
    let gateway = Gateway::start(Store::Memory);
    let warm = Driver::connect(gateway.service, size.connections / 10);
    warm.ask_once();
    let before = gateway.process.resident_bytes();
    let idle = Driver::connect(gateway.service, size.connections);
    idle.ask_once();
    let after = gateway.process.resident_bytes();
    let each = after.saturating_sub(before) / size.connections as u64;
    println!(
        "\nmemory of an idle gRPC connection: {each} bytes ({} connections)\n",
        size.connections
    );
}
