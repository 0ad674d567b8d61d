//! The thread for health probes and Cluster map reads. It outlives every worker. Its tasks must not
//! block.

use std::{io, thread};

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

/// A thread with its own runtime. Dropping it ends the thread and its tasks.
pub(super) struct BackgroundThread {
    runtime: Handle,
    _stop: DropGuard,
}

impl BackgroundThread {
    /// # Errors
    ///
    /// The operating system cannot create the runtime or the thread.
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, stop) = (runtime.handle().clone(), CancellationToken::new());
        let stopped = stop.clone();
        let run = move || runtime.block_on(stopped.cancelled());
        thread::Builder::new().name("redis-health".to_owned()).spawn(run)?;
        Ok(Self { runtime: handle, _stop: stop.drop_guard() })
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }
}
