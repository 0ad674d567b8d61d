//! Commands of other projects: where they are, what they print, and a bound on their time.

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
    sync::OnceLock,
};

/// How long a client may run, in seconds. Only a failing test waits that long.
const LIMIT: &str = "60";

/// Debian's Python, which has the packages, before another one in the `PATH`.
const PYTHONS: [&str; 2] = ["/usr/bin/python3", "python3"];

/// The modules of Python that the scripts import, each with its Debian package.
const MODULES: [(&str, &str); 4] = [
    ("websockets", "python3-websockets"),
    ("h2", "python3-h2"),
    ("wsproto", "python3-wsproto"),
    ("hypercorn", "python3-hypercorn"),
];

/// Where Debian installs the modules of Node.js; some builds of Node.js do not look there.
const NODE_MODULES: &str = "/usr/share/nodejs";

/// What a command printed, and its exit code.
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

/// The first Python that has all modules.
fn python() -> &'static str {
    static FOUND: OnceLock<&str> = OnceLock::new();
    FOUND.get_or_init(|| {
        let has = |python: &str, module: &str| {
            let import = Command::new(python).args(["-c", &format!("import {module}")]).output();
            import.is_ok_and(|output| output.status.success())
        };
        let modules = MODULES.map(|(module, _)| module).join(", ");
        let found = PYTHONS.iter().find(|python| has(python, &modules));
        *found.unwrap_or_else(|| {
            let missing = MODULES.iter().filter(|(module, _)| !has(PYTHONS[0], module));
            let packages: Vec<_> = missing.map(|(_, package)| *package).collect();
            panic!("please install Debian's packages {}", packages.join(", "))
        })
    })
}

/// The interpreter of JavaScript, once it has the module of WebSocket.
fn node() -> &'static str {
    static FOUND: OnceLock<String> = OnceLock::new();
    FOUND.get_or_init(|| {
        let node = path_of("node", "nodejs");
        let mut import = Command::new(&node);
        let import = import.env("NODE_PATH", NODE_MODULES).args(["-e", "require('ws')"]).output();
        assert!(
            import.is_ok_and(|output| output.status.success()),
            "{node} has no module ws: please install Debian's package node-ws"
        );
        node
    })
}

/// A command that runs one of the `scripts`, in Python or (`.cjs`) JavaScript.
pub(crate) fn script(name: &str) -> Command {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/scripts");
    let mut command = Command::new("timeout");
    command.arg(LIMIT).current_dir(directory);
    if Path::new(name).extension().is_some_and(|extension| extension == "cjs") {
        command.arg(node()).env("NODE_PATH", NODE_MODULES);
    } else {
        // Without compiled files in the repository.
        command.args([python(), "-B"]);
    }
    command.arg(name);
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
