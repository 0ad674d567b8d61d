//! A gateway in the test's process: the real server on free ports, its configuration in a temporary
//! directory.

use std::{
    fs,
    net::SocketAddr,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tidegate::clock::ms;
use tidegate::{
    admin::BoundAddress,
    clock::{Clock, instant},
    server::Server,
};

use crate::{
    protocol,
    redis_server::RedisServer,
    wait::{TIMEOUT, eventually, sleep},
    yaml::without_indentation,
};

/// Waits until the gateways have reported to `redis`, which empties their deny caches, and moves a
/// manual clock by 1 ms, because replies to calls in the same ms are not cached.
pub fn wait_for_first_reports(redis: &RedisServer, gateways: &[&Gateway]) {
    eventually("the gateways report to Redis", || {
        let reported: usize = redis.command(&["ZCARD", "tidegate:gateways"]);
        reported == gateways.len()
    });
    for gateway in gateways {
        // The thread that answers also reads the reply to the report, which has arrived by now.
        gateway.barrier();
    }
    let Some(gateway) = gateways.first() else { return };
    gateway.clock.set(gateway.clock.store_time() + ms(1));
}

/// Step by which [`Gateway::while_time_passes`] advances a simulated clock.
const STEP: Duration = Duration::from_millis(20);

/// Interval at which workers compare deadlines with the clock.
const TICK: Duration = Duration::from_millis(100);

/// A running gateway. Dropping it drains it and waits for its threads.
pub struct Gateway {
    /// The server, for operations without a method here.
    pub server: Server,
    /// Its clock; all clones move together.
    pub clock: Clock,
    file: PathBuf,
    /// The key `listen` of a configuration that has none.
    listen: String,
    _directory: TempDir,
}

impl Gateway {
    /// Starts `yaml` on the system's clock. Absent `listen`, `admin`, `workers`, `access_log` and
    /// `drain_timeout` are filled in: free ports, two workers, no log, 2 s.
    ///
    /// Panics if it does not start; the message holds every fault.
    pub fn start(yaml: &str) -> Self {
        Self::start_at(yaml, Clock::system())
    }

    /// [`Self::start`] on the given clock.
    pub fn start_at(yaml: &str, clock: Clock) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let listen = "listen: [{address: \"127.0.0.1:0\"}]\n".to_owned();
        Self::start_in(directory, yaml, listen, clock)
    }

    /// [`Self::start`] with a plain listener and one with TLS, both for HTTP/1.1 and HTTP/2: for
    /// clients of every [`Protocol`](crate::protocol::Protocol).
    pub fn for_every_protocol(yaml: &str) -> Self {
        Self::for_every_protocol_at(yaml, Clock::system())
    }

    /// [`Self::for_every_protocol`] on the given clock.
    pub fn for_every_protocol_at(yaml: &str, clock: Clock) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let listen = protocol::listen(directory.path());
        Self::start_in(directory, yaml, listen, clock)
    }

    fn start_in(directory: TempDir, yaml: &str, listen: String, clock: Clock) -> Self {
        let file = directory.path().join("tidegate.yaml");
        fs::write(&file, with_defaults(yaml, &listen)).expect("a file");
        let started = Server::builder(clock.clone()).start_file(&file);
        let server = started.unwrap_or_else(|error| panic!("{error}"));
        Self { server, clock, file, listen, _directory: directory }
    }

    /// Runs `action` while time passes. Returns its value, and the time passed by the gateway's
    /// clock. A simulated clock advances in steps of 20 ms, each as soon as the workers have done
    /// the work of the previous one, so seconds of deadlines take milliseconds.
    pub fn while_time_passes<T>(&self, action: impl FnOnce() -> T) -> (T, Duration) {
        self.while_time_passes_until(Duration::MAX, action)
    }

    /// [`Self::while_time_passes`]; a simulated clock stops after `limit`.
    fn while_time_passes_until<T>(
        &self,
        limit: Duration,
        action: impl FnOnce() -> T,
    ) -> (T, Duration) {
        let start = self.clock.uptime();
        let passed = || self.clock.uptime().saturating_sub(start);
        let is_over = AtomicBool::new(!self.clock.is_simulated());
        let value = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) && passed() < limit {
                    self.clock.advance(STEP);
                    sleep(STEP / 20);
                }
            });
            // Ends the thread even if `action` panics.
            let _end = OnDrop(|| is_over.store(true, Ordering::Release));
            action()
        });
        (value, passed())
    }

    /// Asserts that a timeout of `timeout` ends `action` by a simulated clock: never before it, and
    /// at most two ticks after it. Send the bytes that start the timeout before the call: the clock
    /// stands still until the gateway has read them.
    ///
    /// The clock stops at the upper bound: an action that needs more time fails by its own timeout,
    /// and a busy machine does not make it look late.
    pub fn assert_times_out<T>(&self, timeout: Duration, action: impl FnOnce() -> T) -> T {
        assert!(self.clock.is_simulated(), "real time has no such bounds");
        // Real time: the bytes are on their way to a worker's thread.
        sleep(Duration::from_millis(20));
        let (value, took) = self.while_time_passes_until(timeout + 2 * TICK, action);
        assert!(took >= timeout, "ended after {took:?}, before its timeout of {timeout:?}");
        value
    }

    /// Drains the gateway and waits for its threads. Returns how long that took by its clock.
    pub fn stop(&self) -> Duration {
        self.while_time_passes(|| self.server.stop()).1
    }

    /// The first listener's address.
    pub fn address(&self) -> SocketAddr {
        self.server.addresses[0]
    }

    /// The admin listener's address.
    pub fn admin(&self) -> SocketAddr {
        match &self.server.admin {
            Some(BoundAddress::Tcp(address)) => *address,
            other => panic!("the admin listener is {other:?}"),
        }
    }

    /// Waits until the gateway has processed all input that reached it before this call. It sends
    /// two requests to the admin port; the second begins in a later turn of its thread than the
    /// first.
    pub fn barrier(&self) {
        self.metric("");
        self.metric("");
    }

    /// The sum of the metrics whose lines start with `prefix`, such as `name{label="x"`.
    pub fn metric(&self, prefix: &str) -> u64 {
        let text = crate::client::get(self.admin(), "/metrics", "Connection: close\r\n").text();
        let lines = text.lines().filter(|line| line.starts_with(prefix));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    /// Waits until the sum of the metrics that start with `prefix` is `expected`.
    pub fn wait_for_metric(&self, prefix: &str, expected: u64) {
        let start: Instant = instant();
        loop {
            let value = self.metric(prefix);
            if value == expected {
                return;
            }
            assert!(start.elapsed() < TIMEOUT, "{prefix} is {value}, not {expected}");
            sleep(Duration::from_millis(5));
        }
    }

    /// Replaces the configuration file, with defaults as at the start. Does not reload it;
    /// the file watcher may.
    pub fn write_configuration(&self, yaml: &str) {
        fs::write(&self.file, with_defaults(yaml, &self.listen)).expect("a file");
    }

    /// Replaces the configuration file and reloads it; returns the configuration's generation.
    ///
    /// # Errors
    ///
    /// The faults of `yaml`.
    pub fn reload(&self, yaml: &str) -> Result<u64, String> {
        self.write_configuration(yaml);
        self.server.reloader.reload_blocking().map_err(|error| error.to_string())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Calls a function when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Adds the keys that `yaml` lacks.
fn with_defaults(yaml: &str, listen: &str) -> String {
    let yaml = without_indentation(yaml);
    let mut text = String::new();
    for (key, line) in [
        ("listen:", listen),
        ("admin:", "admin: {address: \"127.0.0.1:0\", hosts: [gateway.test]}\n"),
        ("workers:", "workers: 2\n"),
        ("access_log:", "access_log: off\n"),
        ("drain_timeout:", "drain_timeout: 2s\n"),
    ] {
        if !yaml.lines().any(|present| present.starts_with(key)) {
            text.push_str(line);
        }
    }
    text + &yaml
}
