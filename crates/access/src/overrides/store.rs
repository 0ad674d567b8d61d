//! [`OverrideStore`]: where overrides are kept; reads and changes them.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tidegate_config::Fault;
use tidegate_redis::Connector;
use tidegate_system::clock::{Clock, StoreTime};
use tidegate_system::file::{self, FileError, FileStamp};
use tidegate_system::secret::SharedSecret;

use super::{
    change::{Changed, OverrideChange, OverrideError},
    file::{OverridesContent, OverridesFile, read_file},
    redis::RedisOverrides,
    set::OverrideSet,
};

/// Maximum time for a step of the file system.
const FILE_TIMEOUT: Duration = Duration::from_secs(8);

/// Counts for metrics.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct StoreCounts {
    /// Reads that failed.
    pub failed_reads: u64,
    /// When the last read succeeded; `None` before the first.
    pub read_at: Option<StoreTime>,
}

/// Where overrides are kept.
pub struct OverrideStore {
    place: Place,
    clock: Clock,
    failed_reads: AtomicU64,
    /// In ms since the epoch; 0 before the first read.
    read_at: AtomicU64,
}

/// What is read and what is changed are applied in the order of the lock: its holder applies its
/// result without another wait, and readers and writers are tasks of one thread.
enum Place {
    Nowhere,
    File(FilePlace),
    Redis(Box<tokio::sync::Mutex<RedisOverrides>>),
}

struct FilePlace {
    file: OverridesFile,
    /// The file when it was read or written last. Locked meanwhile.
    last: tokio::sync::Mutex<Option<FileStamp>>,
}

impl OverrideStore {
    fn new(place: Place, clock: Clock) -> Self {
        Self { place, clock, failed_reads: AtomicU64::new(0), read_at: AtomicU64::new(0) }
    }

    /// No place: every change is refused.
    pub fn nowhere(clock: Clock) -> Self {
        Self::new(Place::Nowhere, clock)
    }

    /// The file at `path`. `secret` is the one under which this process hashes keys.
    pub fn file(path: PathBuf, secret: SharedSecret, clock: Clock) -> Self {
        let file = OverridesFile { path, secret };
        Self::new(Place::File(FilePlace { file, last: None.into() }), clock)
    }

    /// Redis. Opens no connection yet.
    pub fn redis(connector: Connector, clock: Clock) -> Self {
        let redis = RedisOverrides::new(connector, clock.clone());
        Self::new(Place::Redis(Box::new(redis.into())), clock)
    }

    /// The name of the place, for logs and the admin API.
    pub fn label(&self) -> &'static str {
        match self.place {
            Place::Nowhere => "none",
            Place::File(_) => "file",
            Place::Redis(_) => "redis",
        }
    }

    /// The file, if they are kept in one.
    pub fn path(&self) -> Option<&Path> {
        match &self.place {
            Place::File(own) => Some(&own.file.path),
            Place::Nowhere | Place::Redis(_) => None,
        }
    }

    /// Reads the overrides if they have changed since the last read. `known` are the ones that this
    /// gateway has: if Redis has lost its data, they are written back.
    ///
    /// # Errors
    ///
    /// They cannot be read, or the file has faults.
    pub async fn read_if_changed(
        &self,
        known: &OverrideSet,
    ) -> Result<Option<OverrideSet>, OverrideError> {
        let read = match &self.place {
            Place::Nowhere => Ok(None),
            Place::File(own) => own.read_if_changed().await,
            Place::Redis(redis) => {
                let read = redis.lock().await.read_if_changed(known).await;
                read.map_err(OverrideError::Redis)
            }
        };
        match &read {
            Ok(_) => self.read_at.store(self.clock.store_time().as_unix_ms(), Ordering::Relaxed),
            Err(_) => _ = self.failed_reads.fetch_add(1, Ordering::Relaxed),
        }
        read
    }

    /// Makes a change. `known` are the overrides that this gateway has: if the file was deleted,
    /// they stay.
    ///
    /// # Errors
    ///
    /// It was not made; after [`OverrideError::Redis`], it may have been.
    pub async fn change(
        &self,
        change: OverrideChange,
        known: &OverrideSet,
    ) -> Result<Changed, OverrideError> {
        match &self.place {
            Place::Nowhere => Err(OverrideError::NoPlace),
            Place::File(own) => own.change(change, known, self.clock.store_time()).await,
            Place::Redis(redis) => redis.lock().await.change(change).await,
        }
    }

    /// Counts since the start.
    pub fn counts(&self) -> StoreCounts {
        let read_at = StoreTime::from_unix_ms(self.read_at.load(Ordering::Relaxed));
        StoreCounts {
            failed_reads: self.failed_reads.load(Ordering::Relaxed),
            read_at: Some(read_at).filter(|at| *at > StoreTime::ZERO),
        }
    }
}

impl FilePlace {
    async fn read_if_changed(&self) -> Result<Option<OverrideSet>, OverrideError> {
        let mut last = self.last.lock().await;
        let (path, before) = (self.file.path.clone(), *last);
        let stamped = blocking(&self.file.path, move || {
            // A missing file is not a change: it may be missing for a moment while it is replaced.
            let stamp = FileStamp::of(&path).ok().filter(|stamp| Some(*stamp) != before);
            Ok(stamp.map(|stamp| (stamp, read_file(&path))))
        });
        let Some((stamp, content)) = stamped.await? else { return Ok(None) };
        // Also after a fault: the next attempt follows the next change.
        *last = Some(stamp);
        content.map(|content| Some(self.applicable(content))).map_err(OverrideError::Faults)
    }

    async fn change(
        &self,
        change: OverrideChange,
        known: &OverrideSet,
        now: StoreTime,
    ) -> Result<Changed, OverrideError> {
        let mut last = self.last.lock().await;
        let (file, known) = (self.file.clone(), known.clone());
        let changed = blocking(&self.file.path, move || file.change(change, &known, now)).await?;
        *last = changed.stamp;
        let set = Some(self.applicable(changed.content));
        Ok(Changed { before: changed.before, set })
    }

    /// The overrides of a file, without the keys that were hashed under another secret than this
    /// process's.
    fn applicable(&self, content: OverridesContent) -> OverrideSet {
        let mut set = content.set;
        if content.secret.is_some_and(|secret| secret != self.file.secret) {
            tracing::warn!(
                "the keys in the file of overrides were hashed under another secret; these overrides apply after a \
                 restart"
            );
            set.remove_keys();
        }
        set
    }
}

/// Runs `work` with the file at `path` on a thread of its own, within [`FILE_TIMEOUT`].
async fn blocking<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> Result<T, OverrideError> + Send + 'static,
) -> Result<T, OverrideError> {
    let name = path.display().to_string();
    let run = move || file::read_within(FILE_TIMEOUT, move || Ok(work()));
    let ended = tokio::task::spawn_blocking(run).await;
    let ended = ended.unwrap_or_else(|error| Err(FileError::Io(std::io::Error::other(error))));
    ended.unwrap_or_else(|error| {
        let fault = Fault::of_whole_file(&name, &error.to_string(), error.expected());
        Err(OverrideError::Faults(fault.into()))
    })
}
