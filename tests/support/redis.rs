//! A real Redis for a test: started on a free port, gone when the test is over.
#![allow(dead_code, reason = "a kit: no suite uses all of it")]

use std::{
    net::{TcpListener, UdpSocket},
    ops::Range,
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Nothing is written, but for what a primary sends to its replica, which is deleted when it is read.
const NO_DISK: [&str; 6] = ["--save", "", "--appendonly", "no", "--rdb-del-sync-files", "yes"];

/// The ports of servers. The system gives those from 32768 on to whoever connects, or listens where he
/// is put.
const PORTS: Range<u16> = 16_384..32_768;

/// A `redis-server` of this test's own. Nothing is written to disk.
pub(crate) struct RedisServer {
    port: u16,
    process: Option<Child>,
    arguments: Vec<String>,
    /// Who asks it here: `user:password`, where it asks for one.
    pub(crate) login: Option<String>,
    /// A sentinel's configuration.
    file: Option<String>,
    /// Where it runs: a replica writes down what it was sent, and no other server may find that.
    folder: Option<TempDir>,
}

impl RedisServer {
    /// Starts a server and waits until it answers.
    ///
    /// # Panics
    ///
    /// If `redis-server` is not installed, or does not come up.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same with more arguments on its command line.
    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        let mut server = Self::absent();
        server.arguments = arguments.iter().map(ToString::to_string).collect();
        server.restart();
        server
    }

    /// A port on which no server is listening yet; [`Self::restart`] starts it.
    pub(crate) fn absent() -> Self {
        let (port, arguments) = (free_port(), Vec::new());
        Self { port, process: None, arguments, login: None, file: None, folder: None }
    }

    /// The same, with arguments for when it is started.
    pub(crate) fn absent_with(arguments: &[&str]) -> Self {
        let mut server = Self::absent();
        server.arguments = arguments.iter().map(ToString::to_string).collect();
        server
    }

    /// A sentinel that is not started yet. It writes to its file.
    pub(crate) fn sentinel(file: &Path) -> Self {
        let mut server = Self::absent_with(&["--sentinel"]);
        server.file = Some(file.to_str().expect("a path").to_owned());
        server
    }

    /// The port that it listens on.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Where it listens, as a name.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Where it listens.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Starts it, empty, on the port that it had.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.spawn();
        self.answers();
    }

    /// Starts it, and does not wait until it answers.
    pub(crate) fn spawn(&mut self) {
        let port = self.port.to_string();
        let folder = self.folder.insert(TempDir::new().expect("a folder"));
        let child = Command::new("redis-server")
            .args(&self.file)
            .args(["--port", &port, "--bind", "127.0.0.1"])
            .args(if self.file.is_none() { &NO_DISK[..] } else { &[] })
            .args(&self.arguments)
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server must be installed to run this test (Debian: redis-server)");
        self.process = Some(child);
    }

    /// Waits until it answers.
    pub(crate) fn answers(&self) {
        let what = format!("redis-server answers on port {}", self.port);
        wait_until(&what, || self.try_command(&["PING"]).is_ok());
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // Already dead is as good.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Makes it hang: connections stay open and nothing is answered.
    pub(crate) fn suspend(&self) {
        self.signal(Signal::STOP);
    }

    /// Ends [`Self::suspend`].
    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().expect("a running server");
        kill_process(Pid::from_child(process), signal).expect("a signal to our own child");
    }

    /// Runs a command and gives its answer.
    pub(crate) fn command<T: redis::FromRedisValue>(&self, arguments: &[&str]) -> T {
        let value = self.try_command(arguments).expect("an answer of the test's Redis");
        redis::from_redis_value(value).expect("an answer of the expected type")
    }

    /// Runs a command; an error is an answer, too.
    pub(crate) fn try_command(&self, arguments: &[&str]) -> redis::RedisResult<redis::Value> {
        let client = redis::Client::open(
            self.login
                .as_deref()
                .map_or_else(|| self.url(), |l| format!("redis://{l}@{}", self.address())),
        )?;
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(10))?;
        let (name, rest) = arguments.split_first().expect("a command");
        redis::cmd(name).arg(rest).query(&mut connection)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port that nobody listens on, and that nobody else is given until this process ends: neither by the
/// system, nor by another process of tests.
///
/// # Panics
///
/// If there is none.
pub(crate) fn free_port() -> u16 {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let count = u32::from(PORTS.end - PORTS.start);
    // Where others begin elsewhere, few of their ports are met.
    let start = std::process::id().wrapping_mul(61) % count;
    let next = || start + GIVEN.fetch_add(1, Ordering::Relaxed);
    let mut ports = (0..count).map(|_| PORTS.start + (next() % count) as u16);
    ports.find(|&port| is_taken_by_us(port)).expect("a free port")
}

/// Takes a port if nobody listens there. Whoever wants one takes the UDP port of the same number first,
/// and keeps it: the port is his while no server listens there.
fn is_taken_by_us(port: u16) -> bool {
    let Ok(claim) = UdpSocket::bind(("127.0.0.1", port)) else { return false };
    let is_free = TcpListener::bind(("127.0.0.1", port)).is_ok();
    if is_free {
        Box::leak(Box::new(claim));
    }
    is_free
}

/// Waits until `condition` holds, for servers that come up or change their parts.
///
/// # Panics
///
/// If it does not within 30 s.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..3_000 {
        if condition() {
            return;
        }
        pause(Duration::from_millis(10));
    }
    panic!("not within 30 s: {what}");
}

#[expect(clippy::disallowed_methods, reason = "another process comes up in its own time")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}
