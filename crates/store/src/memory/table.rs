//! A hash table of records with linear probing.
//!
//! A general hash table keeps its tags apart from its entries, so a cold lookup misses the cache
//! and the TLB twice. Here the entry contains its id, which is a keyed hash already, so a cold
//! lookup misses once. Removal shifts the entries behind it back (Knuth, TAOCP volume 3, section
//! 6.4, algorithm R), so that no tombstones accumulate under a flood.

use tidegate_limit::{Algorithm, AlgorithmState};

use super::eviction::RecordUsage;

/// Minimum number of slots of a non-empty table.
const MIN_SLOTS: usize = 16;

/// The id in an empty slot.
const EMPTY: u128 = 0;

/// A record with its expiry and usage: 80 bytes; no heap memory for a sliding window of up to 7
/// sub-windows.
pub(super) struct RecordEntry {
    /// The record's id: uniformly random, never 0.
    pub(super) id: u128,
    pub(super) state: AlgorithmState,
    /// The expiry of the record, in seconds since the Unix epoch, rounded up.
    pub(super) expires: u32,
    /// The record's usage, which determines its eviction rank.
    pub(super) usage: RecordUsage,
}

impl RecordEntry {
    fn empty() -> Self {
        let state = AlgorithmState::fresh(Algorithm::FixedWindow);
        Self { id: EMPTY, state, expires: 0, usage: RecordUsage::default() }
    }

    fn is_empty(&self) -> bool {
        self.id == EMPTY
    }
}

/// Records by id. At most three quarters of the slots are in use, so a search always ends at a free
/// one.
#[derive(Default)]
pub(super) struct RecordTable {
    /// Empty, or a power of two of slots.
    slots: Vec<RecordEntry>,
    len: usize,
}

impl RecordTable {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Number of records that fit without growing.
    pub(super) fn capacity(&self) -> usize {
        self.slots.len() / 4 * 3
    }

    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The record in a slot, if there is one.
    pub(super) fn at(&self, slot: usize) -> Option<&RecordEntry> {
        self.slots.get(slot).filter(|entry| !entry.is_empty())
    }

    /// Like [`Self::at`], mutable.
    pub(super) fn at_mut(&mut self, slot: usize) -> Option<&mut RecordEntry> {
        self.slots.get_mut(slot).filter(|entry| !entry.is_empty())
    }

    pub(super) fn find(&mut self, id: u128) -> Option<&mut RecordEntry> {
        if self.slots.is_empty() {
            return None;
        }
        let slot = self.search(id);
        let entry = &mut self.slots[slot];
        (!entry.is_empty()).then_some(entry)
    }

    /// The slot of the record with this id, if it exists.
    pub(super) fn slot_of(&self, id: u128) -> Option<usize> {
        let slot = (!self.slots.is_empty()).then(|| self.search(id))?;
        self.at(slot).map(|_| slot)
    }

    /// Adds a record whose id is not in the table.
    pub(super) fn insert(&mut self, entry: RecordEntry) {
        if self.len == self.capacity() {
            self.resize((self.slots.len() * 2).max(MIN_SLOTS));
        }
        let slot = self.search(entry.id);
        self.slots[slot] = entry;
        self.len += 1;
    }

    /// Removes the record in a slot; a record behind it may move into the slot.
    pub(super) fn remove(&mut self, slot: usize) {
        let mask = self.slots.len() - 1;
        let (mut hole, mut next) = (slot, slot);
        loop {
            next = (next + 1) & mask;
            let entry = &self.slots[next];
            if entry.is_empty() {
                break;
            }
            // A record may move to the hole unless that is before its home slot, where its search
            // begins.
            let from_home = next.wrapping_sub(entry.id as usize) & mask;
            if from_home >= next.wrapping_sub(hole) & mask {
                self.slots.swap(hole, next);
                hole = next;
            }
        }
        self.slots[hole] = RecordEntry::empty();
        self.len -= 1;
    }

    /// Frees memory if fewer than an eighth of the slots are in use.
    pub(super) fn shrink(&mut self) {
        if self.len == 0 {
            self.slots = Vec::new();
        } else if self.len < self.slots.len() / 8 {
            self.resize((self.len * 2).next_power_of_two().max(MIN_SLOTS));
        }
    }

    /// The slot of the record with this id, or the free slot for it. The table must have slots.
    fn search(&self, id: u128) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = id as usize & mask;
        while self.slots[slot].id != id && !self.slots[slot].is_empty() {
            slot = (slot + 1) & mask;
        }
        slot
    }

    /// Moves all records into `slots` slots: a power of two, greater than the number of records.
    fn resize(&mut self, slots: usize) {
        let mut new = Vec::with_capacity(slots);
        new.resize_with(slots, RecordEntry::empty);
        let old = std::mem::replace(&mut self.slots, new);
        for entry in old.into_iter().filter(|entry| !entry.is_empty()) {
            let slot = self.search(entry.id);
            self.slots[slot] = entry;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_record_takes_eighty_bytes() {
        assert_eq!(size_of::<RecordEntry>(), 80);
    }

    proptest! {
        /// Ids with few home slots are added and removed at random.
        #[test]
        fn matches_a_reference_set(steps in prop::collection::vec((1_u128..400, any::<bool>()), 1..600)) {
            let (mut table, mut model) = (RecordTable::default(), BTreeSet::new());
            for (number, add) in steps {
                // The low bits choose the home slot: one of 8, some of them at the end of the
                // table.
                let id = number << 64 | (number % 8).wrapping_sub(3) & 0xffff_ffff;
                if add && model.insert(id) {
                    table.insert(RecordEntry { id, ..RecordEntry::empty() });
                } else if !add && model.remove(&id) {
                    let slot = table.search(id);
                    table.remove(slot);
                }
                prop_assert_eq!(table.len(), model.len());
            }
            for id in &model {
                prop_assert_eq!(table.find(*id).map(|entry| entry.id), Some(*id));
            }
            table.shrink();
            let found: BTreeSet<u128> =
                (0..table.slots()).filter_map(|slot| table.at(slot)).map(|entry| entry.id).collect();
            prop_assert_eq!(found, model);
        }
    }
}
