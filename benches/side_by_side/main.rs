//! Compares Tidegate with nginx, `HAProxy` and Envoy: the same work, one core each, in one run. The
//! row of the [`floor`] is what forwarding bytes costs the kernel, so it shows how much of a figure
//! a gateway can change.
//!
//! ```text
//! cargo bench --bench side_by_side [-- --rounds N --requests N --connections N --quick --bare-peers
//!          --buffered-peer --without-peers --nginx PATH --haproxy PATH --envoy PATH
//!          --only PART,.. --scenario TEXT --attack TEXT --plots DIRECTORY]
//! ```
//!
//! The parts are cpu, protocols, policies, workers, latency, load, memory, syscalls, instructions,
//! routes, watched and abuse.
//!
//! `--profile release` before the `--` builds faster, without link-time optimization, and so does
//! not measure the binary that users run. Each cell of the table is a median over the rounds; a
//! ratio in bold is the median of the rounds' ratios, followed by their minimum and maximum. Counts
//! of system calls and instructions hardly vary and are measured once.
//!
//! The subject is the default configuration, with limit, metrics and access log, and variants of
//! it. The peers set the same request headers as Tidegate. That costs each of them 8k instructions,
//! and nginx a system call for the request's id. `--bare-peers` removes all added headers from the
//! peers, which is the stricter comparison. With `--buffered-peer`, nginx buffers log lines, as
//! Tidegate does.
//!
//! The output is a markdown table with targets; no test depends on it. The contestant runs on CPU
//! 0; the load generator and the upstream run in this process, on CPU 1. Absolute figures vary with
//! the state of the machine, so compare the ratios. The peers are given by path, or else Debian's
//! `nginx` and `haproxy` and Envoy from `PyPI`, as `scripts/test --install` installs them.
//! Requirements: Linux, two cores, `strace`, `valgrind`, `h2load` (Debian's `nghttp2-client`) and
//! `perf` for the parts that use them, and for memory, 20,000 open files in each of two processes.
//!
//! `--only protocols` measures what is not HTTP/1 in clear. h2load or clients of this program drive
//! it, with HTTP/2 on 8 connections of 16 streams. nginx 1.22 speaks HTTP/2 to upstreams of gRPC
//! alone, so the row of another upstream of HTTP/2 has no figure of it. A handshake's cost is that
//! of a connection from its accept to its close, without a request. `--scenario gRPC` measures only
//! the scenarios whose name contains `gRPC`.
//!
//! `--only load` measures latency by load, in percent of each contestant's own saturation. Requests
//! are sent at a constant rate, and a latency counts from the time at which its request was due,
//! also if it had to wait for a connection: a stall delays the requests behind it, as it does for
//! independent clients.
//!
//! `--plots DIRECTORY` draws the figures of the parts cpu, protocols, load and memory; see
//! [`plots`].
//!
//! `--only watched` measures what the dashboard, a scraper of metrics and traces cost a request,
//! and Tidegate at rest: its binary, its start and its memory. Without the peers; see [`watched`].
//!
//! `--only abuse` attacks Tidegate, without the peers, with slow connections and floods, and
//! measures another client meanwhile; see [`abuse`]. It takes about four minutes and needs 1,100
//! open files.
//!
//! [`Options`] select the measurements. [`parts`] runs them: each measurement of [`measure`] starts
//! a [`contestant`] with the configuration of one scenario from [`scenario`], drives it with the
//! load generator of `testkit` and yields a figure. [`report`] computes medians and ratios.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the table is the result")]
#![expect(
    clippy::disallowed_methods,
    reason = "a benchmark reads the real clock, and its main thread may sleep"
)]

mod abuse;
mod caption;
mod client;
mod configuration;
mod contestant;
mod floor;
mod h2load;
mod machine;
mod measure;
mod origins;
mod parts;
mod plots;
mod profile;
mod report;
mod scenario;
mod undisturbed;
mod watched;

use std::{cell::OnceCell, path::PathBuf};

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};

use testkit::load::{Origin, cpu};

use crate::{
    configuration::PeerOptions,
    contestant::{Gateway, Program},
    measure::Bench,
    parts::Run,
};

/// Measures Tidegate beside nginx and `HAProxy` and prints a markdown table.
#[derive(Parser)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
struct Options {
    /// Rounds of the CPU part; the order of the contestants rotates each round.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Requests of one CPU measurement.
    #[arg(long, default_value_t = 40_000)]
    requests: u64,
    /// Client connections of the CPU and latency parts.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
    /// A short run of about a minute: three rounds of 20,000 requests, short counts.
    #[arg(long)]
    quick: bool,
    /// Only these parts, with commas between them.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Writes plots as SVG into this directory.
    #[arg(long, value_name = "DIRECTORY")]
    plots: Option<PathBuf>,
    /// Only attacks whose name contains this text, in the part `abuse`.
    #[arg(long, default_value = "")]
    attack: String,
    /// Only scenarios whose name contains this text, in the part `protocols`.
    #[arg(long, default_value = "")]
    scenario: String,
    /// nginx and `HAProxy` add no headers; Tidegate adds all of its headers.
    #[arg(long)]
    bare_peers: bool,
    /// nginx buffers log lines in 32 KiB and writes them once a second instead of one by one.
    #[arg(long)]
    buffered_peer: bool,
    /// Skips the peers.
    #[arg(long)]
    without_peers: bool,
    /// The nginx to compare with, instead of the installed one.
    #[arg(long, value_name = "PATH")]
    nginx: Option<PathBuf>,
    /// The `HAProxy` to compare with, instead of the installed one.
    #[arg(long, value_name = "PATH")]
    haproxy: Option<PathBuf>,
    /// The Envoy to compare with, instead of the one in the `PATH` or in the Python of the tests.
    #[arg(long, value_name = "PATH")]
    envoy: Option<PathBuf>,
    /// Skips Tidegate, to check the harness against known figures of the peers.
    #[arg(long, hide = true)]
    without_tidegate: bool,
}

/// A part of the run; each part uses one tool.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// CPU time from `/proc`.
    Cpu,
    /// TLS, HTTP/2, gRPC and tunnels: `h2load`, and `perf` for system calls.
    Protocols,
    /// Header rules and compression.
    Policies,
    /// `strace -f -c`.
    Syscalls,
    /// User instructions and allocations: `valgrind --tool=callgrind`.
    Instructions,
    /// User instructions as routes grow.
    Routes,
    /// Memory per idle connection, and by number of idle connections.
    Memory,
    /// The 99th percentile of the request duration at shares of nginx' saturation.
    Latency,
    /// The 99th percentile of the request duration at shares of each contestant's own saturation.
    Load,
    /// CPU time of two workers compared with one.
    Workers,
    /// What the dashboard, a scraper and traces cost, without the peers; and Tidegate at rest.
    Watched,
    /// What clients that attack Tidegate cost another client, and memory.
    Abuse,
}

fn main() -> Result<()> {
    floor::run_if_asked()?;
    if !is_benchmark_run() {
        return Ok(());
    }
    // Cargo's flag `--bench` is not an option of this program.
    let arguments = std::env::args().filter(|argument| argument != "--bench");
    let mut options = Options::parse_from(arguments);
    if options.quick {
        options.rounds = options.rounds.min(3);
        options.requests = options.requests.min(20_000);
    }
    let programs = programs(&options)?;
    let heading = machine::describe(&programs, &options.describe());
    let caption = caption::caption(&programs);
    cpu::pin(cpu::TESTED_CPU);
    let bench = Bench {
        origin: Origin::start()?,
        origins: OnceCell::new(),
        connections: options.connections.into(),
    };

    let mut run = Run::new(&bench, &programs, &options);
    measure(&mut run, &options)?;
    println!("{heading}\n\n{}", run.figures.table());
    if let Some(directory) = &options.plots {
        plots::write(directory, &run.figures, &caption)?;
    }
    if options.runs(Part::Watched) {
        println!("{}", run.watched()?);
    }
    if options.runs(Part::Abuse) {
        println!("{}", run.abuse()?);
    }
    Ok(())
}

/// Runs the parts whose figures are in the table.
fn measure(run: &mut Run<'_>, options: &Options) -> Result<()> {
    if options.runs(Part::Cpu) {
        run.cpu()?;
    }
    if options.runs(Part::Protocols) {
        run.protocols()?;
    }
    if options.runs(Part::Policies) {
        run.policies()?;
    }
    if options.runs(Part::Workers) {
        run.workers()?;
    }
    if options.runs(Part::Latency) {
        run.latency()?;
    }
    if options.runs(Part::Load) {
        run.load()?;
    }
    if options.runs(Part::Memory) {
        run.memory()?;
    }
    if options.runs(Part::Syscalls) {
        run.syscalls()?;
    }
    if options.runs(Part::Instructions) {
        run.instructions()?;
    }
    if options.runs(Part::Routes) {
        run.routes()?;
    }
    Ok(())
}

/// Whether cargo runs this as a benchmark; `cargo test --benches` only checks that it starts.
fn is_benchmark_run() -> bool {
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
        if options.without_peers && gateway != Gateway::Tidegate {
            continue;
        }
        let peers = PeerOptions { bare: options.bare_peers, buffered: options.buffered_peer };
        let given = match gateway {
            Gateway::Nginx => options.nginx.as_deref(),
            Gateway::Haproxy => options.haproxy.as_deref(),
            Gateway::Envoy => options.envoy.as_deref(),
            Gateway::Floor | Gateway::Tidegate => None,
        };
        match Program::find(gateway, given, peers) {
            Ok(program) => found.push(program),
            Err(error) if gateway == Gateway::Tidegate => return Err(error),
            Err(error) => eprintln!("skipped: {error:#}"),
        }
    }
    ensure!(!found.is_empty(), "nothing to measure");
    Ok(found)
}

impl Options {
    /// True if the part `protocols` measures this scenario.
    fn selects(&self, scenario: scenario::Scenario) -> bool {
        scenario.to_string().contains(&self.scenario)
    }

    /// A sentence that describes the run.
    fn describe(&self) -> String {
        let peers =
            if self.bare_peers { "add no headers" } else { "add Tidegate's request headers" };
        format!(
            "One worker, {} connections, {} rounds of {} requests, 100-byte responses; the peers {peers}.",
            self.connections, self.rounds, self.requests
        )
    }

    /// Whether `part` is selected.
    fn runs(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}
