//! `tidegate serve`: starts the gateway, handles its signals, and hands its sockets over in an
//! upgrade.

use std::{
    ffi::OsString,
    fmt::Display,
    io::{self, Write},
    path::Path,
    thread,
    time::Duration,
};

use listenfd::ListenFd;
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
    task::JoinSet,
};

use super::{Exit, addresses, notify::Notifier};
use crate::{
    clock::{Clock, Uptime},
    config::Environment,
    handover::{self, PassedSockets, Predecessor, Successor},
    server::{Server, ServerBuilder, StartError},
    telemetry::{self, Destination, LogStyle},
};

/// Longest time for a successor to start.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(30);
/// Shortest interval in which the watchdog can require progress of each worker.
const MIN_WATCH_INTERVAL: Duration = Duration::from_millis(200);

/// What the process was started with, besides the command and its options.
pub(super) struct Launch<'a> {
    /// The environment variables.
    pub(super) env: &'a Environment,
    /// The program's name and all its arguments, for a successor.
    pub(super) command_line: &'a [OsString],
    /// The sockets from a service manager; `None` if there are too many.
    pub(super) listen_fds: Option<ListenFd>,
}

/// How the gateway ends.
enum Ending {
    /// By SIGTERM or SIGINT.
    Stopped,
    /// A successor has its listeners.
    HandedOver,
}

/// Runs the gateway with the configuration at `config` until SIGTERM or SIGINT. `log` filters the
/// process's own log, such as `info` or `tidegate=debug`.
pub(super) fn run(config: &Path, log: &str, launch: Launch<'_>) -> Exit {
    let file = config.to_owned();
    run_until_signal(log, launch, &config.display(), move |builder| builder.start_file(&file))
}

/// As [`run`], with the configuration `text`, which is called `name` in messages.
pub(super) fn run_text(name: &str, text: &str, log: &str, launch: Launch<'_>) -> Exit {
    let (own_name, text) = (name.to_owned(), text.to_owned());
    run_until_signal(log, launch, &name, move |builder| builder.start_text(&own_name, &text))
}

fn run_until_signal(
    log: &str,
    launch: Launch<'_>,
    config: &dyn Display,
    start: impl FnOnce(ServerBuilder) -> Result<Server, StartError> + Send + 'static,
) -> Exit {
    let env = launch.env;
    // Dropped last: dropping the guard flushes the log.
    let style = LogStyle::automatic(&Destination::Stderr, &**env);
    let _process_log = match telemetry::start_process_log(log, style) {
        Ok(guard) => guard,
        Err(error) => return report_start_error(&StartError::ProcessLog(error)),
    };
    // Installed before the gateway starts: an unhandled signal would end the process at once.
    let (runtime, mut signals) = match install_signal_handlers() {
        Ok(installed) => installed,
        Err(error) => {
            tracing::error!(%error, "cannot install signal handlers");
            return Exit::Internal;
        }
    };
    raise_file_limit();
    let builder = Server::builder(Clock::system()).environment(env.clone());
    let (predecessor, passed) = match take_sockets(&**env, launch.listen_fds) {
        Ok(taken) => taken,
        Err(error) => return report_start_error(&error),
    };
    let starting = move || start(builder.sockets(passed));
    let server = match runtime.block_on(start_unless_stopped(starting, &mut signals)) {
        Some(Ok(server)) => server,
        Some(Err(error)) => return report_start_error(&error),
        None => {
            tracing::info!("stopped before it served");
            return Exit::Ok;
        }
    };
    let listen: Vec<String> = server.addresses.iter().map(ToString::to_string).collect();
    let admin = server.admin.as_ref().map(ToString::to_string);
    let listen = listen.join(", ");
    let pid = std::process::id();
    let rate_limit_service = server.rate_limit_service.map(|address| address.to_string());
    tracing::info!(%config, listen, admin, rate_limit_service, pid, "serving");
    addresses::print(&server);
    let notifier = Notifier::new(&**env);
    match predecessor.map(Predecessor::report_ready) {
        // The predecessor notifies the service manager, which does not know this process yet.
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::warn!(%error, "the process to be replaced has ended"),
        None => notifier.ready(&format!("serving on {listen}")),
    }
    let serving = Serving { server: &server, notifier: &notifier, launch: launch.command_line };
    match runtime.block_on(serving.handle_signals(signals)) {
        Ending::Stopped => tracing::info!("stopping: draining requests in flight"),
        Ending::HandedOver => {
            tracing::info!("replaced by a new process: draining requests in flight");
        }
    }
    server.stop();
    tracing::info!("stopped");
    Exit::Ok
}

/// Starts the gateway, unless SIGTERM or SIGINT comes first: then `None`. A start can take long,
/// such as on a file system that hangs, so it has a thread of its own.
async fn start_unless_stopped(
    start: impl FnOnce() -> Result<Server, StartError> + Send + 'static,
    [terminate, interrupt, ..]: &mut [Signal; 5],
) -> Option<Result<Server, StartError>> {
    let (sender, started) = oneshot::channel();
    // Without a receiver, the process ends.
    let work = move || drop(sender.send(start()));
    if let Err(error) = thread::Builder::new().name("start".to_owned()).spawn(work) {
        return Some(Err(StartError::Thread(error)));
    }
    tokio::select! {
        biased;
        // Without a result, the thread has panicked, and said so.
        started = started => Some(started.unwrap_or_else(|error| {
            Err(StartError::Thread(io::Error::other(error)))
        })),
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
    }
}

/// The passed sockets, and the process to be replaced, if there is one.
fn take_sockets(
    env: crate::config::EnvLookup<'_>,
    listen_fds: Option<ListenFd>,
) -> Result<(Option<Predecessor>, PassedSockets), StartError> {
    let failed = |address: &str, error| StartError::Listen { address: address.to_owned(), error };
    if env(handover::VARIABLE).is_some() {
        let received = Predecessor::receive();
        let (predecessor, passed) =
            received.map_err(|error| failed("the sockets of the process to be replaced", error))?;
        return Ok((Some(predecessor), passed));
    }
    let passed = PassedSockets::from_service_manager(listen_fds);
    Ok((None, passed.map_err(|error| failed("the sockets in LISTEN_FDS", error))?))
}

/// Prints why the gateway cannot start, without a log line's format.
fn report_start_error(error: &StartError) -> Exit {
    let (text, exit) = match error {
        StartError::Faults(faults) => (format!("{faults}\n"), Exit::BadInput),
        StartError::Panic(fault) => (format!("{fault}\n"), Exit::Internal),
        StartError::Thread(_) | StartError::ProcessLog(_) => {
            (format!("tidegate: {error}\n"), Exit::Internal)
        }
        _ => (format!("tidegate: {error}\n"), Exit::BadInput),
    };
    // In one call, because during an upgrade another process writes to the same file. A failure
    // cannot be reported.
    let _ = io::stderr().write_all(text.as_bytes());
    exit
}

/// A running gateway, as its signals see it.
struct Serving<'a> {
    server: &'a Server,
    notifier: &'a Notifier,
    /// The program and its arguments.
    launch: &'a [OsString],
}

/// An upgrade in progress: the new process, and its deadline to serve, by the clock's uptime.
type Upgrade = (Successor, Uptime);

impl Serving<'_> {
    /// Reloads on SIGHUP, reopens the access log on SIGUSR1 and starts a successor on SIGUSR2;
    /// returns on SIGTERM or SIGINT, and when a successor serves.
    async fn handle_signals(
        &self,
        [mut terminate, mut interrupt, mut hangup, mut user1, mut user2]: [Signal; 5],
    ) -> Ending {
        let mut upgrade: Option<Upgrade> = None;
        let mut reloads = JoinSet::new();
        let mut watchdog = std::pin::pin!(self.watch());
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                // Not awaited: a reload may take as long as the file system, and other signals must
                // be handled meanwhile. The reloader logs the result.
                _ = hangup.recv() => {
                    self.notifier.reloading("reloading the configuration");
                    reloads.spawn(self.server.reloader.clone().reload());
                }
                Some(_) = reloads.join_next() => {
                    if reloads.is_empty() {
                        self.notifier.ready("serving");
                    }
                }
                _ = user1.recv() => self.server.reopen_logs(),
                _ = user2.recv(), if upgrade.is_none() => upgrade = self.start_successor(),
                result = self.wait_ready(upgrade.as_ref()), if upgrade.is_some() => {
                    let Some((successor, _)) = upgrade.take() else { continue };
                    match result {
                        Ok(()) => {
                            self.notifier.handed_over(successor.id());
                            self.server.hand_over();
                            return Ending::HandedOver;
                        }
                        Err(error) => self.abandon(successor, &error),
                    }
                }
                () = &mut watchdog => {}
            }
        }
        if let Some((successor, _)) = upgrade {
            successor.end();
        }
        self.notifier.stopping();
        if !self.server.drain_delay.is_zero() {
            tracing::info!(drain_delay = ?self.server.drain_delay, "stopping: no longer ready");
            self.server.leave();
            tokio::select! {
                () = self.server.shared.clock.sleep(self.server.drain_delay) => {}
                // A second signal ends the delay.
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
        Ending::Stopped
    }

    fn start_successor(&self) -> Option<Upgrade> {
        if std::process::id() == 1 {
            tracing::error!(
                "upgrade: this is process 1, and its container would end with it; replace the container"
            );
            return None;
        }
        tracing::info!("upgrade: starting the program again");
        self.notifier.reloading("starting a new process");
        match self.server.start_successor(self.launch) {
            Ok(successor) => Some((successor, self.server.shared.clock.uptime() + UPGRADE_TIMEOUT)),
            Err(error) => {
                tracing::error!(%error, "upgrade: the new process cannot be started; this one goes on");
                self.notifier.ready("serving; an upgrade has failed");
                None
            }
        }
    }

    async fn wait_ready(&self, upgrade: Option<&Upgrade>) -> io::Result<()> {
        let Some((successor, deadline)) = upgrade else { return std::future::pending().await };
        let clock = &self.server.shared.clock;
        let left = deadline.saturating_sub(clock.uptime());
        clock.timeout(left, successor.wait_ready()).await.unwrap_or_else(|_| {
            Err(io::Error::new(io::ErrorKind::TimedOut, "it did not serve in time"))
        })
    }

    fn abandon(&self, successor: Successor, error: &io::Error) {
        successor.end();
        let reason = match error.kind() {
            io::ErrorKind::UnexpectedEof => "it ended before it served".to_owned(),
            _ => error.to_string(),
        };
        tracing::error!(reason, "upgrade: the new process does not serve; this one goes on");
        self.notifier.ready("serving; an upgrade has failed");
    }

    /// Reports to the service manager that the gateway is alive, as long as every worker makes
    /// progress.
    async fn watch(&self) {
        let Some(longest) = self.notifier.watchdog() else { return std::future::pending().await };
        let period = (longest / 2).max(MIN_WATCH_INTERVAL);
        let mut interval = self.server.shared.clock.background_interval(period);
        let (mut before, mut was_stuck) = (Vec::new(), false);
        loop {
            interval.tick().await;
            let sweeps = self.server.shared.metrics.sweeps();
            let is_stuck = sweeps.iter().zip(&before).any(|(now, before)| now == before);
            if !is_stuck {
                self.notifier.alive();
            } else if !was_stuck {
                tracing::error!("a worker makes no progress; nothing is reported to the watchdog");
            }
            (before, was_stuck) = (sweeps, is_stuck);
        }
    }
}

/// Installs handlers for SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2; returns them with their
/// runtime.
fn install_signal_handlers() -> io::Result<(Runtime, [Signal; 5])> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();
    let signals = [
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
        signal(SignalKind::hangup())?,
        signal(SignalKind::user_defined1())?,
        signal(SignalKind::user_defined2())?,
    ];
    drop(entered);
    Ok((runtime, signals))
}

/// Raises the soft limit of open files, usually 1024, to the hard limit. A proxied request takes
/// two file descriptors: the client's and the upstream's connection.
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
