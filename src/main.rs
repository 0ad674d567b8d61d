//! The `tidegate` binary: passes arguments, environment and standard output to [`tidegate::cli`],
//! and its exit code to the system.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[expect(clippy::disallowed_methods, reason = "the only place that reads the environment")]
fn main() -> ExitCode {
    let variables = |name: &str| std::env::var_os(name);
    tidegate::cli::run_with(std::env::args_os(), &variables, &mut std::io::stdout()).into()
}
