//! Refusals that hold: a caller whom Redis has refused costs it nothing until he may come again.
//!
//! A refusal stands for its record, quota and cost, and for no other: of a larger cost it is known that
//! it would be refused, too, but not when it no longer would, and a client that waits exactly
//! `Retry-After`, and is alone on its key, is admitted. Only a cost above the quota is refused at any
//! time, so whatever is known of the record tells of it; it has no `Retry-After`.
//!
//! An entry ends before the time that the store named can have come: it is counted from when the
//! question was sent, less the ms that two clocks of whole ms may differ by. What is told of the store's
//! time is no later than that time, so that a `Retry-After` made of both is never too short. Other gateways
//! are not heard: the time may have come nearer where one gave something back, or moved on where one
//! let a smaller cost pass. Where tokens are taken ahead, giving back is what gateways do all the time: so
//! there a refusal is doubted after [`DOUBTED`], and each time that the store repeats it after twice as long.
//!
//! The table is bounded and made as it is used: four entries in each place, and a new one takes the
//! place of one that is over, or else of the one that ends first. So a flood of callers costs refusals
//! their memory, and never an answer its truth.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

use super::{record_id::RecordId, token_lease::IDLE};
use crate::limit::{Algorithm, Charge, Decision, Limit, Millis, Reserve};

/// Locks, each with its part of the table.
const SHARDS: usize = 64;

/// Places in each part.
const PLACES: usize = 256;

/// Entries in a place.
const WAYS: usize = 4;

/// So many ms after it was asked for, a refusal is first doubted where tokens are taken ahead: whatever
/// other gateways kept and did not use has come back by then.
pub const DOUBTED: u64 = 2 * IDLE;

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

/// A refusal that still holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Refused {
    /// What the store said.
    pub decision: Decision,
    /// The store's time of now, or a little less.
    pub now: Millis,
}

/// What the cache has done, and holds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RefusalStats {
    /// Refusals that the store was not asked for.
    pub hits: u64,
    /// Refusals that hold now.
    pub entries: usize,
}

/// The refusals that this process has heard, for all its workers.
pub struct Refusals {
    shards: Box<[CachePadded<Shard>]>,
}

struct Shard {
    /// The tick by which all entries are over: where nobody is refused, nobody takes the lock.
    over: AtomicU64,
    /// The tick of the last [`Refusals::forgive`], and one more: what was asked before it may be true no
    /// longer.
    forgiven: AtomicU64,
    part: Mutex<Part>,
}

#[derive(Default)]
struct Part {
    /// None until the first refusal.
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
    /// The first tick at which it holds no more; 0: there is none.
    end: u64,
    /// The tick at which it was heard.
    received: u64,
    /// For how many ms it is not doubted.
    trusted: u64,
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
        received: 0,
        trusted: 0,
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

    /// For how many ms its successor is not doubted: twice as long, if this one was and was right.
    fn trusted_again(&self, heard: &Heard) -> u64 {
        let is_past = self.decision.retry_at.is_none_or(|retry_at| retry_at <= heard.now);
        if self.end == 0 || is_past {
            DOUBTED
        } else if heard.sent < self.end {
            // Both were asked for before either was known.
            self.trusted
        } else {
            self.trusted.saturating_mul(2)
        }
    }
}

impl Default for Refusals {
    fn default() -> Self {
        let shard = || Shard {
            over: AtomicU64::new(0),
            forgiven: AtomicU64::new(0),
            part: Mutex::default(),
        };
        Self { shards: (0..SHARDS).map(|_| CachePadded::new(shard())).collect() }
    }
}

impl Refusals {
    /// The most refusals that are remembered.
    pub const CAPACITY: usize = SHARDS * PLACES * WAYS;

    /// Whether refusals of this limit hold: not those of one that only watches, and not those of slots,
    /// any of which may come back at any moment.
    pub fn holds(limit: &Limit) -> bool {
        limit.enforce && limit.algorithm != Algorithm::Concurrency
    }

    /// Remembers what the store said of a charge, if that is a refusal that holds for a while; of a limit
    /// that reserves, until it is doubted, and what is told of it stays as it was said. The newest of a
    /// record, quota and cost takes the place of an older one.
    pub fn remember(&self, charge: &Charge<'_>, decision: &Decision, heard: Heard) {
        let wait = decision.retry_at.map_or(0, |retry_at| retry_at.saturating_sub(heard.now));
        // The store's ms and this process' do not begin together.
        let end = heard.sent.saturating_add(wait.saturating_sub(1));
        if decision.admitted || !Self::holds(charge.limit) || end <= heard.received {
            return;
        }
        let id = RecordId::of(charge.limit, charge.key);
        let (shard, place) = self.find_place(id.record);
        let mut part = shard.part.lock();
        if heard.sent < shard.forgiven.load(Ordering::Relaxed) {
            return;
        }
        if part.places.is_empty() {
            part.places = vec![Place::EMPTY; PLACES].into();
        }
        let place = &mut part.places[place];
        let same = place.position(id, charge.cost);
        let way = same.unwrap_or_else(|| place.least(heard.received));
        let trusted = match (charge.limit.reserve, same) {
            (Reserve::Off, _) => u64::MAX,
            (_, Some(way)) => place.entries[way].trusted_again(&heard),
            (_, None) => DOUBTED,
        };
        let end = end.min(heard.sent.saturating_add(trusted));
        place.records[way] = id.record;
        place.entries[way] = Entry {
            quota: id.quota,
            end,
            received: heard.received,
            trusted,
            now: heard.now,
            decision: *decision,
            cost: charge.cost,
        };
        shard.over.fetch_max(end, Ordering::Relaxed);
    }

    /// The refusal that this charge would meet at that tick, if one is known to hold. Asks nobody.
    pub fn find(&self, charge: &Charge<'_>, ticks: u64) -> Option<Refused> {
        if !Self::holds(charge.limit) {
            return None;
        }
        let id = RecordId::of(charge.limit, charge.key);
        let (shard, place) = self.find_place(id.record);
        if ticks >= shard.over.load(Ordering::Relaxed) {
            return None;
        }
        let mut part = shard.part.lock();
        let refused = part.places.get(place)?.find(id, charge.cost, ticks)?;
        part.hits += 1;
        Some(refused)
    }

    /// Forgets all refusals that a record met (the key and the limit's identity), of whatever quota and cost: its
    /// caller was admitted with a smaller cost, so that a larger one has to wait longer than was told. Cheap
    /// while nobody is refused. An answer that is still on its way is not known here, and may be remembered
    /// later.
    pub fn forget(&self, record: u128) {
        let (shard, place) = self.find_place(record);
        if shard.over.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut part = shard.part.lock();
        let Some(place) = part.places.get_mut(place) else { return };
        for (of, entry) in place.records.iter().zip(&mut place.entries) {
            if *of == record {
                entry.end = 0;
            }
        }
    }

    /// The same where what he was charged was corrected, or the operator has reset him, as the store knew
    /// at that tick or before: nor is an answer remembered that is still on its way.
    pub fn forgive(&self, record: u128, ticks: u64) {
        let (shard, _) = self.find_place(record);
        {
            // Whoever remembers has the lock, and has not looked yet or is forgotten below.
            let _part = shard.part.lock();
            shard.forgiven.fetch_max(ticks.saturating_add(1), Ordering::Relaxed);
        }
        self.forget(record);
    }

    /// Forgets all refusals.
    pub fn clear(&self) {
        for shard in &self.shards {
            shard.part.lock().places = Box::default();
        }
    }

    /// What the cache has done, and holds at that tick. Takes every lock, one after the other.
    pub fn stats(&self, ticks: u64) -> RefusalStats {
        let mut stats = RefusalStats::default();
        for shard in &self.shards {
            let part = shard.part.lock();
            stats.hits += part.hits;
            if ticks < shard.over.load(Ordering::Relaxed) {
                let entries = part.places.iter().flat_map(|place| &place.entries);
                stats.entries += entries.filter(|entry| ticks < entry.end).count();
            }
        }
        stats
    }

    /// Where refusals of a record are. Keys are hashes, so any of their bits will do.
    fn find_place(&self, record: u128) -> (&Shard, usize) {
        let bits =
            ((record >> 64) as u64 ^ record as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        let bits = bits as usize;
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
    fn least(&self, ticks: u64) -> usize {
        let left = |&way: &usize| self.entries[way].end.saturating_sub(ticks);
        (0..WAYS).min_by_key(left).unwrap_or(0)
    }

    fn find(&self, id: RecordId, cost: u32, ticks: u64) -> Option<Refused> {
        let told = |way: usize| {
            let entry = self.entries.get(way)?;
            let holds = self.records[way] == id.record && entry.quota == id.quota;
            let never = u64::from(cost) > entry.decision.limit;
            if !holds || ticks >= entry.end || (entry.cost != cost && !never) {
                return None;
            }
            let retry_at = entry.decision.retry_at.filter(|_| !never);
            let decision = Decision { retry_at, ..entry.decision };
            let since = ticks.saturating_sub(entry.received).saturating_sub(1);
            Some(Refused { decision, now: entry.now + since })
        };
        (0..WAYS).find_map(told)
    }
}

#[cfg(test)]
mod tests;
