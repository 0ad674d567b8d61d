//! What tokens taken ahead spare Redis, and what they cost here: `cargo bench --bench reservations`.
//!
//! ```text
//! cargo bench --bench reservations [-- --only calls|fast-path|throughput] [--rounds N]
//! ```
//!
//! `calls`: how many requests reach Redis, and the CPU time that Redis takes for each, its whole process
//! counted, beside one script a request and beside a sorted set. `fast-path`: a decision from tokens that
//! are here, on one and on two threads. `throughput`: requests a second through one gateway, its limit in
//! Redis with and without `reserve`, beside the same limit in memory.
//!
//! The ratios are what to read: all rows of a table are measured in turns, in one run.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the tables are the result")]
#![expect(
    clippy::disallowed_methods,
    reason = "a benchmark reads the real clock and its main thread may sleep; it serves nobody"
)]

#[path = "../side_by_side/answer.rs"]
mod answer;
mod calls;
#[path = "../side_by_side/cpus.rs"]
mod cpus;
mod fast_path;
#[path = "../side_by_side/load.rs"]
#[allow(dead_code, reason = "a kit: fixed rates and idle connections are the other bench's")]
mod load;
#[path = "../side_by_side/origin.rs"]
mod origin;
#[path = "../side_by_side/poll.rs"]
mod poll;
#[path = "../../tests/support/redis.rs"]
mod redis_server;
mod support;
mod throughput;

use clap::{Parser, ValueEnum};

/// Measures reservations and prints markdown tables.
#[derive(Parser)]
struct Options {
    /// One part only.
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Rounds of each part; the median is told.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

#[derive(Clone, Copy, Eq, PartialEq, ValueEnum)]
enum Part {
    /// Calls and CPU time of Redis.
    Calls,
    /// A decision here.
    FastPath,
    /// Requests a second.
    Throughput,
}

fn main() -> anyhow::Result<()> {
    let given = |flag: &str| std::env::args().any(|argument| argument == flag);
    if !given("--bench") || given("--test") {
        return Ok(());
    }
    // Cargo's own flag is not ours to explain.
    let arguments = std::env::args().filter(|argument| argument != "--bench");
    let options = Options::parse_from(arguments);
    let wants = |part| options.only.is_none_or(|only| only == part);
    if wants(Part::Calls) {
        println!("{}", calls::table(options.rounds));
    }
    if wants(Part::FastPath) {
        println!("{}", fast_path::table(options.rounds));
    }
    if wants(Part::Throughput) {
        println!("{}", throughput::table(options.rounds)?);
    }
    Ok(())
}
