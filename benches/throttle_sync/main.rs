//! The throttle's synchronization through a real Redis: how soon a token that one gateway recorded
//! is active at the others, and what the synchronization costs at low and high traffic.
//!
//! `cargo bench --bench throttle_sync`; `-- --quick` takes less time and fewer samples,
//! `-- --only latency`, `load` or `traffic` prints one table. Needs `redis-server`.
#![allow(missing_docs, reason = "a benchmark is not a library")]
#![allow(clippy::print_stdout, reason = "its output is a table")]

mod gateways;
mod latency;
mod redis_load;
mod traffic;

use std::time::Duration;

fn main() {
    // Cargo passes these flags when it runs or lists the tests of all targets.
    if std::env::args().any(|argument| argument == "--list" || argument == "--test") {
        return;
    }
    let arguments: Vec<String> = std::env::args().collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let only = arguments.iter().position(|argument| argument == "--only");
    let only = only.and_then(|index| arguments.get(index + 1));
    let is_asked = |table: &str| only.is_none_or(|only| only == table);
    let seconds = |long, short| Duration::from_secs(if quick { short } else { long });
    if is_asked("latency") {
        print_latency(seconds(60, 15));
    }
    if is_asked("load") {
        print_load(seconds(120, 30));
    }
    if is_asked("traffic") {
        print_traffic(seconds(120, 20));
    }
}

fn print_latency(duration: Duration) {
    println!(
        "## Time from the recording of a token at one gateway until it is active at another\n"
    );
    println!(
        "| gateways | samples | p50 | p99 | longest | commits per second, all | conflicts | calls per second, all | \
         egress MB/s | Redis CPU |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for gateways in [2, 5, 20, 50] {
        println!("{}", latency::measure(gateways, duration));
    }
}

fn print_load(duration: Duration) {
    println!("\n## Load of Redis at a million new tokens per minute\n");
    println!(
        "| gateways | calls per second | egress MB/s | ingress MB/s | Redis CPU | commits per second | conflicts per \
         second | tokens read per second and gateway | Redis memory |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for gateways in [2, 20, 200] {
        println!("{}", redis_load::measure(gateways, duration));
    }
}

fn print_traffic(duration: Duration) {
    println!("\n## Cost of synchronization per gateway, by traffic\n");
    println!(
        "| responses per second | calls per second | bytes read per second | bytes written per second |"
    );
    println!("|---:|---:|---:|---:|");
    for line in traffic::measure(duration) {
        println!("{line}");
    }
}
