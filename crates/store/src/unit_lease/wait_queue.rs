//! The requests that wait for a lease's units, first in, first out.

use std::collections::VecDeque;

use super::waiter::{LeaseWaiter, WaiterOutcome};

/// Waiting requests, in the order of their arrival.
pub(super) struct WaitQueue<W>(VecDeque<W>);

impl<W> Default for WaitQueue<W> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<W: LeaseWaiter> WaitQueue<W> {
    pub(super) fn push(&mut self, waiter: W) {
        self.0.push_back(waiter);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The lowest cost of a request, and the sum of all costs; both 0 if none waits.
    pub(super) fn costs(&self) -> (u64, u64) {
        let costs = self.0.iter().map(LeaseWaiter::cost);
        (costs.clone().min().unwrap_or(0), costs.fold(0, u64::saturating_add))
    }

    /// Removes and returns the requests after the first `count`.
    pub(super) fn split_off(&mut self, count: usize) -> Self {
        Self(self.0.split_off(count.min(self.0.len())))
    }

    /// Adds all of `later` at the end.
    pub(super) fn append(&mut self, mut later: Self) {
        self.0.append(&mut later.0);
    }

    /// Spends `units` for the requests in order, as the store would. Passes over a request that
    /// costs more than is left; it stays in the queue.
    pub(super) fn grant(&mut self, units: &mut u64, outcome: impl Fn(u64) -> WaiterOutcome) {
        for waiter in std::mem::take(&mut self.0) {
            match units.checked_sub(waiter.cost()) {
                // A cancelled request spends nothing.
                Some(rest) => {
                    if waiter.serve(outcome(rest)) {
                        *units = rest;
                    }
                }
                None => self.0.push_back(waiter),
            }
        }
    }

    /// Ends the wait of each request with the `outcome` for its cost.
    pub(super) fn end(self, outcome: impl Fn(u64) -> WaiterOutcome) {
        for waiter in self.0 {
            let outcome = outcome(waiter.cost());
            waiter.serve(outcome);
        }
    }
}
