//! The binary: arguments in, exit code out. The only reader of the process's environment.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tidegate::cli::run(std::env::args_os(), &mut std::io::stdout()).into()
}
