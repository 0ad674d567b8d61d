//! [`Reloader`]: replaces the running configuration with the file's current content.
//!
//! A reload is all or nothing: on any fault the running snapshot stays. Certificates and keys are
//! read again with the configuration. A change of one of these files triggers a reload, and so does
//! [`Reloader::reload`]. It runs on a thread of its own: a large file takes seconds and a file
//! system may hang, and neither may delay the admin API or a signal.
//!
//! | file | content |
//! |---|---|
//! | `watch` | reloads when a file changes |
//! | `consumers` | reads the consumers again when their file changes, and nothing else |
//! | `folders` | finds the folders to watch: the file's, and those of links on the way to it |
//! | `missing` | finds watched files that have been deleted |

mod consumers;
mod folders;
mod missing;
mod watch;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};

pub(crate) use self::consumers::LoadedConsumers;
use crate::{
    config::{self, Config, EnvLookup, Environment, Faults, LoadedConfig},
    file::{self, FileError, FileStamp},
    gateway::Shared,
    snapshot::{LoadError, Snapshot, catch_panic},
    tls::TlsFile,
    trace::ExportSettings,
};

/// Reads a file, up to a number of bytes.
type FileReader = fn(&Path, u64) -> Result<Vec<u8>, FileError>;

/// Compiles the content of the configuration file at a path.
pub(crate) type ConfigCompiler =
    fn(&Path, &[u8], EnvLookup<'_>) -> Result<(LoadedConfig, Snapshot), LoadError>;

/// Maximum time to read the file, and to wait for another reload to end.
const TIMEOUT: Duration = Duration::from_secs(8);

/// Why a reload changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The file cannot be read, is invalid, changes a key that needs a restart, or makes the
    /// compiler panic.
    #[error("{0}")]
    Faults(#[from] Faults),
    /// Another reload did not end in time.
    #[error("another reload is in progress; try again when it has ended")]
    Busy,
    /// The thread of the reload cannot be started, or panicked.
    #[error("the reload cannot run: {0}")]
    Thread(io::Error),
}

/// Reloads the configuration file, on demand or when it changes.
pub struct Reloader {
    path: PathBuf,
    /// False if the gateway was started from a pipe or a device, which cannot be read again.
    is_regular: bool,
    /// The configuration that the process was started with: some keys cannot change on reload.
    initial: Config,
    shared: Arc<Shared>,
    /// The environment that the file may refer to.
    env: Environment,
    /// The files as the last reload read them. Locked while a reload runs.
    last_read: Mutex<LastRead>,
    /// The current configuration.
    live: Mutex<LiveConfig>,
    /// The outcome of the last reload; `None` before the first.
    last_outcome: Mutex<Option<ReloadOutcome>>,
    /// Notified when the set of watched files may have changed.
    replaced: Notify,
    /// True while a thread reads the file. The thread may outlast its reload, which has a timeout.
    is_reading: Arc<AtomicBool>,
    /// [`file::read_regular`], [`Snapshot::load_to_serve`] and [`TIMEOUT`]; tests replace them.
    read: FileReader,
    load: ConfigCompiler,
    timeout: Duration,
}

/// The current configuration and its generation.
struct LiveConfig {
    generation: u64,
    loaded: Arc<LoadedConfig>,
}

/// How a reload ended.
#[derive(Clone, Debug)]
pub struct ReloadOutcome {
    /// When the reload ended, in ms since the epoch.
    pub at: u64,
    /// The faults; empty if the reload was applied.
    pub faults: Vec<String>,
}

/// The files as a reload read them.
struct LastRead {
    /// The configuration file's content, or why it could not be read.
    config: Result<Vec<u8>, String>,
    /// The files of certificates and keys.
    tls_files: Vec<TlsFile>,
    /// The file of consumers when it was read; `None` without such a file.
    consumers: Option<FileStamp>,
}

/// A compiled configuration.
struct Compiled {
    loaded: LoadedConfig,
    snapshot: Snapshot,
    traces: Option<ExportSettings>,
    consumers: LoadedConsumers,
}

/// The contents that a reload reads: the configuration file, and the known files of certificates.
type ReadFiles = Result<(Vec<u8>, Vec<TlsFile>), FileError>;

/// Sets a flag to false when it is dropped.
struct ClearOnDrop(Arc<AtomicBool>);

impl Drop for ClearOnDrop {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Reloader {
    /// A reloader of `path`, for a gateway that was started with `initial`.
    pub fn new(
        path: PathBuf,
        initial: &LoadedConfig,
        shared: Arc<Shared>,
        env: Environment,
    ) -> Self {
        let last_read = LastRead {
            config: Ok(initial.source.text().as_bytes().to_vec()),
            tls_files: shared.live.snapshot().tls_files(),
            consumers: None,
        };
        Self {
            is_regular: fs::metadata(&path).is_ok_and(|file| file.is_file()),
            path,
            initial: initial.config.clone(),
            live: Mutex::new(LiveConfig {
                generation: shared.live.generation(),
                loaded: Arc::new(initial.clone()),
            }),
            last_outcome: Mutex::default(),
            shared,
            env,
            last_read: Mutex::new(last_read),
            replaced: Notify::new(),
            is_reading: Arc::default(),
            read: file::read_regular,
            load: Snapshot::load_to_serve,
            timeout: TIMEOUT,
        }
    }

    /// The same reloader, for a gateway that was started with `consumers`.
    pub(crate) fn with_consumers(self, consumers: &LoadedConsumers) -> Self {
        self.last_read.lock().consumers = consumers.stamp;
        self
    }

    /// The same reloader for a configuration without a file: every reload fails with a fault.
    pub(crate) fn without_file(self) -> Self {
        Self { is_regular: false, read: |_, _| Err(FileError::NoFile), ..self }
    }

    /// The same reloader, compiling the file with `load`.
    #[cfg(test)]
    pub(crate) fn with_loader(self, load: ConfigCompiler) -> Self {
        Self { load, ..self }
    }

    /// The same reloader, reading the file with `read`, within `timeout`.
    #[cfg(test)]
    pub(crate) fn with_reader(self, read: FileReader, timeout: Duration) -> Self {
        Self { read, timeout, ..self }
    }

    /// [`Self::reload_blocking`] on a thread of its own.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::reload_blocking`], or the thread cannot be started.
    pub async fn reload(self: Arc<Self>) -> Result<u64, ReloadError> {
        let reload = move || self.reload_blocking();
        on_own_thread(reload).await.unwrap_or_else(|error| Err(ReloadError::Thread(error)))
    }

    /// Reads and compiles the file, replaces the snapshot and returns the new generation. Also
    /// reopens the access log.
    ///
    /// # Errors
    ///
    /// The file's faults: it cannot be read, is invalid, changes a key that needs a restart, or
    /// makes the compiler panic. Or another reload is in progress. In each case the running
    /// snapshot stays.
    pub fn reload_blocking(&self) -> Result<u64, ReloadError> {
        let mut last_read = self.lock()?;
        let read = self.read_files(&last_read.tls_files);
        Ok(self.replace(&mut last_read, read)?)
    }

    /// The current configuration and its generation.
    pub fn live_config(&self) -> (u64, Arc<LoadedConfig>) {
        let live = self.live.lock();
        (live.generation, Arc::clone(&live.loaded))
    }

    /// How the last reload ended; `None` before the first.
    pub fn last_outcome(&self) -> Option<ReloadOutcome> {
        self.last_outcome.lock().clone()
    }

    fn record_outcome(&self, faults: Vec<String>) {
        *self.last_outcome.lock() =
            Some(ReloadOutcome { at: self.shared.clock.store_time().as_unix_ms(), faults });
    }

    /// Waits until no other reload runs.
    fn lock(&self) -> Result<MutexGuard<'_, LastRead>, ReloadError> {
        self.last_read.try_lock_for(self.timeout).ok_or_else(|| {
            let path = self.path.display();
            tracing::error!(%path, "no reload: another one is in progress");
            ReloadError::Busy
        })
    }

    /// Reads the configuration file, and `tls_files` again, within [`TIMEOUT`]. At most one thread
    /// hangs in a read.
    fn read_files(&self, tls_files: &[TlsFile]) -> ReadFiles {
        if self.is_reading.swap(true, Ordering::Acquire) {
            return Err(FileError::Pending);
        }
        let reading = ClearOnDrop(Arc::clone(&self.is_reading));
        let (path, read, tls_files) = (self.path.clone(), self.read, tls_files.to_vec());
        file::read_within(self.timeout, move || {
            let _reading = reading;
            let config = read(&path, config::MAX_READ)?;
            Ok((config, tls_files.iter().map(TlsFile::read_again).collect()))
        })
    }

    /// Compiles the configuration in `read` and replaces the snapshot; returns the new generation.
    fn replace(&self, last_read: &mut LastRead, read: ReadFiles) -> Result<u64, Faults> {
        let has_no_file = matches!(read, Err(FileError::NoFile));
        let compiled = match &read {
            Ok((config, _)) => self.compile(config),
            Err(error) => Err(config::unreadable(&self.path, error).into()),
        };
        match read {
            Ok((config, tls_files)) => {
                last_read.config = Ok(config);
                last_read.tls_files = tls_files;
            }
            Err(error) => last_read.config = Err(error.to_string()),
        }
        let path = self.path.display();
        match compiled {
            Ok(Compiled { loaded, snapshot, traces, consumers }) => {
                self.shared.traces.configure(traces);
                if let (Some(throttle), Some(settings)) =
                    (&self.shared.throttle, &snapshot.throttle)
                {
                    throttle.configure(settings);
                }
                // As the compiler read them: they may have changed since `read`.
                last_read.tls_files = snapshot.tls_files();
                self.shared.upstreams.apply(&snapshot.upstreams);
                self.shared.key_sets.apply(snapshot.jwt_methods());
                self.shared.acme.apply(snapshot.acme_listeners());
                last_read.consumers = consumers.stamp;
                let generation = self.shared.live.replace(snapshot, consumers.table);
                self.shared.overrides.rebuild(&self.shared.live);
                *self.live.lock() = LiveConfig { generation, loaded: Arc::new(loaded) };
                self.record_outcome(Vec::new());
                self.replaced.notify_one();
                self.shared.metrics.reloads.fetch_add(1, Ordering::Relaxed);
                self.shared.reopen_logs();
                tracing::info!(%path, generation, "the configuration was reloaded");
                Ok(generation)
            }
            Err(error) => {
                self.shared.metrics.reload_faults.fetch_add(1, Ordering::Relaxed);
                // The log line has this field only if it is true.
                let panicked = matches!(error, LoadError::Panic(_)).then_some(true);
                let faults = error.into_faults();
                self.record_outcome(faults.iter().map(ToString::to_string).collect());
                if has_no_file {
                    tracing::warn!("no reload: {}", FileError::NoFile);
                } else {
                    tracing::error!(
                        %path, faults = faults.in_one_line(), panicked, "the configuration has faults; the running one stays"
                    );
                }
                Err(faults)
            }
        }
    }

    fn compile(&self, bytes: &[u8]) -> Result<Compiled, LoadError> {
        catch_panic(&self.path, || {
            let (loaded, snapshot) = (self.load)(&self.path, bytes, &*self.env)?;
            snapshot.log_notes();
            snapshot.log_certificates(self.shared.clock.store_time());
            if let Some(faults) = self.restart_only_faults(&loaded) {
                return Err(faults.into());
            }
            let traces = snapshot.export_settings(&loaded.source, &*self.env)?;
            let consumers = LoadedConsumers::read(&snapshot.consumers, self.timeout)?;
            Ok(Compiled { loaded, snapshot, traces, consumers })
        })
    }

    /// A fault for each changed key that takes effect only on restart; `None` if there is none.
    fn restart_only_faults(&self, loaded: &LoadedConfig) -> Option<Faults> {
        let (old, new) = (&self.initial, &loaded.config);
        let addresses =
            |config: &Config| config.listen.iter().map(|own| own.address).collect::<Vec<_>>();
        let changed = [
            // Only the addresses: a connection gets the other rules of its listener when it is
            // accepted.
            ("listen", addresses(old) != addresses(new)),
            (
                "rate_limit_service",
                old.rate_limit_service.as_ref().map(|own| own.address)
                    != new.rate_limit_service.as_ref().map(|own| own.address),
            ),
            ("workers", old.workers != new.workers),
            ("admin", old.admin != new.admin),
            ("access_log", old.access_log != new.access_log),
            ("store", old.store != new.store),
            ("overrides", old.overrides != new.overrides),
            ("drain_delay", old.drain_delay != new.drain_delay),
            ("drain_timeout", old.drain_timeout != new.drain_timeout),
            ("throttle", old.throttle.is_some() != new.throttle.is_some()),
        ];
        // The page and the cookie may change.
        let ticket_ttl = |throttle: &config::ThrottleConfig| {
            throttle.waiting_room.as_ref().map(|room| room.ticket_ttl)
        };
        let throttle_keys = old.throttle.as_ref().zip(new.throttle.as_ref()).map(|(old, new)| {
            [
                ("throttle.memory", old.memory != new.memory),
                ("throttle.capacity", old.capacity != new.capacity),
                ("throttle.waiting_room", old.waiting_room.is_some() != new.waiting_room.is_some()),
                (
                    "throttle.waiting_room.ticket_ttl",
                    ticket_ttl(old).zip(ticket_ttl(new)).is_some_and(|(old, new)| old != new),
                ),
                (
                    "throttle.false_positive",
                    old.false_positive.to_bits() != new.false_positive.to_bits(),
                ),
            ]
        });
        let running = self.shared.throttle.as_ref();
        let countable = running.map(|throttle| throttle.settings().max_countable());
        let is_uncountable = new.throttle.as_ref().zip(countable);
        let is_uncountable = is_uncountable.is_some_and(|(new, most)| new.max_active > most);
        let changed = changed.into_iter().chain(throttle_keys.into_iter().flatten());
        // The filters keep their initial size.
        let changed = changed.chain([("throttle.max_active", is_uncountable)]);
        let faults = changed.filter(|(_, changed)| *changed).map(|(key, _)| {
            let expected = if matches!(key, "listen" | "rate_limit_service") {
                "the addresses that the gateway was started with; an upgrade (SIGUSR2) or a restart changes them"
            } else {
                "the value that the gateway was started with; an upgrade (SIGUSR2) or a restart changes it"
            };
            loaded.source.fault(key, format!("`{key}` cannot change on reload"), expected)
        });
        Faults::new(faults.collect())
    }
}

/// Runs `work` on a new thread and returns its result. A blocking task of the runtime would, while
/// it hangs, delay the runtime's end.
async fn on_own_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (sender, result) = oneshot::channel();
    let send = move || {
        // The receiver is gone if its task was cancelled.
        let _ = sender.send(work());
    };
    thread::Builder::new().name("reload".to_owned()).spawn(send)?;
    result.await.map_err(|_| io::Error::other("its thread panicked"))
}
