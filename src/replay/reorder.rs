//! Sorts lines by time within a bounded buffer.
//!
//! A log line is written when its request ends, but its time is the request's start, at which it is
//! replayed. Lines that are out of order by less than the buffer's size come out sorted; lines with
//! the same time keep the log's order.

use crate::clock::StoreTime;
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

/// Maximum distance from the queue's end at which a late line is inserted into the queue. A line
/// that belongs farther from the end goes into the heap.
const MAX_INSERT_DISTANCE: usize = 1_024;

/// Time in ms, sequence number of arrival, and index of the slot.
type SortKey = (StoreTime, u64, u32);

/// A bounded buffer that returns the earliest item first.
pub(super) struct ReorderBuffer<T> {
    /// Sorted by key. Most lines belong at or near its end, where insertion is cheaper than in a
    /// heap.
    queue: VecDeque<SortKey>,
    /// Lines that belong too far from the queue's end to be inserted into it.
    heap: BinaryHeap<Reverse<SortKey>>,
    /// The items. They are large, so they are stored apart from the keys, which move.
    slots: Vec<Option<T>>,
    free: Vec<u32>,
    arrived: u64,
    size: usize,
}

impl<T> ReorderBuffer<T> {
    /// A buffer of `size` items, at least 1.
    pub(super) fn new(size: u32) -> Self {
        Self {
            queue: VecDeque::new(),
            heap: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            arrived: 0,
            size: size.max(1) as usize,
        }
    }

    /// Adds an item; returns the earliest one if the buffer is full.
    pub(super) fn push(&mut self, time: StoreTime, item: T) -> Option<(StoreTime, T)> {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[slot as usize] = Some(item);
        let key = (time, self.arrived, slot);
        self.arrived += 1;
        let lowest = self.queue.len().saturating_sub(MAX_INSERT_DISTANCE);
        if self.queue.back().is_none_or(|last| *last < key) {
            self.queue.push_back(key);
        } else if self.queue.get(lowest).is_some_and(|first| *first < key) {
            let later = self.queue.iter().rev().take_while(|other| **other > key).count();
            self.queue.insert(self.queue.len() - later, key);
        } else {
            self.heap.push(Reverse(key));
        }
        if self.queue.len() + self.heap.len() > self.size { self.pop() } else { None }
    }

    /// Removes and returns the earliest item.
    pub(super) fn pop(&mut self) -> Option<(StoreTime, T)> {
        let queued = self.queue.front();
        let key = match self.heap.peek() {
            Some(Reverse(late)) if queued.is_none_or(|queued| late < queued) => {
                self.heap.pop().map(|Reverse(late)| late)
            }
            _ => self.queue.pop_front(),
        };
        let (time, _, slot) = key?;
        self.free.push(slot);
        Some((time, self.slots[slot as usize].take()?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_reversed_log_is_sorted() {
        let mut buffer = ReorderBuffer::new(10_000);
        for time in (0..10_000).rev() {
            assert_eq!(buffer.push(StoreTime::from_unix_ms(time), time), None);
        }
        assert_eq!(buffer.push(StoreTime::ZERO, 10_000), Some((StoreTime::ZERO, 0)));
        assert_eq!(buffer.pop(), Some((StoreTime::ZERO, 10_000)));
        assert_eq!(buffer.pop(), Some((StoreTime::from_unix_ms(1), 1)));
    }

    proptest! {
        /// Lines of the same time keep their order.
        #[test]
        fn lines_that_are_late_by_less_than_the_size_are_sorted(
            times in prop::collection::vec(0_u64..50, 0..200),
            size in 1_u32..40,
        ) {
            // Lines in order; then each is moved by fewer places than the buffer's size.
            let mut sorted: Vec<(StoreTime, usize)> = times.into_iter().map(StoreTime::from_unix_ms).zip(0..).collect();
            sorted.sort_unstable();
            let mut late = sorted.clone();
            for chunk in late.chunks_mut(size as usize) {
                chunk.sort_by_key(|(_, number)| *number);
            }
            let mut buffer = ReorderBuffer::new(size);
            let mut out: Vec<(StoreTime, usize)> = Vec::new();
            for (time, number) in late {
                out.extend(buffer.push(time, number));
            }
            out.extend(std::iter::from_fn(|| buffer.pop()));
            prop_assert_eq!(out, sorted);
        }
    }
}
