//! Tidegate beside nginx and `HAProxy`: the same work, one core each, in one run.
//!
//! ```text
//! cargo bench --bench side_by_side [-- --rounds N --requests N --connections N --quick
//!                                      --only cpu|syscalls|instructions --bare-peers]
//! ```
//!
//! `--profile fast` before the `--` spares the wait for link-time optimization, and is not what a
//! user runs. How to read the table: each cell is a median over the rounds; a ratio in bold is the
//! median of the rounds' own ratios, with the least and the greatest behind it. Counts of system
//! calls and instructions hardly vary and are taken once.
//!
//! The peers set the request headers that Tidegate sets. That is dear for them: 8k instructions in
//! both, and in nginx a system call for the request's id. `--bare-peers` takes all added headers
//! away from them, and is the stricter comparison.
//!
//! It prints a markdown table and judges nothing: this is a measurement, never a timed test. The
//! contestant runs on CPU 0; the load and the upstream run in this process, on CPU 1. Absolute
//! figures drift with the machine's mood, so the ratios are what to read. It needs Linux, two
//! cores, Debian's `nginx` and `haproxy`, and `strace` and `valgrind` for the parts that use them.
//!
//! Life of a run: [`Options`] say what to measure; each measurement starts a [`contestant`] that
//! does one scenario of [`work`], drives it with [`load`] against [`origin`], and becomes a figure
//! in [`measure`]; [`report`] turns the figures into medians and ratios.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the table is the result")]
#![expect(
    clippy::disallowed_methods,
    reason = "a benchmark reads the real clock and its main thread may sleep; it serves nobody"
)]

mod answer;
mod contestant;
mod cpus;
mod load;
mod machine;
mod measure;
mod origin;
mod poll;
mod report;
mod work;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};

use crate::{
    contestant::{Gateway, Program},
    measure::{Bench, Metric},
    origin::Origin,
    report::Figures,
    work::Scenario,
};

/// Measures Tidegate beside nginx and `HAProxy` and prints a markdown table.
#[derive(Parser)]
struct Options {
    /// Rounds of the CPU part; the order of the contestants rotates each round.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Requests of one CPU measurement.
    #[arg(long, default_value_t = 40_000)]
    requests: u64,
    /// Client connections of the CPU and instructions parts.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
    /// A look in about a minute: three rounds of 20,000 requests, short counts.
    #[arg(long)]
    quick: bool,
    /// One part only.
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// nginx and `HAProxy` add no headers: the least work a proxy can have, and Tidegate all of its.
    #[arg(long)]
    bare_peers: bool,
    /// Leaves Tidegate out: checks the harness against figures known for the peers.
    #[arg(long, hide = true)]
    without_tidegate: bool,
}

/// A part of the run, one tool each.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// CPU time from `/proc`.
    Cpu,
    /// `strace -f -c`.
    Syscalls,
    /// `valgrind --tool=callgrind`.
    Instructions,
}

fn main() -> Result<()> {
    if !asked_to_measure() {
        return Ok(());
    }
    // Cargo's own flag is not ours to explain.
    let arguments = std::env::args().filter(|argument| argument != "--bench");
    let mut options = Options::parse_from(arguments);
    if options.quick {
        options.rounds = options.rounds.min(3);
        options.requests = options.requests.min(20_000);
    }
    let programs = programs(&options)?;
    let heading = machine::describe(&programs, &options.work());
    cpus::pin(cpus::CONTESTANT);
    let bench = Bench { origin: Origin::start()?, connections: options.connections.into() };

    let mut figures = Figures::default();
    if options.runs(Part::Cpu) {
        cpu(&bench, &programs, &options, &mut figures)?;
    }
    if options.runs(Part::Syscalls) {
        syscalls(&bench, &programs, &options, &mut figures)?;
    }
    if options.runs(Part::Instructions) {
        instructions(&bench, &programs, &options, &mut figures)?;
    }
    println!("{heading}\n\n{}", figures.table());
    Ok(())
}

/// Whether cargo runs this as a benchmark; `cargo test --benches` only asks that it starts.
fn asked_to_measure() -> bool {
    let given = |flag: &str| std::env::args().any(|argument| argument == flag);
    given("--bench") && !given("--test")
}

/// Tidegate, and the peers that are installed.
fn programs(options: &Options) -> Result<Vec<Program>> {
    let mut found = Vec::new();
    for gateway in Gateway::ALL {
        if options.without_tidegate && gateway == Gateway::Tidegate {
            continue;
        }
        match Program::find(gateway, options.bare_peers) {
            Ok(program) => found.push(program),
            Err(error) if gateway == Gateway::Tidegate => return Err(error),
            Err(error) => eprintln!("left out: {error:#}"),
        }
    }
    ensure!(!found.is_empty(), "nothing to measure");
    Ok(found)
}

/// CPU a request, every scenario, in rounds of rotating order.
fn cpu(
    bench: &Bench,
    programs: &[Program],
    options: &Options,
    figures: &mut Figures,
) -> Result<()> {
    for round in 0..options.rounds {
        for scenario in Scenario::ALL {
            for place in 0..programs.len() {
                let program = &programs[(place + round) % programs.len()];
                let spent = bench.cpu(program, scenario, options.requests)?;
                eprintln!(
                    "round {}/{}, {scenario}, {}: {:.2} us, of it user {:.2} us, {:.0} requests/s",
                    round + 1,
                    options.rounds,
                    program.gateway,
                    spent.total,
                    spent.user,
                    spent.rate,
                );
                let mut add = |metric, value| {
                    figures.add(metric, scenario, program.gateway, round, value);
                };
                add(Metric::Cpu, spent.total);
                add(Metric::User, spent.user);
                add(Metric::Rate, spent.rate);
            }
        }
    }
    Ok(())
}

/// System calls a request, few and many connections.
fn syscalls(
    bench: &Bench,
    programs: &[Program],
    options: &Options,
    figures: &mut Figures,
) -> Result<()> {
    let lengths = if options.quick { (500, 2_500) } else { (2_000, 12_000) };
    for (scenario, connections) in
        [(Scenario::Limited, 16), (Scenario::Limited, 64), (Scenario::Refused, 64)]
    {
        for program in programs {
            let calls = bench.syscalls(program, scenario, connections, lengths)?;
            eprintln!(
                "{scenario}, {connections} connections, {}: {calls:.2} system calls a request",
                program.gateway
            );
            figures.add(Metric::Syscalls { connections }, scenario, program.gateway, 0, calls);
        }
    }
    Ok(())
}

/// User instructions a request, every scenario.
fn instructions(
    bench: &Bench,
    programs: &[Program],
    options: &Options,
    figures: &mut Figures,
) -> Result<()> {
    let lengths = if options.quick { (500, 2_500) } else { (2_000, 10_000) };
    for scenario in Scenario::ALL {
        for program in programs {
            let count = bench.instructions(program, scenario, lengths)?;
            eprintln!("{scenario}, {}: {count:.0} user instructions a request", program.gateway);
            figures.add(Metric::Instructions, scenario, program.gateway, 0, count);
        }
    }
    Ok(())
}

impl Options {
    /// What a run is made of, one sentence.
    fn work(&self) -> String {
        let peers =
            if self.bare_peers { "add no headers" } else { "add Tidegate's request headers" };
        format!(
            "One worker, {} connections, {} rounds of {} requests, 100-byte answers; the peers {peers}.",
            self.connections, self.rounds, self.requests
        )
    }

    /// Whether `part` is to run.
    fn runs(&self, part: Part) -> bool {
        self.only.is_none_or(|only| only == part)
    }
}
