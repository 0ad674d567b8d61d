//! Servers and clients as child processes.

use std::{
    env, fs,
    fs::File,
    net::{SocketAddr, TcpStream},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group};
use testkit::{random::SplitMix64, wait::sleep};
use tidegate::clock;

/// Maximum time of a client, in seconds. Only a failing test waits that long.
const CLIENT_LIMIT: &str = "180";

/// Maximum time until a server accepts: some import for many seconds while all tests run.
const START_LIMIT: Duration = Duration::from_mins(2);

const HELP: &str = "run scripts/test --applications";

/// A process with its children, such as Jupyter's kernels and Apache's workers. All are killed when
/// this is dropped.
pub(crate) struct Running(Child);

impl Running {
    /// Starts a command, whose output goes to the file `output`.
    pub(crate) fn start(command: &mut Command, output: &Path) -> Self {
        let output = File::create(output).expect("a file");
        let errors = output.try_clone().expect("a file");
        command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
        let child = command.spawn().unwrap_or_else(|error| {
            panic!("cannot run {}: {error}: {HELP}", command.get_program().display())
        });
        Self(child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = Pid::from_raw(self.0.id().cast_signed()) {
            // It may have exited already.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// A server; killed when dropped.
pub(crate) struct Server {
    process: Running,
    address: SocketAddr,
    log: PathBuf,
}

impl Server {
    /// Starts a command, whose output goes to a file in `directory`, and waits until it accepts at
    /// `address`.
    pub(crate) fn start(command: &mut Command, directory: &Path, address: SocketAddr) -> Self {
        let log = directory.join(format!("{}.log", address.port()));
        let process = Running::start(command, &log);
        let mut server = Self { process, address, log };
        server.wait_until(|| TcpStream::connect(address).is_ok());
        server
    }

    fn wait_until(&mut self, is_ready: impl Fn() -> bool) {
        let start: Instant = clock::instant();
        while !is_ready() {
            let exit = self.process.0.try_wait().expect("our own child");
            let is_late = start.elapsed() > START_LIMIT;
            assert!(exit.is_none() && !is_late, "the server ended ({exit:?}):\n{}", self.output());
            sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has written.
    fn output(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// The path of a command of a Debian package.
pub(crate) fn path_of(name: &str, package: &str) -> String {
    // Debian installs servers in /usr/sbin, which is not in every user's PATH.
    let find = "PATH=$PATH:/usr/sbin; command -v \"$0\"";
    let found = Command::new("sh").args(["-c", find, name]).output().expect("a shell");
    let path = String::from_utf8_lossy(&found.stdout).trim().to_owned();
    assert!(!path.is_empty(), "there is no {name}: {HELP}, or install Debian's {package}");
    path
}

/// A client of a Debian package, which is ended after [`CLIENT_LIMIT`].
pub(crate) fn client(name: &str, package: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args([CLIENT_LIMIT, &path_of(name, package)]).env("LC_ALL", "C.UTF-8");
    // None of these goes through a proxy of the environment.
    command.env("no_proxy", "*").env("NO_PROXY", "*");
    command
}

/// Names the Python of these tests; `scripts/test` exports it. Without it, `target/applications` of
/// the checkout.
const PYTHON_VARIABLE: &str = "APPLICATIONS_PYTHON";

/// The Python with the packages of `tests/applications/requirements.txt`, without the user's own
/// modules.
pub(crate) fn python() -> Command {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    let path = FOUND.get_or_init(|| {
        let checkout =
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/applications/bin/python");
        #[expect(clippy::disallowed_methods, reason = "an input of the tests, not of the gateway")]
        let path = env::var_os(PYTHON_VARIABLE).map_or_else(checkout, PathBuf::from);
        assert!(path.exists(), "there is no {}: {HELP}", path.display());
        path
    });
    let mut command = Command::new(path);
    command.args(["-E", "-B"]).env("NO_PROXY", "*").env("no_proxy", "*");
    command
}

/// A command that runs one of the `scripts`, with `arguments`. For servers: it runs until it is
/// killed.
pub(crate) fn script(name: &str, arguments: &[&str]) -> Command {
    let mut command = python();
    command.arg(scripts().join(name)).args(arguments);
    command
}

/// The folder of the scripts in Python.
fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/applications/scripts")
}

/// Runs a client script, which prints `passed` at its end.
pub(crate) fn run_script(name: &str, arguments: &[&str]) {
    let script = script(name, arguments);
    let mut command = Command::new("timeout");
    command.arg(CLIENT_LIMIT).arg(script.get_program()).args(script.get_args());
    for (variable, value) in script.get_envs() {
        command.env(variable, value.unwrap_or_default());
    }
    let output = run(&mut command);
    assert!(output.ends_with("passed\n"), "{name} did not reach its end:\n{output}");
}

/// Runs a client, which must succeed. Returns what it has printed.
pub(crate) fn run(command: &mut Command) -> String {
    let outcome = outcome(command);
    assert!(outcome.succeeded, "{command:?}:\n{}", outcome.text);
    outcome.text
}

/// Runs a client, which must fail. Returns what it has printed.
pub(crate) fn run_failing(command: &mut Command) -> String {
    let outcome = outcome(command);
    assert!(!outcome.succeeded, "{command:?} succeeds:\n{}", outcome.text);
    outcome.text
}

/// Bytes that do not compress, the same in every run.
pub(crate) fn random_bytes(mebibytes: usize) -> Vec<u8> {
    let mut random = SplitMix64(mebibytes as u64);
    (0..mebibytes << 17).flat_map(|_| random.next_u64().to_le_bytes()).collect()
}

struct ClientOutcome {
    succeeded: bool,
    text: String,
}

fn outcome(command: &mut Command) -> ClientOutcome {
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let text = text(&output.stderr) + &text(&output.stdout);
    ClientOutcome { succeeded: output.status.success(), text }
}
