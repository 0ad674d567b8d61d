//! A real `redis-server` for one test, on a free port of loopback.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{port::free_port, wait::eventually};

/// No persistence. The dump that a primary sends to its replica is deleted after it is read.
const NO_DISK: [&str; 6] = ["--save", "", "--appendonly", "no", "--rdb-del-sync-files", "yes"];

/// A `redis-server` of one test; killed when dropped. It keeps its port when it is restarted.
pub struct RedisServer {
    port: u16,
    process: Option<Child>,
    arguments: Vec<String>,
    /// Credentials for [`Self::command`], as `user:password`.
    pub login: Option<String>,
    /// A sentinel's configuration file.
    config_file: Option<String>,
    /// Its own working directory: a replica stores the dump that it receives there, and no other
    /// server may load it.
    directory: Option<TempDir>,
}

impl RedisServer {
    /// Starts a server and waits until it answers. Panics if `redis-server` is not installed.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// [`Self::start`] with more command-line arguments.
    pub fn start_with(arguments: &[&str]) -> Self {
        let mut server = Self::not_started_with(arguments);
        server.restart();
        server
    }

    /// A reserved port on which no server listens; [`Self::restart`] starts one.
    pub fn not_started() -> Self {
        let (port, arguments) = (free_port(), Vec::new());
        Self { port, process: None, arguments, login: None, config_file: None, directory: None }
    }

    /// [`Self::not_started`] with command-line arguments for its start.
    pub fn not_started_with(arguments: &[&str]) -> Self {
        let mut server = Self::not_started();
        server.arguments = arguments.iter().map(ToString::to_string).collect();
        server
    }

    /// A sentinel, not started yet. It rewrites its configuration file.
    pub fn sentinel(file: &Path) -> Self {
        let mut server = Self::not_started_with(&["--sentinel"]);
        server.config_file = Some(file.to_str().expect("a path").to_owned());
        server
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address as `HOST:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Its URL, without credentials.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Starts it, empty, and waits until it answers. Kills it first if it runs.
    pub fn restart(&mut self) {
        self.kill();
        self.spawn();
        self.wait_ready();
    }

    /// Starts it without waiting.
    pub fn spawn(&mut self) {
        let port = self.port.to_string();
        let directory = self.directory.insert(TempDir::new().expect("a directory"));
        let child = Command::new("redis-server")
            .args(&self.config_file)
            .args(["--port", &port, "--bind", "127.0.0.1"])
            .args(if self.config_file.is_none() { &NO_DISK[..] } else { &[] })
            .args(&self.arguments)
            .current_dir(directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server must be installed to run this test (Debian: redis-server)");
        self.process = Some(child);
    }

    /// Waits until it answers PING.
    pub fn wait_ready(&self) {
        let what = format!("redis-server answers on port {}", self.port);
        eventually(&what, || self.try_command(&["PING"]).is_ok());
    }

    /// Kills it (SIGKILL).
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It may be dead already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Suspends it (SIGSTOP): connections stay open and nothing is answered.
    pub fn suspend(&self) {
        self.signal(Signal::STOP);
    }

    /// Ends [`Self::suspend`].
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().expect("a running server");
        kill_process(Pid::from_child(process), signal).expect("a signal to our own child");
    }

    /// The calls of scripts so far.
    pub fn script_calls(&self) -> u64 {
        let info: String = self.command(&["INFO", "commandstats"]);
        let lines = info.lines().filter(|line| line.starts_with("cmdstat_eval"));
        let calls = lines.filter_map(|line| line.split_once("calls=")?.1.split(',').next());
        calls.filter_map(|calls| calls.parse::<u64>().ok()).sum()
    }

    /// Runs a command on a connection of its own; panics if Redis returns an error.
    pub fn command<T: redis::FromRedisValue>(&self, arguments: &[&str]) -> T {
        let value = self.try_command(arguments).expect("a reply of the test's Redis");
        redis::from_redis_value(value).expect("a reply of the expected type")
    }

    /// Runs a command on a connection of its own.
    ///
    /// # Errors
    ///
    /// If Redis cannot be reached or returns an error.
    pub fn try_command(&self, arguments: &[&str]) -> redis::RedisResult<redis::Value> {
        let client = redis::Client::open(
            self.login
                .as_deref()
                .map_or_else(|| self.url(), |login| format!("redis://{login}@{}", self.address())),
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
