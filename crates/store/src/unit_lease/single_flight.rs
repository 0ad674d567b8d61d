//! Single flight: requests that arrive during a lease's fetch share it.

use std::sync::Arc;

use tidegate_base::time::MonotonicTime;
use tidegate_charge::{Key, Limit};
use tidegate_limit::UnitDemand;
use tidegate_redis::RedisFailure;

use super::{
    lease::{EnqueueOutcome, FetchRequest, OnPartialGrant},
    registry::{LeaseKey, LeaseRegistry},
    waiter::{FetchReply, LeaseWaiter},
};

/// The outcome of [`LeaseRegistry::join`].
pub enum JoinOutcome<W: LeaseWaiter> {
    /// The lease had units after all: the waiter has been served.
    Served,
    /// The waiter waits for a fetch in flight.
    Waiting,
    /// The waiter waits, and the caller must make this fetch.
    Fetch(LeaseFetch<W>),
    /// The registry is full or closed: the request has to call the store itself.
    Unavailable(W),
}

impl<W: LeaseWaiter> LeaseRegistry<W> {
    /// Adds a request for units of `key` under `limit` to the queue of their lease at `monotonic`,
    /// after [`Self::take`] returned none.
    pub fn join(
        self: &Arc<Self>,
        limit: &Arc<Limit>,
        key: Key,
        waiter: W,
        monotonic: MonotonicTime,
    ) -> JoinOutcome<W> {
        match self.enqueue(limit, key, waiter, monotonic) {
            Ok(EnqueueOutcome::Served) => JoinOutcome::Served,
            Ok(EnqueueOutcome::Waiting) => JoinOutcome::Waiting,
            Ok(EnqueueOutcome::Fetch(request)) => JoinOutcome::Fetch(LeaseFetch {
                registry: Arc::clone(self),
                limit: Arc::clone(limit),
                key,
                request,
                is_over: false,
            }),
            Err(waiter) => JoinOutcome::Unavailable(waiter),
        }
    }
}

/// The only fetch in flight of a lease. Dropping it fails the waiting requests, so that after a
/// panic or a cancellation no request waits for ever, and the next fetch can begin.
#[must_use = "dropping it fails the requests that wait"]
pub struct LeaseFetch<W: LeaseWaiter> {
    registry: Arc<LeaseRegistry<W>>,
    limit: Arc<Limit>,
    key: Key,
    request: FetchRequest,
    is_over: bool,
}

impl<W: LeaseWaiter> LeaseFetch<W> {
    /// The units to ask the store for.
    pub fn demand(&self) -> &UnitDemand {
        &self.request.demand
    }

    /// The limit whose record is charged.
    pub fn limit(&self) -> &Arc<Limit> {
        &self.limit
    }

    /// The key whose record is charged.
    pub fn key(&self) -> Key {
        self.key
    }

    /// True if the lease held no unit when the fetch began. The demand's minimum is then the whole
    /// cost of the cheapest request, so the store's refusal of the minimum is a refusal of that
    /// cost.
    pub fn started_empty(&self) -> bool {
        self.request.started_empty
    }

    /// Prepares for a reply that grants less than the needed units: the units of the same record
    /// under other quotas of this gateway are to be returned. True if [`Self::complete`] then
    /// returns a fetch that returns units, instead of refusing requests.
    pub fn reclaim(&mut self) -> bool {
        self.request.on_partial_grant =
            self.registry.reclaim(self.lease_key(), self.request.attempt);
        self.request.on_partial_grant == OnPartialGrant::Retry
    }

    /// Serves the requests that wait with the store's reply. Returns the next fetch, if some still
    /// wait.
    pub fn complete(mut self, reply: &FetchReply) -> Option<Self> {
        let next = self.registry.complete(self.lease_key(), &self.request, reply);
        self.is_over = true;
        let (registry, limit) = (Arc::clone(&self.registry), Arc::clone(&self.limit));
        next.map(|request| Self { registry, limit, key: self.key, request, is_over: false })
    }

    /// Ends the fetch without a reply, at `monotonic`: the lease's units serve as many waiting
    /// requests as they can; the others fail.
    pub fn fail(mut self, failure: RedisFailure, monotonic: MonotonicTime) {
        self.registry.fail(self.lease_key(), &self.request, Some((failure, monotonic)));
        self.is_over = true;
    }

    fn lease_key(&self) -> LeaseKey {
        LeaseKey::of(&self.limit, self.key)
    }
}

impl<W: LeaseWaiter> Drop for LeaseFetch<W> {
    fn drop(&mut self) {
        if !self.is_over {
            self.registry.fail(self.lease_key(), &self.request, None);
        }
    }
}
