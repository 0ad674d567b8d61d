//! The measurements. Each starts a new contestant and drives one scenario. Those over TLS, HTTP/2
//! and tunnels are in `protocols`, curves of latency and memory in `curves`.

mod curves;
mod protocols;

use std::{
    cell::OnceCell,
    fs,
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use testkit::load::{IdleConnections, Load, Origin, Tally};

pub(crate) use self::curves::LoadSteps;
use crate::{
    contestant::{Contestant, Program, RunMode, signal},
    h2load::H2load,
    origins::Origins,
    scenario::{ClientProtocol, Limit, Scenario, Work},
};

/// Number of requests that open the connections, fill the pools and warm the caches.
const WARM_UP: u64 = 2_000;
/// Timeout of a run; counting under valgrind is the slowest.
const RUN_TIMEOUT: Duration = Duration::from_mins(3);
/// Number of connections while callgrind counts.
const COUNTED_CONNECTIONS: usize = 4;
/// Pause after the load, in which a process can finish background work.
const SETTLE_TIME: Duration = Duration::from_millis(500);
/// Number of responses of another status that a refusing run may have: the first of a tiny quota,
/// and one more per minute.
const MAX_ADMITTED: u64 = 8;

/// A measured quantity, which is a kind of row in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metric {
    /// CPU time per request, user and system, in µs.
    Cpu,
    /// User CPU time per request, in µs.
    User,
    /// Requests per second; only informative, because the load generator shares the machine.
    Rate,
    /// Bytes of bodies or messages per second, in MiB; only informative.
    Throughput,
    /// System calls per request.
    Syscalls { connections: usize },
    /// System calls that send, to clients and upstreams, per request.
    Writes,
    /// User instructions per request.
    Instructions,
    /// Calls of an allocator per request.
    Allocations,
    /// Memory of one idle connection or tunnel, in KiB.
    Memory(History),
    /// The 99th percentile of the request duration, in ms, at a percentage of nginx' saturation.
    Tail { percent: u8 },
    /// Requests per second in a closed loop, which [`Metric::Load`] refers to.
    Saturation,
    /// The 99th percentile of the request duration, in ms, at a percentage of the contestant's own
    /// saturation.
    Load { percent: u8 },
    /// Memory of the contestant with this number of idle connections, in MiB.
    Footprint { connections: usize },
}

/// What an idle connection has sent before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum History {
    /// No request.
    Silent,
    /// One request, answered before the next connection sent its own.
    OneRequest,
    /// One request, with this many requests in flight at a time.
    Burst(usize),
    /// The request for an upgrade, and one message through the tunnel.
    Tunnel,
}

/// The environment of all measurements.
pub(crate) struct Bench {
    pub(crate) origin: Origin,
    /// The upstreams of the part `protocols`, which start when they are first needed.
    pub(crate) origins: OnceCell<Origins>,
    /// Number of client connections, unless a measurement sets its own.
    pub(crate) connections: usize,
}

/// CPU time per request of one run.
pub(crate) struct CpuTime {
    /// User and system, in µs.
    pub(crate) total: f64,
    /// User, in µs.
    pub(crate) user: f64,
    /// Requests per second.
    pub(crate) rate: f64,
}

/// Request durations at a fixed rate.
pub(crate) struct TailLatency {
    /// The 99th percentile, in ms.
    pub(crate) p99: f64,
    /// The share of the time that the contestant waited for its CPU, from 0 to 1.
    pub(crate) waiting_share: f64,
}

/// CPU time of all threads of a contestant so far.
struct Usage {
    /// Time ready to run but not running, in ns, from the scheduler.
    waited: u64,
    /// Time on a CPU, user and system, in ns, from the scheduler.
    nanos: u64,
    /// User time in clock ticks.
    user_ticks: u64,
    /// System time in clock ticks.
    system_ticks: u64,
}

impl Bench {
    /// CPU time per request over `requests` requests, after a warm-up.
    ///
    /// The total comes from the scheduler's nanoseconds. `utime` and `stime`, in ticks, are less
    /// precise and only give the ratio of user to system time.
    pub(crate) fn cpu(
        &self,
        program: &Program,
        scenario: Scenario,
        requests: u64,
    ) -> Result<CpuTime> {
        let contestant = program.start(scenario, self.origin.address(), RunMode::Native)?;
        self.cpu_of(&contestant, scenario, requests)
    }

    /// [`Self::cpu`] of a contestant that runs.
    pub(crate) fn cpu_of(
        &self,
        contestant: &Contestant,
        scenario: Scenario,
        requests: u64,
    ) -> Result<CpuTime> {
        self.drive(contestant, scenario, self.connections, WARM_UP)?;
        let pids = contestant.pids()?;
        let before = Usage::of(&pids)?;
        let tally = self.drive(contestant, scenario, self.connections, requests)?;
        Ok(Usage::of(&pids)?.since(&before).cpu_time(requests, tally.took))
    }

    /// System calls per request: the difference of two run lengths, so that opening connections is
    /// not counted.
    pub(crate) fn syscalls(
        &self,
        program: &Program,
        scenario: Scenario,
        connections: usize,
        (short, long): (u64, u64),
    ) -> Result<f64> {
        let contestant = program.start(scenario, self.origin.address(), RunMode::Native)?;
        self.drive(&contestant, scenario, connections, WARM_UP)?;
        let traced = |requests| {
            trace(&contestant, || self.drive(&contestant, scenario, connections, requests))
        };
        Ok((traced(long)? as f64 - traced(short)? as f64) / (long - short) as f64)
    }

    /// User instructions and allocations per request, after a warm-up: the difference of two run
    /// lengths, so that opening connections is not counted.
    pub(crate) fn counts(
        &self,
        program: &Program,
        scenario: Scenario,
        (short, long): (u64, u64),
    ) -> Result<(f64, f64)> {
        let contestant = program.start(scenario, self.origin.address(), RunMode::Callgrind)?;
        let counted = |requests| {
            self.drive(&contestant, scenario, COUNTED_CONNECTIONS, requests)?;
            contestant.profile()
        };
        counted(short)?;
        let (less, more) = (counted(short)?, counted(long)?);
        let each = |more: u64, less: u64| (more as f64 - less as f64) / (long - short) as f64;
        Ok((each(more.instructions, less.instructions), each(more.allocations, less.allocations)))
    }

    /// Memory of one of `count` idle connections, in KiB: the difference from no idle connections,
    /// after a warm-up.
    pub(crate) fn memory(&self, program: &Program, history: History, count: usize) -> Result<f64> {
        let scenario = Scenario::DEFAULT;
        let contestant = program.start(scenario, self.origin.address(), RunMode::Native)?;
        self.drive(&contestant, scenario, self.connections, WARM_UP)?;
        thread::sleep(SETTLE_TIME);
        let before = contestant.memory()?;
        let concurrency = match history {
            History::Silent => 0,
            History::OneRequest | History::Tunnel => 1,
            History::Burst(concurrency) => concurrency,
        };
        let forwarded = self.origin.answered();
        let idle = IdleConnections::open(contestant.address(), count, concurrency)
            .with_context(|| contestant.logs())?;
        let forwarded = self.origin.answered() - forwarded;
        let expected = if concurrency == 0 { 0 } else { count as u64 };
        ensure!(forwarded == expected, "{forwarded} of {expected} requests reached the upstream");
        contestant.wait_for_files(idle.count())?;
        thread::sleep(SETTLE_TIME);
        Ok((contestant.memory()? as f64 - before as f64) / idle.count() as f64)
    }

    /// The 99th percentile of the request duration at `rate` requests per second.
    pub(crate) fn tail(
        &self,
        program: &Program,
        scenario: Scenario,
        rate: f64,
        requests: u64,
    ) -> Result<TailLatency> {
        let contestant = program.start(scenario, self.origin.address(), RunMode::Native)?;
        self.drive(&contestant, scenario, self.connections, WARM_UP)?;
        let pids = contestant.pids()?;
        let (before, start) = (Usage::of(&pids)?, Instant::now());
        let p99 = self.p99_at(&contestant, rate, requests)?;
        let waited = (Usage::of(&pids)?.waited - before.waited) as f64;
        let waiting_share = waited / start.elapsed().as_nanos() as f64;
        Ok(TailLatency { p99, waiting_share })
    }

    /// The 99th percentile of the request duration in ms, with `requests` at `rate` a second. A
    /// duration counts from the time at which the request was due.
    fn p99_at(&self, contestant: &Contestant, rate: f64, requests: u64) -> Result<f64> {
        let (target, connections) = (contestant.address(), self.connections);
        let load = Load { target, connections, requests, within: RUN_TIMEOUT };
        let forwarded = self.origin.answered();
        let took = load.run_at(rate).with_context(|| contestant.logs())?;
        let forwarded = self.origin.answered() - forwarded;
        ensure!(forwarded == requests, "{forwarded} of {requests} requests reached the upstream");
        let index = took.len() * 99 / 100;
        let tail = took.get(index).context("no responses")?;
        Ok(tail.as_secs_f64() * 1e3)
    }

    /// Sends `requests` and checks that the contestant did the work of the scenario.
    fn drive(
        &self,
        contestant: &Contestant,
        scenario: Scenario,
        connections: usize,
        requests: u64,
    ) -> Result<Tally> {
        self.checked(contestant, scenario, requests, || {
            let (target, within) = (contestant.address(), RUN_TIMEOUT);
            let is_page = matches!(scenario.work, Work::Page | Work::Gzip | Work::Zstd);
            match scenario.protocol {
                ClientProtocol::Http1 if !is_page => {
                    Load { target, connections, requests, within }.run()
                }
                _ => H2load { scenario, target, connections, requests, within }.run(),
            }
        })
    }

    /// Runs `drive`, which sends `requests`, and checks that the contestant did the work of the
    /// scenario.
    fn checked(
        &self,
        contestant: &Contestant,
        scenario: Scenario,
        requests: u64,
        drive: impl FnOnce() -> Result<Tally>,
    ) -> Result<Tally> {
        let forwarded = self.answered(scenario.work);
        let tally = drive().with_context(|| format!("{scenario}{}", contestant.logs()))?;
        let forwarded = self.answered(scenario.work) - forwarded;

        let matching = tally.statuses.get(&scenario.status()).copied().unwrap_or_default();
        let others = if scenario.limit == Limit::Refusing { MAX_ADMITTED } else { 0 };
        ensure!(
            matching + others >= requests,
            "{scenario}: statuses {:?}{}",
            tally.statuses,
            contestant.logs()
        );
        let answered = tally.statuses.get(&200).copied().unwrap_or_default();
        ensure!(
            forwarded == answered,
            "{scenario}: {forwarded} requests reached the upstream, {answered} responses were received"
        );
        Ok(tally)
    }
}

impl Usage {
    /// What was used since `earlier`.
    fn since(&self, earlier: &Self) -> Self {
        Self {
            waited: self.waited - earlier.waited,
            nanos: self.nanos - earlier.nanos,
            user_ticks: self.user_ticks - earlier.user_ticks,
            system_ticks: self.system_ticks - earlier.system_ticks,
        }
    }

    /// The share of one of `requests`.
    fn cpu_time(&self, requests: u64, took: Duration) -> CpuTime {
        let total = self.nanos as f64 / 1e3 / requests as f64;
        let (user, system) = (self.user_ticks as f64, self.system_ticks as f64);
        CpuTime {
            total,
            user: total * user / (user + system).max(1.0),
            rate: requests as f64 / took.as_secs_f64(),
        }
    }

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

/// Runs `work` while strace counts the system calls of the contestant.
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
    let mut output = Vec::new();
    while output.iter().filter(|line: &&String| line.contains(" attached")).count() < pids.len() {
        let line = messages.next().with_context(|| format!("strace did not attach: {output:?}"))?;
        output.push(line?);
    }

    let worked = work();
    signal(strace.id(), Signal::INT);
    // It logs each detach: read its output, or it blocks.
    messages.for_each(drop);
    strace.wait()?;
    worked?;
    let text = fs::read_to_string(summary.path())?;
    let total = text.lines().find(|line| line.trim_end().ends_with(" total"));
    field(total.with_context(|| format!("strace counted nothing: {text}"))?, 3)
}

/// The number at `index`, from 0, in a line of words.
fn field(line: &str, index: usize) -> Result<u64> {
    let word = line.split_whitespace().nth(index);
    word.and_then(|word| word.parse().ok()).with_context(|| format!("no number {index} in: {line}"))
}
