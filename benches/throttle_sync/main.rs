//! The throttle's synchronization through a real Redis: how soon a token that one gateway recorded is active
//! at the others, and what the synchronization costs at low and high traffic.
//!
//! `cargo bench --bench throttle_sync`; `-- --quick` takes less time and fewer samples, `-- --traffic`
//! leaves the first table empty. Needs `redis-server`.
#![allow(missing_docs, reason = "a benchmark is not a library")]
#![allow(clippy::print_stdout, reason = "its output is a table")]

mod gateways;
mod latency;
mod traffic;

use std::time::Duration;

fn main() {
    // Cargo passes these flags when it runs or lists the tests of all targets.
    if std::env::args().any(|argument| argument == "--list" || argument == "--test") {
        return;
    }
    let only_traffic = std::env::args().any(|argument| argument == "--traffic");
    let quick = std::env::args().any(|argument| argument == "--quick");
    let seconds = |long, short| Duration::from_secs(if quick { short } else { long });
    println!(
        "## Time from the recording of a token at one gateway until it is active at another\n"
    );
    println!("| gateways | samples | p50 | p99 | longest | commits per second, all | conflicts |");
    println!("|---:|---:|---:|---:|---:|---:|---:|");
    for gateways in [2, 5, 20].into_iter().filter(|_| !only_traffic) {
        println!("{}", latency::measure(gateways, seconds(60, 15)));
    }
    println!("\n## Cost of synchronization per gateway, by traffic\n");
    println!(
        "| responses per second | calls per second | bytes read per second | bytes written per second |"
    );
    println!("|---:|---:|---:|---:|");
    for line in traffic::measure(seconds(120, 20)) {
        println!("{line}");
    }
}
