//! The thread on which servers are probed: it outlives every worker, and nothing slow runs there.

use std::{io, thread};

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The thread; it and its tasks end when this is dropped.
pub(super) struct Background {
    runtime: Handle,
    _stop: DropGuard,
}

impl Background {
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, stop) = (runtime.handle().clone(), CancellationToken::new());
        let stopped = stop.clone();
        let run = move || runtime.block_on(stopped.cancelled());
        thread::Builder::new().name("redis-keeper".to_owned()).spawn(run)?;
        Ok(Self { runtime: handle, _stop: stop.drop_guard() })
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }
}
