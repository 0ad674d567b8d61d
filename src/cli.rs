//! One file a command: what a person types and what the process answers.
//!
//! Results go to the output, logs and complaints to standard error.

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

use clap::{CommandFactory, Parser, Subcommand};

use crate::config::{Config, Variables};
use crate::snapshot::{LoadError, Snapshot};
use crate::telemetry;

/// How a command ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Exit {
    /// It did what it was asked for: 0.
    Ok,
    /// The configuration, or another input, is faulty: 1.
    BadInput,
    /// The arguments make no sense: 2.
    Usage,
    /// Something broke that was not the user's doing: 70.
    Internal,
}

impl Exit {
    /// The process's exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::BadInput => 1,
            Self::Usage => 2,
            Self::Internal => 70,
        }
    }

    /// How a command ends whose configuration cannot be used.
    fn of(error: &LoadError) -> Self {
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

/// An HTTP reverse proxy and API gateway with throttling built in.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: Serve,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway (what happens without a command, too).
    Serve(Serve),
    /// Read a configuration and tell every fault in it.
    Check(File),
    /// Tell what would become of a request: its route, its limits and keys, and what is forwarded.
    Explain(explain::Explain),
    /// Run a recorded access log through the limits: who would have been refused, by which, and when.
    Replay(replay::Replay),
    /// Print the configuration's JSON Schema, which editors complete from.
    Schema,
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(clap::Args, Debug)]
struct Serve {
    #[command(flatten)]
    file: File,
    /// What the process's own log tells: error, warn, info, debug, or such as tidegate=debug.
    #[arg(long, value_name = "FILTER", default_value = "info", value_parser = filter)]
    log: String,
}

#[derive(clap::Args, Debug)]
struct File {
    /// The configuration.
    #[arg(long, short, value_name = "FILE", default_value = "config/tidegate.yaml")]
    config: PathBuf,
}

/// Takes a log's filter over if there is any sense in it.
fn filter(text: &str) -> Result<String, String> {
    match telemetry::filter(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!(
            "{error}; expected error, warn, info, debug or trace, or such as tidegate=debug"
        )),
    }
}

/// Runs what `arguments` (the program's name first) ask for, and writes its result to `out`.
pub fn run<A: Into<OsString> + Clone>(
    arguments: impl IntoIterator<Item = A>,
    out: &mut dyn Write,
) -> Exit {
    run_with(arguments, &|_| None, out)
}

/// The same where secrets may be in `variables` of the environment.
pub fn run_with<A: Into<OsString> + Clone>(
    arguments: impl IntoIterator<Item = A>,
    variables: Variables<'_>,
    out: &mut dyn Write,
) -> Exit {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(message) if message.use_stderr() => {
            // There is nobody left to tell when even this cannot be written.
            let _ = message.print();
            return Exit::Usage;
        }
        Err(message) => return written(write!(out, "{message}"), Exit::Ok),
    };
    match arguments.command.unwrap_or(Command::Serve(arguments.serve)) {
        Command::Serve(serve) => serve::run(&serve.file.config, &serve.log, variables),
        Command::Check(file) => check::run(&file.config, variables, out),
        Command::Explain(explain) => explain::run(&explain, out),
        Command::Replay(replay) => replay::run(&replay, out),
        Command::Schema => schema::run(out),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "tidegate", &mut script);
            written(out.write_all(&script), Exit::Ok)
        }
    }
}

/// The rules of a configuration; tells its faults where it has any.
fn rules(path: &Path) -> Result<(Config, Snapshot), Exit> {
    let loaded = Snapshot::load(path).map(|(loaded, snapshot)| (loaded.config, snapshot));
    loaded.map_err(|error| {
        complain(&error);
        Exit::of(&error)
    })
}

/// Tells a person what is wrong with what they gave, if they are still there.
fn complain(fault: &dyn Display) -> Exit {
    let _ = writeln!(io::stderr(), "{fault}");
    Exit::BadInput
}

/// `exit`, unless the result could not be written. A reader that has seen enough is no failure.
fn written(result: io::Result<()>, exit: Exit) -> Exit {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Exit::Internal,
        _ => exit,
    }
}
