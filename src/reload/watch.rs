//! Reloads when the configuration file, a certificate's file or the file of consumers changes.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Reloader, folders::add_folders, missing::MissingFiles, on_own_thread};
use crate::{file::FileError, snapshot::ConsumersFile, tls::TlsFile};

/// Delay before a changed file is read: editors write a file in several steps, and a certificate
/// and its key may be in two files.
const DEBOUNCE: Duration = Duration::from_millis(200);

/// Time between two checks without a notification: network file systems send none.
const CHECK_INTERVAL: Duration = Duration::from_mins(1);

/// Maximum number of passes over the folders, if a link changes while they are being watched.
const MAX_PASSES: usize = 8;

/// The watched folders. Files are not watched themselves, because editors, tools that renew
/// certificates and mounted volumes replace them.
struct WatchedFolders {
    watcher: RecommendedWatcher,
    /// The folders with their device and inode, by which a replaced folder is recognised.
    folders: BTreeMap<PathBuf, Option<(u64, u64)>>,
    /// Folders that cannot be watched, each of which was logged.
    unwatched: BTreeSet<PathBuf>,
}

impl Reloader {
    /// Reloads whenever the content of a file changes, until `stop` is cancelled.
    pub async fn watch(self: Arc<Self>, stop: CancellationToken) {
        let path = self.path.display().to_string();
        if !self.is_regular {
            tracing::info!(%path, "the configuration is not a regular file and cannot be reloaded");
            return;
        }
        let (changed, mut pending) = mpsc::channel::<()>(1);
        let reloader = Arc::clone(&self);
        let watched = on_own_thread(move || reloader.watch_folders(changed)).await;
        let watched = match watched.map_err(notify::Error::io).flatten() {
            Ok(watched) => Arc::new(Mutex::new(watched)),
            Err(error) => {
                tracing::warn!(
                    %path, %error, "cannot watch the configuration's folder; its changes are not reloaded"
                );
                return;
            }
        };
        let missing = Arc::<Mutex<MissingFiles>>::default();
        loop {
            // The first check finds changes that preceded the watcher.
            let (reloader, watched) = (Arc::clone(&self), Arc::clone(&watched));
            let missing = Arc::clone(&missing);
            let checked = on_own_thread(move || {
                // Before the check, so that a change after it is reported.
                watched.lock().update(|| reloader.folders());
                reloader.reload_if_changed();
                reloader.warn_of_missing_files(&mut missing.lock());
            });
            if let Err(error) = checked.await {
                tracing::error!(%path, %error, "a reload could not run; the file is still watched");
            }
            let event = async {
                tokio::select! {
                    event = pending.recv() => event.is_some(),
                    // Another reload may have added certificates.
                    () = self.replaced.notified() => true,
                    () = tokio::time::sleep(CHECK_INTERVAL) => true,
                }
            };
            match stop.run_until_cancelled(event).await {
                Some(true) => {}
                Some(false) => {
                    tracing::error!(%path, "the configuration is no longer watched: the watcher ended");
                    return;
                }
                None => return,
            }
            tokio::time::sleep(DEBOUNCE).await;
            let _ = pending.try_recv();
        }
    }

    /// Reloads if the content of a file has changed since the last reload. A missing file is not a
    /// change: it may be missing for a moment while it is replaced.
    fn reload_if_changed(&self) {
        let Ok(mut last_read) = self.lock() else { return };
        let read = self.read_files(&last_read.tls_files);
        let is_unchanged = match &read {
            Err(FileError::Io(error)) if error.kind() == io::ErrorKind::NotFound => true,
            Err(error) => last_read.config.as_ref().is_err_and(|last| *last == error.to_string()),
            Ok((config, tls_files)) => {
                let mut files = last_read.tls_files.iter().zip(tls_files);
                last_read.config.as_ref().is_ok_and(|last| last == config)
                    && !files.any(|(last, now)| last.has_changed(now))
            }
        };
        if !is_unchanged {
            // `replace` logs its result.
            let _ = self.replace(&mut last_read, read);
        }
        self.reload_changed_consumers(&mut last_read);
    }

    /// Watches the folders of the files; `changed` gets a message for each change.
    fn watch_folders(&self, changed: mpsc::Sender<()>) -> notify::Result<WatchedFolders> {
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if let Err(error) = &event {
                tracing::warn!(%error, "the file watcher failed; a configuration change may be missed");
            }
            // An error counts as a change: events may have been lost.
            if event.is_ok_and(|event| event.kind.is_access()) {
                return;
            }
            // If the channel is full, the pending notification also covers this change.
            let _ = changed.try_send(());
        })?;
        let mut watched =
            WatchedFolders { watcher, folders: BTreeMap::new(), unwatched: BTreeSet::new() };
        watched.add(&folder(&self.path).canonicalize().map_err(notify::Error::io)?)?;
        watched.update(|| self.folders());
        Ok(watched)
    }

    /// The folders of the watched files, and of the symbolic links on the way to them.
    fn folders(&self) -> HashSet<PathBuf> {
        let mut folders = HashSet::new();
        for path in self.watched_files() {
            add_folders(&path, &mut folders);
        }
        folders
    }

    /// The configuration file, the certificates' files and the file of consumers.
    fn watched_files(&self) -> Vec<PathBuf> {
        let snapshot = self.shared.live.snapshot();
        let tls_files = snapshot.tls_files();
        let consumers = snapshot.consumers.file().map(ConsumersFile::path);
        let files = tls_files.iter().map(TlsFile::path).chain([&*self.path]).chain(consumers);
        files.map(Path::to_owned).collect()
    }

    /// Warns of files that have been deleted: the gateway could not start again.
    fn warn_of_missing_files(&self, missing: &mut MissingFiles) {
        for path in missing.check(self.watched_files()) {
            let path = path.display();
            tracing::warn!(%path, "a file of the configuration no longer exists; what was read from it stays");
        }
    }
}

impl WatchedFolders {
    fn add(&mut self, folder: &Path) -> notify::Result<()> {
        let inode = fs::metadata(folder).ok().map(|folder| (folder.dev(), folder.ino()));
        let watched = self.folders.get(folder);
        if watched.is_some_and(|watched| *watched == inode) {
            return Ok(());
        }
        if watched.is_some() {
            // Fails if the folder was removed, which ended the watch.
            let _ = self.watcher.unwatch(folder);
            self.folders.remove(folder);
        }
        self.watcher.watch(folder, RecursiveMode::NonRecursive)?;
        self.folders.insert(folder.to_owned(), inode);
        Ok(())
    }

    /// Watches the folders that `folders` returns, and calls it again if a link changed before its
    /// folder was watched.
    fn update(&mut self, folders: impl Fn() -> HashSet<PathBuf>) {
        let mut current = folders();
        for _ in 0..MAX_PASSES {
            self.set(&current);
            let now = folders();
            if now == current {
                return;
            }
            current = now;
        }
    }

    /// Watches exactly `folders`. A folder that cannot be watched is logged once.
    fn set(&mut self, folders: &HashSet<PathBuf>) {
        self.unwatched.retain(|folder| folders.contains(folder));
        for folder in folders {
            match self.add(folder) {
                Ok(()) => drop(self.unwatched.remove(folder)),
                Err(error) if self.unwatched.insert(folder.clone()) => {
                    let folder = folder.display();
                    tracing::warn!(%folder, %error, "cannot watch a folder; its changes are found within a minute");
                }
                Err(_) => {}
            }
        }
        let watcher = &mut self.watcher;
        self.folders.retain(|folder, _| {
            let is_used = folders.contains(folder);
            if !is_used {
                // Fails if the folder was removed, which ended the watch.
                let _ = watcher.unwatch(folder);
            }
            is_used
        });
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."))
}
