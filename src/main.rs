//! The binary: arguments in, exit code out. The only reader of the process's environment.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[expect(clippy::disallowed_methods, reason = "here is where it is read")]
fn main() -> ExitCode {
    let variables = |name: &str| std::env::var(name).ok();
    tidegate::cli::run_with(std::env::args_os(), &variables, &mut std::io::stdout()).into()
}
