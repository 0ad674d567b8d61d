//! What is known of each live generation's minute in Redis.

use std::ops::RangeInclusive;

use super::Version;

/// What one gateway knows of one generation in Redis.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Minute {
    index: u64,
    /// The version that was last read or written: what it holds is known here.
    pub(super) known: Option<Version>,
    /// Something here may not be there, or what is there must go.
    pub(super) dirty: bool,
    /// What is there belongs to gateways that are configured differently: it is left alone.
    pub(super) foreign: bool,
    /// What was there could not be read: others may know what this gateway does not.
    pub(super) missing: bool,
    /// The tick in which it was last tried to write it, since it became dirty.
    pub(super) tried: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Minutes {
    /// By index, modulo their number: there are never more live generations.
    slots: [Minute; 32],
    /// The generation that was last looked at without need.
    scrubbed: u64,
}

impl Minutes {
    /// What is known of `index`; of another generation in its place, nothing any more.
    pub(super) fn at(&mut self, index: u64) -> &mut Minute {
        let minute = &mut self.slots[index as usize % 32];
        if minute.index != index {
            *minute = Minute { index, ..Minute::default() };
        }
        minute
    }

    /// Those of the `live` generations of which something is known.
    pub(super) fn among(&self, live: RangeInclusive<u64>) -> impl Iterator<Item = &Minute> {
        self.slots.iter().filter(move |minute| live.contains(&minute.index))
    }

    /// The generations of `older` to visit: at most `most` dirty ones, those that waited longest and
    /// then the newest first; then others by rotation, one or as many as make `at_least` in all.
    pub(super) fn choose(
        &mut self,
        older: RangeInclusive<u64>,
        most: usize,
        at_least: usize,
    ) -> Vec<u64> {
        let is_due = |minute: &Minute| minute.dirty && !minute.foreign;
        let mut chosen: Vec<u64> = older.clone().rev().filter(|&at| is_due(self.at(at))).collect();
        chosen.sort_by_key(|&at| self.at(at).tried);
        chosen.truncate(most);
        let room = at_least.saturating_sub(chosen.len()).max(1);
        let clean = older.clone().filter(|&at| !is_due(self.at(at))).count();
        for _ in 0..room.min(clean) {
            let mut next = self.scrubbed;
            loop {
                // From the newest to the oldest and around.
                next = next.wrapping_sub(1);
                if !older.contains(&next) {
                    next = *older.end();
                }
                if !is_due(self.at(next)) {
                    break;
                }
            }
            self.scrubbed = next;
            chosen.push(next);
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrubs_come_around_from_the_newest_on() {
        let mut minutes = Minutes::default();
        let mut seen = Vec::new();
        for _ in 0..7 {
            seen.extend(minutes.choose(100..=102, 2, 0));
        }
        assert_eq!(seen, [102, 101, 100, 102, 101, 100, 102]);
        assert_eq!(minutes.choose(100..=102, 2, 9), [101, 100, 102], "each once");
    }

    #[test]
    fn dirty_ones_come_first_and_those_that_failed_behind() {
        let mut minutes = Minutes::default();
        for index in 100..=105 {
            minutes.at(index).dirty = true;
        }
        minutes.at(104).foreign = true;
        assert_eq!(minutes.choose(100..=106, 2, 0), [105, 103, 106], "and one by rotation");
        minutes.at(105).tried = 1;
        assert_eq!(minutes.choose(100..=106, 2, 3), [103, 102, 104]);
        for index in 100..=102 {
            minutes.at(index).dirty = false;
        }
        assert_eq!(minutes.choose(100..=106, 2, 4), [103, 105, 102, 101]);
    }

    #[test]
    fn a_generation_in_the_place_of_another_is_unknown() {
        let mut minutes = Minutes::default();
        minutes.at(100).dirty = true;
        assert!(!minutes.at(132).dirty && !minutes.at(100).dirty);
    }
}
