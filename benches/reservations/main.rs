//! Leases: the load that they take off Redis, and their cost in the gateway.
//!
//! ```text
//! cargo bench --bench reservations [-- --only calls|fast-path|throughput] [--rounds N]
//! ```
//!
//! - `calls`: script calls and CPU time of the Redis process for each request, compared with one
//!   script call per request and with a sorted set.
//! - `fast-path`: the time of a decision from leased units, on one and on two threads.
//! - `throughput`: requests per second through one gateway, its limit in Redis with and without
//!   `reserve`, compared with the same limit in memory.
//!
//! Read the ratios rather than the absolute numbers: all rows of a table are measured alternately,
//! in one run.

#![expect(clippy::print_stdout, reason = "the tables are the result")]
#![expect(
    clippy::disallowed_methods,
    reason = "a benchmark reads the real clock, and its main thread may sleep"
)]

mod calls;
mod fast_path;
mod throughput;

use clap::{Parser, ValueEnum};

/// Measures leases and prints Markdown tables.
#[derive(Parser)]
struct Options {
    /// Runs this part only.
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Rounds of each part; the median is printed.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

#[derive(Clone, Copy, Eq, PartialEq, ValueEnum)]
enum Part {
    /// Calls and CPU time of Redis for each request.
    Calls,
    /// The time of a decision from leased units.
    FastPath,
    /// Requests per second through a gateway.
    Throughput,
}

fn main() -> anyhow::Result<()> {
    let has_flag = |flag: &str| std::env::args().any(|argument| argument == flag);
    if !has_flag("--bench") || has_flag("--test") {
        return Ok(());
    }
    // Cargo adds `--bench`, which is not one of these options.
    let arguments = std::env::args().filter(|argument| argument != "--bench");
    let options = Options::parse_from(arguments);
    let is_selected = |part| options.only.is_none_or(|only| only == part);
    if is_selected(Part::Calls) {
        println!("{}", calls::table(options.rounds));
    }
    if is_selected(Part::FastPath) {
        println!("{}", fast_path::table(options.rounds));
    }
    if is_selected(Part::Throughput) {
        println!("{}", throughput::table(options.rounds)?);
    }
    Ok(())
}
