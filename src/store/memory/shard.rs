//! One shard of the memory store: a table of records behind one lock.

use hashbrown::HashTable;

use crate::limit::{Algorithm, Decision, Millis, Quota, State};

/// How many records an eviction looks at before it picks one.
const SAMPLE: usize = 16;

/// The least capacity that a table is shrunk to while it holds anything.
const MIN_CAPACITY: usize = 32;

/// One charge as a shard sees it: a record's name and what is asked of it.
#[derive(Clone, Copy)]
pub(super) struct Ask {
    /// The record: the caller's key combined with the limit's identity; uniformly random.
    pub(super) id: u128,
    pub(super) algorithm: Algorithm,
    pub(super) quota: Quota,
    pub(super) cost: u32,
}

/// A record and what decides how long it stays: 80 bytes, and nothing on the heap up to `k = 7`.
struct Entry {
    id: u128,
    state: State,
    /// Seconds since the epoch after which the record means nothing, rounded up.
    expires: u32,
    /// The quota that it was last charged under.
    limit: u32,
}

impl Entry {
    /// How near its quota the caller is: what an eviction spares.
    fn share(&self) -> f64 {
        self.state.weight() as f64 / f64::from(self.limit.max(1))
    }

    fn expired(&self, now: u32) -> bool {
        self.expires <= now
    }
}

/// Records, how many there may be, and what has become of them.
pub(super) struct Shard {
    table: HashTable<Entry>,
    max: usize,
    /// The bucket at which the next sweep, or the next search for a victim, goes on.
    cursor: usize,
    evicted: u64,
}

impl Shard {
    /// An empty shard for at most `max` records, at least 1.
    pub(super) fn new(max: usize) -> Self {
        Self { table: HashTable::new(), max: max.max(1), cursor: 0, evicted: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// How many records the table could hold without growing.
    pub(super) fn capacity(&self) -> usize {
        self.table.capacity()
    }

    /// Records removed before their time to make room.
    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// What a charge would meet; charges nothing.
    pub(super) fn decide(&mut self, ask: &Ask, now: Millis, cost: u32) -> Decision {
        match self.table.find_mut(hash(ask.id), |entry| entry.id == ask.id) {
            Some(entry) => entry.state.decide(&ask.quota, now, cost),
            None => State::fresh(ask.algorithm).decide(&ask.quota, now, cost),
        }
    }

    /// Charges what was decided to be admitted.
    pub(super) fn charge(&mut self, ask: &Ask, now: Millis) -> Decision {
        self.write(ask, now, |state| state.charge(&ask.quota, now, ask.cost))
    }

    /// Charges if it is admitted.
    pub(super) fn admit(&mut self, ask: &Ask, now: Millis) -> Decision {
        self.write(ask, now, |state| state.admit(&ask.quota, now, ask.cost))
    }

    fn write(
        &mut self,
        ask: &Ask,
        now: Millis,
        act: impl FnOnce(&mut State) -> Decision,
    ) -> Decision {
        if let Some(entry) = self.table.find_mut(hash(ask.id), |entry| entry.id == ask.id) {
            let decision = act(&mut entry.state);
            if decision.admitted {
                entry.expires = seconds_up(entry.state.expires_at(&ask.quota));
                entry.limit = ask.quota.limit;
            }
            return decision;
        }
        let mut state = State::fresh(ask.algorithm);
        let decision = act(&mut state);
        if decision.admitted {
            let expires = seconds_up(state.expires_at(&ask.quota));
            self.make_room(now);
            let entry = Entry { id: ask.id, state, expires, limit: ask.quota.limit };
            self.table.insert_unique(hash(ask.id), entry, |entry| hash(entry.id));
        }
        decision
    }

    /// Where the shard is full, removes what has expired of the next few records that the cursor
    /// meets, or else the one of them that has used the least of its quota: made-up keys evict each
    /// other, and a caller near his limit keeps his counter. The order of the table is that of a keyed
    /// hash, so those few are a random sample.
    fn make_room(&mut self, now: Millis) {
        if self.table.len() < self.max {
            return;
        }
        let now = seconds(now);
        let buckets = self.table.num_buckets();
        let (mut met, mut dropped, mut least) = (0, false, None::<(usize, f64)>);
        for _ in 0..buckets {
            let at = self.cursor % buckets;
            self.cursor = at + 1;
            let Ok(entry) = self.table.get_bucket_entry(at) else { continue };
            met += 1;
            if entry.get().expired(now) {
                entry.remove();
                dropped = true;
            } else {
                let share = entry.get().share();
                if least.is_none_or(|(_, lowest)| share < lowest) {
                    least = Some((at, share));
                }
            }
            if met == SAMPLE {
                break;
            }
        }
        if let (false, Some((at, _))) = (dropped, least)
            && let Ok(entry) = self.table.get_bucket_entry(at)
        {
            entry.remove();
            self.evicted += 1;
        }
    }

    /// Removes what has expired among the next `buckets` buckets. True when that ended a round of the
    /// whole table, which then gives back the memory that it no longer needs.
    pub(super) fn sweep(&mut self, buckets: usize, now: Millis) -> bool {
        let now = seconds(now);
        let end = self.table.num_buckets().min(self.cursor + buckets);
        for at in self.cursor..end {
            if let Ok(entry) = self.table.get_bucket_entry(at)
                && entry.get().expired(now)
            {
                entry.remove();
            }
        }
        self.cursor = end;
        let round = end == self.table.num_buckets();
        if round {
            self.cursor = 0;
            self.shrink();
        }
        round
    }

    /// How many buckets a full round visits.
    pub(super) fn buckets(&self) -> usize {
        self.table.num_buckets()
    }

    fn shrink(&mut self) {
        let len = self.table.len();
        let wanted = if len == 0 { 0 } else { (len * 2).max(MIN_CAPACITY) };
        if self.table.capacity() > wanted * 2 {
            self.table.shrink_to(wanted, |entry| hash(entry.id));
        }
    }
}

/// The table's hash of a record. Its name is a keyed hash already.
fn hash(id: u128) -> u64 {
    id as u64
}

/// Milliseconds as whole seconds, rounded down; what is past 2106 stays in 2106.
fn seconds(at: Millis) -> u32 {
    u32::try_from(at / 1_000).unwrap_or(u32::MAX)
}

/// Milliseconds as whole seconds, rounded up.
fn seconds_up(at: Millis) -> u32 {
    u32::try_from(at.div_ceil(1_000)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::Entry;

    #[test]
    fn a_record_takes_eighty_bytes() {
        assert_eq!(size_of::<Entry>(), 80);
    }
}
