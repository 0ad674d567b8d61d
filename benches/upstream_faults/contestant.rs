//! Starts the proxies, each as a child process in its own directory.

use std::{
    fmt,
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::scenario::NAME_SERVER;

/// Timeout until a proxy accepts connections.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Timeout from SIGTERM until a proxy is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// The compared proxies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gateway {
    Tidegate,
    Haproxy,
    Nginx,
}

/// An installed proxy.
pub(crate) struct Program {
    pub(crate) gateway: Gateway,
    pub(crate) path: PathBuf,
    /// The first line of its version output.
    pub(crate) version: String,
}

/// A running proxy. Dropping it stops the process.
pub(crate) struct Contestant {
    child: Child,
    address: SocketAddr,
    directory: TempDir,
}

impl Gateway {
    /// All of them, in the order of the table.
    pub(crate) const ALL: [Self; 3] = [Self::Tidegate, Self::Haproxy, Self::Nginx];
}

impl fmt::Display for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "HAProxy",
            Self::Tidegate => "Tidegate",
        })
    }
}

impl Program {
    /// Finds the program by running it with its version flag; Debian's servers may be outside the
    /// `PATH`.
    pub(crate) fn find(gateway: Gateway) -> Result<Self> {
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
            ensure!(!version.is_empty(), "{gateway} prints no version");
            return Ok(Self { gateway, path: path.into(), version });
        }
        bail!("{gateway} is not installed")
    }

    /// Starts it with the configuration that `configure` makes for its address, and waits until it
    /// accepts connections. `is_named`: it resolves names at the name server of the scenarios.
    pub(crate) fn start(
        &self,
        is_named: bool,
        configure: impl FnOnce(SocketAddr) -> String,
    ) -> Result<Contestant> {
        let directory = TempDir::with_prefix("upstream_faults-")?;
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let file = directory.path().join("proxy.conf");
        fs::write(&file, configure(address))?;
        let mut command = if is_named {
            fs::write(
                directory.path().join("resolv.conf"),
                format!("nameserver {}\n", NAME_SERVER.0),
            )?;
            let mut shell = Command::new("unshare");
            shell.args(["--map-root-user", "--mount", "sh", "-c"]);
            shell.arg("mount --bind resolv.conf /etc/resolv.conf && exec \"$@\"").arg("sh");
            shell.arg(&self.path);
            shell
        } else {
            Command::new(&self.path)
        };
        match self.gateway {
            Gateway::Nginx => command
                .arg("-p")
                .arg(directory.path())
                .arg("-c")
                .arg(&file)
                .args(["-e", "error.log"]),
            Gateway::Haproxy => command.arg("-db").arg("-f").arg(&file),
            Gateway::Tidegate => command.arg("serve").arg("--config").arg(&file),
        };
        let output = File::create(directory.path().join("output.log"))?;
        command.current_dir(directory.path()).stdin(Stdio::null());
        let child = command.stdout(output.try_clone()?).stderr(output).spawn();
        let child = child.with_context(|| format!("{} does not start", self.gateway))?;
        let mut contestant = Contestant { child, address, directory };
        contestant.wait_until_ready()?;
        Ok(contestant)
    }
}

impl Contestant {
    /// The address it listens on.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("a proxy exited at its start, {status}:\n{}", self.log());
            }
            ensure!(start.elapsed() < START_TIMEOUT, "a proxy does not listen:\n{}", self.log());
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// What it printed.
    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("output.log")).unwrap_or_default()
    }
}

impl Drop for Contestant {
    /// Sends SIGTERM, and SIGKILL after [`STOP_TIMEOUT`].
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            // An error means that the process has ended.
            let _ = kill_process(pid, Signal::TERM);
        }
        let start = Instant::now();
        while start.elapsed() < STOP_TIMEOUT {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        // It was killed: its status is meaningless.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
