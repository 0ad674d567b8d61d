//! What changes at run time: [`LiveSnapshot`], the compiled configuration of new requests,
//! [`LiveConsumers`] and [`LiveOverrides`].

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use tidegate_access::auth::ConsumerTable;
use tidegate_access::overrides::{OverrideId, OverrideSet};

use crate::snapshot::{OverrideTable, Snapshot};

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
    #[inline]
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

/// The current consumers. They are no part of the snapshot, because they change more often, and
/// alone.
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

    /// The current consumers, for a longer time.
    pub fn load_full(&self) -> Arc<ConsumerTable> {
        self.0.load_full()
    }

    /// Replaces the consumers.
    pub fn replace(&self, consumers: Arc<ConsumerTable>) {
        self.0.store(consumers);
    }
}

/// The current overrides of quotas, and the table that was made of them for the current snapshot.
#[derive(Debug, Default)]
pub struct LiveOverrides {
    /// True if there are overrides. Without them, a request reads only this.
    has_any: AtomicBool,
    table: ArcSwap<OverrideTable>,
    /// Grows by 1 with each change of the set.
    changes: AtomicU64,
    /// Locked while a table is made, so that two threads do not replace each other's.
    set: Mutex<Arc<OverrideSet>>,
}

impl LiveOverrides {
    /// The table for a request; `None` if there are no overrides.
    #[inline]
    pub fn table(&self) -> Option<Arc<OverrideTable>> {
        self.has_any.load(Ordering::Acquire).then(|| self.table.load_full())
    }

    /// All overrides, also the ones that have ended or do not apply.
    pub fn set(&self) -> Arc<OverrideSet> {
        Arc::clone(&self.set.lock())
    }

    /// The number of times that the overrides were replaced.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Replaces the overrides, and logs the ones that do not apply with the current configuration.
    /// Returns the ones before.
    pub fn replace(&self, set: OverrideSet, live: &LiveSnapshot) -> Arc<OverrideSet> {
        let mut current = self.set.lock();
        let before = std::mem::replace(&mut *current, Arc::new(set));
        self.changes.fetch_add(1, Ordering::Relaxed);
        self.compile(&current, &live.snapshot());
        before
    }

    /// Makes the table again, after the snapshot was replaced.
    pub fn rebuild(&self, live: &LiveSnapshot) {
        let current = self.set.lock();
        if !current.is_empty() {
            self.compile(&current, &live.snapshot());
        }
    }

    /// Why the override with this id does not apply with the current configuration; `None` if it
    /// does.
    pub fn fault_of(&self, id: OverrideId) -> Option<String> {
        let table = self.table.load();
        let unused = table.unused().iter().find(|unused| unused.id == id)?;
        Some(unused.fault.clone())
    }

    fn compile(&self, set: &OverrideSet, snapshot: &Snapshot) {
        let table = OverrideTable::new(set, snapshot);
        for unused in table.unused() {
            let own = set.get(unused.id).map(ToString::to_string);
            let fault = &unused.fault;
            tracing::warn!(%fault, "an override does not apply ({})", own.unwrap_or_default());
        }
        self.table.store(Arc::new(table));
        self.has_any.store(!set.is_empty(), Ordering::Release);
    }
}
