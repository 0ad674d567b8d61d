//! The deny cache: a caller that Redis has refused costs it next to nothing until it may come again.
//!
//! A denial holds for its record, quota and cost, and for no other: a larger cost would be refused, too,
//! but it is not known until when, and a client that waits exactly `Retry-After`, and is alone on its key,
//! is admitted. Only a cost above the quota is refused at any time, so any denial of the record answers it;
//! it has no `Retry-After`.
//!
//! A denial never outlives its own retry-at. That is counted from when the question was sent, less the ms
//! that two clocks of whole ms may differ by. What is told of the store's time is no later than that time,
//! so that a `Retry-After` made of both is never too short.
//!
//! Within that, it is trusted for [`TRUST`] only, and when the store repeats it, each time for twice as long:
//! another gateway may have given something back (a refund, unspent tokens, a charge that another shard
//! refused), and this one is not told. A store that cannot be asked repeats nothing and disproves nothing:
//! then the last denial holds until its retry-at.
//!
//! The table is bounded and made as it is used: four entries in each place, and a new one takes the
//! place of one that is over, or else of the one that ends first. So a flood of callers evicts denials, and
//! never makes an answer wrong.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

use super::record_id::RecordId;
use crate::limit::{Algorithm, Charge, Decision, Limit, Millis};

/// Locks, each with its part of the table.
const SHARDS: usize = 64;

/// Places in each part.
const PLACES: usize = 256;

/// Entries in a place.
const WAYS: usize = 4;

/// How long a denial is first trusted, in ms. Unspent tokens of a gateway that is idle have come back by
/// then: see [`super::token_lease::IDLE`].
pub const TRUST: u64 = 2_000;

/// When a decision was heard: what ticks are is told at [`crate::clock::Clock::ticks`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Heard {
    /// The tick at which the question was sent.
    pub sent: u64,
    /// The tick at which the answer was there.
    pub received: u64,
    /// The time of the decision, by the store's clock.
    pub now: Millis,
}

/// A denial that holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Denial {
    /// What the store said.
    pub decision: Decision,
    /// The store's time of now, or a little less.
    pub now: Millis,
}

/// What the cache has done, and holds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DenyStats {
    /// Requests that were refused without asking the store.
    pub hits: u64,
    /// Denials that are trusted now.
    pub entries: usize,
}

/// What the store has refused, for all workers of the process.
pub struct DenyCache {
    shards: Box<[CachePadded<Shard>]>,
}

struct Shard {
    /// The tick from which no entry is trusted: until the first refusal, and after the last, nobody locks.
    trusted_until: AtomicU64,
    /// The tick after the last [`DenyCache::invalidate`]: what was asked before it may hold no longer.
    invalidated: AtomicU64,
    part: Mutex<Part>,
}

#[derive(Default)]
struct Part {
    /// Empty until the first denial.
    places: Box<[Place]>,
    hits: u64,
}

/// The names of a place's entries lie together, on one line of the processor's cache.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Place {
    records: [u128; WAYS],
    entries: [Entry; WAYS],
}

#[derive(Clone, Copy)]
struct Entry {
    quota: u64,
    /// The first tick at which its own retry-at may have come; 0: there is none.
    end: u64,
    /// The first tick at which the store is asked again; at most `end`.
    trusted_until: u64,
    /// For how many ms it is trusted.
    trust: u64,
    /// The tick at which it was heard.
    received: u64,
    /// The store's time of the decision.
    now: Millis,
    decision: Decision,
    cost: u32,
}

impl Place {
    const EMPTY: Self = Self { records: [0; WAYS], entries: [Entry::NONE; WAYS] };
}

impl Entry {
    const NONE: Self = Self {
        quota: 0,
        end: 0,
        trusted_until: 0,
        trust: 0,
        received: 0,
        now: 0,
        decision: Decision {
            admitted: false,
            limit: 0,
            remaining: 0,
            used: 0,
            reset_at: 0,
            retry_at: None,
            wait: 0,
        },
        cost: 0,
    };

    /// For how many ms its successor is trusted: for twice as long where the store has repeated it.
    fn next_trust(&self, heard: &Heard) -> u64 {
        let is_past = self.decision.retry_at.is_none_or(|retry_at| retry_at <= heard.now);
        if self.end == 0 || is_past {
            TRUST
        } else if heard.sent < self.trusted_until {
            // Both were asked for before either was known.
            self.trust
        } else {
            self.trust.saturating_mul(2)
        }
    }
}

impl Default for DenyCache {
    fn default() -> Self {
        let shard = || Shard {
            trusted_until: AtomicU64::new(0),
            invalidated: AtomicU64::new(0),
            part: Mutex::default(),
        };
        Self { shards: (0..SHARDS).map(|_| CachePadded::new(shard())).collect() }
    }
}

impl DenyCache {
    /// The most denials that are kept.
    pub const CAPACITY: usize = SHARDS * PLACES * WAYS;

    /// Whether denials of this limit are kept: not those of one that only watches, and not those of slots,
    /// any of which may come back at any moment.
    pub fn is_cached(limit: &Limit) -> bool {
        limit.enforce && limit.algorithm != Algorithm::Concurrency
    }

    /// Keeps what the store decided, if that is a refusal that lasts. It replaces the one before of the same
    /// record, quota and cost.
    pub fn insert(&self, charge: &Charge<'_>, decision: &Decision, heard: Heard) {
        let wait = decision.retry_at.map_or(0, |retry_at| retry_at.saturating_sub(heard.now));
        // The store's ms and this process' do not begin together.
        let end = heard.sent.saturating_add(wait.saturating_sub(1));
        if decision.admitted || !Self::is_cached(charge.limit) || end <= heard.received {
            return;
        }
        let id = RecordId::of(charge.limit, charge.key);
        let (shard, place) = self.find_place(id.record);
        let mut part = shard.part.lock();
        if heard.sent < shard.invalidated.load(Ordering::Relaxed) {
            return;
        }
        if part.places.is_empty() {
            part.places = vec![Place::EMPTY; PLACES].into();
        }
        let place = &mut part.places[place];
        let same = place.position(id, charge.cost);
        let way = same.unwrap_or_else(|| place.first_to_end(heard.received));
        let trust = same.map_or(TRUST, |way| place.entries[way].next_trust(&heard));
        let trusted_until = end.min(heard.sent.saturating_add(trust));
        place.records[way] = id.record;
        place.entries[way] = Entry {
            quota: id.quota,
            end,
            trusted_until,
            trust,
            received: heard.received,
            now: heard.now,
            decision: *decision,
            cost: charge.cost,
        };
        shard.trusted_until.fetch_max(trusted_until, Ordering::Relaxed);
    }

    /// The denial of this charge that is trusted at that tick: then the store need not be asked.
    pub fn get(&self, charge: &Charge<'_>, ticks: u64) -> Option<Denial> {
        if !Self::is_cached(charge.limit) {
            return None;
        }
        let id = RecordId::of(charge.limit, charge.key);
        let (shard, place) = self.find_place(id.record);
        if ticks >= shard.trusted_until.load(Ordering::Relaxed) {
            return None;
        }
        let mut part = shard.part.lock();
        let is_valid = |entry: &Entry| ticks < entry.trusted_until;
        let denial = part.places.get(place)?.find(id, charge.cost, ticks, is_valid)?;
        part.hits += 1;
        Some(denial)
    }

    /// The denial of this charge whose own retry-at has not come by that tick, trusted or not: for when the
    /// store cannot be asked.
    pub fn get_stale(&self, charge: &Charge<'_>, ticks: u64) -> Option<Denial> {
        if !Self::is_cached(charge.limit) {
            return None;
        }
        let id = RecordId::of(charge.limit, charge.key);
        let (shard, place) = self.find_place(id.record);
        let part = shard.part.lock();
        part.places.get(place)?.find(id, charge.cost, ticks, |entry| ticks < entry.end)
    }

    /// Drops all denials of a record (the key and the limit's identity), of whatever quota and cost: its
    /// caller was admitted with a smaller cost, so that a larger one has to wait longer than was told. Cheap
    /// while nobody is refused. An answer that is still on its way is not affected.
    pub fn remove(&self, record: u128) {
        let (shard, place) = self.find_place(record);
        if shard.trusted_until.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut part = shard.part.lock();
        let Some(place) = part.places.get_mut(place) else { return };
        for (of, entry) in place.records.iter().zip(&mut place.entries) {
            if *of == record {
                (entry.end, entry.trusted_until) = (0, 0);
            }
        }
    }

    /// The same after the record was corrected or reset at the store, at that tick or before: answers to
    /// what was asked until then are not kept, either.
    pub fn invalidate(&self, record: u128, ticks: u64) {
        let (shard, _) = self.find_place(record);
        {
            // An insert that has the lock has not looked yet, or is removed below.
            let _part = shard.part.lock();
            shard.invalidated.fetch_max(ticks.saturating_add(1), Ordering::Relaxed);
        }
        self.remove(record);
    }

    /// Drops all denials.
    pub fn clear(&self) {
        for shard in &self.shards {
            shard.part.lock().places = Box::default();
        }
    }

    /// What the cache has done, and holds at that tick. Takes every lock, one after the other.
    pub fn stats(&self, ticks: u64) -> DenyStats {
        let mut stats = DenyStats::default();
        for shard in &self.shards {
            let part = shard.part.lock();
            stats.hits += part.hits;
            if ticks < shard.trusted_until.load(Ordering::Relaxed) {
                let entries = part.places.iter().flat_map(|place| &place.entries);
                stats.entries += entries.filter(|entry| ticks < entry.trusted_until).count();
            }
        }
        stats
    }

    /// Where denials of a record are. Names of records are random, so any of their bits will do.
    fn find_place(&self, record: u128) -> (&Shard, usize) {
        let bits = record as usize;
        (&self.shards[bits % SHARDS], bits / SHARDS % PLACES)
    }
}

impl Place {
    /// The entry of this record, quota and cost.
    fn position(&self, id: RecordId, cost: u32) -> Option<usize> {
        let is_same = |&way: &usize| {
            let entry = &self.entries[way];
            self.records[way] == id.record && entry.quota == id.quota && entry.cost == cost
        };
        (0..WAYS).find(is_same)
    }

    /// The entry that is over or, if none is, ends first.
    fn first_to_end(&self, ticks: u64) -> usize {
        let left = |&way: &usize| self.entries[way].end.saturating_sub(ticks);
        (0..WAYS).min_by_key(left).unwrap_or(0)
    }

    fn find(
        &self,
        id: RecordId,
        cost: u32,
        ticks: u64,
        is_valid: impl Fn(&Entry) -> bool,
    ) -> Option<Denial> {
        let denial = |way: usize| {
            let entry = self.entries.get(way).filter(|entry| is_valid(entry))?;
            let never = u64::from(cost) > entry.decision.limit;
            let is_same = self.records[way] == id.record && entry.quota == id.quota;
            if !is_same || (entry.cost != cost && !never) {
                return None;
            }
            let retry_at = entry.decision.retry_at.filter(|_| !never);
            let decision = Decision { retry_at, ..entry.decision };
            let since = ticks.saturating_sub(entry.received).saturating_sub(1);
            Some(Denial { decision, now: entry.now + since })
        };
        (0..WAYS).find_map(denial)
    }
}

#[cfg(test)]
mod tests;
