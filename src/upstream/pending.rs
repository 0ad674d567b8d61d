//! [`PendingQueue`]: requests that wait for a target with room, in the order of their arrival.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The requests of an upstream that wait. The first one is woken when a place is free, and stays the first
/// until it leaves.
#[derive(Debug, Default)]
pub(super) struct PendingQueue {
    queue: Mutex<VecDeque<Arc<Waiter>>>,
    /// The length of the queue.
    count: AtomicU32,
}

#[derive(Debug, Default)]
struct Waiter {
    woken: Notify,
}

/// A place in the queue. Dropping it leaves the queue, and wakes the next one.
#[derive(Debug)]
pub(super) struct PendingPlace<'q> {
    queue: &'q PendingQueue,
    waiter: Arc<Waiter>,
}

impl PendingQueue {
    /// The number of requests that wait.
    pub(super) fn len(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Whether no request waits.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Enters the queue at its end. `None`: `max` requests wait.
    pub(super) fn enter(&self, max: u32) -> Option<PendingPlace<'_>> {
        let mut queue = self.queue.lock();
        if queue.len() >= max as usize {
            return None;
        }
        let waiter = Arc::<Waiter>::default();
        queue.push_back(Arc::clone(&waiter));
        self.count.store(queue.len() as u32, Ordering::Release);
        Some(PendingPlace { queue: self, waiter })
    }

    /// Wakes the first one: there may be a place for it. Costs one load while the queue is empty.
    pub(super) fn wake_next(&self) {
        if self.is_empty() {
            return;
        }
        if let Some(first) = self.queue.lock().front() {
            first.woken.notify_one();
        }
    }
}

impl PendingPlace<'_> {
    /// Whether no one waits longer.
    pub(super) fn is_first(&self) -> bool {
        let queue = self.queue.queue.lock();
        queue.front().is_some_and(|first| Arc::ptr_eq(first, &self.waiter))
    }

    /// Returns when it may be its turn.
    pub(super) async fn woken(&self) {
        self.waiter.woken.notified().await;
    }
}

impl Drop for PendingPlace<'_> {
    fn drop(&mut self) {
        let mut queue = self.queue.queue.lock();
        let is_own = |waiter: &Arc<Waiter>| Arc::ptr_eq(waiter, &self.waiter);
        if queue.front().is_some_and(is_own) {
            queue.pop_front();
        } else {
            queue.retain(|waiter| !is_own(waiter));
        }
        self.queue.count.store(queue.len() as u32, Ordering::Release);
        // It may have been woken for a place that it did not take.
        if let Some(first) = queue.front() {
            first.woken.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn the_queue_is_bounded_and_wakes_in_order() {
        let queue = PendingQueue::default();
        let (first, second) = (queue.enter(2).unwrap(), queue.enter(2).unwrap());
        assert!(queue.enter(2).is_none(), "full");
        queue.wake_next();
        assert!(second.woken().now_or_never().is_none());
        assert!(first.woken().now_or_never().is_some());
        assert!(first.is_first() && !second.is_first());
        drop(first);
        assert!(second.woken().now_or_never().is_some(), "it is the first now");
        assert_eq!(queue.len(), 1);
        drop(second);
        assert!(queue.is_empty());
    }

    #[test]
    fn one_that_leaves_passes_its_wake_on() {
        let queue = PendingQueue::default();
        let (first, second) = (queue.enter(9).unwrap(), queue.enter(9).unwrap());
        queue.wake_next();
        drop(first);
        assert!(second.woken().now_or_never().is_some());
    }
}
