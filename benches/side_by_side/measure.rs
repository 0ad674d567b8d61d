//! The measurements. Each starts a fresh contestant and drives one scenario.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use testkit::load::{IdleConnections, Load, Origin, Tally};

use crate::{
    contestant::{Contestant, Mode, Program, signal},
    work::{Limit, Scenario},
};

/// Requests that open the connections, fill the pools and warm the caches.
const WARM_UP: u64 = 2_000;
/// No run takes longer; counting under valgrind is the slowest.
const WITHIN: Duration = Duration::from_mins(3);
/// Connections of the counts by callgrind.
const COUNTED_CONNECTIONS: usize = 4;
/// After load, until a process has done what it does behind it.
const SETTLED: Duration = Duration::from_millis(500);
/// Answers of another status that a run may have: the first of a tiny quota, one more a minute.
const STRAY: u64 = 8;

/// What is measured, and so a kind of row in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metric {
    /// CPU time a request, user and system, microseconds.
    Cpu,
    /// The user part of it, microseconds.
    User,
    /// Requests a second; for information, the load shares the machine.
    Rate,
    /// System calls a request.
    Syscalls { connections: usize },
    /// User instructions a request.
    Instructions,
    /// Calls of an allocator a request.
    Allocations,
    /// Memory of one idle connection, KiB.
    Memory(History),
    /// The 99th percentile of a request's time, milliseconds, at so many percent of nginx' saturation.
    Tail { percent: u8 },
}

/// What an idle connection has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum History {
    /// Nothing.
    Silent,
    /// One request, which was answered before the next one's.
    OneRequest,
    /// The same, while so many others were in flight.
    Burst(usize),
}

/// What all measurements share.
pub(crate) struct Bench {
    pub(crate) origin: Origin,
    /// Client connections, unless the measurement says its own.
    pub(crate) connections: usize,
}

/// CPU time of one run, a request.
pub(crate) struct Spent {
    /// User and system, microseconds.
    pub(crate) total: f64,
    /// User, microseconds.
    pub(crate) user: f64,
    /// Requests a second.
    pub(crate) rate: f64,
}

/// How long requests took at a fixed rate.
pub(crate) struct Tail {
    /// The 99th percentile, milliseconds.
    pub(crate) p99: f64,
    /// The part of the time for which the contestant waited for its CPU: others had it.
    pub(crate) starved: f64,
}

/// CPU time of all threads of a contestant so far.
struct Usage {
    /// Ready to run, and not running: nanoseconds, from the scheduler.
    waited: u64,
    /// User and system: nanoseconds on a CPU, from the scheduler.
    nanos: u64,
    /// User time in clock ticks.
    user_ticks: u64,
    /// System time in clock ticks.
    system_ticks: u64,
}

impl Bench {
    /// CPU time a request over `requests` requests, warm.
    ///
    /// The scheduler's nanoseconds give the total; `utime` and `stime`, which it keeps in ticks,
    /// only say how it divides.
    pub(crate) fn cpu(
        &self,
        program: &Program,
        scenario: Scenario,
        requests: u64,
    ) -> Result<Spent> {
        let contestant = program.start(scenario, self.origin.address(), Mode::Native)?;
        self.drive(&contestant, scenario, self.connections, WARM_UP)?;
        let pids = contestant.pids()?;
        let before = Usage::of(&pids)?;
        let tally = self.drive(&contestant, scenario, self.connections, requests)?;
        let after = Usage::of(&pids)?;

        let total = (after.nanos - before.nanos) as f64 / 1e3 / requests as f64;
        let user = (after.user_ticks - before.user_ticks) as f64;
        let system = (after.system_ticks - before.system_ticks) as f64;
        Ok(Spent {
            total,
            user: total * user / (user + system).max(1.0),
            rate: requests as f64 / tally.took.as_secs_f64(),
        })
    }

    /// System calls a request: the difference of two run lengths, so that opening connections does
    /// not count.
    pub(crate) fn syscalls(
        &self,
        program: &Program,
        scenario: Scenario,
        connections: usize,
        (short, long): (u64, u64),
    ) -> Result<f64> {
        let contestant = program.start(scenario, self.origin.address(), Mode::Native)?;
        self.drive(&contestant, scenario, connections, WARM_UP)?;
        let traced = |requests| {
            trace(&contestant, || self.drive(&contestant, scenario, connections, requests))
        };
        Ok((traced(long)? as f64 - traced(short)? as f64) / (long - short) as f64)
    }

    /// User instructions and allocations a request, warm: the difference of two run lengths, so that
    /// opening connections does not count.
    pub(crate) fn counts(
        &self,
        program: &Program,
        scenario: Scenario,
        (short, long): (u64, u64),
    ) -> Result<(f64, f64)> {
        let contestant = program.start(scenario, self.origin.address(), Mode::Counted)?;
        let counted = |requests| {
            self.drive(&contestant, scenario, COUNTED_CONNECTIONS, requests)?;
            contestant.profile()
        };
        counted(short)?;
        let (less, more) = (counted(short)?, counted(long)?);
        let each = |more: u64, less: u64| (more as f64 - less as f64) / (long - short) as f64;
        Ok((each(more.instructions, less.instructions), each(more.allocations, less.allocations)))
    }

    /// Memory of one of `count` idle connections, KiB: the difference to none of them, warm.
    pub(crate) fn memory(&self, program: &Program, history: History, count: usize) -> Result<f64> {
        let scenario = Scenario::DEFAULT;
        let contestant = program.start(scenario, self.origin.address(), Mode::Native)?;
        self.drive(&contestant, scenario, self.connections, WARM_UP)?;
        thread::sleep(SETTLED);
        let before = contestant.memory()?;
        let together = match history {
            History::Silent => 0,
            History::OneRequest => 1,
            History::Burst(together) => together,
        };
        let forwarded = self.origin.answered();
        let idle = IdleConnections::open(contestant.address(), count, together)
            .with_context(|| contestant.logs())?;
        let forwarded = self.origin.answered() - forwarded;
        let asked = if together == 0 { 0 } else { count as u64 };
        ensure!(forwarded == asked, "{forwarded} of {asked} requests reached the upstream");
        contestant.wait_for_files(idle.count())?;
        thread::sleep(SETTLED);
        Ok((contestant.memory()? as f64 - before as f64) / idle.count() as f64)
    }

    /// The 99th percentile of a request's time at `rate` requests a second, milliseconds.
    pub(crate) fn tail(
        &self,
        program: &Program,
        scenario: Scenario,
        rate: f64,
        requests: u64,
    ) -> Result<Tail> {
        let contestant = program.start(scenario, self.origin.address(), Mode::Native)?;
        self.drive(&contestant, scenario, self.connections, WARM_UP)?;
        let pids = contestant.pids()?;
        let (before, start) = (Usage::of(&pids)?, Instant::now());
        let (target, connections) = (contestant.address(), self.connections);
        let load = Load { target, connections, requests, within: WITHIN };
        let forwarded = self.origin.answered();
        let took = load.run_at(rate).with_context(|| contestant.logs())?;
        let forwarded = self.origin.answered() - forwarded;
        ensure!(forwarded == requests, "{forwarded} of {requests} requests reached the upstream");
        let place = took.len() * 99 / 100;
        let tail = took.get(place).context("no answers")?;
        let waited = (Usage::of(&pids)?.waited - before.waited) as f64;
        let starved = waited / start.elapsed().as_nanos() as f64;
        Ok(Tail { p99: tail.as_secs_f64() * 1e3, starved })
    }

    /// Sends `requests` and makes sure that the contestant did the work of the scenario.
    fn drive(
        &self,
        contestant: &Contestant,
        scenario: Scenario,
        connections: usize,
        requests: u64,
    ) -> Result<Tally> {
        let forwarded = self.origin.answered();
        let load = Load { target: contestant.address(), connections, requests, within: WITHIN };
        let tally = load.run().with_context(|| format!("{scenario}{}", contestant.logs()))?;
        let forwarded = self.origin.answered() - forwarded;

        let right = tally.statuses.get(&scenario.status()).copied().unwrap_or_default();
        let stray = if scenario.limit == Limit::Refusing { STRAY } else { 0 };
        ensure!(
            right + stray >= requests,
            "{scenario}: statuses {:?}{}",
            tally.statuses,
            contestant.logs()
        );
        let answered = tally.statuses.get(&200).copied().unwrap_or_default();
        ensure!(
            forwarded == answered,
            "{scenario}: {forwarded} requests reached the upstream, {answered} answers came back"
        );
        Ok(tally)
    }
}

impl Usage {
    fn of(pids: &[u32]) -> Result<Self> {
        let mut usage = Self { waited: 0, nanos: 0, user_ticks: 0, system_ticks: 0 };
        for pid in pids {
            for task in fs::read_dir(format!("/proc/{pid}/task"))? {
                let path = task?.path().join("schedstat");
                let times = fs::read_to_string(path)?;
                usage.nanos += field(&times, 0)?;
                usage.waited += field(&times, 1)?;
            }
            let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
            let (_, after_name) = stat.rsplit_once(')').context("an unknown form of stat")?;
            usage.user_ticks += field(after_name, 11)?;
            usage.system_ticks += field(after_name, 12)?;
        }
        Ok(usage)
    }
}

/// Runs `work` while strace counts the calls of the contestant.
fn trace(contestant: &Contestant, work: impl FnOnce() -> Result<Tally>) -> Result<u64> {
    let summary = tempfile::NamedTempFile::new()?;
    let pids = contestant.pids()?;
    let mut command = Command::new("strace");
    command.args(["-f", "-c", "-o"]).arg(summary.path());
    for pid in &pids {
        command.arg("-p").arg(pid.to_string());
    }
    let mut strace = command.stderr(Stdio::piped()).spawn().context("strace does not start")?;
    let messages = strace.stderr.take().context("strace has no stderr")?;
    let mut messages = BufReader::new(messages).lines();
    let mut told = Vec::new();
    while told.iter().filter(|line: &&String| line.contains(" attached")).count() < pids.len() {
        let line = messages.next().with_context(|| format!("strace did not attach: {told:?}"))?;
        told.push(line?);
    }

    let worked = work();
    signal(strace.id(), Signal::INT);
    // It writes what it detaches from: read on, or it waits.
    messages.for_each(drop);
    strace.wait()?;
    worked?;
    let text = fs::read_to_string(summary.path())?;
    let total = text.lines().find(|line| line.trim_end().ends_with(" total"));
    field(total.with_context(|| format!("strace counted nothing: {text}"))?, 3)
}

/// The number at `place` of a line of words.
fn field(line: &str, place: usize) -> Result<u64> {
    let word = line.split_whitespace().nth(place);
    word.and_then(|word| word.parse().ok()).with_context(|| format!("no number {place} in: {line}"))
}
