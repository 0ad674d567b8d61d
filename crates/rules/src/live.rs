//! What changes at run time: [`LiveSnapshot`], the compiled configuration of new requests with its
//! consumers, and [`LiveOverrides`].

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use tidegate_access::auth::ConsumerTable;
use tidegate_access::overrides::{OverrideId, OverrideSet};

use crate::snapshot::{OverrideTable, Snapshot};

/// A snapshot and its consumers. A request that keeps an older snapshot keeps the consumers whose
/// plans are in it: with newer ones it could be admitted by neither configuration.
#[derive(Debug)]
pub struct CurrentRules {
    /// The snapshot.
    pub snapshot: Arc<Snapshot>,
    /// The consumers, which change more often, and alone.
    pub consumers: LiveConsumers,
}

/// The current [`Snapshot`] with its consumers, and its generation. A worker checks the generation
/// for every request, which is one atomic load, and loads the snapshot only after a change.
#[derive(Debug)]
pub struct LiveSnapshot {
    rules: ArcSwap<CurrentRules>,
    generation: AtomicU64,
}

impl LiveSnapshot {
    /// Starts with `snapshot` and `consumers` as generation 1.
    pub fn new(snapshot: Snapshot, consumers: Arc<ConsumerTable>) -> Self {
        let rules = ArcSwap::from_pointee(CurrentRules::new(snapshot, consumers));
        Self { rules, generation: AtomicU64::new(1) }
    }

    /// The generation of the current snapshot: 1 at the start, 1 more after each reload.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The current snapshot and its consumers, for a request.
    pub fn rules(&self) -> Arc<CurrentRules> {
        self.rules.load_full()
    }

    /// The current snapshot.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.rules.load().snapshot)
    }

    /// The current consumers.
    pub fn consumers(&self) -> Arc<ConsumerTable> {
        self.rules.load().consumers.0.load_full()
    }

    /// Replaces the consumers of the current snapshot. Two replacements must not be made at a time.
    pub fn replace_consumers(&self, consumers: Arc<ConsumerTable>) {
        self.rules.load().consumers.0.store(consumers);
    }

    /// Replaces the snapshot and its consumers, and returns the new generation. Requests in flight
    /// keep the old ones.
    pub fn replace(&self, snapshot: Snapshot, consumers: Arc<ConsumerTable>) -> u64 {
        self.rules.store(Arc::new(CurrentRules::new(snapshot, consumers)));
        self.generation.fetch_add(1, Ordering::Release) + 1
    }
}

impl CurrentRules {
    fn new(snapshot: Snapshot, consumers: Arc<ConsumerTable>) -> Self {
        let consumers = LiveConsumers(ArcSwap::new(consumers));
        Self { snapshot: Arc::new(snapshot), consumers }
    }
}

/// The consumers of a snapshot.
#[derive(Debug)]
pub struct LiveConsumers(ArcSwap<ConsumerTable>);

impl LiveConsumers {
    /// The current consumers, for the time of a lookup.
    pub fn load(&self) -> Guard<Arc<ConsumerTable>> {
        self.0.load()
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
