//! The rules that requests run on now.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use arc_swap::ArcSwap;

use crate::snapshot::Snapshot;

/// The rules that requests run on now. A worker asks for the generation, which is one load, and only
/// when it has changed for the snapshot.
#[derive(Debug)]
pub struct Live {
    snapshot: ArcSwap<Snapshot>,
    generation: AtomicU64,
}

impl Live {
    /// Begins with `snapshot`, as generation 1.
    pub fn new(snapshot: Snapshot) -> Self {
        Self { snapshot: ArcSwap::from_pointee(snapshot), generation: AtomicU64::new(1) }
    }

    /// Counts how often the rules have been replaced, from 1.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The rules now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Replaces them; requests in flight finish on the old ones. Returns the new generation.
    pub fn replace(&self, snapshot: Snapshot) -> u64 {
        self.snapshot.store(Arc::new(snapshot));
        self.generation.fetch_add(1, Ordering::Release) + 1
    }
}
