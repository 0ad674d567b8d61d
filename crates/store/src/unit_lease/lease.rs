//! The lease of one key under one quota: its units, the requests that wait for more, and the fetch
//! in flight.
//!
//! At most one fetch is in flight. Meanwhile no new request takes units: the lease keeps them for
//! the requests that wait. Requests are decided as if they had called the store one after the
//! other: in order, passing over a request that costs more than is left.
//!
//! ```text
//!                take, refund, sweep
//!                +----+
//!                |    v
//!   new ----> +----------+  sweep after REMOVAL_TIMEOUT, drain
//!             |   Idle   | ----------------------------------> removed
//!             +----------+
//!   enqueue      |    ^
//!   with too     |    |  complete and no request waits, or fail
//!   few units    v    |
//!             +----------+  enqueue: the request waits
//!             | Fetching | -+
//!             +----------+ <+  complete and requests wait: the next fetch
//!   discard      |    ^
//!                |    |  complete and requests wait: the next fetch
//!                v    |
//!            +-----------+
//!            | Discarded |  complete and no request waits, or fail: Idle
//!            +-----------+
//! ```
//!
//! Requests wait only while a fetch is in flight. In `Discarded`, the operator has deleted the
//! record since the fetch began: the lease holds nothing, and units that the waiting requests do
//! not need are discarded.

use std::{mem, sync::Arc};

use smallvec::SmallVec;
use tidegate_base::time::{Millis, MonotonicTime, StoreTime};
use tidegate_charge::{Key, Limit};
use tidegate_limit::{Decision, Quota, UnitDemand, UnitReturn};
use tidegate_redis::RedisFailure;

use super::{
    chunk_sizer::ChunkSizer,
    snapshot::{LeaseCharge, LeaseSnapshot},
    wait_queue::WaitQueue,
    waiter::{FetchReply, LeaseWaiter, WaiterOutcome},
};

/// After this time without a request, a lease's units are returned even if they can still be spent:
/// other gateways may need them.
pub const IDLE_TIMEOUT: Millis = Millis::from_secs(1);

/// After this time without a request, a lease is removed.
pub const REMOVAL_TIMEOUT: Millis = Millis::from_secs(10);

/// Maximum time that a unit is held. By then, clocks whose rates differ by a thousandth are 60 ms
/// apart. Units that are used so slowly are better kept at the store.
const MAX_HOLD: Millis = Millis::from_mins(1);

/// Units of one sub-window.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct LeasedUnits {
    count: u64,
    /// The monotonic time from which none may be spent.
    deadline: MonotonicTime,
    /// The end of the sub-window, by the store's clock; the epoch before the first grant.
    end: StoreTime,
}

impl LeasedUnits {
    /// The units that may be spent at `monotonic`.
    fn live(&self, monotonic: MonotonicTime) -> u64 {
        if monotonic < self.deadline { self.count } else { 0 }
    }

    /// True if a charge at `charged_at`, by the store's clock, is in these units' sub-window, and
    /// that sub-window has not ended at `monotonic`.
    fn covers(&self, quota: &Quota, charged_at: StoreTime, monotonic: MonotonicTime) -> bool {
        let start = quota.sub_window_start(self.end);
        (start..self.end).contains(&charged_at) && monotonic < self.deadline
    }
}

/// The units that a fetch asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct FetchRequest {
    pub(super) demand: UnitDemand,
    /// True if the lease held no unit when the fetch began.
    pub(super) started_empty: bool,
    pub(super) attempt: FetchAttempt,
    pub(super) on_partial_grant: OnPartialGrant,
}

/// The attempt of a fetch: the first one, or the one after this gateway's other units were
/// returned.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum FetchAttempt {
    /// Its refusal may be due to units that this gateway holds under other quotas.
    First,
    /// The units under other quotas have been returned: its refusal is final.
    AfterReclaim,
}

/// The effect of a partial grant on the requests for which it does not suffice.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum OnPartialGrant {
    /// They are refused.
    Refuse,
    /// They wait for the next fetch, which returns units of this gateway first.
    Retry,
}

/// The outcome of [`Lease::enqueue`].
pub(super) enum EnqueueOutcome {
    /// The waiter has been served from the lease.
    Served,
    /// The waiter waits for a fetch in flight.
    Waiting,
    /// The waiter waits, and the caller must make this fetch.
    Fetch(FetchRequest),
}

/// The effect of a failed fetch on the units that it was to return, and on the units that it asked
/// for.
pub(super) enum FailedFetch {
    /// The store did not execute it: the units to be returned are still here.
    Kept,
    /// The store did not execute it, and the operator has deleted the record of the units to be
    /// returned: this many are discarded.
    Discarded(u64),
    /// The outcome is unknown: at most this many units are lost.
    Lost(u64),
}

/// The units of one key under one quota at this gateway.
pub(super) struct Lease<W> {
    limit: Arc<Limit>,
    key: Key,
    /// Identifies the quota among the leases of a record.
    id: u128,
    units: LeasedUnits,
    snapshot: LeaseSnapshot,
    queue: WaitQueue<W>,
    fetch: Option<FetchInFlight>,
    /// Units to return to the store.
    unspent: SmallVec<[UnitReturn; 2]>,
    sizer: ChunkSizer,
    /// The monotonic time of the last request or fetch.
    used_at: MonotonicTime,
}

/// The fetch in flight.
#[derive(Clone, Copy)]
struct FetchInFlight {
    /// Number of requests that waited when it began.
    waiters: usize,
    /// True if the operator has deleted the record since.
    is_discarded: bool,
}

impl<W: LeaseWaiter> Lease<W> {
    pub(super) fn new(limit: Arc<Limit>, key: Key, id: u128, monotonic: MonotonicTime) -> Self {
        Self {
            limit,
            key,
            id,
            units: LeasedUnits::default(),
            snapshot: LeaseSnapshot::default(),
            queue: WaitQueue::default(),
            fetch: None,
            unspent: SmallVec::new(),
            sizer: ChunkSizer::default(),
            used_at: monotonic,
        }
    }

    pub(super) fn limit(&self) -> &Arc<Limit> {
        &self.limit
    }

    pub(super) fn key(&self) -> Key {
        self.key
    }

    pub(super) fn id(&self) -> u128 {
        self.id
    }

    /// True if units are to be returned.
    pub(super) fn has_unspent(&self) -> bool {
        !self.unspent.is_empty()
    }

    pub(super) fn snapshot(&self) -> LeaseSnapshot {
        self.snapshot
    }

    /// Checks, at the end of each step, the invariants that hold between calls.
    fn check_invariants(&self) {
        match &self.fetch {
            None => {
                debug_assert!(self.queue.is_empty(), "requests wait, and no fetch is in flight");
            }
            Some(fetch) => {
                debug_assert!(fetch.waiters > 0, "a fetch that no request waits for");
                debug_assert!(
                    self.queue.len() >= fetch.waiters,
                    "a request left the queue unserved"
                );
                debug_assert!(
                    !fetch.is_discarded || self.outstanding() == 0,
                    "units of a deleted record are held"
                );
            }
        }
        debug_assert!(
            self.units.count == 0
                || self.units.end > StoreTime::ZERO && self.units.end == self.snapshot.end,
            "units of a sub-window other than that of the last reply"
        );
        debug_assert!(
            self.unspent.iter().enumerate().all(|(index, unspent)| {
                let mut later = self.unspent[index + 1..].iter();
                unspent.units > 0 && later.all(|other| other.charged_at != unspent.charged_at)
            }),
            "an entry without units to return, or two entries of one time"
        );
    }

    /// The number of units held here, to spend or to return.
    pub(super) fn outstanding(&self) -> u64 {
        let unspent = self.unspent.iter().map(|unspent| unspent.units);
        unspent.sum::<u64>() + self.units.count
    }

    /// The units that can be spent at `monotonic`.
    pub(super) fn spendable(&self, monotonic: MonotonicTime) -> u64 {
        self.units.live(monotonic)
    }

    /// Takes `cost` units at `monotonic`, if they are here and no fetch is in flight.
    #[inline]
    pub(super) fn take(&mut self, cost: u64, monotonic: MonotonicTime) -> Option<LeaseCharge> {
        if self.fetch.is_some() {
            return None;
        }
        let rest = self.units.live(monotonic).checked_sub(cost)?;
        self.units.count = rest;
        self.used_at = monotonic;
        self.check_invariants();
        Some(self.snapshot.charge(monotonic, rest))
    }

    /// Puts back `cost` units that were charged at `charged_at`, if their sub-window has not ended.
    /// Returns the time and the remaining units after that.
    pub(super) fn refund(
        &mut self,
        charged_at: StoreTime,
        cost: u64,
        monotonic: MonotonicTime,
    ) -> Option<LeaseCharge> {
        if !self.units.covers(&self.limit.quota, charged_at, monotonic) {
            return None;
        }
        self.units.count = self.units.count.saturating_add(cost);
        self.check_invariants();
        Some(self.snapshot.charge(monotonic, self.units.count))
    }

    /// Keeps units for return with the next fetch or sweep. Returns false if the operator has
    /// deleted their record.
    pub(super) fn mark_for_return(&mut self, to_return: UnitReturn) -> bool {
        if self.fetch.is_some_and(|fetch| fetch.is_discarded) {
            return false;
        }
        let mut unspent = self.unspent.iter_mut();
        match unspent.find(|other| other.charged_at == to_return.charged_at) {
            Some(other) => other.units = other.units.saturating_add(to_return.units),
            None if to_return.units > 0 => self.unspent.push(to_return),
            None => {}
        }
        true
    }

    /// Adds a request at `monotonic`, after [`Self::take`] returned none.
    pub(super) fn enqueue(
        &mut self,
        waiter: W,
        monotonic: MonotonicTime,
        extra_divisor: u64,
    ) -> EnqueueOutcome {
        self.used_at = monotonic;
        if self.fetch.is_some() {
            self.queue.push(waiter);
            self.check_invariants();
            return EnqueueOutcome::Waiting;
        }
        self.expire(monotonic);
        if let Some(rest) = self.units.count.checked_sub(waiter.cost()) {
            if waiter.serve(WaiterOutcome::Granted(self.snapshot.charge(monotonic, rest))) {
                self.units.count = rest;
            }
            self.check_invariants();
            return EnqueueOutcome::Served;
        }
        self.queue.push(waiter);
        EnqueueOutcome::Fetch(self.begin_fetch(monotonic, extra_divisor))
    }

    /// Begins a fetch at `monotonic` for the requests that wait.
    fn begin_fetch(&mut self, monotonic: MonotonicTime, extra_divisor: u64) -> FetchRequest {
        self.expire(monotonic);
        self.fetch = Some(FetchInFlight { waiters: self.queue.len(), is_discarded: false });
        let extra = self.sizer.next_chunk(monotonic, self.limit.lease_size);
        let returned = self.unspent.pop().unwrap_or_default();
        let (cheapest, all) = self.queue.costs();
        let minimum = cheapest.saturating_sub(self.units.count).max(1);
        let needed = all.saturating_sub(self.units.count).max(minimum);
        let demand = UnitDemand { minimum, needed, extra, extra_divisor, returned };
        self.check_invariants();
        let started_empty = self.units.count == 0;
        FetchRequest {
            demand,
            started_empty,
            attempt: FetchAttempt::First,
            on_partial_grant: OnPartialGrant::Refuse,
        }
    }

    /// Ends a fetch with the store's reply. Returns the next fetch, if requests still wait, and the
    /// number of units that are discarded because the operator has deleted the record.
    pub(super) fn complete(
        &mut self,
        request: &FetchRequest,
        reply: &FetchReply,
        extra_divisor: u64,
    ) -> (Option<FetchRequest>, u64) {
        let FetchReply { grant, decided_at: now, received, .. } = reply;
        let UnitDemand { minimum, needed, extra, .. } = request.demand;
        let decision = grant.decision;
        let is_partial = grant.units < needed;
        let is_retried = is_partial && request.on_partial_grant == OnPartialGrant::Retry;
        let is_final = is_partial && !is_retried;
        self.used_at = *received;
        if grant.units >= needed.saturating_add(extra) {
            self.sizer.record_full_grant(*received);
        } else {
            self.sizer.record_partial_grant();
        }
        self.receive(reply);
        self.snapshot = LeaseSnapshot {
            end: self.units.end,
            remaining: decision.remaining,
            reset_at: decision.reset_at,
            charged_at: *now,
            received: *received,
        };
        let fetch = self.fetch.take();
        let arrivals = self.queue.split_off(fetch.map_or(0, |fetch| fetch.waiters));
        // A grant was decided at the store for these requests, so it serves them however late the
        // reply is.
        if grant.units > 0 || *received < self.units.deadline {
            self.grant(*received);
        }
        if is_final {
            let decision = Decision { admitted: false, ..decision };
            let refused = WaiterOutcome::Refused { decision, decided_at: *now };
            let queue = mem::take(&mut self.queue);
            queue.end(|cost| if cost == minimum { refused } else { WaiterOutcome::CallStore });
        }
        // Before a retry, and if leased units expired during the fetch, requests still wait. They
        // keep their places.
        let is_discarded = fetch.is_some_and(|fetch| fetch.is_discarded);
        let discarded = if is_discarded { mem::take(&mut self.units.count) } else { 0 };
        self.queue.append(arrivals);
        if *received < self.units.deadline {
            self.grant(*received);
        }
        if is_final && grant.units > 0 {
            // These are the last units of the quota, fetched for requests that cost more. Other
            // gateways may need them.
            self.mark_all_for_return();
        }
        let mut next = (!self.queue.is_empty()).then(|| self.begin_fetch(*received, extra_divisor));
        if let Some(next) = next.as_mut().filter(|_| is_retried) {
            next.attempt = FetchAttempt::AfterReclaim;
        }
        self.check_invariants();
        (next, discarded)
    }

    /// Ends a fetch. After a failure at a known time, the lease's units serve as many waiting
    /// requests as they can, and the others fail. If the fetch was abandoned (`None`), all fail.
    pub(super) fn fail(
        &mut self,
        request: &FetchRequest,
        failure: Option<(RedisFailure, MonotonicTime)>,
    ) -> FailedFetch {
        let UnitDemand { needed, extra, returned, .. } = request.demand;
        let is_unknown = !matches!(failure, Some((RedisFailure::Unsent | RedisFailure::Server, _)));
        let effect = if is_unknown {
            FailedFetch::Lost([needed, extra, returned.units].map(u64::from).iter().sum())
        } else if self.mark_for_return(returned) {
            FailedFetch::Kept
        } else {
            FailedFetch::Discarded(returned.units)
        };
        if let Some((_, monotonic)) =
            failure.filter(|&(_, monotonic)| monotonic < self.units.deadline)
        {
            self.grant(monotonic);
        }
        self.fetch = None;
        let failure = failure.map(|(failure, _)| failure);
        mem::take(&mut self.queue).end(|_| WaiterOutcome::Failed(failure));
        self.check_invariants();
        effect
    }

    /// Spends units for the requests that wait.
    fn grant(&mut self, monotonic: MonotonicTime) {
        let Self { queue, units, snapshot, .. } = self;
        queue.grant(&mut units.count, |rest| {
            WaiterOutcome::Granted(snapshot.charge(monotonic, rest))
        });
    }

    /// Adds the granted units, after marking units of another sub-window for return.
    fn receive(&mut self, reply: &FetchReply) {
        let grant = &reply.grant;
        let is_other_sub_window = grant.units > 0 && grant.spendable_until != self.units.end;
        if reply.decided_at >= self.units.end || is_other_sub_window {
            self.mark_all_for_return();
        }
        if grant.units == 0 {
            return;
        }
        // One ms early, because the two clocks' ms do not begin together; bounded, because the clocks
        // drift apart.
        let lasts = grant.spendable_until.since(reply.decided_at + Millis::MILLISECOND);
        self.units = LeasedUnits {
            count: self.units.count.saturating_add(grant.units),
            deadline: reply.sent + lasts.min(MAX_HOLD),
            end: grant.spendable_until,
        };
    }

    fn expire(&mut self, monotonic: MonotonicTime) {
        if monotonic >= self.units.deadline {
            self.mark_all_for_return();
        }
    }

    /// Marks all units for return.
    fn mark_all_for_return(&mut self) {
        // Any time in the units' sub-window identifies it.
        let charged_at = self.units.end.before(Millis::MILLISECOND);
        let to_return = UnitReturn { charged_at, units: mem::take(&mut self.units.count) };
        // The units move back to the store, so `remaining` in response headers does not change.
        self.snapshot.remaining += to_return.units;
        self.mark_for_return(to_return);
    }

    /// Discards all units, because the operator has deleted their record. The units of a fetch in
    /// flight were charged to that record, so they are discarded as well, except the ones needed by
    /// waiting requests. Returns the number of discarded units.
    pub(super) fn discard(&mut self) -> u64 {
        let count = self.outstanding();
        self.units = LeasedUnits::default();
        self.unspent.clear();
        if let Some(fetch) = &mut self.fetch {
            fetch.is_discarded = true;
        }
        self.check_invariants();
        count
    }

    /// Moves to `out` the units that are to be returned and, after [`IDLE_TIMEOUT`] without a
    /// request, all units; none while the store cannot be reached. True if the lease is to be
    /// removed.
    pub(super) fn sweep(
        &mut self,
        monotonic: MonotonicTime,
        is_reachable: impl FnOnce(Key) -> bool,
        out: &mut Vec<UnitReturn>,
    ) -> bool {
        let is_fetching = self.fetch.is_some();
        let unused = if is_fetching { Millis::ZERO } else { monotonic.since(self.used_at) };
        if unused < IDLE_TIMEOUT && self.unspent.is_empty() {
            return false;
        }
        if self.outstanding() > 0 && !is_reachable(self.key) {
            return false;
        }
        if unused >= IDLE_TIMEOUT && self.units.count > 0 {
            self.mark_all_for_return();
            self.sizer.shrink();
        }
        out.extend(self.unspent.drain(..));
        self.check_invariants();
        unused >= REMOVAL_TIMEOUT
    }

    /// Moves all units to `out`; with a fetch in flight, only those marked for return. True if no
    /// fetch is in flight, so that the lease is to be removed.
    pub(super) fn drain(&mut self, out: &mut Vec<UnitReturn>) -> bool {
        let is_idle = self.fetch.is_none();
        if is_idle {
            self.mark_all_for_return();
        }
        out.extend(self.unspent.drain(..));
        self.check_invariants();
        is_idle
    }
}
