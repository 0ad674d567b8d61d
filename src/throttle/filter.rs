//! The sliced rotating filter: 32 Bloom filters, one a generation, in one word a position.
//!
//! Bit `i % 32` of a word belongs to generation `i`. Whether a token is known is the conjunction of
//! the words at its positions with the mask of the live generations; recording sets the bit of the
//! current generation in each. Neither locks, allocates or waits.

use std::{
    hash::Hasher,
    ops::RangeInclusive,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use siphasher::sip::SipHasher13;

use super::{
    geometry::{Geometry, Millis},
    seed::Seed,
};

/// The largest prime below 2^64: the `bloomfilter` crate's modulus for its derived positions.
const PRIME: u64 = 0xffff_ffff_ffff_ffc5;

/// How long a generation stays live beyond its time: what was recorded under a clock that is late by
/// less than this is known for the whole of its memory.
pub const GRACE: Millis = 2_000;

/// Rotating filters of tokens; a token is a keyed 64-bit hash.
pub struct Filter {
    geometry: Geometry,
    seed: Seed,
    sips: [SipHasher13; 2],
    words: Box<[AtomicU32]>,
    /// The current generation's index in the upper half, the mask of the live ones in the lower.
    epoch: AtomicU64,
    /// One a slot: whether something was recorded since [`Self::take_changed`].
    changed: [AtomicBool; 32],
}

impl Filter {
    /// Empty filters, at `now`.
    pub fn new(geometry: Geometry, seed: Seed, now: Millis) -> Self {
        let _ = now;
        Self {
            sips: seed.sips(),
            words: (0..geometry.bits).map(|_| AtomicU32::new(0)).collect(),
            epoch: AtomicU64::new(0),
            changed: Default::default(),
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
        todo!()
    }

    /// Whether `token` was recorded in a live generation (or, rarely, seems so).
    pub fn knows(&self, token: u64) -> bool {
        let _ = (token, &self.words, &self.epoch, PRIME, GRACE);
        todo!()
    }

    /// Records `token` in the current generation. Says whether that was news to it.
    pub fn record(&self, token: u64) -> bool {
        let _ = token;
        todo!()
    }

    /// Moves to the generation of `now`; never back. One thread alone calls it, at least once a second.
    /// What leaves memory is first not live any more and then cleared, a part with each call.
    pub fn turn(&self, now: Millis) {
        let _ = now;
        todo!()
    }

    /// Positions at which any live generation has a bit. Reads all words.
    pub fn occupied(&self) -> usize {
        todo!()
    }

    /// Whether tokens were recorded or merged in the live generation `index` since the last call.
    pub fn take_changed(&self, index: u64) -> bool {
        self.changed[index as usize % 32].swap(false, Ordering::AcqRel)
    }

    /// Notes that the live generation `index` has something that others may not know.
    pub fn put_changed(&self, index: u64) {
        self.changed[index as usize % 32].store(true, Ordering::Release);
    }

    /// The bits of the live generation `index` as the `bloomfilter` crate has them, without its
    /// header: position `p` is bit `7 - p % 8` of byte `p / 8` (or as the crate has it).
    pub fn cut(&self, index: u64) -> Vec<u8> {
        let _ = index;
        todo!()
    }

    /// Sets the bits of `bits` (as [`Self::cut`] has them) in the live generation `index`. Does not
    /// count as a change. Returns what [`Self::cut`] would have returned before.
    pub fn merge(&self, index: u64, bits: &[u8]) {
        let _ = (index, bits);
        todo!()
    }
}

/// A token's first two hashes, from which its positions follow.
pub fn hashes(sips: &[SipHasher13; 2], token: u64) -> [u64; 2] {
    std::array::from_fn(|i| {
        let mut sip = sips[i];
        sip.write_u64(token);
        sip.finish()
    })
}
