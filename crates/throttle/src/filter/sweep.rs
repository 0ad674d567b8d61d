//! Clears the slots of expired generations, incrementally.

use std::sync::atomic::Ordering::Relaxed;

use super::atomics::AtomicWord;

/// Maximum number of steps of a pass.
const STEPS: usize = 20;

/// The slots to clear, as masks, and the progress of the current pass.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Slots of live generations that may have bits.
    pub(super) slots_with_bits: u32,
    /// Slots that the current pass clears.
    clearing: u32,
    /// The current pass has cleared all positions below this.
    at: usize,
    /// Slots for the next pass.
    pending: u32,
}

impl Sweep {
    /// Schedules `slots` for clearing.
    pub(super) fn schedule(&mut self, slots: u32) {
        // Includes slots of the current pass, because they may have new bits at positions that it
        // has cleared.
        self.pending |= slots;
    }

    /// Slots that are not cleared yet.
    pub(super) fn uncleared(&self) -> u32 {
        self.clearing | self.pending
    }

    /// Clears the next part of the current pass.
    pub(super) fn step(&mut self, words: &[impl AtomicWord]) {
        if self.clearing == 0 {
            self.clearing = std::mem::take(&mut self.pending);
            self.at = 0;
        }
        if self.clearing == 0 {
            return;
        }
        let end = words.len().min(self.at + words.len().div_ceil(STEPS));
        clear(&words[self.at..end], self.clearing);
        self.at = end;
        if end == words.len() {
            self.clearing = 0;
        }
    }

    /// Clears everything that is scheduled.
    pub(super) fn finish(&mut self, words: &[impl AtomicWord]) {
        let at = if self.clearing == 0 { 0 } else { self.at };
        let (before, after) = words.split_at(at);
        clear(after, self.uncleared());
        if self.pending != 0 {
            clear(before, self.pending);
        }
        (self.clearing, self.pending) = (0, 0);
    }
}

fn clear(words: &[impl AtomicWord], slots: u32) {
    for word in words {
        // Unless the generation was full, most words have no such bit, and a read is cheaper than a
        // write.
        if word.load(Relaxed) & slots != 0 {
            word.fetch_and(!slots, Relaxed);
        }
    }
}
