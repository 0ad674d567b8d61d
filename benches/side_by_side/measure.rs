//! The three measurements. Each starts a fresh contestant and drives one scenario.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use crate::{
    contestant::{Contestant, Mode, Program, signal},
    load::{Load, Tally},
    origin::Origin,
    work::Scenario,
};

/// Requests that open the connections, fill the pools and warm the caches.
const WARM_UP: u64 = 2_000;
/// No run takes longer; counting under valgrind is the slowest.
const WITHIN: Duration = Duration::from_mins(3);
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

/// CPU time of all threads of a contestant so far.
struct Usage {
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

    /// User instructions a request: the difference of two run lengths, so that start and end do
    /// not count.
    pub(crate) fn instructions(
        &self,
        program: &Program,
        scenario: Scenario,
        (short, long): (u64, u64),
    ) -> Result<f64> {
        let counted = |requests| -> Result<u64> {
            let contestant = program.start(scenario, self.origin.address(), Mode::Counted)?;
            self.drive(&contestant, scenario, self.connections, requests)?;
            contestant.instructions()
        };
        Ok((counted(long)? as f64 - counted(short)? as f64) / (long - short) as f64)
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
        let stray = if scenario == Scenario::Refused { STRAY } else { 0 };
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
        let mut usage = Self { nanos: 0, user_ticks: 0, system_ticks: 0 };
        for pid in pids {
            for task in fs::read_dir(format!("/proc/{pid}/task"))? {
                let path = task?.path().join("schedstat");
                usage.nanos += field(&fs::read_to_string(path)?, 0)?;
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
