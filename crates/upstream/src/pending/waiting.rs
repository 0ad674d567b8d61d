//! [`WaitingRequests`]: which waiting request takes the next place, and which one leaves a full
//! queue.
//!
//! Each class keeps a twentieth of a full queue, which no other class takes from it. A request
//! displaces, in this order:
//! 1. a request of the least important class that has more than it keeps and is less important than
//!    its own;
//! 2. the newest request of an address that has at least two requests more in the queue than its
//!    own address, and the same priority, or any priority if the address has more than half of the
//!    queue: no client address keeps others out;
//! 3. a request of the largest class that is more important, if its own class has less than it
//!    keeps: important requests keep no others out.
//!
//! The request that leaves another class is the newest one of the address that has most requests in
//! the queue.

use std::{collections::VecDeque, net::IpAddr, sync::Arc};

use ahash::RandomState;
use hashbrown::HashMap;
use tidegate_base::priority::Priority;

use super::{PlaceRequest, Waiter};

/// Maximum number of requests to inspect, newest first, for one to displace.
const MAX_DISPLACEABLE: usize = 64;

/// One of this many places goes to the request that has waited longest; the others go to the most
/// important class.
const OLDEST_TURN: u32 = 10;

/// The part of a full queue that each class keeps: one of this many positions.
const KEPT_SHARE: usize = 20;

/// The waiting requests of an upstream, by class.
#[derive(Debug, Default)]
pub(super) struct WaitingRequests {
    /// The requests of each priority, in the order of their arrival.
    classes: [VecDeque<Arc<Waiter>>; Priority::COUNT],
    len: usize,
    /// The number of waiters of each client address. `None` stands for requests without a client.
    pub(super) by_client: HashMap<Option<IpAddr>, u32, RandomState>,
    /// The number of requests that have entered.
    entered: u64,
    /// The number of places that requests have left the queue for.
    places: u32,
}

impl WaitingRequests {
    /// The number of requests.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The request that takes the next place; `None` if all are passed over.
    pub(super) fn first(&self) -> Option<&Arc<Waiter>> {
        let of_class = |class: &'_ VecDeque<Arc<Waiter>>| {
            class.iter().position(|waiter| !waiter.is_passed_over())
        };
        let mut first_of_classes =
            self.classes.iter().filter_map(|class| class.get(of_class(class)?));
        if self.places % OLDEST_TURN == OLDEST_TURN - 1 {
            first_of_classes.min_by_key(|waiter| waiter.arrival)
        } else {
            first_of_classes.next()
        }
    }

    /// Wakes the first request, or one that is passed over if all are.
    pub(super) fn wake_first(&self) {
        let any = || self.classes.iter().find_map(VecDeque::front);
        if let Some(first) = self.first().or_else(any) {
            first.woken.notify_one();
        }
    }

    /// Counts a place that a request has left the queue for.
    pub(super) fn count_place(&mut self) {
        self.places = (self.places + 1) % OLDEST_TURN;
    }

    /// Adds a request behind those of its class.
    pub(super) fn push(&mut self, request: PlaceRequest) -> Arc<Waiter> {
        let waiter = Waiter::new(request, self.entered);
        self.entered += 1;
        self.classes[request.priority.index()].push_back(Arc::clone(&waiter));
        self.len += 1;
        *self.by_client.entry(request.client).or_insert(0) += 1;
        waiter
    }

    /// Removes a request.
    pub(super) fn remove(&mut self, waiter: &Arc<Waiter>) {
        let class = &self.classes[waiter.request.priority.index()];
        let index = class.iter().position(|other| Arc::ptr_eq(other, waiter));
        if let Some(index) = index {
            self.remove_at(waiter.request.priority.index(), index);
        }
    }

    /// Removes the request that leaves the full queue of `max` positions for `request`; `None` if
    /// none does.
    pub(super) fn displace(&mut self, request: PlaceRequest, max: u32) -> Option<Arc<Waiter>> {
        let own = request.priority.index();
        let kept = kept_positions(max as usize);
        let least = self.classes.iter().rposition(|class| class.len() > kept);
        if let Some(class) = least.filter(|class| *class > own) {
            return self.remove_of_largest_client(class);
        }
        if let Some(index) = self.newest_of_client_above(own, self.of(request.client) + 1) {
            return self.remove_at(own, index);
        }
        let half = (max / 2).max(self.of(request.client) + 1);
        let of_class = |class| Some((class, self.newest_of_client_above(class, half)?));
        if let Some((class, index)) = (0..self.classes.len()).rev().find_map(of_class) {
            return self.remove_at(class, index);
        }
        if self.classes[own].len() < kept {
            let above = self.classes[..own].iter().enumerate();
            let (class, _) = above.max_by_key(|(_, class)| class.len())?;
            return self.remove_of_largest_client(class);
        }
        None
    }

    /// The index of the newest request, within the class, of a client that has more than `count`
    /// requests in the queue.
    fn newest_of_client_above(&self, class: usize, count: u32) -> Option<usize> {
        let mut newest = self.classes[class].iter().enumerate().rev().take(MAX_DISPLACEABLE);
        newest.find_map(|(index, waiter)| (self.of(waiter.request.client) > count).then_some(index))
    }

    fn of(&self, client: Option<IpAddr>) -> u32 {
        self.by_client.get(&client).copied().unwrap_or(0)
    }

    /// Removes the newest request, within the class, of the client that has most requests in the
    /// queue.
    fn remove_of_largest_client(&mut self, class: usize) -> Option<Arc<Waiter>> {
        let newest = self.classes[class].iter().enumerate().rev().take(MAX_DISPLACEABLE);
        // Of equal ones, `max_by_key` takes the last, which is the newest.
        let largest = newest.rev().max_by_key(|(_, waiter)| self.of(waiter.request.client));
        let (index, _) = largest?;
        self.remove_at(class, index)
    }

    fn remove_at(&mut self, class: usize, index: usize) -> Option<Arc<Waiter>> {
        let waiter = self.classes[class].remove(index)?;
        self.len -= 1;
        let client = waiter.request.client;
        if let Some(count) = self.by_client.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.by_client.remove(&client);
            }
        }
        Some(waiter)
    }
}

/// The positions in a full queue of `max` that each class keeps: none if the queue has fewer than
/// there are classes.
fn kept_positions(max: usize) -> usize {
    (max / KEPT_SHARE).max(usize::from(max >= Priority::COUNT))
}
