use std::path::Path;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Exit;
use crate::{
    clock::Clock,
    server::{Server, StartError},
    telemetry,
};

/// Runs the gateway on the configuration at `config` until it is told to stop. `log` filters the
/// process's own log, such as `info` or `tidegate=debug`.
pub(super) fn run(config: &Path, log: &str) -> Exit {
    telemetry::start(log);
    raise_file_limit();
    let server = match Server::start(config, Clock::system()) {
        Ok(server) => server,
        Err(error) => return refuse(&error),
    };
    tracing::info!(
        config = %config.display(),
        listen = ?server.addresses,
        admin = ?server.admin,
        "serving"
    );
    match wait(&server) {
        Ok(()) => {
            tracing::info!("stopping: requests in flight are finished");
            server.stop();
            tracing::info!("stopped");
            Exit::Ok
        }
        Err(error) => {
            tracing::error!(%error, "signals cannot be received");
            Exit::Internal
        }
    }
}

#[expect(clippy::print_stderr, reason = "faults are shown to a person, as they are")]
fn refuse(error: &StartError) -> Exit {
    match error {
        StartError::Faults(faults) => {
            eprintln!("{faults}");
            Exit::BadInput
        }
        StartError::Thread(_) => {
            eprintln!("tidegate: {error}");
            Exit::Internal
        }
        _ => {
            eprintln!("tidegate: {error}");
            Exit::BadInput
        }
    }
}

/// Waits for SIGTERM or SIGINT; reloads at SIGHUP.
fn wait(server: &Server) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let [mut terminate, mut interrupt, mut hangup] = signals()?;
        loop {
            tokio::select! {
                _ = terminate.recv() => return Ok(()),
                _ = interrupt.recv() => return Ok(()),
                _ = hangup.recv() => {
                    // Its outcome is logged where it is known.
                    let _ = server.reloader.reload();
                }
            }
        }
    })
}

fn signals() -> std::io::Result<[Signal; 3]> {
    Ok([
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
        signal(SignalKind::hangup())?,
    ])
}

/// Every connection is a file descriptor, two with the upstream's; the usual limit of 1024 is soft.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files cannot be raised");
    }
    let open_files = getrlimit(Resource::Nofile).current;
    tracing::info!(?open_files, "the limit of open files");
}
