//! [`LiveKeySet`]: the current keys of a method, which are replaced while workers read them.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use arc_swap::{ArcSwapOption, Guard};
use parking_lot::Mutex;
use tidegate_base::time::StoreTime;
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
    /// The number of fetches that have begun.
    begun: AtomicU64,
    /// The unknown keys of late.
    unknown: Mutex<UnknownKeys>,
}

/// Number of unknown keys that are remembered. A forgotten one counts as new, so its token gets a
/// 503 instead of a 401.
const MAX_UNKNOWN: usize = 64;

/// The unknown keys that tokens named lately.
#[derive(Debug, Default)]
struct UnknownKeys {
    /// The hash of each, and the number of fetches that had begun when it was first named.
    first_named: VecDeque<(u64, u64)>,
    /// Of the last fetch that succeeded: how many had begun with it.
    fetched: u64,
    hasher: RandomState,
}

/// What an unknown key may cause.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Refetch {
    /// A fetch, which a worker asks for.
    Allowed = 0,
    /// Nothing: a fetch was asked for, or is on its way.
    Pending = 1,
    /// Nothing yet: the keys were fetched a short time ago.
    Paused = 2,
    /// Nothing: the keys are never fetched.
    Never = 3,
}

impl Refetch {
    fn of(number: u8) -> Self {
        match number {
            0 => Self::Allowed,
            1 => Self::Pending,
            2 => Self::Paused,
            _ => Self::Never,
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
            begun: AtomicU64::new(0),
            unknown: Mutex::default(),
        })
    }

    /// The keys of a file or a secret, which do not change.
    pub fn fixed(set: KeySet) -> Arc<Self> {
        Self::with(Some(Arc::new(set)), Refetch::Never)
    }

    /// Keys that are being fetched for the first time.
    pub fn awaited() -> Arc<Self> {
        Self::with(None, Refetch::Pending)
    }

    /// The current keys; `None` before the first ones have arrived.
    pub fn load(&self) -> Guard<Option<Arc<KeySet>>> {
        self.set.load()
    }

    /// Asks for newer keys, unless they were fetched a short time ago. Returns false if they are
    /// never fetched.
    pub fn want_newer(&self) -> bool {
        let (allowed, pending) = (Refetch::Allowed as u8, Refetch::Pending as u8);
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        match self.refetch.compare_exchange(allowed, pending, success, failure) {
            Ok(_) => {
                self.wanted.notify_one();
                true
            }
            Err(state) => Refetch::of(state) != Refetch::Never,
        }
    }

    /// True if the key that `name` identifies may be among newer keys, for which this asks then.
    /// False if a fetch that began after the key was first named has not brought it, or if keys are
    /// never fetched.
    pub fn may_have_newer(&self, name: &[u8]) -> bool {
        let mut unknown = self.unknown.lock();
        let key = unknown.hasher.hash_one(name);
        let found = unknown.first_named.iter().find(|(other, _)| *other == key);
        let first = found.map(|(_, begun)| *begun);
        if first.is_some_and(|begun| unknown.fetched > begun) {
            return false;
        }
        if first.is_none() {
            if unknown.first_named.len() == MAX_UNKNOWN {
                unknown.first_named.pop_front();
            }
            unknown.first_named.push_back((key, self.begun.load(Ordering::Acquire)));
        }
        drop(unknown);
        self.want_newer()
    }

    /// Records that a fetch begins: what an unknown key causes is on its way.
    pub fn begin_fetch(&self) {
        self.begun.fetch_add(1, Ordering::AcqRel);
        self.set_refetch(Refetch::Pending);
    }

    /// Waits until a worker asks for newer keys.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Sets what an unknown key may cause from now on.
    pub fn set_refetch(&self, refetch: Refetch) {
        self.refetch.store(refetch as u8, Ordering::Release);
    }

    /// Replaces the keys by ones that were fetched at `now`.
    pub fn replace(&self, set: KeySet, now: StoreTime) {
        self.set.store(Some(Arc::new(set)));
        self.unknown.lock().fetched = self.begun.load(Ordering::Acquire);
        self.fetched.store(now.as_unix_ms(), Ordering::Relaxed);
    }

    /// Counts a fetch that failed. The keys stay.
    pub fn count_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// When the keys were fetched last; `None` before it.
    pub fn fetched(&self) -> Option<StoreTime> {
        let time = StoreTime::from_unix_ms(self.fetched.load(Ordering::Relaxed));
        Some(time).filter(|time| *time > StoreTime::ZERO)
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
        assert!(keys.want_newer(), "later");
        keys.set_refetch(Refetch::Allowed);
        assert!(keys.want_newer() && keys.want_newer());
        let fixed = LiveKeySet::fixed(KeySet::of_secret(&[0; 32], &[]));
        assert!(!fixed.want_newer() && !fixed.may_have_newer(b"a"));
    }

    #[test]
    fn a_key_is_unknown_once_a_later_fetch_has_not_brought_it() {
        let keys = LiveKeySet::awaited();
        let fetch = || {
            keys.begin_fetch();
            keys.replace(KeySet::of_secret(&[0; 32], &[]), StoreTime::from_unix_ms(1));
            keys.set_refetch(Refetch::Paused);
        };
        fetch();
        assert!(keys.may_have_newer(b"a"), "it may be newer than the fetch");
        keys.begin_fetch();
        assert!(keys.may_have_newer(b"b"), "it may be newer than the fetch that is on its way");
        keys.replace(KeySet::of_secret(&[0; 32], &[]), StoreTime::from_unix_ms(2));
        assert!(!keys.may_have_newer(b"a") && keys.may_have_newer(b"b"));
        keys.begin_fetch();
        keys.count_failure();
        assert!(keys.may_have_newer(b"b"), "a failed fetch brings nothing");
        fetch();
        assert!(!keys.may_have_newer(b"b"));
        for number in 0..=MAX_UNKNOWN as u32 {
            assert!(keys.may_have_newer(&number.to_be_bytes()));
        }
        assert!(keys.may_have_newer(b"b"), "it is forgotten");
        assert_eq!(keys.unknown.lock().first_named.len(), MAX_UNKNOWN);
    }
}
