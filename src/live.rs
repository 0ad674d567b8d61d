//! What a reload replaces: [`LiveSnapshot`], the compiled configuration of new requests, and [`LiveConsumers`].

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use arc_swap::{ArcSwap, Guard};

use crate::{auth::ConsumerTable, snapshot::Snapshot};

/// The current [`Snapshot`] and its generation. A worker checks the generation for every request,
/// which is one atomic load, and loads the snapshot only after a change.
#[derive(Debug)]
pub struct LiveSnapshot {
    snapshot: ArcSwap<Snapshot>,
    generation: AtomicU64,
}

impl LiveSnapshot {
    /// Starts with `snapshot` as generation 1.
    pub fn new(snapshot: Snapshot) -> Self {
        Self { snapshot: ArcSwap::from_pointee(snapshot), generation: AtomicU64::new(1) }
    }

    /// The generation of the current snapshot: 1 at the start, 1 more after each reload.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The current snapshot.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Replaces the snapshot and returns the new generation. Requests in flight keep the old
    /// snapshot.
    pub fn replace(&self, snapshot: Snapshot) -> u64 {
        self.snapshot.store(Arc::new(snapshot));
        self.generation.fetch_add(1, Ordering::Release) + 1
    }
}

/// The current consumers. They are no part of the snapshot, because they change more often, and alone.
#[derive(Debug, Default)]
pub struct LiveConsumers(ArcSwap<ConsumerTable>);

impl LiveConsumers {
    /// Starts with `consumers`.
    pub fn new(consumers: Arc<ConsumerTable>) -> Self {
        Self(ArcSwap::new(consumers))
    }

    /// The current consumers, for the time of a lookup.
    pub fn load(&self) -> Guard<Arc<ConsumerTable>> {
        self.0.load()
    }

    /// Replaces the consumers.
    pub fn replace(&self, consumers: Arc<ConsumerTable>) {
        self.0.store(consumers);
    }
}
