//! [`LiveKeySet`]: the current keys of a method, which are replaced while workers read them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use arc_swap::{ArcSwapOption, Guard};
use tokio::sync::Notify;

use super::key_set::KeySet;

/// The current keys, and the wish of workers for newer ones. Cheap to read: no lock is taken.
#[derive(Debug)]
pub struct LiveKeySet {
    set: ArcSwapOption<KeySet>,
    refetch: AtomicU8,
    wanted: Notify,
    /// When the keys were fetched last, in ms since the epoch; 0 before it.
    fetched: AtomicU64,
    failures: AtomicU64,
}

/// What an unknown key may cause.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Refetch {
    /// A fetch, which a worker asks for.
    Allowed = 0,
    /// Nothing: a fetch was asked for, or is on its way.
    Pending = 1,
    /// Nothing: the keys were fetched a short time ago, or are never fetched.
    Paused = 2,
}

impl Refetch {
    fn of(number: u8) -> Self {
        match number {
            0 => Self::Allowed,
            1 => Self::Pending,
            _ => Self::Paused,
        }
    }
}

impl LiveKeySet {
    fn with(set: Option<Arc<KeySet>>, refetch: Refetch) -> Arc<Self> {
        Arc::new(Self {
            set: ArcSwapOption::new(set),
            refetch: AtomicU8::new(refetch as u8),
            wanted: Notify::new(),
            fetched: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        })
    }

    /// The keys of a file or a secret, which do not change.
    pub fn fixed(set: KeySet) -> Arc<Self> {
        Self::with(Some(Arc::new(set)), Refetch::Paused)
    }

    /// Keys that are being fetched for the first time.
    pub fn awaited() -> Arc<Self> {
        Self::with(None, Refetch::Pending)
    }

    /// The current keys; `None` before the first ones have arrived.
    pub fn load(&self) -> Guard<Option<Arc<KeySet>>> {
        self.set.load()
    }

    /// Asks for newer keys, because a token names an unknown one. Returns true if newer ones are on their way.
    pub fn want_newer(&self) -> bool {
        let (allowed, pending) = (Refetch::Allowed as u8, Refetch::Pending as u8);
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        match self.refetch.compare_exchange(allowed, pending, success, failure) {
            Ok(_) => {
                self.wanted.notify_one();
                true
            }
            Err(state) => Refetch::of(state) == Refetch::Pending,
        }
    }

    /// Waits until a worker asks for newer keys.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Sets what an unknown key may cause from now on.
    pub fn set_refetch(&self, refetch: Refetch) {
        self.refetch.store(refetch as u8, Ordering::Release);
    }

    /// Replaces the keys by ones that were fetched at `now`, in ms since the epoch.
    pub fn replace(&self, set: KeySet, now: u64) {
        self.set.store(Some(Arc::new(set)));
        self.fetched.store(now, Ordering::Relaxed);
    }

    /// Counts a fetch that failed. The keys stay.
    pub fn count_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// When the keys were fetched last, in ms since the epoch; `None` before it.
    pub fn fetched(&self) -> Option<u64> {
        Some(self.fetched.load(Ordering::Relaxed)).filter(|time| *time > 0)
    }

    /// The number of fetches that failed.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_asks_once() {
        let keys = LiveKeySet::awaited();
        assert!(keys.load().is_none() && keys.want_newer(), "the first ones are on their way");
        keys.set_refetch(Refetch::Paused);
        assert!(!keys.want_newer());
        keys.set_refetch(Refetch::Allowed);
        assert!(keys.want_newer() && keys.want_newer());
        assert!(!LiveKeySet::fixed(KeySet::of_secret(&[0; 32], &[])).want_newer());
    }
}
