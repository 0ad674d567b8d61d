//! Starts and stops the contestants: one child process tree each, in a directory of its own.

use std::{
    cell::Cell,
    fmt,
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{
    profile::Profile,
    work::{self, Job, Peers, Scenario},
};

/// Until it accepts connections; valgrind needs most of it.
const READY_WITHIN: Duration = Duration::from_mins(1);
/// From SIGTERM to its end, before it is killed.
const GONE_WITHIN: Duration = Duration::from_secs(20);

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gateway {
    Nginx,
    Haproxy,
    Tidegate,
}

/// An installed contestant.
pub(crate) struct Program {
    pub(crate) gateway: Gateway,
    pub(crate) path: PathBuf,
    /// What it says of its version, one line.
    pub(crate) version: String,
    pub(crate) peers: Peers,
}

/// How it is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// As in production, with one worker.
    Native,
    /// One process, under callgrind.
    Counted,
}

/// A running contestant. Dropping it ends it.
pub(crate) struct Contestant {
    gateway: Gateway,
    child: Child,
    address: SocketAddr,
    directory: TempDir,
    /// Profiles that callgrind has written.
    dumps: Cell<u32>,
}

impl Gateway {
    /// All of them, in the order of the table.
    pub(crate) const ALL: [Self; 3] = [Self::Nginx, Self::Haproxy, Self::Tidegate];
}

impl fmt::Display for Gateway {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "HAProxy",
            Self::Tidegate => "Tidegate",
        })
    }
}

impl Program {
    /// Finds the program by asking for its version; Debian's servers may be outside the `PATH`.
    pub(crate) fn find(gateway: Gateway, peers: Peers) -> Result<Self> {
        let (candidates, flag): (&[&str], _) = match gateway {
            Gateway::Nginx => (&["nginx", "/usr/sbin/nginx"], "-v"),
            Gateway::Haproxy => (&["haproxy", "/usr/sbin/haproxy"], "-v"),
            Gateway::Tidegate => (&[env!("CARGO_BIN_EXE_tidegate")], "--version"),
        };
        for path in candidates {
            let Ok(output) = Command::new(path).arg(flag).output() else { continue };
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            let version = text.lines().next().unwrap_or_default().trim().to_owned();
            ensure!(!version.is_empty(), "{gateway} does not tell its version");
            return Ok(Self { gateway, path: path.into(), version, peers });
        }
        bail!("{gateway} is not installed")
    }

    /// Starts it on a free port and waits until it accepts connections.
    pub(crate) fn start(
        &self,
        scenario: Scenario,
        origin: SocketAddr,
        mode: Mode,
    ) -> Result<Contestant> {
        let directory = TempDir::with_prefix("side_by_side-")?;
        let address = free_address()?;
        let job = Job { scenario, listen: address, origin, peers: self.peers };
        let mut command = self.command(&job, mode, directory.path())?;
        let output = File::create(directory.path().join("output.log"))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("{} does not start", self.gateway))?;
        let mut contestant =
            Contestant { gateway: self.gateway, child, address, directory, dumps: Cell::new(0) };
        contestant.wait_until_ready()?;
        Ok(contestant)
    }

    /// Writes the configuration and says how to run it.
    fn command(&self, job: &Job, mode: Mode, directory: &Path) -> Result<Command> {
        let file = directory.join("contestant.conf");
        let counted = mode == Mode::Counted;
        fs::write(
            &file,
            match self.gateway {
                Gateway::Nginx => work::nginx(job, counted),
                Gateway::Haproxy => work::haproxy(job),
                Gateway::Tidegate => work::tidegate(job),
            },
        )?;
        let mut command = if counted {
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
            Gateway::Tidegate => command.arg("serve").arg("--config").arg(&file),
        };
        command.current_dir(directory);
        Ok(command)
    }
}

impl Contestant {
    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
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

    /// What callgrind has counted since the last call; only for [`Mode::Counted`].
    pub(crate) fn profile(&self) -> Result<Profile> {
        let number = self.dumps.get() + 1;
        let asked = Command::new("vgdb")
            .arg(format!("--pid={}", self.child.id()))
            .arg("dump")
            .stderr(Stdio::null())
            .status()
            .context("vgdb, which is a part of valgrind, does not start")?;
        ensure!(asked.success(), "callgrind wrote no profile{}", self.logs());
        self.dumps.set(number);
        let text = fs::read_to_string(self.directory.path().join(format!("counted.{number}")))?;
        Profile::read(&text).with_context(|| format!("callgrind counted nothing{}", self.logs()))
    }

    /// Memory of all its processes, in KiB; of shared pages its part.
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
                start.elapsed() < READY_WITHIN,
                "{} has {open} of {count} connections{}",
                self.gateway,
                self.logs()
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// The end of what it logged, for the message of a failure.
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
                bail!("{} ended at its start, {status}{}", self.gateway, self.logs());
            }
            ensure!(
                start.elapsed() < READY_WITHIN,
                "{} did not listen in {READY_WITHIN:?}{}",
                self.gateway,
                self.logs()
            );
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Asks it to end and waits; what is left after a while is killed.
    fn end(&mut self) {
        let pids = self.pids().unwrap_or_default();
        signal(self.child.id(), Signal::TERM);
        let start = Instant::now();
        while start.elapsed() < GONE_WITHIN {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        for pid in pids {
            signal(pid, Signal::KILL);
        }
        // It was killed: nothing is left to learn from how it ended.
        let _ = self.child.wait();
    }
}

impl Drop for Contestant {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

/// Sends a signal; the process may be gone already.
pub(crate) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        // Gone is what it shall be.
        let _ = kill_process(pid, signal);
    }
}

/// The parent of a process; `None` once it is gone.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(1)?.parse().ok()
}

/// A port of loopback that nobody listens on right now.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}
