//! The `tidegate` binary: passes arguments, environment and standard output to [`tidegate::cli`],
//! and its exit code to the system.

use std::process::ExitCode;
use std::sync::Arc;

use tidegate::cli::{self, Environment};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[expect(clippy::disallowed_methods, reason = "the only place that reads the environment")]
fn main() -> ExitCode {
    let variables: Environment = Arc::new(|name: &str| std::env::var_os(name));
    // Before any thread runs, because it removes the variables.
    let listen_fds = cli::listen_fds(&*variables);
    let arguments: Vec<_> = std::env::args_os().collect();
    cli::run_process(&arguments, &variables, listen_fds, &mut std::io::stdout()).into()
}
