//! Reads the consumers again when their file changes. Rules and counters stay as they are, and so
//! do the consumers if the file has a fault.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{LastRead, Reloader};
use crate::{
    auth::ConsumerTable,
    config::{Fault, Faults},
    file::{self, FileError, FileStamp},
    snapshot::{ConsumerSource, ConsumersFile, LoadError, catch_panic},
};

/// Consumers that were read.
pub(crate) struct LoadedConsumers {
    pub(crate) table: Arc<ConsumerTable>,
    /// Their file before it was read; `None` without a file.
    pub(super) stamp: Option<FileStamp>,
}

impl LoadedConsumers {
    /// Reads the consumers, within `timeout` for each step of the file system.
    pub(crate) fn read(source: &ConsumerSource, timeout: Duration) -> Result<Self, Faults> {
        let stamp = source.file().and_then(|file| stamp(file, timeout).ok());
        Ok(Self { table: source.load()?, stamp })
    }
}

/// The stamp of a file.
fn stamp(file: &ConsumersFile, timeout: Duration) -> Result<FileStamp, FileError> {
    let path = file.path().to_owned();
    file::read_within(timeout, move || Ok(FileStamp::of(&path)?))
}

impl Reloader {
    /// Reads the consumers again if their file has changed since it was read. A missing file is not
    /// a change: it may be missing for a moment while it is replaced.
    pub(super) fn reload_changed_consumers(&self, last_read: &mut LastRead) {
        let source = self.shared.live.snapshot().consumers.clone();
        let Some(file) = source.file() else { return };
        let Ok(stamp) = stamp(file, self.timeout) else { return };
        if last_read.consumers == Some(stamp) {
            return;
        }
        // Also after a fault: the next attempt follows the next change.
        last_read.consumers = Some(stamp);
        let path = file.name();
        let read = catch_panic(file.path(), || Ok(file.load()?));
        match read {
            Ok(table) => {
                let (consumers, keys) = (table.len(), table.key_count());
                self.shared.live.replace_consumers(Arc::new(table));
                self.record_outcome(Vec::new());
                tracing::info!(%path, consumers, keys, "the consumers were read again");
            }
            Err(error) => {
                self.shared.metrics.reload_faults.fetch_add(1, Ordering::Relaxed);
                // The log line has this field only if it is true.
                let panicked = matches!(error, LoadError::Panic(_)).then_some(true);
                let faults = error.into_faults();
                self.record_outcome(faults.iter().map(Fault::to_string).collect());
                tracing::error!(
                    %path, faults = faults.in_one_line(), panicked, "the file of consumers has faults; the consumers stay"
                );
            }
        }
    }
}
