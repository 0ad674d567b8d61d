use std::{io, path::Path};

use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
};

use super::Exit;
use crate::{
    clock::Clock,
    config::Variables,
    server::{Server, StartError},
    telemetry,
};

/// Runs the gateway on the configuration at `config` until it is told to stop. `log` filters the
/// process's own log, such as `info` or `tidegate=debug`; `variables` may have its secrets.
pub(super) fn run(config: &Path, log: &str, variables: Variables<'_>) -> Exit {
    // Kept to the end: its last lines are written when it is dropped.
    let _process_log = match telemetry::start(log) {
        Ok(guard) => guard,
        Err(error) => return refuse(&StartError::ProcessLog(error)),
    };
    // Before anything serves: a signal that nobody waits for would end the process at once.
    let (runtime, signals) = match signals() {
        Ok(both) => both,
        Err(error) => {
            tracing::error!(%error, "signals cannot be received");
            return Exit::Internal;
        }
    };
    raise_file_limit();
    let server = match Server::start_with(config, Clock::system(), variables) {
        Ok(server) => server,
        Err(error) => return refuse(&error),
    };
    let listen: Vec<String> = server.addresses.iter().map(ToString::to_string).collect();
    let admin = server.admin.map(|address| address.to_string());
    tracing::info!(config = %config.display(), listen = listen.join(", "), admin, "serving");
    runtime.block_on(wait(&server, signals));
    tracing::info!("stopping: requests in flight are finished");
    server.stop();
    tracing::info!("stopped");
    Exit::Ok
}

#[expect(clippy::print_stderr, reason = "faults are shown to a person, as they are")]
fn refuse(error: &StartError) -> Exit {
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

/// Waits for SIGTERM or SIGINT; reloads at SIGHUP, and reopens the access log at SIGUSR1.
async fn wait(server: &Server, [mut terminate, mut interrupt, mut hangup, mut user1]: [Signal; 4]) {
    loop {
        tokio::select! {
            _ = terminate.recv() => return,
            _ = interrupt.recv() => return,
            _ = hangup.recv() => {
                // Its outcome is logged where it is known.
                let _ = server.reloader.reload();
            }
            _ = user1.recv() => server.reopen_logs(),
        }
    }
}

/// SIGTERM, SIGINT, SIGHUP and SIGUSR1, held from now on, and the runtime that they arrive on.
fn signals() -> io::Result<(Runtime, [Signal; 4])> {
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

/// Every connection is a file descriptor, two with the upstream's; the usual limit of 1024 is soft.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files cannot be raised");
    }
    let open_files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    tracing::info!(open_files, "the limit of open files");
}
