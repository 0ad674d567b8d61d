//! The synchronization state of each live generation.

use std::ops::RangeInclusive;

use super::PayloadVersion;

/// The synchronization state of one generation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GenerationState {
    index: u64,
    /// The version that was last read or written; the filter here has all of its bits.
    pub(super) known: Option<PayloadVersion>,
    /// True if the filter here may have bits that Redis lacks, or the payload in Redis must be replaced.
    pub(super) dirty: bool,
    /// True if gateways with another configuration wrote the payload in Redis. It is not replaced.
    pub(super) foreign: bool,
    /// True if the payload could not be read during the load, so that the filter here may lack tokens.
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
    /// The state of `index`. Replaces the state of another generation in the same slot by a new one.
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

    /// The generations of `older` to synchronize. First come at most `max_dirty` dirty ones, ordered by their
    /// last attempt (the oldest attempt first), then by age (the newest generation first). Then come others,
    /// round-robin: at least one, and enough to bring the total to `at_least`.
    pub(super) fn select(
        &mut self,
        older: RangeInclusive<u64>,
        max_dirty: usize,
        at_least: usize,
    ) -> Vec<u64> {
        let is_due = |state: &GenerationState| state.dirty && !state.foreign;
        let mut selected: Vec<u64> =
            older.clone().rev().filter(|&at| is_due(self.entry(at))).collect();
        selected.sort_by_key(|&at| self.entry(at).last_attempt);
        selected.truncate(max_dirty);
        let others = at_least.saturating_sub(selected.len()).max(1);
        let not_due = older.clone().filter(|&at| !is_due(self.entry(at))).count();
        for _ in 0..others.min(not_due) {
            let mut next = self.last_round_robin;
            loop {
                // From the newest to the oldest, then from the newest again.
                next = next.wrapping_sub(1);
                if !older.contains(&next) {
                    next = *older.end();
                }
                if !is_due(self.entry(next)) {
                    break;
                }
            }
            self.last_round_robin = next;
            selected.push(next);
        }
        selected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_generations_are_selected_round_robin_from_the_newest() {
        let mut generations = GenerationTable::default();
        let mut selected = Vec::new();
        for _ in 0..7 {
            selected.extend(generations.select(100..=102, 2, 0));
        }
        assert_eq!(selected, [102, 101, 100, 102, 101, 100, 102]);
        assert_eq!(generations.select(100..=102, 2, 9), [101, 100, 102], "each once");
    }

    #[test]
    fn dirty_generations_come_first_and_failed_ones_last() {
        let mut generations = GenerationTable::default();
        for index in 100..=105 {
            generations.entry(index).dirty = true;
        }
        generations.entry(104).foreign = true;
        assert_eq!(generations.select(100..=106, 2, 0), [105, 103, 106], "and one round-robin");
        generations.entry(105).last_attempt = 1;
        assert_eq!(generations.select(100..=106, 2, 3), [103, 102, 104]);
        for index in 100..=102 {
            generations.entry(index).dirty = false;
        }
        assert_eq!(generations.select(100..=106, 2, 4), [103, 105, 102, 101]);
    }

    #[test]
    fn a_generation_that_reuses_a_slot_has_a_new_state() {
        let mut generations = GenerationTable::default();
        generations.entry(100).dirty = true;
        assert!(!generations.entry(132).dirty && !generations.entry(100).dirty);
    }
}
