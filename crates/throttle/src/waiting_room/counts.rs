//! The tickets that workers have counted in an epoch, by intervals of places. Constant memory, no
//! lock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tidegate_base::mix::local_token;

use super::place::{EARLIER_INTERVALS, FIRST_NEW, RoomEpoch, UnixSecond};

/// Bits of the filter of callers: 1 MiB. With 100,000 callers at one gateway in one epoch, one of
/// 180,000 is wrongly taken for counted; with a million, one of 50.
const FILTER_BITS: u64 = 1 << 23;

/// Bits of the filter for each caller.
const BITS_EACH: u32 = 4;

/// Tickets that were counted in an interval of places.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IntervalCount {
    /// The first second of the interval.
    pub second: UnixSecond,
    /// Number of tickets.
    pub tickets: u64,
}

/// Counts the tickets that ask in one epoch. Each caller is counted once, with one ticket, however
/// often it asks and whatever it sends.
#[derive(Debug)]
pub struct EpochCounts {
    epoch: RoomEpoch,
    /// The second from which distances are measured.
    base: UnixSecond,
    counts: Box<[AtomicU32]>,
    /// Of these, new tickets with a place from before the epoch.
    early: Box<[AtomicU32]>,
    /// A Bloom filter of the callers that were counted.
    callers: Box<[AtomicU64]>,
}

impl EpochCounts {
    /// Nothing counted.
    pub fn new(epoch: RoomEpoch, base: UnixSecond) -> Self {
        let len = (EARLIER_INTERVALS + epoch.new_intervals()) as usize;
        let zeros = || (0..len).map(|_| AtomicU32::new(0)).collect();
        Self {
            epoch,
            base,
            counts: zeros(),
            early: zeros(),
            callers: (0..FILTER_BITS / 64).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The epoch.
    pub fn epoch(&self) -> RoomEpoch {
        self.epoch
    }

    /// Counts a ticket of this second, unless its `holder` was counted before.
    pub fn count(&self, holder: u64, second: UnixSecond) {
        if let Some(index) = self.index_of_new(holder, second) {
            self.counts[index].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a new ticket with a place from before the epoch. The frontier moves over places from
    /// before an epoch by the counts of the epoch before it, so those need the ticket as well
    /// ([`Self::take_early`]).
    pub fn count_early(&self, holder: u64, second: UnixSecond) {
        if let Some(index) = self.index_of_new(holder, second) {
            self.counts[index].fetch_add(1, Ordering::Relaxed);
            self.early[index].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The index of the interval with this second; `None` if `holder` was counted before.
    fn index_of_new(&self, holder: u64, second: UnixSecond) -> Option<usize> {
        let index = index(self.epoch.id(self.base, second));
        (index < self.counts.len() && self.insert(holder)).then_some(index)
    }

    /// Takes the counts since the last call.
    pub fn take(&self) -> Vec<IntervalCount> {
        self.take_from(&self.counts)
    }

    /// Takes the counts, since the last call, that the epoch before this one also needs.
    pub fn take_early(&self) -> Vec<IntervalCount> {
        self.take_from(&self.early)
    }

    fn take_from(&self, counts: &[AtomicU32]) -> Vec<IntervalCount> {
        let taken = |(index, count): (usize, &AtomicU32)| {
            // A load first: most are zero, and a swap takes the cache line from the workers.
            if count.load(Ordering::Relaxed) == 0 {
                return None;
            }
            let tickets = u64::from(count.swap(0, Ordering::Relaxed));
            let index = index as u64;
            let id = if index < EARLIER_INTERVALS {
                index
            } else {
                FIRST_NEW + (index - EARLIER_INTERVALS)
            };
            let second = self.epoch.seconds(self.base, id).start;
            Some(IntervalCount { second, tickets })
        };
        counts.iter().enumerate().filter_map(taken).collect()
    }

    /// Adds a caller to the filter; false if it has it.
    fn insert(&self, holder: u64) -> bool {
        // A process-local hash, so that no client can choose a token that another one hides.
        let hash = local_token(holder);
        let (first, step) = (hash & 0xffff_ffff, hash >> 32 | 1);
        let mut is_new = false;
        for nth in 0..u64::from(BITS_EACH) {
            let bit = (first + nth * step) % FILTER_BITS;
            let mask = 1 << (bit % 64);
            let word = &self.callers[(bit / 64) as usize];
            if word.load(Ordering::Relaxed) & mask == 0 {
                is_new |= word.fetch_or(mask, Ordering::Relaxed) & mask == 0;
            }
        }
        is_new
    }
}

/// The index of the interval with this id among all intervals.
fn index(id: u64) -> usize {
    (if id < FIRST_NEW { id } else { EARLIER_INTERVALS + (id - FIRST_NEW) }) as usize
}

#[cfg(test)]
mod tests {
    use tidegate_base::time::Millis;

    use super::{super::place::EpochIndex, *};

    const EPOCH: RoomEpoch =
        RoomEpoch { index: EpochIndex(56_666_667), length: Millis::from_secs(30) };

    #[test]
    fn a_caller_is_counted_once() {
        let ago = |seconds| EPOCH.start().before(Millis::from_secs(seconds));
        let later = EPOCH.start().after(Millis::from_secs(3));
        let counts = EpochCounts::new(EPOCH, ago(100));
        for _ in 0..3 {
            counts.count(7, ago(90));
            counts.count(7, later);
            counts.count(8, later);
        }
        let expected = [ago(90), later].map(|second| IntervalCount { second, tickets: 1 });
        assert_eq!(counts.take(), expected);
        counts.count(9, later);
        assert_eq!(counts.take(), [IntervalCount { second: later, tickets: 1 }]);
        assert_eq!(counts.take(), []);
    }

    #[test]
    fn hardly_a_caller_is_taken_for_another() {
        let counts = EpochCounts::new(EPOCH, EPOCH.start());
        (0..100_000).for_each(|holder: u64| counts.count(holder << 20, EPOCH.start()));
        let counted: u64 = counts.take().iter().map(|count| count.tickets).sum();
        assert!(counted > 99_980, "{counted}");
    }
}
