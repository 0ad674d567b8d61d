//! Commands of other projects: their paths, their output, and a bound on their time.

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use testkit::interpreters;

/// Maximum time of a client, in seconds. Only a failing test waits that long.
const LIMIT: &str = "60";

/// The output of a command, and its exit code.
pub(crate) struct Output {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Output {
    /// Both outputs.
    pub(crate) fn text(&self) -> String {
        format!("{}\n{}", self.out, self.err)
    }

    /// Fails the test unless the command succeeded.
    pub(crate) fn succeeded(self, what: &str) -> Self {
        assert_eq!(self.code, Some(0), "{what}:\n{}", self.text());
        self
    }
}

/// The path of a command of a Debian package.
pub(crate) fn path_of(name: &str, package: &str) -> String {
    // Debian installs servers in /usr/sbin, which is not in every user's PATH.
    let find = "PATH=$PATH:/usr/sbin; command -v \"$0\"";
    let found = Command::new("sh").args(["-c", find, name]).output().expect("a shell");
    let path = String::from_utf8_lossy(&found.stdout).trim().to_owned();
    assert!(!path.is_empty(), "there is no {name}: please install Debian's package {package}");
    path
}

/// A client, which is ended after [`LIMIT`].
pub(crate) fn client(name: &str, package: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args([LIMIT, &path_of(name, package)]);
    command
}

/// A command that runs one of the `scripts`, in Python or (`.cjs`) JavaScript.
pub(crate) fn script(name: &str) -> Command {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/scripts");
    let is_javascript = Path::new(name).extension().is_some_and(|extension| extension == "cjs");
    let interpreter = if is_javascript { interpreters::node() } else { interpreters::python() };
    let mut command = Command::new("timeout");
    command.arg(LIMIT).arg(interpreter.get_program()).args(interpreter.get_args());
    for (variable, value) in interpreter.get_envs() {
        command.env(variable, value.unwrap_or_default());
    }
    command.arg(name).current_dir(directory);
    command
}

/// Runs a command without input.
pub(crate) fn run(command: &mut Command) -> Output {
    run_with(command, "")
}

/// Runs a command with this input.
pub(crate) fn run_with(command: &mut Command, input: &str) -> Output {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut pipe = child.stdin.take().expect("a pipe");
    // It may have ended already.
    let _ = pipe.write_all(input.as_bytes());
    drop(pipe);
    let output = child.wait_with_output().expect("our own child");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Output { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
}
