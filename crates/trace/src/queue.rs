//! The bounded queue of finished requests, from the workers to the control thread.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{ExportSettings, RequestTrace};

/// Finished requests that wait to be sent. A worker holds the lock for some instructions to add
/// one, and drops its spans if the queue is full.
#[derive(Debug, Default)]
pub struct TraceQueue {
    waiting: Mutex<QueuedTraces>,
    /// Where spans are sent; `None`: nowhere.
    settings: Mutex<Option<Arc<ExportSettings>>>,
    /// Notified when the queue is half full.
    half_full: Notify,
    /// Notified when [`Self::settings`] are replaced.
    configured: Notify,
    /// Spans by their outcome.
    pub counts: TraceCounts,
}

#[derive(Debug, Default)]
struct QueuedTraces {
    #[expect(clippy::vec_box, reason = "what is moved under the lock is a pointer")]
    traces: Vec<Box<RequestTrace>>,
    max: usize,
}

/// Counts of spans by their outcome.
#[derive(Debug, Default)]
pub struct TraceCounts {
    /// The collector accepted them.
    pub sent: AtomicU64,
    /// The queue was full.
    pub dropped: AtomicU64,
    /// The collector refused them, or the process or the export ended before they were sent.
    pub rejected: AtomicU64,
}

impl TraceQueue {
    /// Replaces the settings; with `None`, spans are no longer sent.
    pub fn configure(&self, settings: Option<ExportSettings>) {
        self.waiting.lock().max = settings.as_ref().map_or(0, |settings| settings.max_queue);
        *self.settings.lock() = settings.map(Arc::new);
        self.configured.notify_one();
    }

    /// Where spans are sent; `None`: nowhere.
    pub(super) fn settings(&self) -> Option<Arc<ExportSettings>> {
        self.settings.lock().clone()
    }

    /// Adds a finished request. Does not wait.
    pub fn push(&self, trace: Box<RequestTrace>) {
        let mut waiting = self.waiting.lock();
        let (count, max) = (waiting.traces.len(), waiting.max);
        if count >= max {
            drop(waiting);
            self.counts.dropped.fetch_add(trace.span_count(), Relaxed);
            return;
        }
        waiting.traces.push(trace);
        drop(waiting);
        if count + 1 == max.div_ceil(2) {
            self.half_full.notify_one();
        }
    }

    /// Takes at most `max` requests, the oldest first.
    #[expect(clippy::vec_box, reason = "what is moved under the lock is a pointer")]
    pub(super) fn take(&self, max: usize) -> Vec<Box<RequestTrace>> {
        let traces = &mut self.waiting.lock().traces;
        if traces.len() <= max {
            return mem::take(traces);
        }
        traces.drain(..max).collect()
    }

    /// The number of queued requests.
    pub fn waiting(&self) -> usize {
        self.waiting.lock().traces.len()
    }

    /// Returns when the queue is half full.
    pub(super) async fn half_full(&self) {
        self.half_full.notified().await;
    }

    /// Returns when the settings were replaced.
    pub(super) async fn configured(&self) {
        self.configured.notified().await;
    }
}
