//! The one fetch of a lease: requests that come while it is under way share it.

use std::sync::Arc;

use super::{
    lease::{Enqueued, FetchOrder},
    registry::{LeaseKey, LeaseRegistry},
    waiter::{Reply, Waiter},
};
use crate::{
    limit::{Key, Limit, Order},
    store::Failure,
};

/// What came of joining the queue of a lease.
pub enum Joined<W: Waiter> {
    /// There were tokens after all: the waiter has been served.
    Served,
    /// It waits behind a fetch in flight.
    Waiting,
    /// It waits, and the caller must now ask the store.
    Fetch(Fetch<W>),
    /// The registry is full or closed: the request has to ask the store itself.
    Unavailable(W),
}

impl<W: Waiter> LeaseRegistry<W> {
    /// Waits for tokens of `key` under `limit` at `ticks`, after [`Self::take`] gave nothing.
    pub fn join(self: &Arc<Self>, limit: &Limit, key: Key, waiter: W, ticks: u64) -> Joined<W> {
        match self.enqueue(limit, key, waiter, ticks) {
            Ok(Enqueued::Served) => Joined::Served,
            Ok(Enqueued::Waiting) => Joined::Waiting,
            Ok(Enqueued::Fetch(ask)) => Joined::Fetch(Fetch {
                registry: Arc::clone(self),
                limit: Arc::new(limit.clone()),
                key,
                ask,
                is_over: false,
            }),
            Err(waiter) => Joined::Unavailable(waiter),
        }
    }
}

/// The right to ask the store for tokens, and the duty to bring the outcome. Dropped, it fails the
/// requests that wait: so a fetch that panics or is cancelled leaves none waiting, and the next may begin.
#[must_use = "dropped, it fails the requests that wait"]
pub struct Fetch<W: Waiter> {
    registry: Arc<LeaseRegistry<W>>,
    limit: Arc<Limit>,
    key: Key,
    ask: FetchOrder,
    is_over: bool,
}

impl<W: Waiter> Fetch<W> {
    /// What to ask the store for.
    pub fn order(&self) -> &Order {
        &self.ask.order
    }

    /// The limit whose record is asked.
    pub fn limit(&self) -> &Arc<Limit> {
        &self.limit
    }

    /// Who is counted.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Whether no token was here when it began: then a request that costs the order's least is refused
    /// where the store refuses that.
    pub fn is_alone(&self) -> bool {
        self.ask.is_alone
    }

    /// The reply has come: serves the requests that wait. Returns the next fetch where some still do.
    pub fn complete(mut self, reply: &Reply) -> Option<Self> {
        let next = self.registry.complete(self.lease_key(), &self.ask, reply);
        self.is_over = true;
        let (registry, limit) = (Arc::clone(&self.registry), Arc::clone(&self.limit));
        next.map(|ask| Self { registry, limit, key: self.key, ask, is_over: false })
    }

    /// There is no reply, as of `ticks`: what is kept here serves the requests that wait as far as it
    /// reaches, and the others fail.
    pub fn fail(mut self, failure: Failure, ticks: u64) {
        self.registry.fail(self.lease_key(), &self.ask, Some((failure, ticks)));
        self.is_over = true;
    }

    fn lease_key(&self) -> LeaseKey {
        LeaseKey::of(&self.limit, self.key)
    }
}

impl<W: Waiter> Drop for Fetch<W> {
    fn drop(&mut self) {
        if !self.is_over {
            self.registry.fail(self.lease_key(), &self.ask, None);
        }
    }
}
