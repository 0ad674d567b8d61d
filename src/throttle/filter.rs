//! The sliced rotating filter: 32 Bloom filters, one a generation, in one word a position.
//!
//! Bit `i % 32` of a word belongs to generation `i`. Whether a token is known is the conjunction of
//! the words at its positions with the mask of the live generations; recording sets the bit of the
//! current generation in each. Neither locks, allocates or waits.
//!
//! # Memory orderings
//!
//! - The epoch is stored with `Release` after the slots that it makes live were cleared, and loaded
//!   with `Acquire`, once an operation. So who reads an epoch finds its slots clean: it sees nothing
//!   of a slot's last use, and a bit that it sets is not cleared with that.
//! - The words are read and set with `Relaxed`: the bits of a slot say nothing of one another, only
//!   ever appear while it is live, and setting and clearing are read-modify-writes, so that none
//!   undoes another's.
//! - `changed` is set with a read-modify-write, `Release`, after the bits, and taken with one,
//!   `Acquire`, before they are read. Of the two one comes first: what was recorded is in what is
//!   read, or is still marked. (To test the mark and set it only where it is missing would need a
//!   full fence between setting bits and testing. It would save nothing: only news is marked.)
//!
//! What is left: who stops in [`Filter::record`] between reading the epoch and setting the last bit,
//! and goes on when the generation's slot has another generation, at least `31 - memory` generations
//! after its own has left memory, records in that one.

use std::{
    ops::RangeInclusive,
    sync::atomic::Ordering::{Acquire, Relaxed, Release},
};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

use self::{
    atomics::{Atomics, Native, Stamp, Word},
    epoch::Epoch,
    positions::Positions,
    sweep::Sweep,
};
use super::{
    geometry::{Geometry, Millis},
    seed::Seed,
};

mod atomics;
mod epoch;
mod positions;
mod sweep;
mod walk;

/// How long a generation stays live beyond its time, in ms: what was recorded under a clock that is
/// late by less than this is known for the whole of its memory.
///
/// The control thread turns the filters at least once a second; until it does, tokens are recorded in
/// the generation before.
pub const GRACE: Millis = 2_000;

/// Positions that are read before any is looked at, so that their cache misses overlap. Of unknown
/// tokens in 31 half full generations a tenth is left after them.
const BATCH: u32 = 8;

/// Rotating filters of tokens; a token is a keyed 64-bit hash.
///
/// Any thread may ask and record at any time. What the control thread does (turn, take, cut, merge)
/// excludes each other, and is not waited for by who asks and records.
pub struct Filter<A: Atomics = Native> {
    geometry: Geometry,
    seed: Seed,
    positions: Positions,
    words: Box<[A::Word]>,
    /// [`Epoch::pack`].
    epoch: A::Epoch,
    /// The slots in which something was recorded since [`Self::take_changed`]. Workers write it.
    changed: CachePadded<A::Word>,
    /// Held by the control thread.
    sweep: CachePadded<Mutex<Sweep>>,
}

/// What came of a merge, in positions.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Merged {
    /// Set there, and not here before.
    pub gained: u64,
    /// Set here, and not there.
    pub lacked: u64,
}

impl Filter {
    /// Empty filters, at `now`.
    ///
    /// # Panics
    ///
    /// If the geometry has no bits.
    pub fn new(geometry: Geometry, seed: Seed, now: Millis) -> Self {
        Self::with(geometry, seed, now)
    }
}

impl<A: Atomics> Filter<A> {
    /// Empty filters of other atomics than the machine's.
    fn with(geometry: Geometry, seed: Seed, now: Millis) -> Self {
        Self {
            positions: Positions::new(&geometry, &seed),
            words: (0..geometry.bits).map(|_| A::Word::zero()).collect(),
            epoch: A::Epoch::new(Epoch::at(&geometry, now).pack()),
            changed: CachePadded::new(A::Word::zero()),
            sweep: CachePadded::default(),
            geometry,
            seed,
        }
    }

    /// The sizes.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// What the positions are hashed with.
    pub fn seed(&self) -> &Seed {
        &self.seed
    }

    /// The live generations, oldest first; the last is the current one.
    pub fn live(&self) -> RangeInclusive<u64> {
        self.now().range()
    }

    /// Whether `token` was recorded in a live generation (or, rarely, seems so).
    pub fn knows(&self, token: u64) -> bool {
        let mut live = self.epoch.load(Acquire) as u32;
        let (spots, hashes) = (self.positions.of(token), self.geometry.hashes);
        let mut at = 0;
        while at + BATCH <= hashes {
            for i in at..at + BATCH {
                live &= self.words[spots.at(i)].load(Relaxed);
            }
            if live == 0 {
                return false;
            }
            at += BATCH;
        }
        (at..hashes).all(|i| {
            live &= self.words[spots.at(i)].load(Relaxed);
            live != 0
        })
    }

    /// Records `token` in the current generation. Says whether that was news to it.
    pub fn record(&self, token: u64) -> bool {
        let slot = Epoch::slot(self.epoch.load(Acquire));
        let (spots, hashes) = (self.positions.of(token), self.geometry.hashes);
        // A read-modify-write waits for its own cache miss, and nothing overlaps it; reads do.
        let words = || (0..hashes).map(|i| &self.words[spots.at(i)]);
        if words().fold(slot, |all, word| all & word.load(Relaxed)) != 0 {
            return false;
        }
        let mut news = false;
        for word in words() {
            if word.load(Relaxed) & slot == 0 {
                news |= word.fetch_or(slot, Relaxed) & slot == 0;
            }
        }
        if news {
            self.changed.fetch_or(slot, Release);
        }
        news
    }

    /// Moves to the generation of `now`; never back. To be called at least once a second.
    ///
    /// What leaves memory is first not live any more and then cleared, a part with each call; the rest
    /// at once where a clock that jumped needs the slot.
    pub fn turn(&self, now: Millis) {
        let mut sweep = self.sweep.lock();
        let old = self.now();
        let new = old.turned(&self.geometry, now);
        if new != old {
            let kept = (old.oldest.max(new.oldest)..=old.current)
                .fold(0, |slots, index| slots | Self::slot_of(index));
            let (left, taken) = (old.mask() & !kept, new.mask() & !kept);
            // Only one who stopped while he recorded marks a slot that is not live.
            let marked = self.changed.fetch_and(!(left | taken), Acquire);
            let dirty = (left & (sweep.used | marked)) | (taken & marked);
            sweep.used &= !left;
            sweep.add(dirty);
            if sweep.dirty() & taken != 0 {
                sweep.finish(&self.words);
            }
            self.epoch.store(new.pack(), Release);
        }
        sweep.step(&self.words);
    }

    /// Positions at which any live generation has a bit. Reads all words.
    pub fn occupied(&self) -> usize {
        walk::occupied(&self.words, self.now().mask())
    }

    /// Whether tokens were recorded in the live generation `index` since the last call. To be called
    /// before what is taken is read: what is recorded meanwhile is then in it or marked anew.
    pub fn take_changed(&self, index: u64) -> bool {
        let mut sweep = self.sweep.lock();
        let Some(slot) = self.slot(index) else { return false };
        let changed = self.changed.fetch_and(!(1 << slot), Acquire) >> slot & 1 == 1;
        sweep.used |= u32::from(changed) << slot;
        changed
    }

    /// Notes that the live generation `index` has something that others may not know; nothing if it is
    /// not live.
    pub fn put_changed(&self, index: u64) {
        let _sweep = self.sweep.lock();
        if let Some(slot) = self.slot(index) {
            self.changed.fetch_or(1 << slot, Release);
        }
    }

    /// The bits of the live generation `index` as the `bloomfilter` crate has them, without its
    /// header: position `p` is bit `p % 8` of byte `p / 8`, counted from the lowest. `None` if it is
    /// not live.
    pub fn cut(&self, index: u64) -> Option<Vec<u8>> {
        let _sweep = self.sweep.lock();
        Some(walk::cut(&self.words, self.slot(index)?))
    }

    /// Sets the bits of `bits` (as [`Self::cut`] has them) in the live generation `index`; does nothing
    /// and returns `None` if it is not live. Does not count as a change.
    pub fn merge(&self, index: u64, bits: &[u8]) -> Option<Merged> {
        let mut sweep = self.sweep.lock();
        let slot = self.slot(index)?;
        sweep.used |= 1 << slot;
        Some(walk::merge(&self.words, slot, bits))
    }

    fn now(&self) -> Epoch {
        Epoch::unpack(self.epoch.load(Acquire))
    }

    /// The number of the slot of a live generation.
    fn slot(&self, index: u64) -> Option<u32> {
        self.live().contains(&index).then_some((index % 32) as u32)
    }

    fn slot_of(index: u64) -> u32 {
        1 << (index % 32)
    }
}

#[cfg(test)]
mod tests;
