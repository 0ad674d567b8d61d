//! The command line: one file per command.
//!
//! Results go to the output that is passed in (standard output), errors and the process's log to standard
//! error. `serve` runs the gateway, `check` validates a configuration, `explain` shows the decisions on one
//! request, `replay` those on a recorded log, and `schema` prints the configuration's JSON Schema.
//!
//! ```
//! use tidegate::cli::{self, Exit};
//!
//! let mut out = Vec::new();
//! assert_eq!(cli::run(["tidegate", "schema"], &mut out), Exit::Ok);
//! assert!(String::from_utf8(out).unwrap().contains("The configuration of a Tidegate gateway."));
//! ```

mod check;
mod explain;
mod replay;
mod schema;
mod serve;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};

use crate::clock::Clock;
use crate::config::{Config, EnvLookup};
use crate::snapshot::{LoadError, Snapshot};
use crate::telemetry;

/// The result of a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Exit {
    /// Success: 0.
    Ok,
    /// The configuration or another input is faulty, or the output cannot be written: 1.
    BadInput,
    /// The arguments are invalid: 2.
    Usage,
    /// An internal error: 70 (`EX_SOFTWARE` of sysexits).
    Internal,
}

impl Exit {
    /// The exit code of the process.
    pub fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::BadInput => 1,
            Self::Usage => 2,
            Self::Internal => 70,
        }
    }

    /// The result of a command whose configuration cannot be loaded.
    fn from_load_error(error: &LoadError) -> Self {
        match error {
            LoadError::Faults(_) => Self::BadInput,
            LoadError::Panic(_) => Self::Internal,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

/// An HTTP reverse proxy and API gateway with rate limiting built in.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway (the default command).
    Serve(ServeArgs),
    /// Check a configuration and print every fault in it.
    Check(ConfigFile),
    /// Print what would happen to a request: its route, limits and keys, and what is forwarded.
    Explain(explain::ExplainArgs),
    /// Run a recorded access log through the limits and print what would have been refused.
    Replay(replay::ReplayArgs),
    /// Print the JSON Schema of the configuration, for completion in editors.
    Schema,
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(clap::Args, Debug)]
struct ServeArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Filter of the process's own log: error, warn, info, debug, trace, or per module as in tidegate=debug.
    #[arg(long, value_name = "FILTER", default_value = "info", value_parser = parse_log_filter)]
    log: String,
}

#[derive(clap::Args, Debug)]
struct ConfigFile {
    /// The configuration file.
    #[arg(long, short, value_name = "FILE", default_value = "config/tidegate.yaml")]
    config: PathBuf,
}

/// Validates a log filter.
fn parse_log_filter(text: &str) -> Result<String, String> {
    let is_valid = !text.trim().is_empty() && telemetry::parse_filter(text).is_ok();
    let expected =
        "expected off, error, warn, info, debug, trace, or one for a module such as tidegate=debug";
    if is_valid { Ok(text.to_owned()) } else { Err(expected.to_owned()) }
}

/// Runs the command in `arguments`, of which the first is the program's name, and writes its result to
/// `out`. Secrets in environment variables are not available.
pub fn run<A: Into<OsString> + Clone>(
    arguments: impl IntoIterator<Item = A>,
    out: &mut dyn Write,
) -> Exit {
    run_with(arguments, &|_| None, out)
}

/// As [`run`], with environment variables for secrets from `env`.
pub fn run_with<A: Into<OsString> + Clone>(
    arguments: impl IntoIterator<Item = A>,
    env: EnvLookup<'_>,
    out: &mut dyn Write,
) -> Exit {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(mut message) if message.use_stderr() => {
            add_tip(&mut message);
            // If standard error cannot be written, there is no other way to report it.
            let _ = message.print();
            return Exit::Usage;
        }
        Err(message) => {
            let printed = write!(out, "{message}").and_then(|()| out.flush());
            return exit_after_write(printed, Exit::Ok);
        }
    };
    match arguments.command.unwrap_or(Command::Serve(arguments.serve)) {
        Command::Serve(serve) => serve::run(&serve.file.config, &serve.log, env),
        Command::Check(file) => check::run(&file.config, env, &Clock::system(), out),
        Command::Explain(explain) => explain::run(&explain, out),
        Command::Replay(replay) => replay::run(&replay, out),
        Command::Schema => schema::run(out),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "tidegate", &mut script);
            exit_after_write(out.write_all(&script).and_then(|()| out.flush()), Exit::Ok)
        }
    }
}

/// Adds a tip to the error for options that stand before a command: where they belong.
fn add_tip(message: &mut clap::Error) {
    if let Some(ContextValue::String(command)) = message.get(ContextKind::InvalidSubcommand)
        && message.kind() == ErrorKind::ArgumentConflict
    {
        let tip = format!("options stand after the command: tidegate {command} [OPTIONS]");
        message.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
}

/// Loads a configuration, or prints its faults.
fn load(path: &Path) -> Result<(Config, Snapshot), Exit> {
    let loaded = Snapshot::load(path).map(|(loaded, snapshot)| (loaded.config, snapshot));
    loaded.map_err(|error| {
        print_error(&error);
        Exit::from_load_error(&error)
    })
}

/// Prints a fault of the input to standard error, and returns [`Exit::BadInput`]. A write error is ignored.
fn print_error(fault: &dyn Display) -> Exit {
    let _ = writeln!(io::stderr(), "{fault}");
    Exit::BadInput
}

/// `exit`, or [`Exit::BadInput`] with a message if the result could not be written, as on a full disk. A
/// closed pipe, as with `head`, is not an error.
fn exit_after_write(result: io::Result<()>, exit: Exit) -> Exit {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            print_error(&format!("tidegate: cannot write the output: {error}"))
        }
        _ => exit,
    }
}
