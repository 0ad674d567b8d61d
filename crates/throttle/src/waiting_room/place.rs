//! Places in the queue, and the intervals of places in which tickets are counted.
//!
//! Tickets are counted by intervals of places. For tickets from before the current epoch, intervals
//! are measured from a base near the front of the queue: 1 s up to a distance of 128 s, and a 64th
//! of the distance beyond. For tickets of the epoch itself they are seconds. So an interval is
//! short where the frontier moves, and their number has a bound whatever the length of the queue.

use std::ops::Range;

use tidegate_base::time::{Millis, StoreTime};

/// µs in a millisecond.
const MICROS_IN_MS: u64 = 1_000;

/// µs in a second: places in each second.
const MICROS_IN_SECOND: u64 = SECOND.as_ms() * MICROS_IN_MS;

/// The unit of intervals.
const SECOND: Millis = Millis::from_secs(1);

/// Number of intervals for tickets of earlier epochs. The last one ends 36 hours behind the base;
/// it has all later places.
pub const EARLIER_INTERVALS: u64 = 768;

/// The largest distance that has an interval of its own.
const MAX_DISTANCE: Millis = Millis::from_secs((1 << 17) - 1);

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

    /// The place of an arrival at this time.
    pub const fn at(time: StoreTime) -> Self {
        Self(time.as_unix_ms().saturating_mul(MICROS_IN_MS))
    }

    /// The first place of a second.
    pub const fn of_second(second: UnixSecond) -> Self {
        Self(second.0.saturating_mul(MICROS_IN_SECOND))
    }

    /// A place of a second. A random `order` gives each of them with the same probability.
    pub const fn random_in(second: UnixSecond, order: u64) -> Self {
        Self(second.0 * MICROS_IN_SECOND + order % MICROS_IN_SECOND)
    }

    /// The µs since the Unix epoch, for encoding.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Its second.
    pub const fn second(self) -> UnixSecond {
        UnixSecond(self.0 / MICROS_IN_SECOND)
    }

    /// The time of an arrival with this place, in whole ms, rounded down.
    pub const fn time(self) -> StoreTime {
        StoreTime::from_unix_ms(self.0 / MICROS_IN_MS)
    }

    /// The number of places from `earlier` to this one, for shares of an interval; 0 if `earlier`
    /// is later.
    pub const fn distance_from(self, earlier: Self) -> f64 {
        self.0.saturating_sub(earlier.0) as f64
    }

    /// The place that is this many places, rounded down, behind this one.
    #[must_use]
    pub fn advanced(self, places: f64) -> Self {
        Self(self.0 + places.floor() as u64)
    }
}

/// A whole second since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct UnixSecond(u64);

impl UnixSecond {
    /// The second with this number since the Unix epoch.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds)
    }

    /// The number of seconds since the Unix epoch, for encoding.
    pub const fn as_secs(self) -> u64 {
        self.0
    }

    /// The second that contains `time`.
    pub const fn of(time: StoreTime) -> Self {
        Self(time.as_unix_ms() / SECOND.as_ms())
    }

    /// When it begins.
    pub const fn time(self) -> StoreTime {
        StoreTime::from_unix_ms(self.0 * SECOND.as_ms())
    }

    /// The second after it.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The second that is `length`, rounded down to whole seconds, after it.
    #[must_use]
    pub const fn after(self, length: Millis) -> Self {
        Self(self.0 + length.as_whole_secs())
    }

    /// The second that is `length`, rounded down to whole seconds, before it; at least the first.
    #[must_use]
    pub const fn before(self, length: Millis) -> Self {
        Self(self.0.saturating_sub(length.as_whole_secs()))
    }
}

/// The number of an epoch, counted from the Unix epoch.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct EpochIndex(pub u64);

impl EpochIndex {
    /// The epoch that is this many epochs later.
    #[must_use]
    pub const fn after(self, epochs: u64) -> Self {
        Self(self.0 + epochs)
    }

    /// The epoch that is this many epochs earlier; at least the first.
    #[must_use]
    pub const fn before(self, epochs: u64) -> Self {
        Self(self.0.saturating_sub(epochs))
    }
}

/// A period in which each ticket is counted once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RoomEpoch {
    /// Its number.
    pub index: EpochIndex,
    /// Its length: whole seconds, at least one.
    pub length: Millis,
}

impl RoomEpoch {
    /// The epoch that contains a second.
    pub fn at(second: UnixSecond, length: Millis) -> Self {
        let length = length.max(SECOND);
        Self { index: EpochIndex(second.0 / length.as_whole_secs()), length }
    }

    /// Its first second.
    pub fn start(self) -> UnixSecond {
        UnixSecond(self.index.0 * self.new_intervals())
    }

    /// Its last second.
    pub fn last(self) -> UnixSecond {
        UnixSecond(self.start().0 + self.new_intervals() - 1)
    }

    /// The number of intervals for tickets of the epoch itself: one for each of its seconds.
    pub fn new_intervals(self) -> u64 {
        self.length.as_whole_secs()
    }

    /// The epoch before it.
    #[must_use]
    pub fn previous(self) -> Self {
        Self { index: self.index.before(1), ..self }
    }

    /// Number of ids; some of them stand for no interval.
    pub fn ids(self) -> u64 {
        FIRST_NEW + self.new_intervals()
    }

    /// The id of the interval in which a ticket of this second is counted. A second after the epoch
    /// counts as its last.
    pub fn id(self, base: UnixSecond, second: UnixSecond) -> u64 {
        let start = self.start();
        if second >= start {
            return FIRST_NEW + (second.0 - start.0).min(self.new_intervals() - 1);
        }
        let distance = second.0.saturating_sub(base.0).min(MAX_DISTANCE.as_whole_secs());
        let shift = u64::from((distance >> 6).checked_ilog2().unwrap_or(0));
        shift * 64 + (distance >> shift)
    }

    /// The seconds of the interval with this id: at least one.
    pub fn seconds(self, base: UnixSecond, id: u64) -> Range<UnixSecond> {
        let start = self.start().0;
        if id >= FIRST_NEW {
            let first = UnixSecond(start + (id - FIRST_NEW));
            return first..first.next();
        }
        let shift = (id / 64).saturating_sub(1).min(10);
        let first = base.0 + ((id - shift * 64) << shift);
        let end = (first + (1 << shift)).min(start);
        UnixSecond(first.min(end.saturating_sub(1)))..UnixSecond(end)
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
            let epoch = RoomEpoch { index: EpochIndex(index), length: Millis::from_secs(length) };
            let start = epoch.start().0;
            let base = start.saturating_sub(distance);
            let middle = base + (start - base) / 2;
            for second in [base, middle, start, start + later % length] {
                let (base, second) = (UnixSecond(base), UnixSecond(second));
                let id = epoch.id(base, second);
                let seconds = epoch.seconds(base, id);
                let distance = second.0 - base.0;
                if distance <= MAX_DISTANCE.as_whole_secs() || second >= epoch.start() {
                    prop_assert!(seconds.contains(&second), "{second:?} in {seconds:?}, {base:?}");
                }
                prop_assert!(id < epoch.ids() && !(EARLIER_INTERVALS..FIRST_NEW).contains(&id));
                let width = seconds.end.0 - seconds.start.0;
                prop_assert!(width <= 1.max(distance / 64), "{width} at {distance}");
            }
        }

        #[test]
        fn intervals_are_in_order_and_disjoint(base in 0_u64..1_000, length in 1_u64..600) {
            let index = EpochIndex(200_000 / length + 1);
            let epoch = RoomEpoch { index, length: Millis::from_secs(length) };
            let base = UnixSecond(base);
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
        let epoch = RoomEpoch { index: EpochIndex(100), length: Millis::from_secs(30) };
        let id = |base, second| epoch.id(UnixSecond(base), UnixSecond(second));
        let first = |base| epoch.seconds(UnixSecond(base), 0);
        assert_eq!(id(2_000, 5), 0);
        assert_eq!(first(2_000), UnixSecond(2_000)..UnixSecond(2_001));
        assert_eq!(id(3_010, 2_999), 0);
        let before_the_epoch = UnixSecond(2_999)..UnixSecond(3_000);
        assert_eq!(first(3_010), before_the_epoch, "an interval ends before the epoch");
        assert_eq!(id(2_000, 9_999), FIRST_NEW + 29);
    }
}
