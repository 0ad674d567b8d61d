//! Puts lines into the order of their times, as far as a bounded window reaches.
//!
//! A log is written as requests end, and replayed as they began. What is out of order by less than the
//! window's length comes out in order; lines of one time keep the log's order.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::limit::Millis;

/// What waits for its turn.
pub(super) struct Window<T> {
    /// Time, number of arrival, slot.
    order: BinaryHeap<Reverse<(Millis, u64, u32)>>,
    /// What waits, apart from its order: it is large, and the heap moves what it holds.
    slots: Vec<Option<T>>,
    free: Vec<u32>,
    arrived: u64,
    size: usize,
}

impl<T> Window<T> {
    /// A window of `size` lines, at least 1.
    pub(super) fn new(size: u32) -> Self {
        let (order, slots, free) = (BinaryHeap::new(), Vec::new(), Vec::new());
        Self { order, slots, free, arrived: 0, size: size.max(1) as usize }
    }

    /// Takes one in; gives the earliest back where there are too many.
    pub(super) fn push(&mut self, time: Millis, item: T) -> Option<(Millis, T)> {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[slot as usize] = Some(item);
        self.order.push(Reverse((time, self.arrived, slot)));
        self.arrived += 1;
        if self.order.len() > self.size { self.pop() } else { None }
    }

    /// The earliest.
    pub(super) fn pop(&mut self) -> Option<(Millis, T)> {
        let Reverse((time, _, slot)) = self.order.pop()?;
        self.free.push(slot);
        Some((time, self.slots[slot as usize].take()?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
