//! Clears the slots of generations that left memory, a part at a time.

use std::sync::atomic::Ordering::Relaxed;

use super::atomics::Word;

/// A slot is cleared within so many steps.
const STEPS: usize = 20;

/// What is to be cleared, and how far that got.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Slots of live generations that something was put into.
    pub(super) used: u32,
    /// Slots that are being cleared, up to the position `at`.
    clearing: u32,
    at: usize,
    /// Slots that are cleared after those.
    pending: u32,
}

impl Sweep {
    /// Has `slots` cleared, in time.
    pub(super) fn add(&mut self, slots: u32) {
        // Even what is being cleared: it may be in what is behind.
        self.pending |= slots;
    }

    /// Slots that may still hold something.
    pub(super) fn dirty(&self) -> u32 {
        self.clearing | self.pending
    }

    /// Clears a part.
    pub(super) fn step(&mut self, words: &[impl Word]) {
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

    /// Clears all that is left, in one pass.
    pub(super) fn finish(&mut self, words: &[impl Word]) {
        let at = if self.clearing == 0 { 0 } else { self.at };
        let (before, after) = words.split_at(at);
        clear(after, self.dirty());
        if self.pending != 0 {
            clear(before, self.pending);
        }
        (self.clearing, self.pending) = (0, 0);
    }
}

fn clear(words: &[impl Word], slots: u32) {
    for word in words {
        // Most have none where a generation was not full, and a read is cheaper.
        if word.load(Relaxed) & slots != 0 {
            word.fetch_and(!slots, Relaxed);
        }
    }
}
