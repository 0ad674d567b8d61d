//! A gateway of a test's own: the real server on free ports, its configuration in a folder that goes
//! with it.
#![allow(dead_code, reason = "a kit: no suite uses all of it")]

use std::{
    fs,
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tidegate::{
    clock::{Clock, instant},
    server::Server,
};

use crate::wait::{PATIENCE, pause};

/// A running gateway. Dropping it drains it and waits for its threads.
pub(crate) struct Gateway {
    pub(crate) server: Server,
    file: PathBuf,
    _folder: TempDir,
}

impl Gateway {
    /// Starts `yaml` on the system's clock. What it does not say of `listen`, `admin`, `workers` and
    /// `access_log` is filled in: free ports, two workers, no log.
    ///
    /// # Panics
    ///
    /// If it does not start; the message holds every fault.
    pub(crate) fn start(yaml: &str) -> Self {
        Self::start_at(yaml, Clock::system())
    }

    /// The same on a clock that the test moves.
    pub(crate) fn start_at(yaml: &str, clock: Clock) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("tidegate.yaml");
        fs::write(&file, complete(yaml)).expect("a file");
        let server = Server::start(&file, clock).unwrap_or_else(|error| panic!("{error}"));
        Self { server, file, _folder: folder }
    }

    /// Where clients connect.
    pub(crate) fn address(&self) -> SocketAddr {
        self.server.addresses[0]
    }

    /// Where the operator connects.
    pub(crate) fn admin(&self) -> SocketAddr {
        self.server.admin.expect("an admin listener")
    }

    /// The sum of the metrics whose lines start with `prefix`, such as `name{label="x"`.
    pub(crate) fn metric(&self, prefix: &str) -> u64 {
        let text = crate::client::get(self.admin(), "/metrics", "Connection: close\r\n").text();
        let lines = text.lines().filter(|line| line.starts_with(prefix));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    /// Waits until the sum of the metrics that start with `prefix` is `wanted`.
    ///
    /// # Panics
    ///
    /// If it has not become so for long.
    pub(crate) fn wait_for(&self, prefix: &str, wanted: u64) {
        let start: Instant = instant();
        loop {
            let seen = self.metric(prefix);
            if seen == wanted {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{prefix} is {seen}, not {wanted}");
            pause(Duration::from_millis(5));
        }
    }

    /// Puts `yaml` in the configuration's place, completed as at the start. The watcher will see it.
    pub(crate) fn rewrite(&self, yaml: &str) {
        fs::write(&self.file, complete(yaml)).expect("a file");
    }

    /// Puts `yaml` in place and reloads at once; `Err` holds the faults.
    pub(crate) fn reload(&self, yaml: &str) -> Result<u64, String> {
        self.rewrite(yaml);
        self.server.reloader.reload().map_err(|faults| faults.to_string())
    }
}

fn complete(yaml: &str) -> String {
    let mut text = String::new();
    for (key, line) in [
        ("listen:", "listen: [{address: \"127.0.0.1:0\"}]\n"),
        ("admin:", "admin: {address: \"127.0.0.1:0\", hosts: [gateway.test]}\n"),
        ("workers:", "workers: 2\n"),
        ("access_log:", "access_log: off\n"),
        ("drain_timeout:", "drain_timeout: 2s\n"),
    ] {
        if !yaml.lines().any(|own| own.starts_with(key)) {
            text.push_str(line);
        }
    }
    text + yaml
}
