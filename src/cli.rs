//! The command line. Results go to the given output (standard output), errors and the process log
//! to standard error.
//!
//! | file | content |
//! |---|---|
//! | `serve` | runs the gateway |
//! | `proxy` | runs the gateway without a configuration file |
//! | `health` | asks a running gateway for its health |
//! | `acme` | shows and renews the certificates that a gateway orders |
//! | `init` | writes a commented configuration |
//! | `check` | validates a configuration and prints what it does |
//! | `explain` | prints the decisions on one request |
//! | `replay` | prints the decisions on the requests of an access log |
//! | `import` | turns the configuration of another program into one of Tidegate |
//! | `key` | makes API keys, and checks them |
//! | `hash` | prints the hash of a caller, as in the access log |
//! | `schema` | prints the configuration's JSON Schema |
//! | `config_file` | finds the configuration of a command |
//! | `duration` | durations as values of arguments |
//! | `addresses` | prints the listening addresses on a terminal |
//! | `notify` | reports the state of the process to a service manager |
//! | `tips` | suggests the command for one that another gateway has |
//!
//! ```
//! use tidegate::cli::{self, Exit};
//!
//! let mut out = Vec::new();
//! assert_eq!(cli::run(["tidegate", "schema"], &mut out), Exit::Ok);
//! assert!(String::from_utf8(out).unwrap().contains("The configuration of a Tidegate gateway."));
//! ```

mod acme;
mod addresses;
mod check;
mod config_file;
mod duration;
mod explain;
mod hash;
mod health;
mod import;
mod init;
mod key;
mod notify;
mod proxy;
mod replay;
mod schema;
mod serve;
#[cfg(test)]
mod tests;
mod tips;

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use listenfd::ListenFd;

use self::config_file::{ConfigFile, ConfigOption};
use crate::clock::Clock;
pub use crate::config::Environment;
use crate::config::{Config, EnvLookup};
pub use crate::handover::listen_fds;
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
    /// `health` found that the gateway is not ready, or does not respond: 1.
    NotReady,
    /// An internal error: 70 (`EX_SOFTWARE` of sysexits).
    Internal,
}

impl Exit {
    /// The exit code of the process.
    pub fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::BadInput | Self::NotReady => 1,
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
    config: ConfigOption,
    #[command(flatten)]
    log: LogOption,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway (the default command).
    Serve(ServeArgs),
    /// Run the gateway without a configuration file; prints the configuration that it runs on.
    Proxy(proxy::ProxyArgs),
    /// Write a commented configuration, and its schema for editors.
    Init(init::InitArgs),
    /// Check a configuration and print every fault in it.
    Check(ConfigFile),
    /// Print what would happen to a request: its route, limits and keys, and what is forwarded.
    Explain(explain::ExplainArgs),
    /// Run a recorded access log through the limits and print what would have been refused.
    Replay(replay::ReplayArgs),
    /// Turn the configuration of another program into one of Tidegate, which is printed.
    Import(import::ImportArgs),
    /// Print the hash by which logs and the admin API name a caller; its key is read from standard
    /// input.
    Hash(hash::HashArgs),
    /// Make an API key for a consumer, or check one.
    Key(key::KeyArgs),
    /// Check that a running gateway is ready; exits with 1 if it is not.
    Health(health::HealthArgs),
    /// Show the certificates that a gateway orders by ACME, or order new ones.
    Acme(acme::AcmeArgs),
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
    #[command(flatten)]
    log: LogOption,
}

#[derive(clap::Args, Debug)]
struct LogOption {
    /// Filter of the process's own log: off, error, warn, info, debug, trace, or per module as in
    /// tidegate=debug.
    #[arg(long, value_name = "FILTER", default_value = "info", value_parser = parse_log_filter)]
    log: String,
}

/// Validates a log filter.
fn parse_log_filter(text: &str) -> Result<String, String> {
    let is_valid = telemetry::parse_filter(text).is_ok();
    let expected =
        "expected off, error, warn, info, debug, trace, or one for a module such as tidegate=debug";
    if is_valid { Ok(text.to_owned()) } else { Err(expected.to_owned()) }
}

/// The definition of the command line, for manual pages.
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Runs the command in `arguments`, which begin with the program's name, and writes its result to
/// `out`, without environment variables.
pub fn run<A: Into<OsString> + Clone>(
    arguments: impl IntoIterator<Item = A>,
    out: &mut dyn Write,
) -> Exit {
    run_with(arguments, &(Arc::new(|_: &str| None) as Environment), out)
}

/// As [`run`], with environment variables from `env`.
pub fn run_with<A: Into<OsString> + Clone>(
    arguments: impl IntoIterator<Item = A>,
    env: &Environment,
    out: &mut dyn Write,
) -> Exit {
    let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    run_process(&arguments, env, Some(ListenFd::empty()), out)
}

/// As [`run_with`], with the sockets `listen_fds` from a service manager; `None` if there are too
/// many.
pub fn run_process(
    command_line: &[OsString],
    env: &Environment,
    listen_fds: Option<ListenFd>,
    out: &mut dyn Write,
) -> Exit {
    let launch = serve::Launch { env, command_line, listen_fds };
    let arguments = match Arguments::try_parse_from(command_line) {
        Ok(arguments) => arguments,
        Err(mut message) if message.use_stderr() => {
            tips::add(&mut message);
            // If standard error cannot be written, there is no other way to report it.
            let _ = message.print();
            return Exit::Usage;
        }
        Err(message) => {
            let printed = write!(out, "{message}").and_then(|()| out.flush());
            return exit_after_write(printed, Exit::Ok);
        }
    };
    let Some(command) = arguments.command else {
        let path = arguments.config.path();
        return path.map_or_else(|exit| exit, |path| serve::run(path, &arguments.log.log, launch));
    };
    match command {
        Command::Serve(ServeArgs { file, log }) => {
            file.path().map_or_else(|exit| exit, |path| serve::run(path, &log.log, launch))
        }
        Command::Check(file) => {
            let check = |path| check::run(path, &**env, &Clock::system(), out);
            file.path().map_or_else(|exit| exit, check)
        }
        Command::Proxy(proxy) => proxy::run(&proxy, launch, out),
        Command::Init(init) => init::run(&init, out),
        Command::Explain(explain) => explain::run(&explain, &**env, out),
        Command::Replay(replay) => replay::run(&replay, &**env, out),
        Command::Import(import) => import::run(&import, out),
        Command::Hash(hash) => hash::run(&hash, &**env, &mut io::stdin().lock(), out),
        Command::Key(key) => key::run(&key, &**env, &mut io::stdin().lock(), out),
        Command::Health(health) => health::run(&health, env, out),
        Command::Acme(acme) => acme::run(&acme, env, out),
        Command::Schema => schema::run(out),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "tidegate", &mut script);
            exit_after_write(out.write_all(&script).and_then(|()| out.flush()), Exit::Ok)
        }
    }
}

/// Prints a usage error of a command, such as two arguments that exclude each other.
fn usage_error(command: &str, message: impl Display) -> Exit {
    let mut arguments = Arguments::command();
    arguments.build();
    let error = arguments
        .find_subcommand_mut(command)
        .map(|command| command.error(ErrorKind::ArgumentConflict, message));
    // If standard error cannot be written, there is no other way to report it.
    let _ = error.map(|error| error.print());
    Exit::Usage
}

/// Loads a configuration, or prints its faults.
fn load(path: &Path, env: EnvLookup<'_>) -> Result<(Config, Snapshot), Exit> {
    let loaded = Snapshot::load(path, env).map(|(loaded, snapshot)| (loaded.config, snapshot));
    loaded.map_err(|error| {
        print_error(&error);
        Exit::from_load_error(&error)
    })
}

/// Prints a fault of the input to standard error, and returns [`Exit::BadInput`]. A write error is
/// ignored.
fn print_error(fault: &dyn Display) -> Exit {
    let _ = writeln!(io::stderr(), "{fault}");
    Exit::BadInput
}

/// Returns `exit`, or [`Exit::BadInput`] with a message if the result could not be written, for
/// example on a full disk. A closed pipe, as with `head`, is not an error.
fn exit_after_write(result: io::Result<()>, exit: Exit) -> Exit {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            print_error(&format!("tidegate: cannot write the output: {error}"))
        }
        _ => exit,
    }
}
