//! The rotating filter: 32 bit-sliced Bloom filters, one per generation.
//!
//! Each position has one 32-bit word, whose bit `i % 32`, the slot, belongs to generation `i`. A
//! lookup computes the bitwise AND of the words at the token's positions and the mask of the live
//! generations; recording sets the bit of the current generation in each of these words. Neither
//! locks, allocates or waits. `ticker.rs` calls [`Filter::rotate`] once a second.
//!
//! # Memory orderings
//!
//! - The epoch is stored with `Release` after the slots that it makes live were cleared, and loaded
//!   with `Acquire` once per operation. So an operation finds the slots of its epoch clean: it sees
//!   no bit of a slot's previous generation, and a bit that it sets is not cleared with the old
//!   ones.
//! - The words are read and changed with `Relaxed`. The bits of a slot are independent and are only
//!   added while the slot is live, and setting and clearing are read-modify-writes, so no update is
//!   lost.
//! - `changed` is set by a read-modify-write with `Release` after the bits, and taken by one with
//!   `Acquire` before the bits are read. Either the reader sees the bits of a recording, or the
//!   recording marks the slot again afterwards. (Setting the mark only if it is missing would need
//!   a full fence between setting the bits and testing the mark, and would save nothing: only new
//!   tokens set it.)
//!
//! # Limitation
//!
//! A thread that is suspended in [`Filter::record`] between reading the epoch and setting the last
//! bit, and resumes when the slot belongs to a later generation, records in that generation. A slot
//! is reused at the earliest `31 - complete_generations` generations after its own generation
//! expired.
//!
//! # Growth
//!
//! The number of positions is fixed. To grow or shrink, [`Filter::resized`] makes an empty filter
//! of another size with the same live generations, and [`Filter::absorb`] copies all bits to it.

use std::{
    ops::{Range, RangeInclusive},
    sync::{
        Arc,
        atomic::Ordering::{Acquire, Relaxed, Release},
    },
};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use tidegate_base::time::{Millis, StoreTime};

use self::{
    atomics::{AtomicEpoch, AtomicWord, Atomics, Native},
    epoch::Epoch,
    newcomers::Newcomers,
    positions::PositionHasher,
    sweep::Sweep,
};
use super::{geometry::Geometry, hash_keys::HashKeys};

mod atomics;
mod epoch;
mod newcomers;
mod positions;
mod scan;
mod sweep;

/// Time for which a generation stays live beyond the configured time `memory`.
///
/// The throttle's thread rotates the filters at least once a second; until then, tokens are
/// recorded in the previous generation. They still stay active for the whole time `memory` if the
/// rotation is late by less than this.
pub const GRACE: Millis = Millis::from_secs(2);

/// Minimum number of positions from which the fill of a generation is estimated. Its standard
/// deviation is 0.2 % of all positions.
const FILL_SAMPLES: usize = 1 << 16;

/// Number of positions to read before testing the result, so that their cache misses overlap. The
/// first batch decides nine of ten unknown tokens in 31 half-full generations.
const READ_BATCH: u32 = 8;

/// A rotating Bloom filter of tokens. A token is a keyed 64-bit hash.
///
/// Any thread may look up and record at any time. The operations of the throttle's thread (rotate,
/// take and mark changes, export, merge) exclude each other, but never block lookups or recordings.
pub struct Filter<A: Atomics = Native> {
    geometry: Geometry,
    hash_keys: HashKeys,
    positions: PositionHasher,
    words: Box<[A::Word]>,
    /// [`Epoch::pack`].
    epoch: A::Epoch,
    /// The slots in which tokens were recorded since [`Self::take_changed`]. Workers write it.
    changed: CachePadded<A::Word>,
    /// Recorded tokens that other gateways may not know. Filters of other sizes share them.
    newcomers: Arc<Newcomers>,
    /// The lock and state of the throttle's thread.
    sweep: CachePadded<Mutex<Sweep>>,
}

/// The result of a merge, in positions.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MergeCounts {
    /// Positions set in the merged bits that were not set in this filter.
    pub added: u64,
    /// Positions set in this filter that are not set in the merged bits.
    pub remote_missing: u64,
}

impl Filter {
    /// An empty filter at `now`.
    ///
    /// # Panics
    ///
    /// If the geometry has no bits.
    pub fn new(geometry: Geometry, hash_keys: HashKeys, now: StoreTime) -> Self {
        Self::with_atomics(geometry, hash_keys, now)
    }
}

impl<A: Atomics> Filter<A> {
    /// An empty filter of any family of atomics.
    fn with_atomics(geometry: Geometry, hash_keys: HashKeys, now: StoreTime) -> Self {
        Self {
            positions: PositionHasher::new(&geometry, &hash_keys),
            words: (0..geometry.bits).map(|_| A::Word::zero()).collect(),
            epoch: A::Epoch::new(Epoch::at(&geometry, now).pack()),
            changed: CachePadded::new(A::Word::zero()),
            newcomers: Arc::new(Newcomers::new(geometry.max_newcomers())),
            sweep: CachePadded::default(),
            geometry,
            hash_keys,
        }
    }

    /// The sizes.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The keys of the hashes.
    pub fn hash_keys(&self) -> &HashKeys {
        &self.hash_keys
    }

    /// The indexes of the live generations; the last is the current one.
    pub fn live_generations(&self) -> RangeInclusive<u64> {
        self.load_epoch().range()
    }

    /// True if `token` was recorded in a live generation. May be a false positive, never a false
    /// negative.
    pub fn contains(&self, token: u64) -> bool {
        let mut live = self.epoch.load(Acquire) as u32;
        let (positions, hashes) = (self.positions.of(token), self.geometry.hashes);
        let mut at = 0;
        while at + READ_BATCH <= hashes {
            for i in at..at + READ_BATCH {
                live &= self.words[positions.at(i)].load(Relaxed);
            }
            if live == 0 {
                return false;
            }
            at += READ_BATCH;
        }
        (at..hashes).all(|i| {
            live &= self.words[positions.at(i)].load(Relaxed);
            live != 0
        })
    }

    /// Records `token` in the current generation. True if it was new there.
    ///
    /// If the generations before do not have it either, other gateways may not know it, and it
    /// becomes one of the [newcomers](Self::take_newcomers).
    pub fn record(&self, token: u64) -> bool {
        let epoch = self.epoch.load(Acquire);
        let slot = Epoch::current_slot_mask(epoch);
        let recent = Epoch::recent_slots_mask(epoch, self.geometry.well_known());
        let (positions, hashes) = (self.positions.of(token), self.geometry.hashes);
        // Reads first: cache misses of reads overlap, whereas those of read-modify-writes do not.
        let words = || (0..hashes).map(|i| &self.words[positions.at(i)]);
        let known = words().fold(slot | recent, |all, word| all & word.load(Relaxed));
        if known & slot != 0 {
            return false;
        }
        let mut is_new = false;
        for word in words() {
            if word.load(Relaxed) & slot == 0 {
                is_new |= word.fetch_or(slot, Relaxed) & slot == 0;
            }
        }
        if is_new {
            self.changed.fetch_or(slot, Release);
            if known == 0 {
                self.newcomers.push(epoch >> 32, token);
            }
        }
        is_new
    }

    /// Takes the newcomers of the live generation `index`, which is the current or the previous
    /// one: the tokens that were recorded in it, and not in the [`Geometry::well_known`]
    /// generations before. At least the latest [`Geometry::max_newcomers`] are there.
    pub fn take_newcomers(&self, index: u64) -> Vec<u64> {
        let _sweep = self.sweep.lock();
        let current = self.load_epoch().current;
        if index > current || index + 1 < current { Vec::new() } else { self.newcomers.take(index) }
    }

    /// Adds tokens that another gateway recorded in the generation `index`; does nothing if it is
    /// not live. True if any was new. Does not mark the generation as changed.
    pub fn learn(&self, index: u64, tokens: &[u64]) -> bool {
        let mut sweep = self.sweep.lock();
        let Some(slot) = self.slot(index) else { return false };
        sweep.slots_with_bits |= 1 << slot;
        let mut is_any_new = false;
        for token in tokens {
            let positions = self.positions.of(*token);
            let words = || (0..self.geometry.hashes).map(|i| &self.words[positions.at(i)]);
            if words().fold(1 << slot, |all, word| all & word.load(Relaxed)) == 0 {
                words().for_each(|word| _ = word.fetch_or(1 << slot, Relaxed));
                is_any_new = true;
            }
        }
        is_any_new
    }

    /// Moves to the generation of `now`; never back. Call it at least once a second.
    ///
    /// An expired generation is no longer live, and each call clears a part of its slot. If the
    /// clock jumps and the slot is reused before it is cleared, this call clears the rest.
    pub fn rotate(&self, now: StoreTime) {
        let mut sweep = self.sweep.lock();
        let old = self.load_epoch();
        let new = old.advanced(&self.geometry, now);
        if new != old {
            let kept = (old.oldest.max(new.oldest)..=old.current)
                .fold(0, |slots, index| slots | Self::slot_mask(index));
            let (expired, reused) = (old.mask() & !kept, new.mask() & !kept);
            // A slot that is not live is marked only by a thread that was suspended while it
            // recorded.
            let marked = self.changed.fetch_and(!(expired | reused), Acquire);
            let with_bits = (expired & (sweep.slots_with_bits | marked)) | (reused & marked);
            sweep.slots_with_bits &= !expired;
            sweep.schedule(with_bits);
            for index in old.current + 1..=new.current.min(old.current + 2) {
                self.newcomers.clear(index);
            }
            if sweep.uncleared() & reused != 0 {
                sweep.finish(&self.words);
            }
            self.epoch.store(new.pack(), Release);
        }
        sweep.step(&self.words);
    }

    /// Number of positions at which any live generation has a bit, among the [`Geometry::surveyed`]
    /// positions of the configured size.
    pub fn occupied(&self) -> usize {
        let (all, surveyed) = (self.geometry.configured_bits(), self.geometry.surveyed());
        scan::occupied(&self.words, all, surveyed, self.load_epoch().mask())
    }

    /// The share of set positions in each live generation, oldest first, as if the filter had this
    /// `growth`, which is at most its own. Estimated from a sample of positions.
    pub fn fills(&self, growth: u32) -> Vec<f64> {
        let positions = self.geometry.grown(growth).bits;
        let live = self.load_epoch();
        let (ones, samples) = scan::ones(&self.words, positions, FILL_SAMPLES, live.mask());
        live.range().map(|index| f64::from(ones[(index % 32) as usize]) / samples as f64).collect()
    }

    /// An empty filter of another size, with the same live generations.
    #[must_use]
    pub fn resized(&self, growth: u32) -> Self {
        let geometry = self.geometry.grown(growth);
        let mut resized = Self::with_atomics(geometry, self.hash_keys, StoreTime::ZERO);
        resized.epoch = A::Epoch::new(self.epoch.load(Acquire));
        resized.newcomers = Arc::clone(&self.newcomers);
        resized
    }

    /// Adds the live bits of `other`, at the positions `part` of the larger filter. One size must
    /// divide the other, as [`Self::resized`] ensures. Does not move the marks of changes.
    pub fn absorb(&self, other: &Self, part: Range<usize>) {
        let mut sweep = self.sweep.lock();
        let live = self.load_epoch().mask() & other.load_epoch().mask();
        sweep.slots_with_bits |= live;
        scan::absorb(&self.words, &other.words, part, live);
    }

    /// Moves the marks of changed generations from `other`. Call it before [`Self::absorb`]: a
    /// token recorded in `other` in between is then copied or marked again.
    pub fn take_marks(&self, other: &Self) {
        for index in other.live_generations().filter(|index| other.take_changed(*index)) {
            self.mark_changed(index);
        }
    }

    /// True if tokens were recorded in the live generation `index` since the last call; clears the
    /// mark. Call it before [`Self::export`]: a token recorded in between is then exported or
    /// marked again.
    pub fn take_changed(&self, index: u64) -> bool {
        let mut sweep = self.sweep.lock();
        let Some(slot) = self.slot(index) else { return false };
        let changed = self.changed.fetch_and(!(1 << slot), Acquire) >> slot & 1 == 1;
        sweep.slots_with_bits |= u32::from(changed) << slot;
        changed
    }

    /// Marks the generation `index` as changed; does nothing if it is not live.
    pub fn mark_changed(&self, index: u64) {
        let _sweep = self.sweep.lock();
        if let Some(slot) = self.slot(index) {
            self.changed.fetch_or(1 << slot, Release);
        }
    }

    /// The bits of the generation `index` in the format of the `bloomfilter` crate without its
    /// header: position `p` is bit `p % 8` of byte `p / 8`, counted from the lowest. `None` if it
    /// is not live.
    pub fn export(&self, index: u64) -> Option<Vec<u8>> {
        let _sweep = self.sweep.lock();
        Some(scan::export(&self.words, self.slot(index)?))
    }

    /// Adds `bits`, in the format of [`Self::export`], to the generation `index`; does nothing and
    /// returns `None` if it is not live. Does not mark the generation as changed.
    pub fn merge(&self, index: u64, bits: &[u8]) -> Option<MergeCounts> {
        let mut sweep = self.sweep.lock();
        let slot = self.slot(index)?;
        sweep.slots_with_bits |= 1 << slot;
        Some(scan::merge(&self.words, slot, bits))
    }

    fn load_epoch(&self) -> Epoch {
        Epoch::unpack(self.epoch.load(Acquire))
    }

    /// The slot number of a live generation.
    fn slot(&self, index: u64) -> Option<u32> {
        self.live_generations().contains(&index).then_some((index % 32) as u32)
    }

    /// The mask of the slot of a generation.
    fn slot_mask(index: u64) -> u32 {
        1 << (index % 32)
    }
}

#[cfg(test)]
mod tests;
