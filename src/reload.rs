//! Replaces the rules by what the configuration's file says now, whole or not at all.

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
    config::{Config, Faults, Loaded},
    gateway::Shared,
    snapshot::{LoadError, Snapshot, contained},
};

/// Reads and compiles a file.
type Load = fn(&Path) -> Result<(Loaded, Snapshot), LoadError>;

/// An editor writes a file in several steps; the last one is waited for so long.
const SETTLE: Duration = Duration::from_millis(200);

/// Replaces the rules by what the configuration's file says now.
pub struct Reloader {
    path: PathBuf,
    /// What the process was started with; some of it only a restart can change.
    started: Config,
    shared: Arc<Shared>,
    /// The file's bytes when they were last looked at; held while a reload runs.
    seen: Mutex<Option<Vec<u8>>>,
    /// [`Snapshot::load`], but in tests.
    load: Load,
}

impl Reloader {
    /// For a gateway that was started with `started`, read from `path`.
    pub fn new(path: PathBuf, started: &Loaded, shared: Arc<Shared>) -> Self {
        let seen = Mutex::new(Some(started.source.text().as_bytes().to_vec()));
        Self { path, started: started.config.clone(), shared, seen, load: Snapshot::load }
    }

    /// The same that reads the file with `load`.
    #[cfg(test)]
    pub(crate) fn loading(self, load: Load) -> Self {
        Self { load, ..self }
    }

    /// Reads the file and replaces the rules. On any fault the running rules stay, and so they do where
    /// the file brings out a panic. Returns the new generation.
    pub fn reload(&self) -> Result<u64, Faults> {
        let mut seen = self.seen.lock();
        *seen = std::fs::read(&self.path).ok();
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
                    %path, %faults, panicked, "the configuration has faults; the old one stays"
                );
                Err(faults)
            }
        }
    }

    fn compile(&self) -> Result<Snapshot, LoadError> {
        contained(&self.path, || {
            let (loaded, snapshot) = (self.load)(&self.path)?;
            snapshot.log_notes();
            self.fixed(&loaded).map_or(Ok(snapshot), |faults| Err(faults.into()))
        })
    }

    /// What has changed though only a restart can change it.
    fn fixed(&self, loaded: &Loaded) -> Option<Faults> {
        let (old, new) = (&self.started, &loaded.config);
        let changed = [
            ("listen", old.listen != new.listen),
            ("workers", old.workers != new.workers),
            ("admin", old.admin != new.admin),
            ("access_log", old.access_log != new.access_log),
            ("store", old.store != new.store),
            ("drain_timeout", old.drain_timeout != new.drain_timeout),
            ("throttle", old.throttle.is_some() != new.throttle.is_some()),
        ];
        let filters = old.throttle.as_ref().zip(new.throttle.as_ref()).map(|(old, new)| {
            [
                ("throttle.memory", old.memory != new.memory),
                ("throttle.capacity", old.capacity != new.capacity),
                (
                    "throttle.false_positive",
                    old.false_positive.to_bits() != new.false_positive.to_bits(),
                ),
            ]
        });
        let changed = changed.into_iter().chain(filters.into_iter().flatten());
        let faults = changed.filter(|(_, changed)| *changed).map(|(key, _)| {
            let expected = "what the gateway was started with; to change it, restart";
            loaded.source.fault(key, format!("`{key}` is not what it was"), expected)
        });
        Faults::new(faults.collect())
    }

    /// Reloads whenever the file's content changes. Its folder is watched, not the file: editors and
    /// mounted configuration volumes put a new file in the old one's place.
    pub async fn watch(self: Arc<Self>, stop: CancellationToken) {
        let path = self.path.display().to_string();
        let (changed, mut pending) = mpsc::channel::<()>(1);
        let _watcher = match self.watcher(changed) {
            Ok(watcher) => watcher,
            Err(error) => {
                tracing::warn!(%path, %error, "the configuration's folder cannot be watched");
                return;
            }
        };
        loop {
            // The first look is for what changed before the watcher was there. A large file takes
            // seconds: the thread that watches has other tasks.
            let reloader = Arc::clone(&self);
            let look = tokio::task::spawn_blocking(move || reloader.reload_if_changed());
            if let Err(error) = look.await {
                tracing::error!(%path, %error, "a reload broke off; the file is watched further");
            }
            match stop.run_until_cancelled(pending.recv()).await {
                Some(Some(())) => {}
                Some(None) => {
                    tracing::error!(%path, "the configuration is not watched any more");
                    return;
                }
                None => return,
            }
            tokio::time::sleep(SETTLE).await;
            let _ = pending.try_recv();
        }
    }

    fn reload_if_changed(&self) {
        let content = std::fs::read(&self.path).ok();
        if content.is_some() && content != *self.seen.lock() {
            // Its outcome is logged where it is known.
            let _ = self.reload();
        }
    }

    /// Watches the file's folder, and where the file is a symbolic link, the folder that it leads to.
    fn watcher(&self, changed: mpsc::Sender<()>) -> notify::Result<RecommendedWatcher> {
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if let Err(error) = &event {
                tracing::warn!(%error, "a change of the configuration's folder may be missed");
            }
            // After an error something may have changed, too.
            if event.is_ok_and(|event| event.kind.is_access()) {
                return;
            }
            // One that waits already stands for this one too.
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
