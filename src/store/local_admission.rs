//! What a worker decides by itself though the counters are in Redis: by the deny cache and from leased
//! tokens; and the calls that fetch those.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crossbeam_utils::CachePadded;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::{
    Failure, Stores,
    corrections::{CorrectionSender, Source},
    deny_cache::{DenyCache, Heard},
    record_id::record,
    redis::{Unanswered, Worker},
    stats::WorkerCounts,
    token_lease::{
        Fetch as LeaseFetch, Joined, LeaseRegistry, Reply, Taken, Waiter, WaiterOutcome,
    },
};
use crate::{
    clock::{self, Clock},
    limit::{
        Change, Charge, Decided, Decider, Decision, Fetch, Key, Limit, MAX_AHEAD, Millis, Quota,
        Reserve, Settlement, Verdict,
    },
};

/// Between the end of a call and that of the requests that wait for it.
const A_MOMENT: Duration = Duration::from_millis(5);

/// All token leases of the process.
pub(super) type Leases = LeaseRegistry<Waiting>;

/// A decision that stands for the shared store's, with the store's time of it.
fn decided(decision: Decision, at: Millis) -> Decided {
    Decided { decision, at, by: Decider::Store }
}

/// What came of standing in line for tokens.
pub(super) enum QueueOutcome {
    /// Decided: from a grant, or refused by the store.
    Decided(Decided),
    /// The request has to ask the store by itself.
    Ask,
    /// The store gave no answer.
    Failed(Failure),
}

/// One worker's tokens and denials.
pub(super) struct LocalAdmission {
    leases: Arc<Leases>,
    deny_cache: Arc<DenyCache>,
    worker: Arc<Worker>,
    corrections: CorrectionSender,
    counts: Arc<CachePadded<WorkerCounts>>,
    clock: Clock,
}

/// Whether a charge may be made from tokens taken ahead. One above the quota never passes: in line, all
/// that is left would be taken for it.
pub(super) fn reserves(charge: &Charge<'_>) -> bool {
    let most = charge.limit.quota.limit.min(MAX_AHEAD);
    charge.limit.reserve != Reserve::Off && (1..=most).contains(&charge.cost)
}

/// Whether who may wait `until` then has waited for as long as a call may: see [`LocalAdmission::until`].
pub(super) fn has_waited(until: Instant) -> bool {
    clock::instant() + A_MOMENT >= until
}

impl LocalAdmission {
    pub(super) fn new(
        stores: &Stores,
        worker: &Arc<Worker>,
        corrections: CorrectionSender,
        counts: Arc<CachePadded<WorkerCounts>>,
    ) -> Self {
        let (leases, clock) = (Arc::clone(&stores.leases), stores.clock.clone());
        let (deny_cache, worker) = (Arc::clone(&stores.deny_cache), Arc::clone(worker));
        Self { leases, deny_cache, worker, corrections, counts, clock }
    }

    /// Takes the charge from the tokens that are here, if they are enough.
    #[inline]
    pub(super) fn take(&self, charge: &Charge<'_>) -> Option<Decided> {
        if !reserves(charge) {
            return None;
        }
        let taken = self.leases.take(charge.limit, charge.key, charge.cost, self.clock.ticks())?;
        Some(decided(taken.decision(&charge.limit.quota), taken.now))
    }

    /// Counts a charge that [`Self::take`] has made.
    #[inline]
    pub(super) fn spent(&self) {
        self.counts.spent_ahead();
    }

    /// The refusal that this charge is known to meet.
    #[inline]
    pub(super) fn refused(&self, charge: &Charge<'_>) -> Option<Decided> {
        let denial = self.deny_cache.get(charge, self.clock.ticks())?;
        Some(decided(denial.decision, denial.now))
    }

    /// Takes back a charge of [`Self::take`] or the line, as long as tokens of its time are kept here, and
    /// tells what holds then; else `None`, and the store has to be told.
    pub(super) fn absorb(&self, settlement: &Settlement<'_>) -> Option<Decided> {
        let &Settlement { limit, key, change } = settlement;
        let Change::Refund { charged_at, cost } = change else { return None };
        if limit.reserve == Reserve::Off {
            return None;
        }
        let taken = self.leases.give_back(limit, key, charged_at, cost, self.clock.ticks())?;
        Some(decided(taken.decision(&limit.quota), taken.now))
    }

    /// Puts back what was taken for a request that is refused; at the store, where nothing is kept here
    /// any more because the gateway leaves.
    fn put_back(&self, charge: &Charge<'_>, now: Millis) {
        let &Charge { limit, key, cost } = charge;
        if self.leases.put_back(limit, key, now, cost, self.clock.ticks()) {
            return;
        }
        let change = Change::Refund { charged_at: now, cost: charge.cost };
        let limit = Arc::new(charge.limit.clone());
        self.corrections.push([(limit, charge.key, change)], Source::Request);
    }

    /// Drops what is cached of a caller whose charges were corrected, as the store knows by now.
    pub(super) fn invalidate(&self, limit: &Limit, key: Key) {
        self.deny_cache.invalidate(record(limit, key), self.clock.ticks());
    }

    /// How long a request that comes now may wait. A call gives up by itself, a moment before.
    pub(super) fn until(&self) -> Instant {
        clock::instant() + self.worker.response_timeout() + A_MOMENT
    }

    /// When a question is asked whose answer [`Self::cache_refusals`] is told.
    pub(super) fn ticks(&self) -> u64 {
        self.clock.ticks()
    }

    /// Caches what the store refused, having been asked at the tick `sent`. A caller that was charged may
    /// have to wait longer than it was told before.
    pub(super) fn cache_refusals(&self, charges: &[Charge<'_>], verdict: &Verdict, sent: u64) {
        for (charge, outcome) in charges.iter().zip(&verdict.outcomes) {
            let Some(Decided { decision, at: now, by: Decider::Store }) = outcome.decided() else {
                continue;
            };
            if decision.admitted {
                self.deny_cache.remove(record(charge.limit, charge.key));
            } else if !is_twice(charges, charge) {
                let received = self.clock.ticks();
                self.deny_cache.insert(charge, decision, Heard { sent, received, now: *now });
            }
        }
    }

    /// Stands in line for tokens, after [`Self::take`] gave none and no refusal is known; `None` if the
    /// request has to ask the store by itself. What is taken for a caller that has gone is put back.
    pub(super) fn queue(&self, charge: &Charge<'_>) -> Option<Queued> {
        let (tell, told) = oneshot::channel();
        let lender = Lender {
            leases: Arc::clone(&self.leases),
            limit: charge.limit.clone(),
            key: charge.key,
            cost: charge.cost,
            clock: self.clock.clone(),
        };
        let waiter = Waiting { lender, tell };
        match self.leases.join(charge.limit, charge.key, waiter, self.clock.ticks()) {
            Joined::Served | Joined::Waiting => {}
            Joined::Unavailable(_) => return None,
            Joined::Fetch(fetching) => {
                let fetches = Fetches {
                    worker: Arc::clone(&self.worker),
                    deny_cache: Arc::clone(&self.deny_cache),
                    corrections: self.corrections.clone(),
                    counts: Arc::clone(&self.counts),
                    clock: self.clock.clone(),
                };
                // A task of its own: it must not end with the request that began it.
                tokio::spawn(fetches.run(fetching));
            }
        }
        Some(Queued { told, until: self.until() })
    }
}

/// A place in line.
pub(super) struct Queued {
    told: oneshot::Receiver<Share>,
    /// A request that waited for a fetch that is answered late does not wait as long again for the next.
    until: Instant,
}

impl Queued {
    /// What came of it.
    pub(super) async fn outcome(self, quota: &Quota) -> QueueOutcome {
        match tokio::time::timeout_at(self.until.into(), self.told).await {
            Ok(Ok(mut share)) => share.outcome(quota),
            // The line was left without a word: only a process that ends does so.
            Ok(Err(_)) => QueueOutcome::Failed(Failure::Io),
            Err(_) => QueueOutcome::Failed(Failure::Timeout),
        }
    }
}

/// Whether a request charges a record twice: then the second was decided on top of the first, and stands
/// for no request that charges it once.
fn is_twice(charges: &[Charge<'_>], charge: &Charge<'_>) -> bool {
    let same = |other: &&Charge<'_>| {
        other.key == charge.key && other.limit.identity() == charge.limit.identity()
    };
    charges.len() > 1 && charges.iter().filter(same).count() > 1
}

/// The fetches of a lease, one after the other, until no request waits.
struct Fetches {
    worker: Arc<Worker>,
    deny_cache: Arc<DenyCache>,
    corrections: CorrectionSender,
    counts: Arc<CachePadded<WorkerCounts>>,
    clock: Clock,
}

impl Fetches {
    async fn run(self, first: LeaseFetch<Waiting>) {
        let mut next = Some(first);
        while let Some(fetching) = next.take() {
            let (limit, key) = (Arc::clone(fetching.limit()), fetching.key());
            let order = *fetching.order();
            let sent = self.clock.ticks();
            self.counts.asked();
            let place = self.worker.place(key);
            let fetched = self.worker.acquire(place, &Fetch { limit: &limit, key, order }).await;
            let received = self.clock.ticks();
            next = match fetched {
                Ok((grant, now)) => {
                    if grant.tokens > 0 || order.back.tokens > 0 {
                        self.deny_cache.remove(record(&limit, key));
                    }
                    let charge = Charge { limit: &limit, key, cost: order.least };
                    let refused = Decision { admitted: false, ..grant.decision };
                    // Where tokens are kept here, the request of the least cost finds those; and of what
                    // was granted for others, what is not spent goes back.
                    if grant.tokens == 0 && fetching.is_alone() {
                        self.deny_cache.insert(&charge, &refused, Heard { sent, received, now });
                    }
                    fetching.complete(&Reply { grant, now, sent, received })
                }
                Err(Unanswered { failure, late }) => {
                    fetching.fail(failure, received);
                    if let Some(late) = late {
                        self.corrections.return_late(late, limit, key, order);
                    }
                    None
                }
            };
        }
    }
}

/// Where a request's tokens come from, and go back to.
struct Lender {
    leases: Arc<Leases>,
    limit: Limit,
    key: Key,
    cost: u32,
    clock: Clock,
}

/// A request that waits for tokens.
pub(super) struct Waiting {
    lender: Lender,
    tell: oneshot::Sender<Share>,
}

impl Waiter for Waiting {
    fn cost(&self) -> u32 {
        self.lender.cost
    }

    fn serve(self, outcome: WaiterOutcome) -> bool {
        let Self { lender, tell } = self;
        // Under the registry's lock, so a share that is not received must not put itself back.
        tell.send(Share { outcome: Some(outcome), lender }).map_err(Share::disarm).is_ok()
    }
}

/// What a request got, on its path to the request: its tokens go back if it never arrives.
pub(super) struct Share {
    outcome: Option<WaiterOutcome>,
    lender: Lender,
}

impl Share {
    fn disarm(mut self) {
        self.outcome = None;
    }

    fn outcome(&mut self, quota: &Quota) -> QueueOutcome {
        match self.outcome.take() {
            Some(WaiterOutcome::Granted(taken)) => {
                QueueOutcome::Decided(decided(taken.decision(quota), taken.now))
            }
            Some(WaiterOutcome::Refused { decision, now }) => {
                QueueOutcome::Decided(decided(decision, now))
            }
            Some(WaiterOutcome::Ask) => QueueOutcome::Ask,
            Some(WaiterOutcome::Failed(failure)) => {
                QueueOutcome::Failed(failure.unwrap_or(Failure::Io))
            }
            None => QueueOutcome::Failed(Failure::Io),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(WaiterOutcome::Granted(Taken { now, .. })) = self.outcome {
            let Lender { leases, limit, key, cost, clock } = &self.lender;
            if !leases.put_back(limit, *key, now, *cost, clock.ticks()) {
                leases.lose(limit, *key, *cost);
            }
        }
    }
}

/// Leases that were taken for a request with several limits; put back unless the request is admitted.
pub(super) struct LeasedCharges<'a, 'c> {
    ahead: &'a LocalAdmission,
    /// How many of them were here already.
    here: usize,
    taken: SmallVec<[(Charge<'c>, Millis); 2]>,
}

impl<'a, 'c> LeasedCharges<'a, 'c> {
    pub(super) fn new(ahead: &'a LocalAdmission) -> Self {
        Self { ahead, here: 0, taken: SmallVec::new() }
    }

    pub(super) fn add(&mut self, charge: &Charge<'c>, now: Millis) {
        self.taken.push((*charge, now));
    }

    /// The same of those that [`LocalAdmission::take`] gave.
    pub(super) fn add_taken(&mut self, charge: &Charge<'c>, now: Millis) {
        self.here += 1;
        self.add(charge, now);
    }

    /// The request is admitted: they are spent.
    pub(super) fn spend(mut self) {
        (0..self.here).for_each(|_| self.ahead.spent());
        self.taken.clear();
    }
}

impl Drop for LeasedCharges<'_, '_> {
    fn drop(&mut self) {
        for (charge, now) in self.taken.drain(..) {
            self.ahead.put_back(&charge, now);
        }
    }
}
