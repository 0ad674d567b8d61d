//! [`PendingQueue`]: requests that wait for a target with room, the important ones first.
//!
//! Of ten places that become free, nine go to the most important class that waits, and the tenth
//! goes to the request that has waited longest, whatever its class: so each request gets a place in
//! the end. Requests of one class get their places in the order of their arrival. Other requests
//! overtake a request that waits because its client holds its share.
//!
//! If the queue is full, `waiting` says which request leaves it.

mod waiting;

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use parking_lot::Mutex;
use tidegate_base::priority::Priority;
use tokio::sync::Notify;

use self::waiting::WaitingRequests;

/// The waiting requests of an upstream. When a place is free, the request that takes it is woken.
/// It stays first until it leaves, is passed over, or a more important one enters.
#[derive(Debug, Default)]
pub(super) struct PendingQueue {
    queue: Mutex<WaitingRequests>,
    /// The length of the queue.
    count: AtomicU32,
}

/// A request that enters the queue.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct PlaceRequest {
    /// Its client's address; `None` for a request without a client.
    pub(super) client: Option<IpAddr>,
    pub(super) priority: Priority,
}

#[derive(Debug)]
struct Waiter {
    request: PlaceRequest,
    /// The number of requests that entered the queue before.
    arrival: u64,
    woken: Notify,
    is_displaced: AtomicBool,
    is_passed_over: AtomicBool,
    /// True if it leaves the queue for a place at a target.
    has_place: AtomicBool,
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

    /// True if a request waits that new requests may not overtake without entering the queue.
    pub(super) fn has_first(&self) -> bool {
        !self.is_empty() && self.queue.lock().first().is_some()
    }

    /// Enters the queue. `None` if `max` requests wait and this one can displace none. A request
    /// that takes the next place is woken at once: the place may be free already.
    pub(super) fn enter(&self, max: u32, request: PlaceRequest) -> Option<PendingTicket<'_>> {
        let mut queue = self.queue.lock();
        if max == 0 {
            return None;
        }
        if queue.len() >= max as usize {
            queue.displace(request, max)?.displaced();
        }
        let waiter = queue.push(request);
        let has_others = queue.len() > 1;
        if has_others && queue.first().is_some_and(|first| Arc::ptr_eq(first, &waiter)) {
            waiter.woken.notify_one();
        }
        self.count.store(queue.len() as u32, Ordering::Release);
        Some(PendingTicket { queue: self, waiter })
    }

    /// Wakes the first request: there may be a place for it. Costs one load while the queue is
    /// empty.
    pub(super) fn wake_next(&self) {
        if !self.is_empty() {
            self.queue.lock().wake_first();
        }
    }
}

impl Waiter {
    fn new(request: PlaceRequest, arrival: u64) -> Arc<Self> {
        Arc::new(Self {
            request,
            arrival,
            woken: Notify::new(),
            is_displaced: AtomicBool::new(false),
            is_passed_over: AtomicBool::new(false),
            has_place: AtomicBool::new(false),
        })
    }

    fn is_passed_over(&self) -> bool {
        self.is_passed_over.load(Ordering::Acquire)
    }

    /// Another request has displaced it.
    fn displaced(&self) {
        self.is_displaced.store(true, Ordering::Release);
        self.woken.notify_one();
    }
}

impl PendingTicket<'_> {
    /// True if this request may try for a place now: it is the first, or it is passed over and so
    /// blocks no other.
    pub(super) fn is_first(&self) -> bool {
        let is_own = |first: &Arc<Waiter>| Arc::ptr_eq(first, &self.waiter);
        self.waiter.is_passed_over() || self.queue.queue.lock().first().is_some_and(is_own)
    }

    /// Sets whether other requests may overtake this one, which waits because its client holds its
    /// share. When that begins, wakes the next request: this one may have been woken for a place
    /// that it does not take.
    pub(super) fn set_passed_over(&self, is_passed_over: bool) {
        let was_passed_over = self.waiter.is_passed_over.swap(is_passed_over, Ordering::AcqRel);
        let begins = is_passed_over && !was_passed_over;
        if begins && let Some(first) = self.queue.queue.lock().first() {
            first.woken.notify_one();
        }
    }

    /// Records that the request has a place at a target, for which it leaves the queue.
    pub(super) fn take_place(&self) {
        self.waiter.has_place.store(true, Ordering::Release);
    }

    /// True if another request has displaced this one.
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
        if !self.is_displaced() {
            queue.remove(&self.waiter);
        }
        if self.waiter.has_place.load(Ordering::Acquire) {
            queue.count_place();
        }
        self.queue.count.store(queue.len() as u32, Ordering::Release);
        // It may have been woken for a place that it did not take.
        queue.wake_first();
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
