//! The gateway under abuse, its upstreams, and its memory and open files.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::{Command, ExitStatus},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow};
use memchr::memmem;
use rustix::{process::setpriority_process, thread::gettid};
use socket2::SockRef;
use tempfile::TempDir;
use testkit::{
    load::cpu,
    port::free_address,
    tls::{Authority, Identity},
    upstream::Upstream,
};

use crate::{
    configuration::CERTIFICATE_FILES,
    contestant::{Contestant, Program},
};

/// The timeouts of the gateway: short, so that a run sees every connection closed.
pub(super) const TIMEOUT: Duration = Duration::from_secs(4);
/// Length of a response that is not read, in bytes: more than a kernel buffers for a connection.
const LARGE: usize = 4 << 20;
/// A part of that response.
static CHUNK: [u8; 64 * 1024] = [b'x'; 64 * 1024];
/// Length of a response to an ordinary client, in bytes.
pub(super) const SHORT: usize = 100;

/// A gateway with the default configuration, except for its timeouts, and with one worker.
pub(super) struct Target {
    contestant: Contestant,
    /// The listener for HTTP/1.1 and HTTP/2 in clear.
    pub(super) clear: SocketAddr,
    /// The listener for TLS.
    pub(super) tls: SocketAddr,
}

impl Target {
    pub(super) fn start(program: &Program) -> Result<Self> {
        let ordinary = in_thread(on_load_cpu, || Upstream::on_connection(answer))?;
        let attacked = in_thread(as_attacker, || Upstream::on_connection(delay))?;
        let (clear, tls) = (free_address(), free_address());
        let directory = TempDir::with_prefix("side_by_side-")?;
        let Identity { cert, key } = Authority::new("side_by_side").issue(&["localhost"]);
        let [cert_file, key_file, _] = CERTIFICATE_FILES;
        fs::write(directory.path().join(cert_file), cert)?;
        fs::write(directory.path().join(key_file), key)?;
        let timeout = TIMEOUT.as_secs();
        let configuration = format!(
            "listen:
  - {{address: \"{clear}\", http2: true}}
  - {{address: \"{tls}\", tls: {{certificates: [{{cert: {cert_file}, key: {key_file}}}]}}}}
workers: 1
access_log: ./access.log
http: {{head_timeout: {timeout}s, idle_timeout: {timeout}s, body_timeout: {timeout}s}}
upstreams:
  ordinary: {{targets: [\"{}\"]}}
  attacked: {{targets: [\"{}\"]}}
routes:
  - {{name: items, match: {{path: \"/items/{{id}}\"}}, upstream: ordinary}}
  - name: all
    match: {{path: \"/{{*rest}}\"}}
    upstream: attacked
    request_timeout: {timeout}s
",
            ordinary.target(),
            attacked.target()
        );
        let contestant = program.start_configured(directory, clear, &configuration)?;
        Ok(Self { contestant, clear, tls })
    }

    /// Its resident memory, in KiB.
    pub(super) fn memory(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.contestant.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let size = line.and_then(|line| line.split_whitespace().next()).context("no VmRSS")?;
        Ok(size.parse()?)
    }

    /// The number of its open files, of which each connection is one.
    pub(super) fn files(&self) -> Result<usize> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.contestant.pid()))?.count())
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.contestant.pid()
    }

    /// The last lines of its logs, for error messages.
    pub(super) fn logs(&self) -> String {
        self.contestant.logs()
    }
}

/// The calling thread shares the load's CPU and gets what is left of it.
pub(super) fn as_attacker() {
    cpu::pin(cpu::LOAD_CPU);
    if let Err(error) = setpriority_process(None, 19) {
        eprintln!("the attacker has the priority of the other client: {error}");
    }
}

/// The calling thread runs on the load's CPU, before all others: the scheduler lets even a thread
/// of the lowest priority finish its slice of some ms, which would be measured.
pub(super) fn on_load_cpu() {
    cpu::pin(cpu::LOAD_CPU);
    let thread = gettid().to_string();
    let set = Command::new("chrt").args(["--rr", "--pid", "1", &thread]).status();
    if !set.as_ref().is_ok_and(ExitStatus::success) {
        eprintln!("the other client has no real-time priority: {set:?}");
    }
}

/// Starts an upstream, whose threads inherit what `prepare` sets.
fn in_thread(prepare: fn(), start: fn() -> Upstream) -> Result<Upstream> {
    let thread = thread::spawn(move || {
        prepare();
        start()
    });
    thread.join().map_err(|_| anyhow!("an upstream did not start"))
}

/// Answers each request at once.
fn answer(socket: &mut TcpStream) {
    let response =
        [format!("HTTP/1.1 200 OK\r\nContent-Length: {SHORT}\r\n\r\n"), "x".repeat(SHORT)];
    let response = response.concat();
    while read_head(socket).is_some() && socket.write_all(response.as_bytes()).is_ok() {}
}

/// Answers a request for `/large` with a long body, and others never.
fn delay(socket: &mut TcpStream) {
    let Some(head) = read_head(socket) else { return };
    // The memory of its sockets is that of another machine.
    let _ = SockRef::from(&*socket).set_send_buffer_size(CHUNK.len());
    if head.starts_with(b"GET /large ") {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n");
        let mut written = socket.write_all(head.as_bytes());
        for _ in 0..LARGE / CHUNK.len() {
            // The gateway may have closed the connection.
            written = written.and_then(|()| socket.write_all(&CHUNK));
        }
    }
    let mut chunk = [0; 4096];
    while socket.read(&mut chunk).is_ok_and(|count| count > 0) {}
}

/// Reads a request's head, and perhaps a part of its body; `None` at the end.
fn read_head(socket: &mut TcpStream) -> Option<Vec<u8>> {
    let (mut received, mut chunk) = (Vec::new(), [0; 4096]);
    while memmem::find(&received, b"\r\n\r\n").is_none() {
        let count = socket.read(&mut chunk).ok().filter(|count| *count > 0)?;
        received.extend_from_slice(&chunk[..count]);
    }
    Some(received)
}
