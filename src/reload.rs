//! [`Reloader`]: replaces the running configuration with the file's current content.
//!
//! A reload is all or nothing: on any fault the running snapshot stays. A change of the file
//! triggers it, or a call of [`Reloader::reload`].

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Config, Faults, LoadedConfig},
    gateway::Shared,
    snapshot::{LoadError, Snapshot, catch_panic},
};

/// Reads and compiles a configuration file.
type Loader = fn(&Path) -> Result<(LoadedConfig, Snapshot), LoadError>;

/// Delay before a changed file is read: an editor writes a file in several steps.
const DEBOUNCE: Duration = Duration::from_millis(200);

/// Reloads the configuration file, on demand or when it changes.
pub struct Reloader {
    path: PathBuf,
    /// The configuration that the process was started with: some keys cannot change on reload.
    initial: Config,
    shared: Arc<Shared>,
    /// The file's content at the last reload; `None` if it could not be read. Locked while a reload
    /// runs.
    last_content: Mutex<Option<Vec<u8>>>,
    /// [`Snapshot::load`]; tests replace it.
    load: Loader,
}

impl Reloader {
    /// A reloader of `path`, for a gateway that was started with `initial`.
    pub fn new(path: PathBuf, initial: &LoadedConfig, shared: Arc<Shared>) -> Self {
        let last_content = Mutex::new(Some(initial.source.text().as_bytes().to_vec()));
        Self { path, initial: initial.config.clone(), shared, last_content, load: Snapshot::load }
    }

    /// The same reloader, but it reads the file with `load`.
    #[cfg(test)]
    pub(crate) fn with_loader(self, load: Loader) -> Self {
        Self { load, ..self }
    }

    /// Reads and compiles the file, replaces the snapshot and returns the new generation. Also
    /// reopens the access log.
    ///
    /// # Errors
    ///
    /// The file's faults: it cannot be read, is invalid, changes a key that needs a restart, or
    /// makes the compiler panic. The running snapshot stays.
    pub fn reload(&self) -> Result<u64, Faults> {
        let mut last_content = self.last_content.lock();
        *last_content = std::fs::read(&self.path).ok();
        let path = self.path.display();
        match self.compile() {
            Ok(snapshot) => {
                if let (Some(throttle), Some(settings)) =
                    (&self.shared.throttle, &snapshot.throttle)
                {
                    throttle.configure(settings);
                }
                let generation = self.shared.live.replace(snapshot);
                self.shared.metrics.reloads.fetch_add(1, Ordering::Relaxed);
                self.shared.reopen_logs();
                tracing::info!(%path, generation, "the configuration was reloaded");
                Ok(generation)
            }
            Err(error) => {
                self.shared.metrics.reload_faults.fetch_add(1, Ordering::Relaxed);
                let panicked = matches!(error, LoadError::Panic(_));
                let faults = error.into_faults();
                tracing::error!(
                    %path, %faults, panicked, "the configuration has faults; the running one stays"
                );
                Err(faults)
            }
        }
    }

    fn compile(&self) -> Result<Snapshot, LoadError> {
        catch_panic(&self.path, || {
            let (loaded, snapshot) = (self.load)(&self.path)?;
            snapshot.log_notes();
            self.restart_only_faults(&loaded).map_or(Ok(snapshot), |faults| Err(faults.into()))
        })
    }

    /// A fault for each changed key that takes effect only on restart; `None` if there is none.
    fn restart_only_faults(&self, loaded: &LoadedConfig) -> Option<Faults> {
        let (old, new) = (&self.initial, &loaded.config);
        let changed = [
            ("listen", old.listen != new.listen),
            ("workers", old.workers != new.workers),
            ("admin", old.admin != new.admin),
            ("access_log", old.access_log != new.access_log),
            ("store", old.store != new.store),
            ("drain_timeout", old.drain_timeout != new.drain_timeout),
            ("throttle", old.throttle.is_some() != new.throttle.is_some()),
        ];
        let throttle_keys = old.throttle.as_ref().zip(new.throttle.as_ref()).map(|(old, new)| {
            [
                ("throttle.memory", old.memory != new.memory),
                ("throttle.capacity", old.capacity != new.capacity),
                (
                    "throttle.false_positive",
                    old.false_positive.to_bits() != new.false_positive.to_bits(),
                ),
            ]
        });
        let changed = changed.into_iter().chain(throttle_keys.into_iter().flatten());
        let faults = changed.filter(|(_, changed)| *changed).map(|(key, _)| {
            let expected = "the value that the gateway was started with; restart it to change this";
            loaded.source.fault(key, format!("`{key}` cannot change on reload"), expected)
        });
        Faults::new(faults.collect())
    }

    /// Reloads whenever the file's content changes, until `stop` is cancelled. Watches the folder,
    /// not the file: editors and mounted configuration volumes replace the file.
    pub async fn watch(self: Arc<Self>, stop: CancellationToken) {
        let path = self.path.display().to_string();
        let (changed, mut pending) = mpsc::channel::<()>(1);
        let _watcher = match self.watcher(changed) {
            Ok(watcher) => watcher,
            Err(error) => {
                tracing::warn!(
                    %path, %error, "cannot watch the configuration's folder; its changes are not reloaded"
                );
                return;
            }
        };
        loop {
            // The first check finds changes from before the watcher existed. In a blocking task: a
            // large file takes seconds, and the control thread has other tasks.
            let reloader = Arc::clone(&self);
            let check = tokio::task::spawn_blocking(move || reloader.reload_if_changed());
            if let Err(error) = check.await {
                tracing::error!(%path, %error, "a reload panicked; the file is still watched");
            }
            match stop.run_until_cancelled(pending.recv()).await {
                Some(Some(())) => {}
                Some(None) => {
                    tracing::error!(%path, "the configuration is no longer watched: the watcher ended");
                    return;
                }
                None => return,
            }
            tokio::time::sleep(DEBOUNCE).await;
            let _ = pending.try_recv();
        }
    }

    fn reload_if_changed(&self) {
        let content = std::fs::read(&self.path).ok();
        if content.is_some() && content != *self.last_content.lock() {
            // `reload` logs its result.
            let _ = self.reload();
        }
    }

    /// Watches the file's folder and, if the file is a symbolic link, the folder of its target.
    fn watcher(&self, changed: mpsc::Sender<()>) -> notify::Result<RecommendedWatcher> {
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if let Err(error) = &event {
                tracing::warn!(%error, "the file watcher failed; a configuration change may be missed");
            }
            // An error counts as a change: events may have been lost.
            if event.is_ok_and(|event| event.kind.is_access()) {
                return;
            }
            // If the channel is full, the pending notification covers this change too.
            let _ = changed.try_send(());
        })?;
        let folder = folder(&self.path);
        watcher.watch(folder, RecursiveMode::NonRecursive)?;
        if let Ok(real) = self.path.canonicalize()
            && folder.canonicalize().is_ok_and(|folder| Some(&*folder) != real.parent())
        {
            watcher.watch(self::folder(&real), RecursiveMode::NonRecursive)?;
        }
        Ok(watcher)
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."))
}
