//! `tidegate serve`: starts the gateway and handles its signals.

use std::{io, path::Path};

use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
};

use super::Exit;
use crate::{
    clock::Clock,
    config::EnvLookup,
    server::{Server, StartError},
    telemetry,
};

/// Runs the gateway with the configuration at `config` until SIGTERM or SIGINT. `log` filters the process's
/// own log, such as `info` or `tidegate=debug`; `env` looks up secrets.
pub(super) fn run(config: &Path, log: &str, env: EnvLookup<'_>) -> Exit {
    // Dropped last: dropping the guard flushes the log.
    let _process_log = match telemetry::start_process_log(log) {
        Ok(guard) => guard,
        Err(error) => return report_start_error(&StartError::ProcessLog(error)),
    };
    // Installed before the gateway starts: an unhandled signal would end the process at once.
    let (runtime, signals) = match install_signal_handlers() {
        Ok(installed) => installed,
        Err(error) => {
            tracing::error!(%error, "cannot install signal handlers");
            return Exit::Internal;
        }
    };
    raise_file_limit();
    let server = match Server::start_with(config, Clock::system(), env) {
        Ok(server) => server,
        Err(error) => return report_start_error(&error),
    };
    let listen: Vec<String> = server.addresses.iter().map(ToString::to_string).collect();
    let admin = server.admin.map(|address| address.to_string());
    tracing::info!(config = %config.display(), listen = listen.join(", "), admin, "serving");
    runtime.block_on(handle_signals(&server, signals));
    tracing::info!("stopping: draining requests in flight");
    server.stop();
    tracing::info!("stopped");
    Exit::Ok
}

#[expect(
    clippy::print_stderr,
    reason = "faults are printed for the operator without a log line's format"
)]
fn report_start_error(error: &StartError) -> Exit {
    match error {
        StartError::Faults(faults) => {
            eprintln!("{faults}");
            Exit::BadInput
        }
        StartError::Panic(fault) => {
            eprintln!("{fault}");
            Exit::Internal
        }
        StartError::Thread(_) | StartError::ProcessLog(_) => {
            eprintln!("tidegate: {error}");
            Exit::Internal
        }
        _ => {
            eprintln!("tidegate: {error}");
            Exit::BadInput
        }
    }
}

/// Reloads on SIGHUP and reopens the access log on SIGUSR1; returns on SIGTERM or SIGINT.
async fn handle_signals(
    server: &Server,
    [mut terminate, mut interrupt, mut hangup, mut user1]: [Signal; 4],
) {
    loop {
        tokio::select! {
            _ = terminate.recv() => return,
            _ = interrupt.recv() => return,
            // Not awaited: a reload may take as long as the file system, and other signals must be
            // handled meanwhile. The reloader logs the result.
            _ = hangup.recv() => drop(tokio::spawn(server.reloader.clone().reload())),
            _ = user1.recv() => server.reopen_logs(),
        }
    }
}

/// Installs handlers for SIGTERM, SIGINT, SIGHUP and SIGUSR1; returns them with their runtime.
fn install_signal_handlers() -> io::Result<(Runtime, [Signal; 4])> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();
    let signals = [
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
        signal(SignalKind::hangup())?,
        signal(SignalKind::user_defined1())?,
    ];
    drop(entered);
    Ok((runtime, signals))
}

/// Raises the soft limit of open files, usually 1024, to the hard limit. A proxied request takes two file
/// descriptors: the client's and the upstream's connection.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    let open_files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    tracing::info!(open_files, "limit of open files");
}
