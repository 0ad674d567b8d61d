//! Puts lines into the order of their times, as far as a bounded window reaches.
//!
//! A log is written as requests end, and replayed as they began. What is out of order by less than the
//! window's length comes out in order; lines of one time keep the log's order.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use crate::limit::Millis;

/// How far from the end a late line is put into the queue; one that is later goes into the heap.
const REACH: usize = 1_024;

/// Time, number of arrival, slot.
type Turn = (Millis, u64, u32);

/// What waits for its turn.
pub(super) struct Window<T> {
    /// In order. Most lines belong at its end, or close to it: cheaper than a heap.
    queue: VecDeque<Turn>,
    /// Lines that are later than the queue's end reaches.
    heap: BinaryHeap<Reverse<Turn>>,
    /// What waits, apart from its order: it is large, and turns are moved.
    slots: Vec<Option<T>>,
    free: Vec<u32>,
    arrived: u64,
    size: usize,
}

impl<T> Window<T> {
    /// A window of `size` lines, at least 1.
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

    /// Takes one in; gives the earliest back where there are too many.
    pub(super) fn push(&mut self, time: Millis, item: T) -> Option<(Millis, T)> {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[slot as usize] = Some(item);
        let turn = (time, self.arrived, slot);
        self.arrived += 1;
        let reached = self.queue.len().saturating_sub(REACH);
        if self.queue.back().is_none_or(|last| *last < turn) {
            self.queue.push_back(turn);
        } else if self.queue.get(reached).is_some_and(|first| *first < turn) {
            let later = self.queue.iter().rev().take_while(|other| **other > turn).count();
            self.queue.insert(self.queue.len() - later, turn);
        } else {
            self.heap.push(Reverse(turn));
        }
        if self.queue.len() + self.heap.len() > self.size { self.pop() } else { None }
    }

    /// The earliest.
    pub(super) fn pop(&mut self) -> Option<(Millis, T)> {
        let queued = self.queue.front();
        let turn = match self.heap.peek() {
            Some(Reverse(late)) if queued.is_none_or(|queued| late < queued) => {
                self.heap.pop().map(|Reverse(late)| late)
            }
            _ => self.queue.pop_front(),
        };
        let (time, _, slot) = turn?;
        self.free.push(slot);
        Some((time, self.slots[slot as usize].take()?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_log_from_back_to_front_is_sorted() {
        let mut window = Window::new(10_000);
        for time in (0..10_000).rev() {
            assert_eq!(window.push(time, time), None);
        }
        assert_eq!(window.push(0, 10_000), Some((0, 0)));
        assert_eq!(window.pop(), Some((0, 10_000)));
        assert_eq!(window.pop(), Some((1, 1)));
    }

    proptest! {
        /// Lines that are at most `size` places late come out sorted, and stably so.
        #[test]
        fn what_is_late_by_less_than_the_window_is_sorted(
            times in prop::collection::vec(0_u64..50, 0..200),
            size in 1_u32..40,
        ) {
            // A late line by construction: sorted, then each moved back by fewer places than the size.
            let mut sorted: Vec<(u64, usize)> = times.iter().copied().zip(0..).collect();
            sorted.sort_unstable();
            let mut late = sorted.clone();
            for chunk in late.chunks_mut(size as usize) {
                chunk.sort_by_key(|(_, number)| *number);
            }
            let mut window = Window::new(size);
            let mut out: Vec<(u64, usize)> = Vec::new();
            for (time, number) in late {
                out.extend(window.push(time, number));
            }
            out.extend(std::iter::from_fn(|| window.pop()));
            prop_assert_eq!(out, sorted);
        }
    }
}
