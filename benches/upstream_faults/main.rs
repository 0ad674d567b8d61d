//! Faults of upstream targets behind Tidegate, `HAProxy` and nginx: which requests fail, and for
//! how long.
//!
//! ```text
//! cargo bench --bench upstream_faults [-- --quick --rate N --targets N --behavior TEXT --proxy TEXT
//!          --balance BALANCE,.. --names --without-peers]
//! ```
//!
//! `--profile release` before the `--` builds faster. A cell of the matrix takes about 15 s: 2 s in
//! which all targets are good, 6 s in which one of them fails, and the time until it is used again,
//! at most 12 s. `--quick` halves the first two and the rate.
//!
//! The load is 500 requests a second, each sent when it is due. A tenth of them are POSTs. Each
//! request has an id that the target puts into its response, so that the client notices a body of
//! another caller and a truncated body that is passed as whole, and the targets notice a POST that
//! was sent twice.
//!
//! The columns:
//!
//! - share of GETs and of POSTs that failed during the fault;
//! - 99th percentile of a GET's latency during the fault, minus that of the time before it, in ms;
//!   a GET that failed counts;
//! - time until the fault is found: until half a second brings fewer than a fifth of the requests
//!   that the target's share would be, in s;
//! - time from the end of the fault until the target serves a request again, in s;
//! - requests, or connections if none were possible, at the targets per request of the client;
//! - bodies of another caller, truncated bodies passed as whole, and POSTs sent twice.
//!
//! Closed ports and full backlogs are found by counters of the kernel, which count for the whole
//! machine. The configurations are in [`configuration`]. Tidegate's has the keys that the program
//! accepts; the others are listed above the table.
//!
//! `--names` adds the rows of names: a name whose address moves, and a name of which the IPv6
//! address is dead. They need Linux, root or user namespaces, and port 53 of 127.0.0.53, since
//! `/etc/resolv.conf` is replaced for the proxies.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the table is the result")]
#![expect(
    clippy::disallowed_methods,
    reason = "a benchmark reads the real clock, and its main thread may sleep"
)]

mod configuration;
mod contestant;
#[path = "../side_by_side/machine.rs"]
mod machine;
mod measure;
mod report;
mod scenario;

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;

use crate::{
    configuration::{Balance, Support, Variant},
    contestant::{Gateway, Program},
    measure::Bench,
    report::Table,
    scenario::{Names, Scenario},
};

/// Measures what the faults of upstream targets cost and prints a markdown table.
#[derive(Parser)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
struct Options {
    /// Requests a second.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(10..=5000))]
    rate: u32,
    /// Targets, of which one fails.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    targets: u8,
    /// Half of the time and half of the rate.
    #[arg(long)]
    quick: bool,
    /// Only rows whose behavior contains this text.
    #[arg(long, default_value = "")]
    behavior: String,
    /// Only rows whose proxy contains this text, such as "nginx" or "Tidegate hash".
    #[arg(long, default_value = "")]
    proxy: String,
    /// Tidegate's policies.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Balance::ALL)]
    balance: Vec<Balance>,
    /// Adds the rows of names.
    #[arg(long)]
    names: bool,
    /// Skips the peers.
    #[arg(long)]
    without_peers: bool,
    /// A flag of cargo's.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    // `cargo test --benches` only checks that it starts.
    let given = |flag: &str| std::env::args().any(|argument| argument == flag);
    if !given("--bench") || given("--test") {
        return Ok(());
    }
    let options = Options::parse();
    let programs = options.programs()?;
    let tidegate = programs.iter().find(|program| program.gateway == Gateway::Tidegate);
    let support = tidegate.map(Support::probe).transpose()?.unwrap_or_default();
    let bench = options.bench(support);
    let names = options.names.then(Names::start).transpose()?;
    let mut table = Table::new(&machine::describe(&programs, &bench.describe()));
    for scenario in Scenario::all(names.as_ref()) {
        if !scenario.to_string().contains(&options.behavior) {
            continue;
        }
        for program in &programs {
            for variant in Variant::of(program.gateway, &options.balance, &bench.support) {
                if !variant.to_string().contains(&options.proxy) {
                    continue;
                }
                let row = bench.measure(&scenario, program, variant)?;
                eprintln!("{}", table.add(&scenario, variant, &row));
            }
        }
    }
    println!("{table}");
    Ok(())
}

impl Options {
    /// Tidegate, and the peers that are installed.
    fn programs(&self) -> Result<Vec<Program>> {
        let mut found = Vec::new();
        for gateway in Gateway::ALL {
            if self.without_peers && gateway != Gateway::Tidegate {
                continue;
            }
            match Program::find(gateway) {
                Ok(program) => found.push(program),
                Err(error) if gateway == Gateway::Tidegate => return Err(error),
                Err(error) => eprintln!("skipped: {error:#}"),
            }
        }
        ensure!(!found.is_empty(), "nothing to measure");
        Ok(found)
    }

    fn bench(&self, support: Support) -> Bench {
        let divisor = if self.quick { 2 } else { 1 };
        Bench {
            rate: self.rate / divisor,
            targets: self.targets.into(),
            good: Duration::from_secs(2) / divisor,
            fault: Duration::from_secs(6) / divisor,
            recovery: Duration::from_secs(12),
            support,
        }
    }
}
