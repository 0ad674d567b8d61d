//! Places in the queue, and the intervals of places in which tickets are counted.
//!
//! Tickets are counted by intervals of places. For tickets from before the current epoch, intervals
//! are measured from a base near the front of the queue: 1 s up to a distance of 128 s, and a 64th
//! of the distance beyond. For tickets of the epoch itself they are seconds. So an interval is
//! short where the frontier moves, and their number has a bound whatever the length of the queue.

use std::ops::Range;

/// µs in a second.
const MICROS: u64 = 1_000_000;

/// Number of intervals for tickets of earlier epochs. The last one ends 36 hours behind the base;
/// it has all later places.
pub const EARLIER_INTERVALS: u64 = 768;

/// The largest distance that has an interval of its own, in seconds.
const MAX_DISTANCE: u64 = (1 << 17) - 1;

/// The id of the first second of an epoch.
pub const FIRST_NEW: u64 = 1_000;

/// A place in the queue: µs since the Unix epoch. A smaller one is nearer to the front.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct QueueTime(u64);

impl QueueTime {
    /// The place at this number of µs since the Unix epoch.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// The first place of a second since the Unix epoch.
    pub const fn of_second(second: u64) -> Self {
        Self(second.saturating_mul(MICROS))
    }

    /// The µs since the Unix epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The second since the Unix epoch.
    pub const fn second(self) -> u64 {
        self.0 / MICROS
    }
}

/// A period in which each ticket is counted once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RoomEpoch {
    /// Number of epochs since the Unix epoch.
    pub index: u64,
    /// Length in seconds, at least 1.
    pub length: u64,
}

impl RoomEpoch {
    /// The epoch that contains a second since the Unix epoch.
    pub fn at(second: u64, length: u64) -> Self {
        Self { index: second / length.max(1), length: length.max(1) }
    }

    /// Its first second.
    pub fn start(self) -> u64 {
        self.index * self.length
    }

    /// The epoch before it.
    #[must_use]
    pub fn previous(self) -> Self {
        Self { index: self.index.saturating_sub(1), ..self }
    }

    /// Number of ids; some of them stand for no interval.
    pub fn ids(self) -> u64 {
        FIRST_NEW + self.length
    }

    /// The id of the interval in which a ticket of this second is counted. A second after the epoch
    /// counts as its last.
    pub fn id(self, base: u64, second: u64) -> u64 {
        let start = self.start();
        if second >= start {
            return FIRST_NEW + (second - start).min(self.length - 1);
        }
        let distance = second.saturating_sub(base).min(MAX_DISTANCE);
        let shift = u64::from((distance >> 6).checked_ilog2().unwrap_or(0));
        shift * 64 + (distance >> shift)
    }

    /// The seconds of the interval with this id: at least one.
    pub fn seconds(self, base: u64, id: u64) -> Range<u64> {
        let start = self.start();
        if id >= FIRST_NEW {
            let first = start + (id - FIRST_NEW);
            return first..first + 1;
        }
        let shift = (id / 64).saturating_sub(1).min(10);
        let first = base + ((id - shift * 64) << shift);
        let end = (first + (1 << shift)).min(start);
        first.min(end.saturating_sub(1))..end
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_interval_contains_its_seconds(
            index in 10_000_u64..1_000_000, length in 1_u64..2_000, distance in 0_u64..200_000, later in 0_u64..100,
        ) {
            let epoch = RoomEpoch { index, length };
            let base = epoch.start().saturating_sub(distance);
            let middle = base + (epoch.start() - base) / 2;
            for second in [base, middle, epoch.start(), epoch.start() + later % length] {
                let id = epoch.id(base, second);
                let seconds = epoch.seconds(base, id);
                if second - base <= MAX_DISTANCE || second >= epoch.start() {
                    prop_assert!(seconds.contains(&second), "{second} in {seconds:?}, base {base}");
                }
                prop_assert!(id < epoch.ids() && !(EARLIER_INTERVALS..FIRST_NEW).contains(&id));
                let width = seconds.end - seconds.start;
                prop_assert!(width <= 1.max((second - base) / 64), "{width} at {}", second - base);
            }
        }

        #[test]
        fn intervals_are_in_order_and_disjoint(base in 0_u64..1_000, length in 1_u64..600) {
            let epoch = RoomEpoch { index: 200_000 / length + 1, length };
            let mut end = base;
            for id in (0..EARLIER_INTERVALS).chain(FIRST_NEW..epoch.ids()) {
                let seconds = epoch.seconds(base, id);
                if id < EARLIER_INTERVALS && seconds.end == epoch.start() {
                    continue;
                }
                prop_assert!(seconds.start >= end && seconds.end > seconds.start, "{id}: {seconds:?}");
                end = seconds.end;
            }
        }
    }

    #[test]
    fn a_place_before_the_base_counts_as_the_first() {
        let epoch = RoomEpoch { index: 100, length: 30 };
        assert_eq!(epoch.id(2_000, 5), 0);
        assert_eq!(epoch.seconds(2_000, 0), 2_000..2_001);
        assert_eq!(epoch.id(3_010, 2_999), 0);
        assert_eq!(epoch.seconds(3_010, 0), 2_999..3_000, "an interval ends before the epoch");
        assert_eq!(epoch.id(2_000, 9_999), FIRST_NEW + 29);
    }
}
