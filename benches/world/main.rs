//! What other programs meet at a gateway: bursts on servers with a short queue, readers that do not
//! read, and slow uploads. nginx and `HAProxy` stand beside it where they are installed.
//!
//! ```text
//! cargo bench --bench world [-- --part bursts,memory,uploads --program PATH]
//! ```
//!
//! `--profile release` before the `--` builds faster; `--program` runs a binary that is built
//! already. It takes about five minutes, of which an upload of 10 MiB at 120 kB/s takes 90 s.

#![expect(clippy::print_stdout, reason = "the tables are the result")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the real clock")]

mod bursts;
mod memory;
mod proxies;
mod uploads;

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Measures bursts, memory of unread responses and slow uploads, and prints markdown tables.
#[derive(Parser)]
struct Options {
    /// The tables.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Part::ALL)]
    part: Vec<Part>,
    /// The gateway's binary.
    #[arg(long, default_value = env!("CARGO_BIN_EXE_tidegate"))]
    program: PathBuf,
    /// A flag of cargo's.
    #[arg(long, hide = true)]
    bench: bool,
}

/// A table.
#[derive(Clone, Copy, ValueEnum)]
enum Part {
    Bursts,
    Memory,
    Uploads,
}

impl Part {
    const ALL: [Self; 3] = [Self::Bursts, Self::Memory, Self::Uploads];
}

fn main() {
    // `cargo test --benches` only checks that it starts.
    let given = |flag: &str| std::env::args().any(|argument| argument == flag);
    if !given("--bench") || given("--test") {
        return;
    }
    let Options { part, program, .. } = Options::parse();
    for part in part {
        match part {
            Part::Bursts => bursts::measure(&program),
            Part::Memory => memory::measure(&program),
            Part::Uploads => uploads::measure(&program),
        }
        println!();
    }
}
