//! How often a gateway writes whole generations: each tick, or more seldom the more writes
//! conflict.

use tidegate_base::mix::SplitMix;

/// Maximum mean interval between two rounds of writes, in ticks.
const MAX_INTERVAL: u64 = 60;

/// The pace of a gateway's writes. A conflict doubles the interval between them and a write
/// shortens it by an eighth, so that at any number of gateways about one of six writes conflicts.
#[derive(Clone, Copy, Debug)]
pub(super) struct WritePace {
    /// Mean interval between two rounds of writes, in ticks.
    interval: u64,
    /// The tick of the next round.
    next: u64,
    random: SplitMix,
}

impl WritePace {
    /// A round in each tick.
    pub(super) fn new(seed: u64) -> Self {
        Self { interval: 1, next: 0, random: SplitMix::new(seed) }
    }

    /// True if `tick` is to have a round of writes.
    pub(super) fn is_due(&self, tick: u64) -> bool {
        tick >= self.next
    }

    /// True if not every tick has a round.
    pub(super) fn is_reduced(&self) -> bool {
        self.interval > 1
    }

    /// Counts a write.
    pub(super) fn count_commit(&mut self) {
        self.interval -= self.interval.div_ceil(8);
        self.interval = self.interval.max(1);
    }

    /// Counts a write that conflicted.
    pub(super) fn count_conflict(&mut self) {
        self.interval = (self.interval * 2).min(MAX_INTERVAL);
    }

    /// Sets the next round, at random: gateways that conflicted at the same time must not meet
    /// again.
    pub(super) fn end_round(&mut self, tick: u64) {
        self.next = tick + 1 + self.random.below(2 * self.interval - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of ticks with a round, of `ticks`.
    fn rounds(pace: &mut WritePace, ticks: u64) -> usize {
        let due = |tick: &u64| {
            let is_due = pace.is_due(*tick);
            if is_due {
                pace.end_round(*tick);
            }
            is_due
        };
        (0..ticks).filter(due).count()
    }

    #[test]
    fn each_tick_has_a_round_until_writes_conflict() {
        let mut pace = WritePace::new(1);
        assert_eq!(rounds(&mut pace, 100), 100);
        assert!(!pace.is_reduced());
        for expected in [2, 4, 8, 16, 32, 60, 60] {
            pace.count_conflict();
            assert_eq!(pace.interval, expected);
        }
        let mut pace = WritePace { next: 0, ..pace };
        let count = rounds(&mut pace, 60_000);
        assert!(pace.is_reduced() && (950..1_050).contains(&count), "{count}");
        let mut commits = 0;
        while pace.is_reduced() {
            pace.count_commit();
            commits += 1;
        }
        assert_eq!(commits, 19, "the pace recovers");
    }
}
