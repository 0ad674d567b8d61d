//! The measurements over TLS and HTTP/2, of handshakes and of tunnels.

use std::{net::SocketAddr, thread};

use anyhow::{Context as _, Result, bail, ensure};
use testkit::load;

use super::{Bench, CpuTime, RUN_TIMEOUT, SETTLE_TIME, Usage, WARM_UP};
use crate::{
    client::{Handshakes, IdleConnections, Tunnels},
    contestant::{Contestant, Program, RunMode},
    h2load::H2load,
    origins::Origins,
    scenario::{Scenario, Work},
};

/// Number of requests with long bodies, messages or handshakes before a measurement.
const SHORT_WARM_UP: u64 = 200;
/// The share of a run's requests in the short run, whose cost is subtracted.
const SHORT_RUN: u64 = 10;

impl Bench {
    /// The upstreams, started now if they were not.
    fn origins(&self) -> Result<&Origins> {
        if self.origins.get().is_none() {
            // It was empty.
            let _ = self.origins.set(Origins::start()?);
        }
        self.origins.get().context("no upstreams")
    }

    /// The address of the upstream for this work.
    fn upstream(&self, work: Work) -> Result<SocketAddr> {
        match work {
            Work::Get | Work::HeaderRules | Work::FullHandshake | Work::ResumedHandshake => {
                Ok(self.origin.address())
            }
            _ => Ok(self.origins()?.address(work)),
        }
    }

    /// Requests for this work that its upstream has answered so far.
    pub(super) fn answered(&self, work: Work) -> u64 {
        match work {
            Work::Get | Work::HeaderRules => self.origin.answered(),
            _ => self.origins.get().map_or(0, Origins::answered),
        }
    }

    /// CPU time per request over TLS or HTTP/2, after a warm-up: the difference of two run lengths,
    /// so that opening connections, with their handshakes, is not counted.
    pub(crate) fn cpu_of_protocol(
        &self,
        program: &Program,
        scenario: Scenario,
        requests: u64,
    ) -> Result<CpuTime> {
        let contestant = self.start_warm(program, scenario)?;
        let pids = contestant.pids()?;
        let used = |requests| {
            let before = Usage::of(&pids)?;
            let tally = self.drive(&contestant, scenario, self.connections, requests)?;
            anyhow::Ok((Usage::of(&pids)?.since(&before), tally.took))
        };
        let short = (requests / SHORT_RUN).max(1);
        let (less, earlier) = used(short)?;
        let (more, took) = used(requests + short)?;
        Ok(more.since(&less).cpu_time(requests, took.saturating_sub(earlier)))
    }

    /// System calls that send, per request, after a warm-up: the difference of two run lengths.
    pub(crate) fn writes(
        &self,
        program: &Program,
        scenario: Scenario,
        (short, long): (u64, u64),
    ) -> Result<f64> {
        let contestant = self.start_warm(program, scenario)?;
        let pids = contestant.pids()?;
        let (target, connections, within) = (contestant.address(), self.connections, RUN_TIMEOUT);
        let counted = |requests| {
            let load = H2load { scenario, target, connections, requests, within };
            let mut writes = 0;
            self.checked(&contestant, scenario, requests, || {
                let (tally, count) = load.count_writes(&pids)?;
                writes = count;
                Ok(tally)
            })?;
            anyhow::Ok(writes as f64)
        };
        Ok((counted(long)? - counted(short)?) / (long - short) as f64)
    }

    /// CPU time per connection that ends after its handshake.
    pub(crate) fn cpu_of_handshakes(
        &self,
        program: &Program,
        scenario: Scenario,
        count: u64,
    ) -> Result<CpuTime> {
        let contestant = self.start(program, scenario)?;
        let resumes = scenario.work == Work::ResumedHandshake;
        let measured = || {
            let clients = Handshakes::new(contestant.address(), scenario.protocol, resumes)?;
            clients.run(SHORT_WARM_UP)?;
            let pids = contestant.pids()?;
            let before = Usage::of(&pids)?;
            let took = clients.run(count)?;
            anyhow::Ok(Usage::of(&pids)?.since(&before).cpu_time(count, took))
        };
        measured().with_context(|| format!("{scenario}{}", contestant.logs()))
    }

    /// CPU time per message and its echo, through this many tunnels, which are open before.
    pub(crate) fn cpu_of_messages(
        &self,
        program: &Program,
        scenario: Scenario,
        tunnels: usize,
        messages: u64,
    ) -> Result<CpuTime> {
        let Work::Message(bytes) = scenario.work else { bail!("no work of a tunnel") };
        let contestant = self.start(program, scenario)?;
        let measured = || {
            let mut open = Tunnels::open(contestant.address(), scenario.protocol, tunnels)?;
            open.exchange(bytes, SHORT_WARM_UP)?;
            let pids = contestant.pids()?;
            let before = Usage::of(&pids)?;
            let took = open.exchange(bytes, messages)?;
            anyhow::Ok(Usage::of(&pids)?.since(&before).cpu_time(messages, took))
        };
        measured().with_context(|| format!("{scenario}{}", contestant.logs()))
    }

    /// Memory of one of `count` idle connections over TLS after one request, or of one of `count`
    /// idle tunnels, in KiB: the difference from a few of them, which were closed.
    pub(crate) fn memory_of_protocol(
        &self,
        program: &Program,
        scenario: Scenario,
        count: usize,
    ) -> Result<f64> {
        let contestant = self.start(program, scenario)?;
        let measured = || {
            let open = |count| Idle::open(&contestant, scenario, count);
            drop(open(self.connections)?);
            thread::sleep(SETTLE_TIME);
            let before = contestant.memory()?;
            let forwarded = self.answered(scenario.work);
            let idle = open(count)?;
            let forwarded = self.answered(scenario.work) - forwarded;
            ensure!(forwarded == count as u64, "{forwarded} of {count} requests were forwarded");
            contestant.wait_for_files(idle.files())?;
            thread::sleep(SETTLE_TIME);
            Ok((contestant.memory()? as f64 - before as f64) / count as f64)
        };
        measured().with_context(|| format!("{scenario}{}", contestant.logs()))
    }

    /// Starts it in front of the upstream for the work.
    pub(super) fn start(&self, program: &Program, scenario: Scenario) -> Result<Contestant> {
        program.start(scenario, self.upstream(scenario.work)?, RunMode::Native)
    }

    /// Starts it and lets it do a little of the work.
    pub(super) fn start_warm(&self, program: &Program, scenario: Scenario) -> Result<Contestant> {
        let contestant = self.start(program, scenario)?;
        let requests = if scenario.work.bytes() == 0 { WARM_UP } else { SHORT_WARM_UP };
        self.drive(&contestant, scenario, self.connections, requests)?;
        Ok(contestant)
    }
}

/// What is open and idle.
pub(super) enum Idle {
    Connections(IdleConnections),
    /// Without TLS.
    ClearConnections(load::IdleConnections),
    Tunnels(Tunnels),
}

impl Idle {
    /// Opens this many, one after the other, each with one request or message.
    pub(super) fn open(contestant: &Contestant, scenario: Scenario, count: usize) -> Result<Self> {
        let (target, protocol) = (contestant.address(), scenario.protocol);
        if matches!(scenario.work, Work::Message(_)) {
            return Ok(Self::Tunnels(Tunnels::open(target, protocol, count)?));
        }
        if !protocol.is_tls() {
            return Ok(Self::ClearConnections(load::IdleConnections::open(target, count, 1)?));
        }
        Ok(Self::Connections(IdleConnections::open(target, protocol, count)?))
    }

    /// The files that the contestant needs for them at least.
    pub(super) fn files(&self) -> usize {
        match self {
            Self::Connections(open) => open.count(),
            Self::ClearConnections(open) => open.count(),
            Self::Tunnels(open) => 2 * open.count(),
        }
    }
}
