//! Decides charges in this process although their counters are in Redis: from leased units and the
//! deny cache. Also fetches units.

use std::{sync::Arc, time::Duration};

use crossbeam_utils::CachePadded;
use smallvec::SmallVec;
use tidegate_charge::{
    Acquisition, Adjustment, Charge, DecisionSource, Key, LeaseSize, Limit, StoreDecision, Verdict,
};
use tidegate_limit::{Change, Decision, MAX_LEASED_UNITS, Quota};
use tidegate_redis::{CallError, RedisClient, RedisFailure};
use tidegate_system::clock::{Clock, MonotonicTime, StoreTime, Uptime};
use tokio::sync::oneshot;

use super::{
    CounterStore,
    corrections::{CorrectionReason, CorrectionSender},
    deny_cache::{DenyCache, ReplyTiming},
    record_id::record_id,
    stats::WorkerCounts,
    unit_lease::{
        FetchReply, JoinOutcome, LeaseCharge, LeaseFetch, LeaseRegistry, LeaseWaiter, WaiterOutcome,
    },
};

/// Time that a request waits beyond its call's timeout, so that the call times out first.
const REPLY_MARGIN: Duration = Duration::from_millis(5);

/// All leases of the process.
pub(super) type QuotaLeases = LeaseRegistry<QueuedRequest>;

/// A decision made on behalf of Redis, at the store's time `at`.
fn store_decision(decision: Decision, at: StoreTime) -> StoreDecision {
    StoreDecision::new(decision, at, DecisionSource::Store)
}

/// The outcome of waiting in the queue for units.
pub(super) enum QueueOutcome {
    /// Admitted from a grant, or refused by the store.
    Decided(StoreDecision),
    /// The request has to call the store by itself.
    CallStore,
    /// The store gave no answer.
    Failed(RedisFailure),
}

/// One worker's access to the process's leases and cached denials.
pub(super) struct LocalAdmission {
    leases: Arc<QuotaLeases>,
    deny_cache: Arc<DenyCache>,
    client: Arc<RedisClient>,
    corrections: CorrectionSender,
    counts: Arc<CachePadded<WorkerCounts>>,
    clock: Clock,
}

/// True if leased units may serve the charge. A charge above the quota is excluded: it is never
/// admitted, but a queue would lease all remaining units for it.
pub(super) fn can_lease(charge: &Charge<'_>) -> bool {
    let max_cost = charge.limit.quota.limit.min(MAX_LEASED_UNITS);
    charge.limit.lease_size != LeaseSize::Off && (1..=max_cost).contains(&charge.cost)
}

impl LocalAdmission {
    pub(super) fn new(
        store: &CounterStore,
        client: &Arc<RedisClient>,
        corrections: CorrectionSender,
        counts: Arc<CachePadded<WorkerCounts>>,
    ) -> Self {
        let (leases, clock) = (Arc::clone(&store.leases), store.clock.clone());
        let (deny_cache, client) = (Arc::clone(&store.deny_cache), Arc::clone(client));
        Self { leases, deny_cache, client, corrections, counts, clock }
    }

    /// Charges from the leased units of this process, if they suffice.
    #[inline]
    pub(super) fn take(&self, charge: &Charge<'_>) -> Option<StoreDecision> {
        if !can_lease(charge) {
            return None;
        }
        let taken =
            self.leases.take(charge.limit, charge.key, charge.cost, self.clock.monotonic())?;
        Some(store_decision(taken.decision(&charge.limit.quota), taken.charged_at))
    }

    /// Counts a charge that [`Self::take`] has made.
    #[inline]
    pub(super) fn count_taken(&self) {
        self.counts.count_leased_charge();
    }

    /// The cached denial of this charge.
    #[inline]
    pub(super) fn cached_denial(&self, charge: &Charge<'_>) -> Option<StoreDecision> {
        let denial = self.deny_cache.get(charge, self.clock.monotonic())?;
        Some(store_decision(denial.decision, denial.now))
    }

    /// Refunds to the lease a charge that [`Self::take`] or the queue made, and returns the
    /// decision after it. `None` if the charge is outside of the lease's sub-window, or if that
    /// sub-window has ended: the caller must refund it at the store.
    pub(super) fn absorb_refund(&self, adjustment: &Adjustment<'_>) -> Option<StoreDecision> {
        let &Adjustment { limit, key, change } = adjustment;
        let Change::Refund { charged_at, cost } = change else { return None };
        if limit.lease_size == LeaseSize::Off {
            return None;
        }
        let taken = self.leases.refund(limit, key, charged_at, cost, self.clock.monotonic())?;
        Some(store_decision(taken.decision(&limit.quota), taken.charged_at))
    }

    /// Puts back the units of a refused request: into the lease, or into the store if the registry
    /// is closed or has no room for a lease.
    fn put_back(&self, charge: &Charge<'_>, now: StoreTime) {
        let &Charge { limit, key, cost } = charge;
        if self.leases.refund_or_mark_for_return(limit, key, now, cost, self.clock.monotonic()) {
            return;
        }
        let change = Change::Refund { charged_at: now, cost };
        let correction = (Arc::clone(limit), key, change);
        self.corrections.push([correction], CorrectionReason::Request);
    }

    /// Drops the cached denials of a record that was adjusted at the store.
    pub(super) fn invalidate(&self, limit: &Limit, key: Key) {
        self.deny_cache.invalidate(record_id(limit, key), self.clock.monotonic());
    }

    /// The time, by [`Clock::uptime`], until which a request that arrives now may wait: the
    /// response timeout of a call plus [`REPLY_MARGIN`].
    pub(super) fn deadline(&self) -> Uptime {
        self.clock.uptime() + self.client.response_timeout() + REPLY_MARGIN
    }

    /// True if a request with this [`Self::deadline`] has waited for the whole response timeout.
    pub(super) fn has_timed_out(&self, deadline: Uptime) -> bool {
        self.clock.uptime() + REPLY_MARGIN >= deadline
    }

    /// The monotonic time to pass to [`Self::cache_denials`] as `sent`.
    pub(super) fn monotonic(&self) -> MonotonicTime {
        self.clock.monotonic()
    }

    /// Caches the denials of a store call that was sent at the monotonic time `sent`. Drops denials
    /// of records that were charged, because the charge may have moved their retry time.
    pub(super) fn cache_denials(
        &self,
        charges: &[Charge<'_>],
        verdict: &Verdict,
        sent: MonotonicTime,
    ) {
        for (charge, outcome) in charges.iter().zip(&verdict.outcomes) {
            let Some(StoreDecision { decision, at: now, source: DecisionSource::Store, .. }) =
                outcome.decided()
            else {
                continue;
            };
            if decision.admitted {
                self.deny_cache.remove(record_id(charge.limit, charge.key));
            } else if !is_repeated(charges, charge) {
                let received = self.clock.monotonic();
                self.deny_cache.insert(
                    charge,
                    decision,
                    ReplyTiming { sent, received, decided_at: *now },
                );
            }
        }
    }

    /// Queues a request for units, if [`Self::take`] gave none and no denial is cached. `None` if
    /// the request has to call the store by itself. Units granted to a request that is gone are put
    /// back.
    pub(super) fn queue(&self, charge: &Charge<'_>) -> Option<QueueTicket> {
        let (reply_sender, reply_receiver) = oneshot::channel();
        let source = LeaseOrigin {
            leases: Arc::clone(&self.leases),
            limit: Arc::clone(charge.limit),
            key: charge.key,
            cost: charge.cost,
            clock: self.clock.clone(),
        };
        let waiter = QueuedRequest { source, reply_sender };
        match self.leases.join(charge.limit, charge.key, waiter, self.clock.monotonic()) {
            JoinOutcome::Served | JoinOutcome::Waiting => {}
            JoinOutcome::Unavailable(_) => return None,
            JoinOutcome::Fetch(fetch) => {
                let task = FetchTask {
                    client: Arc::clone(&self.client),
                    deny_cache: Arc::clone(&self.deny_cache),
                    corrections: self.corrections.clone(),
                    counts: Arc::clone(&self.counts),
                    clock: self.clock.clone(),
                };
                // A separate task, because the request that starts it may be cancelled.
                tokio::spawn(task.run(fetch));
            }
        }
        let (clock, deadline) = (self.clock.clone(), self.deadline());
        Some(QueueTicket { reply_receiver, clock, deadline })
    }
}

/// A queued request's claim to an outcome.
pub(super) struct QueueTicket {
    reply_receiver: oneshot::Receiver<QueueReply>,
    clock: Clock,
    /// By [`Clock::uptime`]. It holds for all fetches that the request waits for: another fetch
    /// does not extend it.
    deadline: Uptime,
}

impl QueueTicket {
    /// Waits for the outcome, until the deadline.
    pub(super) async fn outcome(self, quota: &Quota) -> QueueOutcome {
        match self.clock.timeout_at(self.deadline, self.reply_receiver).await {
            Ok(Ok(mut reply)) => reply.outcome(quota),
            // The fetch task was dropped without a reply, which happens only when its runtime ends.
            Ok(Err(_)) => QueueOutcome::Failed(RedisFailure::Io),
            Err(_) => QueueOutcome::Failed(RedisFailure::Timeout),
        }
    }
}

/// True if a request charges the record of `charge` more than once. The second charge was decided
/// on top of the first, so its denial does not apply to a request that charges the record once.
fn is_repeated(charges: &[Charge<'_>], charge: &Charge<'_>) -> bool {
    let same = |other: &&Charge<'_>| {
        other.key == charge.key && other.limit.identity.hash() == charge.limit.identity.hash()
    };
    charges.len() > 1 && charges.iter().filter(same).count() > 1
}

/// Fetches units for a lease, one call after the other, until no request waits.
struct FetchTask {
    client: Arc<RedisClient>,
    deny_cache: Arc<DenyCache>,
    corrections: CorrectionSender,
    counts: Arc<CachePadded<WorkerCounts>>,
    clock: Clock,
}

impl FetchTask {
    async fn run(self, first: LeaseFetch<QueuedRequest>) {
        let mut next = Some(first);
        while let Some(mut fetch) = next.take() {
            let (limit, key) = (Arc::clone(fetch.limit()), fetch.key());
            let demand = *fetch.demand();
            let sent = self.clock.monotonic();
            self.counts.count_call();
            let shard = self.client.shard_of(key);
            let fetched =
                self.client.acquire(shard, &Acquisition { limit: &limit, key, demand }).await;
            let received = self.clock.monotonic();
            next = match fetched {
                Ok((grant, now)) => {
                    if grant.units > 0 || demand.returned.units > 0 {
                        self.deny_cache.remove(record_id(&limit, key));
                    }
                    let charge = Charge { limit: &limit, key, cost: demand.minimum };
                    let refused = Decision { admitted: false, ..grant.decision };
                    let is_retried = grant.units < demand.needed && fetch.reclaim();
                    // Not cached if units were granted or the lease held some: units in the lease,
                    // or units that other requests put back, may still admit this cost.
                    if grant.units == 0 && fetch.started_empty() && !is_retried {
                        self.deny_cache.insert(
                            &charge,
                            &refused,
                            ReplyTiming { sent, received, decided_at: now },
                        );
                    }
                    fetch.complete(&FetchReply { grant, decided_at: now, sent, received })
                }
                Err(CallError { failure, late }) => {
                    fetch.fail(failure, received);
                    if let Some(late) = late {
                        self.corrections.return_late_grant(late, limit, key, demand);
                    }
                    None
                }
            };
        }
    }
}

/// The lease from which a request's units come, and into which they are put back.
struct LeaseOrigin {
    leases: Arc<QuotaLeases>,
    limit: Arc<Limit>,
    key: Key,
    cost: u64,
    clock: Clock,
}

/// A request that waits for units.
pub(super) struct QueuedRequest {
    source: LeaseOrigin,
    reply_sender: oneshot::Sender<QueueReply>,
}

impl LeaseWaiter for QueuedRequest {
    fn cost(&self) -> u64 {
        self.source.cost
    }

    fn serve(self, outcome: WaiterOutcome) -> bool {
        let Self { source, reply_sender } = self;
        // The registry is locked here, so dropping an undelivered reply must not put units back.
        reply_sender
            .send(QueueReply { outcome: Some(outcome), source })
            .map_err(QueueReply::disarm)
            .is_ok()
    }
}

/// A queued request's outcome in transit. If the request never receives it, dropping it puts its
/// units back.
pub(super) struct QueueReply {
    outcome: Option<WaiterOutcome>,
    source: LeaseOrigin,
}

impl QueueReply {
    fn disarm(mut self) {
        self.outcome = None;
    }

    fn outcome(&mut self, quota: &Quota) -> QueueOutcome {
        match self.outcome.take() {
            Some(WaiterOutcome::Granted(taken)) => {
                QueueOutcome::Decided(store_decision(taken.decision(quota), taken.charged_at))
            }
            Some(WaiterOutcome::Refused { decision, decided_at }) => {
                QueueOutcome::Decided(store_decision(decision, decided_at))
            }
            Some(WaiterOutcome::CallStore) => QueueOutcome::CallStore,
            Some(WaiterOutcome::Failed(failure)) => {
                QueueOutcome::Failed(failure.unwrap_or(RedisFailure::Io))
            }
            None => QueueOutcome::Failed(RedisFailure::Io),
        }
    }
}

impl Drop for QueueReply {
    fn drop(&mut self) {
        if let Some(WaiterOutcome::Granted(LeaseCharge { charged_at, .. })) = self.outcome {
            let LeaseOrigin { leases, limit, key, cost, clock } = &self.source;
            if !leases.refund_or_mark_for_return(limit, *key, charged_at, *cost, clock.monotonic())
            {
                leases.count_lost(limit, *key, *cost);
            }
        }
    }
}

/// Units that were taken for a request with several limits. Dropping them puts them back unless the
/// request was admitted.
pub(super) struct LeasedCharges<'a, 'c> {
    local: &'a LocalAdmission,
    /// Charges made by [`LocalAdmission::take`], without waiting in the queue.
    immediate: usize,
    taken: SmallVec<[(Charge<'c>, StoreTime); 2]>,
}

impl<'a, 'c> LeasedCharges<'a, 'c> {
    pub(super) fn new(local: &'a LocalAdmission) -> Self {
        Self { local, immediate: 0, taken: SmallVec::new() }
    }

    /// Adds a charge made from the queue.
    pub(super) fn add_queued(&mut self, charge: &Charge<'c>, now: StoreTime) {
        self.taken.push((*charge, now));
    }

    /// Adds a charge made by [`LocalAdmission::take`].
    pub(super) fn add_taken(&mut self, charge: &Charge<'c>, now: StoreTime) {
        self.immediate += 1;
        self.add_queued(charge, now);
    }

    /// Spends the units: the request is admitted.
    pub(super) fn spend(mut self) {
        (0..self.immediate).for_each(|_| self.local.count_taken());
        self.taken.clear();
    }
}

impl Drop for LeasedCharges<'_, '_> {
    fn drop(&mut self) {
        for (charge, now) in self.taken.drain(..) {
            self.local.put_back(&charge, now);
        }
    }
}
