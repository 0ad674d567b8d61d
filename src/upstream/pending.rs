//! [`PendingQueue`]: requests that wait for a target with room, in the order of their arrival.
//!
//! No client address can keep others out. If the queue is full, a request displaces the newest request of
//! an address that has at least two requests more in the queue than its own address. Other requests overtake
//! a request that waits because its client holds its share.

use std::{
    collections::VecDeque,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use ahash::RandomState;
use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Maximum number of requests to inspect, newest first, for one to displace.
const MAX_DISPLACEABLE: usize = 64;

/// The waiting requests of an upstream. When a place is free, the first one that is not passed over is woken. It
/// stays first until it leaves or is passed over.
#[derive(Debug, Default)]
pub(super) struct PendingQueue {
    queue: Mutex<WaitingRequests>,
    /// The length of the queue.
    count: AtomicU32,
}

#[derive(Debug, Default)]
struct WaitingRequests {
    waiters: VecDeque<Arc<Waiter>>,
    /// The number of waiters of each client address. `None` stands for requests without a client.
    by_client: HashMap<Option<IpAddr>, u32, RandomState>,
}

#[derive(Debug)]
struct Waiter {
    client: Option<IpAddr>,
    woken: Notify,
    is_displaced: AtomicBool,
    is_passed_over: AtomicBool,
}

/// A position in the queue. Dropping it leaves the queue, and wakes the next request.
#[derive(Debug)]
pub(super) struct PendingTicket<'q> {
    queue: &'q PendingQueue,
    waiter: Arc<Waiter>,
}

impl PendingQueue {
    /// The number of waiting requests.
    pub(super) fn len(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// True if no request waits.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if a request waits that new requests may not overtake.
    pub(super) fn has_first(&self) -> bool {
        !self.is_empty() && self.queue.lock().waiters.iter().any(|waiter| !waiter.is_passed_over())
    }

    /// Enters the queue at its end. `None` if `max` requests wait and this client's request can displace
    /// none.
    pub(super) fn enter(&self, max: u32, client: Option<IpAddr>) -> Option<PendingTicket<'_>> {
        let mut queue = self.queue.lock();
        if max == 0 {
            return None;
        }
        if queue.waiters.len() >= max as usize {
            queue.displace(client)?;
        }
        let waiter = Arc::new(Waiter {
            client,
            woken: Notify::new(),
            is_displaced: AtomicBool::new(false),
            is_passed_over: AtomicBool::new(false),
        });
        queue.waiters.push_back(Arc::clone(&waiter));
        *queue.by_client.entry(client).or_insert(0) += 1;
        self.count.store(queue.waiters.len() as u32, Ordering::Release);
        Some(PendingTicket { queue: self, waiter })
    }

    /// Wakes the first request: there may be a place for it. Costs one load while the queue is empty.
    pub(super) fn wake_next(&self) {
        if !self.is_empty() {
            self.queue.lock().wake_first();
        }
    }
}

impl WaitingRequests {
    /// The request that takes the next place.
    fn first(&self) -> Option<&Arc<Waiter>> {
        self.waiters.iter().find(|waiter| !waiter.is_passed_over())
    }

    fn wake_first(&self) {
        if let Some(first) = self.first().or(self.waiters.front()) {
            first.woken.notify_one();
        }
    }

    fn of(&self, client: Option<IpAddr>) -> u32 {
        self.by_client.get(&client).copied().unwrap_or(0)
    }

    /// Removes the newest request of a client that has at least two more than `client`; `None` if there is
    /// none.
    fn displace(&mut self, client: Option<IpAddr>) -> Option<()> {
        let own = self.of(client);
        let newest = self.waiters.iter().enumerate().rev().take(MAX_DISPLACEABLE);
        let displaced = newest
            .into_iter()
            .find_map(|(index, waiter)| (self.of(waiter.client) > own + 1).then_some(index))?;
        let waiter = self.waiters.remove(displaced)?;
        self.forget(waiter.client);
        waiter.is_displaced.store(true, Ordering::Release);
        waiter.woken.notify_one();
        Some(())
    }

    /// Uncounts one of the client's requests.
    fn forget(&mut self, client: Option<IpAddr>) {
        if let Some(count) = self.by_client.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.by_client.remove(&client);
            }
        }
    }
}

impl Waiter {
    fn is_passed_over(&self) -> bool {
        self.is_passed_over.load(Ordering::Acquire)
    }
}

impl PendingTicket<'_> {
    /// True if this request may try for a place now: it is the first, or it is passed over and so blocks no other.
    pub(super) fn is_first(&self) -> bool {
        let is_own = |first: &Arc<Waiter>| Arc::ptr_eq(first, &self.waiter);
        self.waiter.is_passed_over() || self.queue.queue.lock().first().is_some_and(is_own)
    }

    /// Sets whether other requests may overtake this one, which waits because its client holds its share.
    /// When that begins, wakes the next request: this one may have been woken for a place that it does not
    /// take.
    pub(super) fn set_passed_over(&self, is_passed_over: bool) {
        let was_passed_over = self.waiter.is_passed_over.swap(is_passed_over, Ordering::AcqRel);
        let begins = is_passed_over && !was_passed_over;
        if begins && let Some(first) = self.queue.queue.lock().first() {
            first.woken.notify_one();
        }
    }

    /// True if another client's request has displaced this one.
    pub(super) fn is_displaced(&self) -> bool {
        self.waiter.is_displaced.load(Ordering::Acquire)
    }

    /// Returns when it may be this request's turn.
    pub(super) async fn woken(&self) {
        self.waiter.woken.notified().await;
    }
}

impl Drop for PendingTicket<'_> {
    fn drop(&mut self) {
        let mut queue = self.queue.queue.lock();
        let is_own = |waiter: &Arc<Waiter>| Arc::ptr_eq(waiter, &self.waiter);
        if !self.is_displaced() {
            queue.forget(self.waiter.client);
            if queue.waiters.front().is_some_and(is_own) {
                queue.waiters.pop_front();
            } else {
                queue.waiters.retain(|waiter| !is_own(waiter));
            }
        }
        self.queue.count.store(queue.waiters.len() as u32, Ordering::Release);
        // It may have been woken for a place that it did not take.
        queue.wake_first();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn the_queue_is_bounded_and_wakes_in_order() {
        let queue = PendingQueue::default();
        let enter = || queue.enter(2, None);
        let (first, second) = (enter().unwrap(), enter().unwrap());
        assert!(enter().is_none(), "full");
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
        let enter = || queue.enter(9, None);
        let (first, second) = (enter().unwrap(), enter().unwrap());
        queue.wake_next();
        drop(first);
        assert!(second.woken().now_or_never().is_some());
    }

    #[test]
    fn no_client_fills_the_queue() {
        let queue = PendingQueue::default();
        let client = |number| Some([192, 0, 2, number].into());
        let mut greedy: Vec<_> = (0..4).filter_map(|_| queue.enter(4, client(1))).collect();
        assert!(queue.enter(4, client(1)).is_none(), "its own requests stay");
        let others = [queue.enter(4, client(2)).unwrap(), queue.enter(4, client(3)).unwrap()];
        let displaced: Vec<bool> = greedy.iter().map(PendingTicket::is_displaced).collect();
        assert_eq!(displaced, [false, false, true, true], "the newest leave");
        assert!(queue.enter(4, client(2)).is_none(), "as many as another has");
        assert!(greedy[2].woken().now_or_never().is_some());
        greedy.truncate(2);
        assert_eq!(queue.len(), 4);
        drop((greedy, others));
        assert!(queue.is_empty() && queue.queue.lock().by_client.is_empty());
    }

    #[test]
    fn one_that_is_passed_over_passes_its_wake_on() {
        let queue = PendingQueue::default();
        let (first, second) = (queue.enter(9, None).unwrap(), queue.enter(9, None).unwrap());
        queue.wake_next();
        assert!(first.woken().now_or_never().is_some());
        first.set_passed_over(true);
        assert!(second.woken().now_or_never().is_some());
        first.set_passed_over(true);
        assert!(second.woken().now_or_never().is_none(), "once");
        second.set_passed_over(true);
        assert!(first.woken().now_or_never().is_none(), "both wait for their shares");
    }

    #[test]
    fn one_that_waits_for_its_share_is_passed_over() {
        let queue = PendingQueue::default();
        let first = queue.enter(9, None).unwrap();
        first.set_passed_over(true);
        assert!(!queue.has_first(), "a new request need not wait");
        queue.wake_next();
        assert!(first.woken().now_or_never().is_some(), "there is no other");
        let second = queue.enter(9, None).unwrap();
        assert!(first.is_first() && second.is_first() && queue.has_first());
        queue.wake_next();
        assert!(first.woken().now_or_never().is_none());
        assert!(second.woken().now_or_never().is_some());
        first.set_passed_over(false);
        assert!(first.is_first() && !second.is_first());
        queue.wake_next();
        assert!(first.woken().now_or_never().is_some());
        first.set_passed_over(true);
        assert!(second.woken().now_or_never().is_some(), "the place is not left unused");
        first.set_passed_over(true);
        assert!(second.woken().now_or_never().is_none(), "it is woken once");
    }
}
