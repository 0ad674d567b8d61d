//! The parts of a run: which scenarios of which contestants are measured, and in which order.

use anyhow::Result;
use testkit::load::cpu;

use crate::{
    Options,
    contestant::{Gateway, Program},
    measure::{Bench, History, Metric},
    report::Figures,
    work::Scenario,
};

/// Idle connections of the memory part.
const IDLE: usize = 10_000;
/// Of them, those that ask at the same time.
const BURST: usize = 2_500;
/// How long the latency part keeps up a rate, in s.
const LATENCY_TIME: f64 = 2.0;

/// A latency of a contestant that waited for its CPU for a larger part of the time is not counted: it
/// tells of what else runs on the machine.
const MAX_STARVED: f64 = 0.05;

/// One run, and what it has measured so far.
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
        (0..programs.len()).map(move |place| &programs[(place + round) % programs.len()])
    }

    /// CPU a request, every scenario, in rounds of rotating order.
    pub(crate) fn cpu(&mut self) -> Result<()> {
        for round in 0..self.options.rounds {
            for scenario in Scenario::ALL {
                for program in self.order(round) {
                    self.cpu_of(program, scenario, round)?;
                }
            }
        }
        Ok(())
    }

    /// CPU a request of two workers and of one, in alternating order.
    pub(crate) fn workers(&mut self) -> Result<()> {
        cpu::pin_to(&[cpu::SUBJECT, cpu::HARNESS]);
        for round in 0..self.options.rounds {
            for place in 0..2 {
                let scenario = Scenario::on_workers(if (round + place) % 2 == 0 { 1 } else { 2 });
                for program in self.tidegate() {
                    self.cpu_of(program, scenario, round)?;
                }
            }
        }
        cpu::pin(cpu::SUBJECT);
        Ok(())
    }

    fn tidegate(&self) -> impl Iterator<Item = &'a Program> + use<'a> {
        self.programs.iter().filter(|program| program.gateway == Gateway::Tidegate)
    }

    fn cpu_of(&mut self, program: &Program, scenario: Scenario, round: usize) -> Result<()> {
        let spent = self.bench.cpu(program, scenario, self.options.requests)?;
        eprintln!(
            "round {}/{}, {scenario}, {}: {:.2} us, of it user {:.2} us, {:.0} requests/s",
            round + 1,
            self.options.rounds,
            program.gateway,
            spent.total,
            spent.user,
            spent.rate,
        );
        let mut add = |metric, value| {
            self.figures.add(metric, scenario, program.gateway, round, value);
        };
        add(Metric::Cpu, spent.total);
        if !scenario.both_cpus {
            add(Metric::User, spent.user);
            add(Metric::Rate, spent.rate);
        }
        Ok(())
    }

    /// The 99th percentile at parts of what nginx can serve, in rounds of rotating order.
    pub(crate) fn latency(&mut self) -> Result<()> {
        let nginx = self.programs.iter().find(|program| program.gateway == Gateway::Nginx);
        let Some(nginx) = nginx else {
            eprintln!("left out: the latency is measured at parts of what nginx can serve");
            return Ok(());
        };
        let saturation = self.bench.cpu(nginx, Scenario::DEFAULT, self.options.requests)?.rate;
        for round in 0..self.options.rounds {
            for scenario in [Scenario::DEFAULT, Scenario::UNLOGGED] {
                for percent in [50, 80] {
                    let rate = saturation * f64::from(percent) / 100.0;
                    for program in self.order(round) {
                        self.tail_of(program, scenario, (percent, rate), round)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn tail_of(
        &mut self,
        program: &Program,
        scenario: Scenario,
        (percent, rate): (u8, f64),
        round: usize,
    ) -> Result<()> {
        let requests = (rate * LATENCY_TIME) as u64;
        let tail = self.bench.tail(program, scenario, rate, requests)?;
        eprintln!(
            "round {}/{}, {scenario}, {rate:.0} requests/s, {}: p99 {:.2} ms, {:.0}% of \
             the time without its CPU",
            round + 1,
            self.options.rounds,
            program.gateway,
            tail.p99,
            tail.starved * 100.0,
        );
        if tail.starved <= MAX_STARVED {
            self.figures.add(Metric::Tail { percent }, scenario, program.gateway, round, tail.p99);
        } else {
            eprintln!("left out: others had its CPU, and the time is theirs");
        }
        Ok(())
    }

    /// Memory of an idle connection.
    pub(crate) fn memory(&mut self) -> Result<()> {
        for history in [History::Silent, History::OneRequest, History::Burst(BURST)] {
            for program in self.programs {
                let memory = self.bench.memory(program, history, IDLE)?;
                eprintln!("{history:?}, {}: {memory:.2} KiB a connection", program.gateway);
                let metric = Metric::Memory(history);
                self.figures.add(metric, Scenario::DEFAULT, program.gateway, 0, memory);
            }
        }
        Ok(())
    }

    /// System calls a request, few and many connections.
    pub(crate) fn syscalls(&mut self) -> Result<()> {
        let lengths = if self.options.quick { (500, 2_500) } else { (2_000, 12_000) };
        for (scenario, connections) in
            [(Scenario::DEFAULT, 16), (Scenario::DEFAULT, 64), (Scenario::REFUSED, 64)]
        {
            for program in self.programs {
                let calls = self.bench.syscalls(program, scenario, connections, lengths)?;
                eprintln!(
                    "{scenario}, {connections} connections, {}: {calls:.2} system calls a request",
                    program.gateway
                );
                let metric = Metric::Syscalls { connections };
                self.figures.add(metric, scenario, program.gateway, 0, calls);
            }
        }
        Ok(())
    }

    /// User instructions and allocations a request, every scenario.
    pub(crate) fn instructions(&mut self) -> Result<()> {
        for scenario in Scenario::ALL {
            for program in self.programs {
                self.counts_of(program, scenario)?;
            }
        }
        Ok(())
    }

    /// User instructions a request as routes grow.
    pub(crate) fn routes(&mut self) -> Result<()> {
        for routes in [10, 1_000, 10_000] {
            for program in self.tidegate() {
                self.counts_of(program, Scenario::with_routes(routes))?;
            }
        }
        Ok(())
    }

    fn counts_of(&mut self, program: &Program, scenario: Scenario) -> Result<()> {
        let lengths = if self.options.quick { (500, 2_500) } else { (2_000, 10_000) };
        let (instructions, allocations) = self.bench.counts(program, scenario, lengths)?;
        eprintln!(
            "{scenario}, {}: {instructions:.0} user instructions, {allocations:.2} allocations a \
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
