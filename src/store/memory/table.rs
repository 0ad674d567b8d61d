//! A table of records by linear probing.
//!
//! A general hash table keeps its tags apart from its entries, and a cold look-up then misses the
//! cache and the page table twice. Here a record's name is in the record and the name is a keyed hash
//! already, so that a look-up goes straight to the record: one miss. Removal moves the records behind
//! it up, so that no tombstones pile up under a flood.

use super::worth::Worth;
use crate::limit::{Algorithm, State};

/// The fewest slots of a table that holds anything.
const MIN_SLOTS: usize = 16;

/// The name of a slot that holds no record.
const EMPTY: u128 = 0;

/// A record and what decides how long it stays: 80 bytes, and nothing on the heap up to `k = 7`.
pub(super) struct Entry {
    /// The record's name, uniformly random; never 0.
    pub(super) id: u128,
    pub(super) state: State,
    /// Seconds since the epoch after which the record means nothing, rounded up.
    pub(super) expires: u32,
    /// What an eviction spares.
    pub(super) worth: Worth,
}

impl Entry {
    fn empty() -> Self {
        let state = State::fresh(Algorithm::SlidingWindow);
        Self { id: EMPTY, state, expires: 0, worth: Worth::default() }
    }

    fn is_empty(&self) -> bool {
        self.id == EMPTY
    }
}

/// Records by name. At most three quarters of the slots are taken, so a free one always ends a search.
#[derive(Default)]
pub(super) struct Table {
    /// None, or a power of two.
    slots: Vec<Entry>,
    len: usize,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// How many records fit without growing.
    pub(super) fn capacity(&self) -> usize {
        self.slots.len() / 4 * 3
    }

    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The record in a slot, if there is one.
    pub(super) fn at(&self, slot: usize) -> Option<&Entry> {
        self.slots.get(slot).filter(|entry| !entry.is_empty())
    }

    pub(super) fn find(&mut self, id: u128) -> Option<&mut Entry> {
        if self.slots.is_empty() {
            return None;
        }
        let slot = self.search(id);
        let entry = &mut self.slots[slot];
        (!entry.is_empty()).then_some(entry)
    }

    /// The slot that holds the record of this name.
    pub(super) fn place(&self, id: u128) -> Option<usize> {
        let slot = (!self.slots.is_empty()).then(|| self.search(id))?;
        self.at(slot).map(|_| slot)
    }

    /// Adds a record whose name is not in the table.
    pub(super) fn insert(&mut self, entry: Entry) {
        if self.len == self.capacity() {
            self.resize((self.slots.len() * 2).max(MIN_SLOTS));
        }
        let slot = self.search(entry.id);
        self.slots[slot] = entry;
        self.len += 1;
    }

    /// Empties a slot that holds a record; records behind it may move up into it.
    pub(super) fn remove(&mut self, slot: usize) {
        let mask = self.slots.len() - 1;
        let (mut hole, mut next) = (slot, slot);
        loop {
            next = (next + 1) & mask;
            let entry = &self.slots[next];
            if entry.is_empty() {
                break;
            }
            // A record may move up to the hole, but not to before the slot where its search begins.
            let from_home = next.wrapping_sub(entry.id as usize) & mask;
            if from_home >= next.wrapping_sub(hole) & mask {
                self.slots.swap(hole, next);
                hole = next;
            }
        }
        self.slots[hole] = Entry::empty();
        self.len -= 1;
    }

    /// Gives memory back where less than an eighth of the slots is taken.
    pub(super) fn shrink(&mut self) {
        if self.len == 0 {
            self.slots = Vec::new();
        } else if self.len < self.slots.len() / 8 {
            self.resize((self.len * 2).next_power_of_two().max(MIN_SLOTS));
        }
    }

    /// The slot of the record of this name, or the free one where it would be. The table has slots.
    fn search(&self, id: u128) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = id as usize & mask;
        while self.slots[slot].id != id && !self.slots[slot].is_empty() {
            slot = (slot + 1) & mask;
        }
        slot
    }

    /// Moves all records into so many slots: a power of two, more than there are records.
    fn resize(&mut self, slots: usize) {
        let mut larger = Vec::with_capacity(slots);
        larger.resize_with(slots, Entry::empty);
        let old = std::mem::replace(&mut self.slots, larger);
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
        assert_eq!(size_of::<Entry>(), 80);
    }

    proptest! {
        /// Names that crowd a few homes, added and removed at random: the table holds what a set holds.
        #[test]
        fn holds_what_a_set_holds(steps in prop::collection::vec((1_u128..400, any::<bool>()), 1..600)) {
            let (mut table, mut model) = (Table::default(), BTreeSet::new());
            for (name, add) in steps {
                // The low bits choose the home: only 8 homes, some of them at the end of the table.
                let id = name << 64 | (name % 8).wrapping_sub(3) & 0xffff_ffff;
                if add && model.insert(id) {
                    table.insert(Entry { id, ..Entry::empty() });
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
