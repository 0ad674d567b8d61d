//! The chunk: units that a fetch asks for beyond the needed ones.
//!
//! Proposed at the end of Rockset's article: a chunk grows by half if the last one was used up
//! fast, and is halved if units are returned unspent. Here a chunk is also halved if the last one
//! lasted long. For a key with few requests the chunk is 0: each request calls the store, and no
//! unit is held. The store bounds the units that a gateway holds by a fraction of the remaining
//! ones ([`tidegate_limit::UnitDemand::extra_divisor`]).

use tidegate_base::time::{Millis, MonotonicTime};
use tidegate_charge::LeaseSize;

/// A chunk that lasts less than this grows.
pub(super) const GROW_BELOW: Millis = Millis::from_ms(250);

/// A chunk that lasts more than this shrinks.
pub(super) const SHRINK_ABOVE: Millis = Millis::from_secs(1);

/// The largest chunk, in units.
pub(super) const MAX_CHUNK: u64 = 1 << 20;

/// The chunk size of one lease.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct ChunkSizer {
    chunk: u64,
    /// The monotonic time of the last reply; `None` if the store granted less than was asked for.
    replied_at: Option<MonotonicTime>,
}

impl ChunkSizer {
    /// Records a reply at `monotonic` that granted everything asked for.
    pub(super) fn record_full_grant(&mut self, monotonic: MonotonicTime) {
        self.replied_at = Some(monotonic);
    }

    /// Records a reply that granted less than was asked for.
    pub(super) fn record_partial_grant(&mut self) {
        self.replied_at = None;
    }

    /// The next chunk, for a fetch that begins at `monotonic` because the last chunk is used up or
    /// its sub-window has ended.
    pub(super) fn next_chunk(&mut self, monotonic: MonotonicTime, lease_size: LeaseSize) -> u64 {
        match lease_size {
            LeaseSize::Off => 0,
            LeaseSize::Units(count) => count.min(MAX_CHUNK),
            LeaseSize::Auto => {
                match self.replied_at.take().map(|at| monotonic.since(at)) {
                    Some(duration) if duration < GROW_BELOW => self.grow(),
                    Some(duration) if duration > SHRINK_ABOVE => self.shrink(),
                    _ => {}
                }
                self.chunk
            }
        }
    }

    /// Halves the chunk. Also called when units are returned unspent.
    pub(super) fn shrink(&mut self) {
        self.chunk /= 2;
        self.replied_at = None;
    }

    fn grow(&mut self) {
        self.chunk = (self.chunk + self.chunk / 2).max(self.chunk + 1).min(MAX_CHUNK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The chunk after `count` chunks that each lasted `duration`.
    fn chunk_after(sizer: &mut ChunkSizer, count: usize, duration: Millis) -> u64 {
        for _ in 0..count {
            sizer.record_full_grant(MonotonicTime::ZERO);
            sizer.next_chunk(MonotonicTime::ZERO + duration, LeaseSize::Auto);
        }
        sizer.chunk
    }

    #[test]
    fn chunk_grows_by_half_and_shrinks_by_half() {
        let mut sizer = ChunkSizer::default();
        assert_eq!(
            sizer.next_chunk(MonotonicTime::ZERO, LeaseSize::Auto),
            0,
            "the first fetch asks only for what it needs"
        );
        let grown: Vec<u64> =
            (0..6).map(|_| chunk_after(&mut sizer, 1, GROW_BELOW - Millis::MILLISECOND)).collect();
        assert_eq!(grown, [1, 2, 3, 4, 6, 9]);
        assert_eq!(chunk_after(&mut sizer, 3, GROW_BELOW), 9);
        assert_eq!(chunk_after(&mut sizer, 3, SHRINK_ABOVE), 9);
        assert_eq!(chunk_after(&mut sizer, 1, SHRINK_ABOVE + Millis::MILLISECOND), 4);
        sizer.shrink();
        assert_eq!(sizer.chunk, 2);
        assert_eq!(chunk_after(&mut sizer, 5, SHRINK_ABOVE + Millis::MILLISECOND), 0);
        assert_eq!(chunk_after(&mut sizer, 100, Millis::ZERO), MAX_CHUNK);
    }

    #[test]
    fn a_partial_grant_does_not_change_the_chunk() {
        let mut sizer = ChunkSizer::default();
        chunk_after(&mut sizer, 6, Millis::ZERO);
        sizer.record_partial_grant();
        assert_eq!(sizer.next_chunk(MonotonicTime::from_ms(1), LeaseSize::Auto), 9);
        assert_eq!(sizer.next_chunk(MonotonicTime::from_ms(5_000), LeaseSize::Auto), 9);
    }

    #[test]
    fn a_configured_chunk_does_not_change() {
        let mut sizer = ChunkSizer::default();
        sizer.record_full_grant(MonotonicTime::ZERO);
        assert_eq!(sizer.next_chunk(MonotonicTime::from_ms(1), LeaseSize::Units(100)), 100);
        assert_eq!(
            sizer.next_chunk(MonotonicTime::from_ms(1), LeaseSize::Units(u64::MAX)),
            MAX_CHUNK
        );
        assert_eq!(sizer.next_chunk(MonotonicTime::from_ms(1), LeaseSize::Off), 0);
    }
}
