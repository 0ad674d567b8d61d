//! The parts of a run: which scenarios of which contestants are measured, and in which order. That
//! of TLS, HTTP/2 and tunnels is in `protocols`, that of header rules and compression in
//! `policies`; `curves` has latency by load, and memory by number of connections.

mod curves;
mod policies;
mod protocols;

use anyhow::Result;
use testkit::load::cpu;

pub(crate) use self::curves::{IDLE_COUNTS, IDLE_PROTOCOLS, LOADS};
use crate::{
    Options, abuse,
    contestant::{Gateway, Program},
    measure::{Bench, CpuTime, History, Metric},
    report::Figures,
    scenario::Scenario,
    watched,
};

/// Number of idle connections of the memory part. With 20,000 open files, Tidegate admits some
/// more.
const IDLE_CONNECTIONS: usize = 9_000;
/// Number of these connections' requests that are in flight at once in the burst.
const BURST: usize = 2_500;
/// Duration of a latency measurement, in s.
const LATENCY_DURATION: f64 = 2.0;

/// Maximum share of the time that a contestant may wait for its CPU. A latency with a larger share
/// is discarded, because it depends on other processes.
const MAX_WAITING_SHARE: f64 = 0.05;

/// One run, and its figures so far.
pub(crate) struct Run<'a> {
    bench: &'a Bench,
    programs: &'a [Program],
    options: &'a Options,
    pub(crate) figures: Figures,
}

impl<'a> Run<'a> {
    pub(crate) fn new(bench: &'a Bench, programs: &'a [Program], options: &'a Options) -> Self {
        Self { bench, programs, options, figures: Figures::default() }
    }

    /// The contestants in the order of a round.
    fn order(&self, round: usize) -> impl Iterator<Item = &'a Program> + use<'a> {
        let programs = self.programs;
        (0..programs.len()).map(move |index| &programs[(index + round) % programs.len()])
    }

    /// CPU time per request of every scenario, in rounds of rotating order.
    pub(crate) fn cpu(&mut self) -> Result<()> {
        for round in 0..self.options.rounds {
            for scenario in Scenario::ALL {
                for program in self.order(round).filter(|program| program.can_do(scenario)) {
                    self.measure_cpu(program, scenario, round)?;
                }
            }
        }
        Ok(())
    }

    /// CPU time per request of two workers and of one, in alternating order.
    pub(crate) fn workers(&mut self) -> Result<()> {
        cpu::pin_to(&[cpu::TESTED_CPU, cpu::LOAD_CPU]);
        for round in 0..self.options.rounds {
            for index in 0..2 {
                let scenario = Scenario::on_workers(if (round + index) % 2 == 0 { 1 } else { 2 });
                for program in self.tidegate() {
                    self.measure_cpu(program, scenario, round)?;
                }
            }
        }
        cpu::pin(cpu::TESTED_CPU);
        Ok(())
    }

    /// The programs without the floor.
    fn gateways(&self) -> impl Iterator<Item = &'a Program> + use<'a> {
        self.programs.iter().filter(|program| program.gateway != Gateway::Floor)
    }

    fn tidegate(&self) -> impl Iterator<Item = &'a Program> + use<'a> {
        self.programs.iter().filter(|program| program.gateway == Gateway::Tidegate)
    }

    /// What it costs to watch Tidegate: tables of their own.
    pub(crate) fn watched(&self) -> Result<String> {
        let (rounds, requests) = (self.options.rounds, self.options.requests);
        let table = |program| watched::tables(self.bench, program, rounds, requests);
        self.tidegate().map(table).collect()
    }

    /// What attacks on Tidegate cost another client: a table of its own.
    pub(crate) fn abuse(&self) -> Result<String> {
        self.tidegate().map(|program| abuse::table(program, &self.options.attack)).collect()
    }

    fn measure_cpu(&mut self, program: &Program, scenario: Scenario, round: usize) -> Result<()> {
        let cpu_time = self.bench.cpu(program, scenario, self.options.requests)?;
        self.add_cpu(program, scenario, round, &cpu_time);
        Ok(())
    }

    fn add_cpu(&mut self, program: &Program, scenario: Scenario, round: usize, cpu_time: &CpuTime) {
        eprintln!(
            "round {}/{}, {scenario}, {}: {:.2} us, of which user {:.2} us, {:.0} a second",
            round + 1,
            self.options.rounds,
            program.gateway,
            cpu_time.total,
            cpu_time.user,
            cpu_time.rate,
        );
        let mut add = |metric, value| {
            self.figures.add(metric, scenario, program.gateway, round, value);
        };
        add(Metric::Cpu, cpu_time.total);
        if !scenario.both_cpus {
            add(Metric::User, cpu_time.user);
            add(Metric::Rate, cpu_time.rate);
        }
        if scenario.work.bytes() > 0 {
            let mebibytes = scenario.work.bytes() as f64 / f64::from(1 << 20);
            add(Metric::Throughput, cpu_time.rate * mebibytes);
        }
    }

    /// The 99th percentile of the request duration at shares of nginx' saturation, in rounds of
    /// rotating order.
    pub(crate) fn latency(&mut self) -> Result<()> {
        let nginx = self.programs.iter().find(|program| program.gateway == Gateway::Nginx);
        let Some(nginx) = nginx else {
            eprintln!(
                "skipped: latency is measured at shares of nginx' saturation, and there is no nginx"
            );
            return Ok(());
        };
        let saturation = self.bench.cpu(nginx, Scenario::DEFAULT, self.options.requests)?.rate;
        for round in 0..self.options.rounds {
            for scenario in [Scenario::DEFAULT, Scenario::UNLOGGED] {
                for percent in [50, 80] {
                    let rate = saturation * f64::from(percent) / 100.0;
                    for program in self.order(round).filter(|program| program.can_do(scenario)) {
                        self.measure_tail(program, scenario, (percent, rate), round)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn measure_tail(
        &mut self,
        program: &Program,
        scenario: Scenario,
        (percent, rate): (u8, f64),
        round: usize,
    ) -> Result<()> {
        let requests = (rate * LATENCY_DURATION) as u64;
        let tail = self.bench.tail(program, scenario, rate, requests)?;
        eprintln!(
            "round {}/{}, {scenario}, {rate:.0} requests/s, {}: p99 {:.2} ms, {:.0}% of \
             the time waiting for its CPU",
            round + 1,
            self.options.rounds,
            program.gateway,
            tail.p99,
            tail.waiting_share * 100.0,
        );
        if tail.waiting_share <= MAX_WAITING_SHARE {
            self.figures.add(Metric::Tail { percent }, scenario, program.gateway, round, tail.p99);
        } else {
            eprintln!("discarded: other processes used its CPU");
        }
        Ok(())
    }

    /// Memory of an idle connection, and of the contestants by number of idle connections.
    pub(crate) fn memory(&mut self) -> Result<()> {
        for history in [History::Silent, History::OneRequest, History::Burst(BURST)] {
            for program in self.gateways() {
                let memory = self.bench.memory(program, history, IDLE_CONNECTIONS)?;
                eprintln!("{history:?}, {}: {memory:.2} KiB per connection", program.gateway);
                let metric = Metric::Memory(history);
                self.figures.add(metric, Scenario::DEFAULT, program.gateway, 0, memory);
            }
        }
        self.growth()
    }

    /// System calls per request, with few and many connections.
    pub(crate) fn syscalls(&mut self) -> Result<()> {
        let lengths = if self.options.quick { (500, 2_500) } else { (2_000, 12_000) };
        for (scenario, connections) in
            [(Scenario::DEFAULT, 16), (Scenario::DEFAULT, 64), (Scenario::REFUSED, 64)]
        {
            for program in self.gateways() {
                let calls = self.bench.syscalls(program, scenario, connections, lengths)?;
                eprintln!(
                    "{scenario}, {connections} connections, {}: {calls:.2} system calls per request",
                    program.gateway
                );
                let metric = Metric::Syscalls { connections };
                self.figures.add(metric, scenario, program.gateway, 0, calls);
            }
        }
        Ok(())
    }

    /// User instructions and allocations per request, of every scenario.
    pub(crate) fn instructions(&mut self) -> Result<()> {
        for scenario in Scenario::ALL {
            for program in self.gateways() {
                self.measure_counts(program, scenario)?;
            }
        }
        Ok(())
    }

    /// User instructions per request, by number of routes.
    pub(crate) fn routes(&mut self) -> Result<()> {
        for routes in [10, 1_000, 10_000] {
            for program in self.tidegate() {
                self.measure_counts(program, Scenario::with_routes(routes))?;
            }
        }
        Ok(())
    }

    fn measure_counts(&mut self, program: &Program, scenario: Scenario) -> Result<()> {
        let lengths = if self.options.quick { (500, 2_500) } else { (2_000, 10_000) };
        let (instructions, allocations) = self.bench.counts(program, scenario, lengths)?;
        eprintln!(
            "{scenario}, {}: {instructions:.0} user instructions, {allocations:.2} allocations per \
             request",
            program.gateway
        );
        let mut add = |metric, value| {
            self.figures.add(metric, scenario, program.gateway, 0, value);
        };
        add(Metric::Instructions, instructions);
        add(Metric::Allocations, allocations);
        Ok(())
    }
}
