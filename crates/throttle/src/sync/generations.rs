//! The synchronization state of each live generation.

use std::ops::RangeInclusive;

use super::PayloadVersion;

/// The synchronization state of one generation.
#[expect(clippy::struct_excessive_bools, reason = "each may be true with any of the others")]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GenerationState {
    index: u64,
    /// The version that was last read or written; the filter here has all of its bits.
    pub(super) known: Option<PayloadVersion>,
    /// True if the filter here has tokens of the logs that the known version may lack.
    pub(super) logged: bool,
    /// True if tokens were recorded here that Redis may lack, or the payload in Redis must be
    /// replaced.
    pub(super) dirty: bool,
    /// True if gateways with another configuration wrote the payload in Redis. It is not replaced.
    pub(super) foreign: bool,
    /// True if the payload could not be read during the load, so that the filter here may lack
    /// tokens.
    pub(super) load_failed: bool,
    /// The tick of the last attempt to write it since it became dirty.
    pub(super) last_attempt: u64,
}

/// The states of all live generations.
#[derive(Debug, Default)]
pub(super) struct GenerationTable {
    /// By index modulo 32: there are at most 32 live generations.
    slots: [GenerationState; 32],
    /// The generation that was last selected round-robin.
    last_round_robin: u64,
}

impl GenerationTable {
    /// The state of `index`. Replaces the state of another generation in the same slot by a new
    /// one.
    pub(super) fn entry(&mut self, index: u64) -> &mut GenerationState {
        let state = &mut self.slots[index as usize % 32];
        if state.index != index {
            *state = GenerationState { index, ..GenerationState::default() };
        }
        state
    }

    /// The existing states of the `live` generations.
    pub(super) fn live(&self, live: RangeInclusive<u64>) -> impl Iterator<Item = &GenerationState> {
        self.slots.iter().filter(move |state| live.contains(&state.index))
    }

    /// At most `most` dirty generations of `live`: first the ones that this gateway may write,
    /// ordered by their last attempt (the oldest attempt first), then by age (the newest generation
    /// first).
    pub(super) fn dirty(&mut self, live: RangeInclusive<u64>, most: usize) -> Vec<u64> {
        let mut dirty: Vec<u64> = live.rev().filter(|&at| self.entry(at).dirty).collect();
        dirty.sort_by_key(|&at| {
            let state = self.entry(at);
            (state.foreign, state.last_attempt)
        });
        dirty.truncate(most);
        dirty
    }

    /// The next `count` of these generations, each once, round-robin from the newest to the oldest.
    pub(super) fn round_robin(&mut self, range: RangeInclusive<u64>, count: usize) -> Vec<u64> {
        let next = |_| {
            self.last_round_robin = self.last_round_robin.wrapping_sub(1);
            if !range.contains(&self.last_round_robin) {
                self.last_round_robin = *range.end();
            }
            self.last_round_robin
        };
        (0..count.min(range.clone().count())).map(next).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_are_selected_round_robin_from_the_newest() {
        let mut generations = GenerationTable::default();
        let mut selected = Vec::new();
        for _ in 0..7 {
            selected.extend(generations.round_robin(100..=102, 1));
        }
        assert_eq!(selected, [102, 101, 100, 102, 101, 100, 102]);
        assert_eq!(generations.round_robin(100..=102, 9), [101, 100, 102], "each once");
        assert_eq!(generations.round_robin(101..=103, 2), [101, 103], "they move on");
    }

    #[test]
    fn dirty_generations_are_the_newest_first_and_failed_ones_last() {
        let mut generations = GenerationTable::default();
        for index in 100..=105 {
            generations.entry(index).dirty = true;
        }
        generations.entry(104).foreign = true;
        assert_eq!(generations.dirty(100..=106, 2), [105, 103]);
        assert_eq!(generations.dirty(100..=106, 9), [105, 103, 102, 101, 100, 104]);
        generations.entry(105).last_attempt = 1;
        assert_eq!(generations.dirty(100..=106, 5), [103, 102, 101, 100, 105]);
    }

    #[test]
    fn a_generation_that_reuses_a_slot_has_a_new_state() {
        let mut generations = GenerationTable::default();
        generations.entry(100).dirty = true;
        assert!(!generations.entry(132).dirty && !generations.entry(100).dirty);
    }
}
