//! Drives a contestant over TLS or HTTP/2 with `h2load`, which is a part of nghttp2.

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    net::SocketAddr,
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use testkit::load::{Tally, cpu};

use crate::{
    origins::{GRPC_MESSAGE, PAGE},
    scenario::{Scenario, Work},
};

/// Connections of HTTP/2, and streams on each.
const HTTP2_LOAD: (usize, usize) = (8, 16);

/// The cipher suite of all connections.
const CIPHER_SUITE: &str = "TLS_AES_128_GCM_SHA256";
/// What `h2load` must print of TLS.
const TLS: [&str; 3] =
    ["TLS Protocol: TLSv1.3", "Cipher: TLS_AES_128_GCM_SHA256", "Server Temp Key: X25519"];
/// The system calls that send, for `perf`.
const WRITES: &str = "syscalls:sys_enter_write,syscalls:sys_enter_writev,\
    syscalls:sys_enter_sendto,syscalls:sys_enter_sendmsg,syscalls:sys_enter_sendmmsg";

/// Whether `h2load` is installed.
pub(crate) fn is_installed() -> bool {
    succeeds(Command::new("h2load").arg("--version"))
}

/// Whether `perf` is installed and may count system calls.
pub(crate) fn can_count_writes() -> bool {
    succeeds(Command::new("perf").args(["stat", "-e", WRITES, "true"]))
}

fn succeeds(command: &mut Command) -> bool {
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// A bounded amount of traffic: with HTTP/2 on 8 connections of 16 streams, with HTTP/1 on
/// `connections`. Each request is sent as soon as the one before it is answered. The handshakes are
/// a part of it.
pub(crate) struct H2load {
    pub(crate) scenario: Scenario,
    pub(crate) target: SocketAddr,
    pub(crate) connections: usize,
    pub(crate) requests: u64,
    /// Time limit for all responses.
    pub(crate) within: Duration,
}

impl H2load {
    /// Sends all requests and waits for all responses.
    pub(crate) fn run(&self) -> Result<Tally> {
        self.run_in(Command::new("timeout"))
    }

    /// [`Self::run`] while `perf` counts the system calls of these processes that write. Unlike
    /// `strace`, it does not slow them, so they write in groups as they otherwise do.
    pub(crate) fn count_writes(&self, pids: &[u32]) -> Result<(Tally, u64)> {
        let counts = tempfile::NamedTempFile::new()?;
        let pids: Vec<_> = pids.iter().map(ToString::to_string).collect();
        let mut perf = Command::new("perf");
        perf.args(["stat", "-x,", "-e", WRITES, "-p", &pids.join(","), "-o"]);
        perf.arg(counts.path()).args(["--", "timeout"]);
        let tally = self.run_in(perf)?;
        let text = fs::read_to_string(counts.path())?;
        let numbers = text.lines().filter(|line| line.contains("syscalls:"));
        let numbers = numbers.map(|line| line.split(',').next().unwrap_or_default().parse::<u64>());
        let numbers: Result<Vec<_>, _> = numbers.collect();
        let numbers = numbers.with_context(|| format!("perf counted nothing: {text}"))?;
        Ok((tally, numbers.iter().sum()))
    }

    /// `command` ends with `timeout`.
    fn run_in(&self, mut command: Command) -> Result<Tally> {
        let Scenario { protocol, work, .. } = self.scenario;
        let (connections, streams) =
            if protocol.is_http2() { HTTP2_LOAD } else { (self.connections, 1) };
        command.arg(self.within.as_secs().to_string()).arg("h2load");
        for (option, value) in
            [("-n", self.requests), ("-c", connections as u64), ("-m", streams as u64), ("-t", 1)]
        {
            command.arg(option).arg(value.to_string());
        }
        if protocol.is_tls() {
            command.args(["--tls13-ciphers", CIPHER_SUITE, "--groups", "X25519"]);
        }
        if !protocol.is_http2() {
            command.arg("--h1");
        }
        if let Some(encoding) = work.encoding() {
            command.arg("-H").arg(format!("accept-encoding: {encoding}"));
        }
        let mut body = tempfile::NamedTempFile::new()?;
        match work {
            Work::Upload => body.write_all(&vec![b'x'; work.bytes()])?,
            Work::Grpc => {
                body.write_all(&GRPC_MESSAGE)?;
                command.args(["-H", "content-type: application/grpc", "-H", "te: trailers"]);
            }
            _ => {}
        }
        if matches!(work, Work::Upload | Work::Grpc) {
            command.arg("-d").arg(body.path());
        }
        let scheme = if protocol.is_tls() { "https" } else { "http" };
        command.arg(format!("{scheme}://{}{}", self.target, work.path()));
        let start = Instant::now();
        let output = on_load_cpu(command)?;
        let took = start.elapsed();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "h2load: {errors}{text}");
        let is_expected = !protocol.is_tls() || TLS.iter().all(|line| text.contains(line));
        ensure!(is_expected, "another version of TLS, or other ciphers: {text}");
        if work.encoding().is_some() {
            let bytes = body_bytes(&text).with_context(|| format!("h2load: {text}"))?;
            let bytes = bytes / self.requests.max(1);
            ensure!(bytes < PAGE as u64 / 2, "{bytes} bytes a response: not compressed");
            eprintln!("{bytes} bytes a response of {PAGE}");
        }
        Ok(Tally { statuses: statuses(&text).with_context(|| format!("h2load: {text}"))?, took })
    }
}

/// The bytes of all bodies, of which `h2load` prints `traffic: ..., 1.56MB (1638400) data`.
fn body_bytes(text: &str) -> Result<u64> {
    let line = text.lines().find(|line| line.starts_with("traffic: ")).context("no traffic")?;
    let data = line.rsplit(", ").next().and_then(|data| data.split(['(', ')']).nth(1));
    Ok(data.context("no bytes of bodies")?.parse()?)
}

/// Runs `command` on the CPU of the load. A process inherits the affinity of the thread that starts
/// it.
fn on_load_cpu(mut command: Command) -> Result<Output> {
    let started = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            cpu::pin(cpu::LOAD_CPU);
            command.output()
        });
        thread.join()
    });
    started.ok().context("no thread for h2load")?.context("h2load does not start")
}

/// Responses by status, of which `h2load` prints the class:
/// `status codes: 990 2xx, 0 3xx, 10 4xx, 0 5xx`.
fn statuses(text: &str) -> Result<BTreeMap<u16, u64>> {
    let line = text.lines().find_map(|line| line.strip_prefix("status codes: "));
    let classes = line.context("no status codes")?.split(", ");
    let counts = classes.map(|class| {
        let (count, class) = class.split_once(' ').context("a class without a count")?;
        let status = match class {
            "2xx" => 200,
            "4xx" => 429,
            // Neither occurs in a run that is used.
            _ => 500,
        };
        Ok((status, count.parse::<u64>()?))
    });
    counts.collect()
}
