//! What was charged in this process while the shared store was lost, until that has heard of it.
//!
//! Bounded: so many callers, and of each a few sums. A caller who no longer finds room is dropped, and
//! counted; what is too old to weigh is forgotten. Times are ticks of [`crate::clock::Clock::ticks`],
//! which nobody sets; they become the store's when it is told.
//!
//! Of a token bucket the journal keeps what is owed, as it flows back at this gateway's share of the
//! rate: the sum of what gateways owe of their shares is never less than what all would owe of the whole.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use ahash::RandomState;
use crossbeam_utils::CachePadded;
use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

mod caller;

pub(super) use self::caller::Caller;
use super::{memory, record_id::record};
use crate::limit::{Algorithm, Change, Charge, Key, Limit, Millis, Settlement};

/// Locks, each with its part of the callers.
const SHARDS: usize = 16;

/// Callers in each part.
const CALLERS: usize = 1_024;

/// See the module.
pub(super) struct Journal {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    /// Callers held: while there is none, nobody takes a lock.
    held: AtomicUsize,
    /// Callers of whom the store has not been told: those held, and those that were taken for it.
    untold: AtomicUsize,
    merged: AtomicU64,
    dropped: AtomicU64,
    busy: AtomicBool,
    woken: Notify,
}

#[derive(Default)]
struct Shard {
    callers: HashMap<u128, Caller, RandomState>,
    /// One copy of each limit, for all callers; by its identity.
    limits: HashMap<u128, Arc<Limit>, RandomState>,
    /// The tick at which it was last searched for what is past.
    searched: u64,
}

/// The journal at one time.
#[derive(Clone, Copy)]
pub(super) struct Noting<'a> {
    pub(super) journal: &'a Journal,
    pub(super) ticks: u64,
}

impl Noting<'_> {
    /// One of `gateways` has charged this by itself.
    pub(super) fn charged(&self, charge: &Charge<'_>, gateways: u32) {
        let rate = memory::share(charge.limit.quota.limit, charge.cost, gateways);
        self.journal.note(charge, rate, self.ticks);
    }

    /// A charge that was made here is corrected at `now`, by the clock that it was made by.
    pub(super) fn settled(&self, settlement: &Settlement<'_>, now: Millis, gateways: u32) {
        let &Settlement { limit, key, change } = settlement;
        match change {
            Change::Refund { charged_at, cost } => {
                let at = self.ticks.saturating_sub(now.saturating_sub(charged_at));
                self.journal.take_off(limit, key, cost, at, self.ticks);
            }
            Change::Overdraw { cost } => {
                let rate = memory::share(limit.quota.limit, limit.cost, gateways);
                self.journal.note(&Charge { limit, key, cost }, rate, self.ticks);
            }
            Change::Late { .. } => {}
        }
    }
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            held: AtomicUsize::new(0),
            untold: AtomicUsize::new(0),
            merged: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            busy: AtomicBool::new(false),
            woken: Notify::new(),
        }
    }
}

impl Journal {
    /// The most callers that are held.
    #[cfg(test)]
    pub(super) const CAPACITY: usize = SHARDS * CALLERS;

    /// Notes a charge; `rate` is the share of a token bucket's that pays it back.
    fn note(&self, charge: &Charge<'_>, rate: u32, ticks: u64) {
        let &Charge { limit, key, cost } = charge;
        // What these charge is past, or taken anew, when the store is back: see `Change::Late`.
        let meant = !matches!(limit.algorithm, Algorithm::LeakyBucket | Algorithm::Concurrency);
        if cost == 0 || !meant {
            return;
        }
        let id = record(limit, key);
        let mut shard = self.shard_of(id).lock();
        if let Some(caller) = shard.callers.get_mut(&id).filter(|of| of.limit.quota == limit.quota)
        {
            caller.rate = rate;
            return caller.add(ticks, cost.into(), ticks);
        }
        let limit = shard.limit(limit);
        let mut caller = Caller::new(limit, key, rate);
        caller.add(ticks, cost.into(), ticks);
        if self.put(&mut shard, id, caller, ticks) {
            self.untold.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Puts a caller, or adds what is known of him. False unless he is one more who is held.
    fn put(&self, shard: &mut Shard, id: u128, caller: Caller, ticks: u64) -> bool {
        if let Some(there) = shard.callers.get_mut(&id) {
            there.join(caller, ticks);
            return false;
        }
        if shard.callers.len() >= CALLERS && ticks >= shard.searched.saturating_add(1_000) {
            self.search(shard, ticks);
        }
        if shard.callers.len() >= CALLERS {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        shard.callers.insert(id, caller);
        self.held.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// So many callers who were held are forgotten.
    fn forgotten(&self, callers: usize) {
        self.held.fetch_sub(callers, Ordering::Relaxed);
        self.untold.fetch_sub(callers, Ordering::Relaxed);
    }

    /// Takes off what was given back of a charge made at tick `at`; never below nothing.
    fn take_off(&self, limit: &Limit, key: Key, cost: u32, at: u64, ticks: u64) {
        let id = record(limit, key);
        if self.len() > 0
            && let Some(caller) = self.shard_of(id).lock().callers.get_mut(&id)
        {
            caller.take_off(cost, at, ticks);
        }
    }

    /// Forgets what was charged to a caller.
    pub(super) fn forget(&self, limit: &Limit, key: Key) {
        let id = record(limit, key);
        if self.len() > 0 && self.shard_of(id).lock().callers.remove(&id).is_some() {
            self.forgotten(1);
        }
    }

    /// Forgets what is too old to weigh.
    pub(super) fn expire(&self, ticks: u64) {
        if self.len() > 0 {
            self.shards.iter().for_each(|shard| self.search(&mut shard.lock(), ticks));
        }
    }

    fn search(&self, shard: &mut Shard, ticks: u64) {
        let before = shard.callers.len();
        shard.callers.retain(|_, caller| !caller.is_past(ticks));
        shard.searched = ticks;
        self.forgotten(before - shard.callers.len());
        shard.shrink();
    }

    /// Takes the callers that are `wanted`, but those of whom nothing weighs any more. True if others
    /// stay.
    pub(super) fn take(&self, ticks: u64, wanted: impl Fn(Key) -> bool) -> (Vec<Caller>, bool) {
        let (mut taken, mut others) = (Vec::new(), false);
        for shard in &self.shards {
            let mut shard = shard.lock();
            self.search(&mut shard, ticks);
            let before = taken.len();
            let is_wanted = |_: &u128, caller: &mut Caller| wanted(caller.key);
            taken.extend(shard.callers.extract_if(is_wanted).map(|(_, caller)| caller));
            self.held.fetch_sub(taken.len() - before, Ordering::Relaxed);
            others |= !shard.callers.is_empty();
            shard.shrink();
        }
        (taken, others)
    }

    /// Puts callers back who were taken, and of whom the store has not been told.
    pub(super) fn put_back(&self, callers: impl IntoIterator<Item = Caller>, ticks: u64) {
        for caller in callers {
            let id = record(&caller.limit, caller.key);
            if !self.put(&mut self.shard_of(id).lock(), id, caller, ticks) {
                self.heard(1);
            }
        }
    }

    /// Callers held.
    pub(super) fn len(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Of so many callers that were taken the store has been told, or never will be.
    pub(super) fn heard(&self, callers: usize) {
        self.untold.fetch_sub(callers, Ordering::Relaxed);
    }

    /// Callers of whom the store has not been told yet.
    pub(super) fn untold(&self) -> usize {
        self.untold.load(Ordering::Relaxed)
    }

    /// Corrections that the store has been told of, and what it will never be.
    pub(super) fn told(&self) -> (u64, u64) {
        (self.merged.load(Ordering::Relaxed), self.dropped.load(Ordering::Relaxed))
    }

    /// So many corrections have been made in the store, or may have been and are not repeated.
    pub(super) fn count(&self, corrections: usize, known: bool) {
        let counter = if known { &self.merged } else { &self.dropped };
        counter.fetch_add(corrections as u64, Ordering::Relaxed);
    }

    /// Wakes those who could tell the store, if there is something to tell and nobody does.
    pub(super) fn wake(&self) {
        if self.len() > 0 && !self.busy.load(Ordering::Relaxed) {
            self.woken.notify_waiters();
        }
    }

    /// Returns when [`Self::wake`] has found something.
    pub(super) async fn woken(&self) {
        self.woken.notified().await;
    }

    /// Lets one at a time tell the store: whoever holds this.
    pub(super) fn begin(&self) -> Option<Busy<'_>> {
        (!self.busy.swap(true, Ordering::Acquire)).then_some(Busy(self))
    }

    fn shard_of(&self, id: u128) -> &Mutex<Shard> {
        &self.shards[(id >> 64) as usize % SHARDS]
    }
}

/// The only one who tells the store.
pub(super) struct Busy<'a>(&'a Journal);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

impl Shard {
    /// The shard's copy of a limit, of its newest quota.
    fn limit(&mut self, limit: &Limit) -> Arc<Limit> {
        let kept = self.limits.entry(limit.identity()).or_insert_with(|| Arc::new(limit.clone()));
        if kept.quota != limit.quota {
            *kept = Arc::new(limit.clone());
        }
        Arc::clone(kept)
    }

    /// Gives back the memory of callers, when the last has gone.
    fn shrink(&mut self) {
        if self.callers.is_empty() {
            *self = Self { searched: self.searched, ..Self::default() };
        }
    }
}

#[cfg(test)]
mod tests;
