//! The part over TLS and HTTP/2: CPU time, handshakes, long bodies, gRPC, tunnels, memory, and
//! writes.

use anyhow::Result;

use super::{IDLE_CONNECTIONS, Run};
use crate::{
    contestant::Program,
    h2load,
    measure::{CpuTime, History, Metric},
    scenario::{
        ClientProtocol::{Http1, Http1Tls, Http2, Http2Tls},
        Scenario, Work,
    },
};

/// Number of idle tunnels. Each is two connections in this process, and two in the contestant.
const IDLE_TUNNELS: usize = 4_000;

/// A scenario that is measured in every round, and how.
struct Row {
    scenario: Scenario,
    driver: Driver,
    /// The share of the requests of a run, because some cost more than others.
    share: u64,
}

/// What drives the contestant.
#[derive(Clone, Copy)]
enum Driver {
    H2load,
    Handshakes,
    /// This many tunnels.
    Tunnels(usize),
}

/// The scenarios of CPU time, in the order of the table.
const ROWS: [Row; 12] = [
    Row { scenario: Scenario::over(Http1Tls), driver: Driver::H2load, share: 1 },
    Row { scenario: Scenario::over(Http2), driver: Driver::H2load, share: 1 },
    Row { scenario: Scenario::over(Http2Tls), driver: Driver::H2load, share: 1 },
    Row {
        scenario: Scenario::working_unlogged(Work::FullHandshake, Http1Tls),
        driver: Driver::Handshakes,
        share: 20,
    },
    Row {
        scenario: Scenario::working_unlogged(Work::ResumedHandshake, Http1Tls),
        driver: Driver::Handshakes,
        share: 20,
    },
    Row { scenario: Scenario::working(Work::Download, Http2), driver: Driver::H2load, share: 40 },
    Row {
        scenario: Scenario::working(Work::Download, Http2Tls),
        driver: Driver::H2load,
        share: 40,
    },
    Row { scenario: Scenario::working(Work::Upload, Http2Tls), driver: Driver::H2load, share: 40 },
    Row { scenario: Scenario::working(Work::Grpc, Http2), driver: Driver::H2load, share: 1 },
    Row {
        scenario: Scenario::working(Work::Http2Upstream, Http2),
        driver: Driver::H2load,
        share: 1,
    },
    Row {
        scenario: Scenario::working(Work::Message(64 << 10), Http1),
        driver: Driver::Tunnels(8),
        share: 4,
    },
    Row {
        scenario: Scenario::working(Work::Message(128), Http1),
        driver: Driver::Tunnels(16),
        share: 1,
    },
];

/// The scenarios of memory: connections after one request, and tunnels.
const IDLE: [(History, Scenario, usize); 4] = [
    (History::OneRequest, Scenario::over(Http1Tls), IDLE_CONNECTIONS),
    (History::OneRequest, Scenario::over(Http2Tls), IDLE_CONNECTIONS),
    (History::Tunnel, Scenario::working(Work::Message(128), Http1), IDLE_TUNNELS),
    (History::Tunnel, Scenario::working(Work::Message(128), Http1Tls), IDLE_TUNNELS),
];

/// The scenarios of which writes are counted: without a log, which is written, too.
const WRITING: [Scenario; 3] = [
    Scenario::working_unlogged(Work::Get, Http2Tls),
    Scenario::working_unlogged(Work::Grpc, Http2),
    Scenario::working_unlogged(Work::Http2Upstream, Http2),
];

impl Run<'_> {
    /// CPU time of every row in rounds of rotating order, then memory and writes once.
    pub(crate) fn protocols(&mut self) -> Result<()> {
        if !h2load::is_installed() {
            eprintln!("skipped: TLS and HTTP/2 are measured with h2load, which is not installed");
            return Ok(());
        }
        let options = self.options;
        for round in 0..options.rounds {
            for row in ROWS.iter().filter(|row| options.selects(row.scenario)) {
                for program in self.order(round).filter(|program| program.can_do(row.scenario)) {
                    let cpu_time = self.cpu_of(program, row)?;
                    self.add_cpu(program, row.scenario, round, &cpu_time);
                }
            }
        }
        self.idle_memory()?;
        self.writes()
    }

    fn cpu_of(&self, program: &Program, row: &Row) -> Result<CpuTime> {
        let count = self.options.requests / row.share;
        match row.driver {
            Driver::H2load => self.bench.cpu_of_protocol(program, row.scenario, count),
            Driver::Handshakes => self.bench.cpu_of_handshakes(program, row.scenario, count),
            Driver::Tunnels(tunnels) => {
                self.bench.cpu_of_messages(program, row.scenario, tunnels, count)
            }
        }
    }

    /// Memory of idle connections over TLS and of idle tunnels.
    fn idle_memory(&mut self) -> Result<()> {
        for (history, scenario, count) in IDLE {
            if !self.options.selects(scenario) {
                continue;
            }
            let count = if self.options.quick { count / 10 } else { count };
            for program in self.gateways() {
                let memory = self.bench.memory_of_protocol(program, scenario, count)?;
                eprintln!("{history:?}, {scenario}, {}: {memory:.2} KiB", program.gateway);
                self.figures.add(Metric::Memory(history), scenario, program.gateway, 0, memory);
            }
        }
        Ok(())
    }

    /// System calls that send, per request.
    fn writes(&mut self) -> Result<()> {
        if !h2load::can_count_writes() {
            eprintln!("skipped: writes are counted with perf, which is missing or not permitted");
            return Ok(());
        }
        let lengths = (self.options.requests / 4, self.options.requests);
        let options = self.options;
        for scenario in WRITING.into_iter().filter(|scenario| options.selects(*scenario)) {
            for program in self.programs.iter().filter(|program| program.can_do(scenario)) {
                let writes = self.bench.writes(program, scenario, lengths)?;
                eprintln!("{scenario}, {}: {writes:.2} writes per request", program.gateway);
                self.figures.add(Metric::Writes, scenario, program.gateway, 0, writes);
            }
        }
        Ok(())
    }
}
