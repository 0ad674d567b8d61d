//! A worker's handle to the counters.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crossbeam_utils::CachePadded;
use smallvec::SmallVec;
use tokio_util::task::AbortOnDropHandle;

use super::{
    Failure, StoreError, Stores,
    corrections::{Correction, CorrectionSender, Source},
    fallback,
    local_admission::{LocalAdmission, QueueOutcome, reserves},
    maintenance::Maintenance,
    redis::{Unanswered, Worker},
    remaining,
    scatter::{self, Scatter},
    stats::WorkerCounts,
};
use crate::limit::{Charge, Decided, Decider, Millis, OnFailure, Outcome, Settlement, Verdict};

/// A worker's handle to the counters. Its connections to Redis live on the runtime that made it.
pub struct Store {
    pub(super) stores: Arc<Stores>,
    pub(super) counts: Arc<CachePadded<WorkerCounts>>,
    shared: Option<RedisPath>,
}

/// The path to counters in Redis.
struct RedisPath {
    worker: Arc<Worker>,
    local: LocalAdmission,
    corrections: CorrectionSender,
    _maintenance: AbortOnDropHandle<()>,
}

impl Store {
    pub(super) fn new(stores: &Arc<Stores>, counts: Arc<CachePadded<WorkerCounts>>) -> Self {
        let shared = stores.redis.as_ref().map(|shared| {
            let worker = Arc::new(Worker::new(Arc::clone(shared), stores.clock.clone()));
            let corrections = CorrectionSender::new(
                Arc::clone(&stores.corrections),
                Arc::clone(&worker),
                Arc::clone(&counts),
            );
            let maintenance = Maintenance::new(stores, &worker, &corrections);
            let counts = Arc::clone(&counts);
            RedisPath {
                local: LocalAdmission::new(stores, &worker, corrections.clone(), counts),
                worker,
                corrections,
                _maintenance: AbortOnDropHandle::new(tokio::spawn(maintenance.run())),
            }
        });
        Self { stores: Arc::clone(stores), counts, shared }
    }

    /// Decides all charges of a request, and charges all or none. `now` is the gateway's time; Redis
    /// reads its own. Without Redis this never waits.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] if Redis gave no answer and a limit's policy is to refuse then.
    pub async fn charge(&self, charges: &[Charge<'_>], now: Millis) -> Result<Verdict, StoreError> {
        self.counts.called();
        let Some(path) = self.shared.as_ref().filter(|_| !charges.is_empty()) else {
            return Ok(self.stores.memory.charge(charges, now));
        };
        let [charge] = charges else {
            // Boxed, so that requests with one limit do not carry its state.
            return Box::pin(self.charge_several(&path.local, charges, now)).await;
        };
        if let Some(taken) = path.local.take(charge) {
            path.local.spent();
            return Ok(verdict(charge, taken));
        }
        if let Some(refused) = path.local.refused(charge) {
            return Ok(verdict(charge, refused));
        }
        if reserves(charge)
            && let Some(queued) = path.local.queue(charge)
        {
            let until = path.local.until();
            match Box::pin(queued.outcome(&charge.limit.quota)).await {
                QueueOutcome::Decided(known) => return Ok(verdict(charge, known)),
                QueueOutcome::Ask => return Box::pin(self.ask_until(charges, now, until)).await,
                QueueOutcome::Failed(failure) => {
                    self.counts.failed(failure);
                    return self.fall_back(charges, now, failure);
                }
            }
        }
        self.ask(charges, now).await
    }

    /// Brings charges to Redis, and remembers whom it refused.
    pub(super) async fn ask(
        &self,
        charges: &[Charge<'_>],
        now: Millis,
    ) -> Result<Verdict, StoreError> {
        self.ask_within(charges, now, None).await
    }

    async fn ask_within(
        &self,
        charges: &[Charge<'_>],
        now: Millis,
        until: Option<Instant>,
    ) -> Result<Verdict, StoreError> {
        let Some(path @ RedisPath { worker, local, .. }) = &self.shared else {
            return Ok(self.stores.memory.charge(charges, now));
        };
        self.counts.asked();
        let sent = local.ticks();
        let mut verdict = match scatter::common(charges, |charge| worker.place(charge.key)) {
            None => Box::pin(self.scatter(path).charge(charges, now, until)).await?,
            Some(place) => match worker.charge(place, charges, until).await {
                Ok(verdict) => verdict,
                Err(Unanswered { failure, late }) => {
                    self.counts.failed(failure);
                    let decided = self.fall_back(charges, now, failure);
                    if let Some(late) = late {
                        let passed = decided.as_ref().is_ok_and(|verdict| verdict.admitted);
                        path.corrections.undo_late(late, charges, passed);
                    }
                    return decided;
                }
            },
        };
        if !verdict.admitted {
            remaining::add_to_refusals(&self.stores, charges, &mut verdict);
        }
        local.cache_refusals(charges, &verdict, sent);
        Ok(verdict)
    }

    /// The same, and for no longer than `until`: a request that has waited before does not wait as long
    /// again.
    pub(super) async fn ask_until(
        &self,
        charges: &[Charge<'_>],
        now: Millis,
        until: Instant,
    ) -> Result<Verdict, StoreError> {
        self.ask_within(charges, now, Some(until)).await
    }

    /// Decides without Redis: by the deny cache, or by each limit's policy. What is charged here is
    /// recorded, to be charged there when Redis is back, unless by this `failure` it may have been charged
    /// there already.
    pub(super) fn fall_back(
        &self,
        charges: &[Charge<'_>],
        now: Millis,
        failure: Failure,
    ) -> Result<Verdict, StoreError> {
        if let Some(denied) = fallback::denied(charges, &self.stores) {
            return Ok(denied);
        }
        let (memory, gateways) = (&self.stores.memory, self.stores.presence.gateways());
        let recorder = self.stores.recorder_after(failure);
        fallback::decide(charges, now, memory, gateways, &self.counts, recorder)
    }

    /// For charges that live at several places.
    fn scatter<'a>(&'a self, RedisPath { worker, corrections, .. }: &'a RedisPath) -> Scatter<'a> {
        Scatter { worker, counts: &self.counts, stores: &self.stores, corrections }
    }

    /// Corrects what requests were charged, each where the charge was made: in memory at once, in Redis
    /// behind the caller, in the order of these calls over all workers. `now` is the gateway's time.
    pub fn correct(&self, corrections: impl IntoIterator<Item = Correction>, now: Millis) {
        for Correction { limit, key, change, by } in corrections {
            let settlement = Settlement { limit: &limit, key, change };
            match (&self.shared, by) {
                (Some(path), Decider::Store) => {
                    if path.local.absorb(&settlement).is_none() {
                        path.corrections.push([(limit, key, change)], Source::Request);
                    }
                }
                _ => drop(self.settle_here(&settlement, by, now)),
            }
        }
    }

    /// Corrects what a request was charged, and tells what holds after each correction:
    /// [`Outcome::Unknown`] where none was made. `by` is that of the charges: a correction is made where
    /// the charge was. It is over within the store's response timeout. One that was certainly not sent is
    /// queued, and one whose outcome is unknown is never repeated.
    pub async fn settle(
        &self,
        settlements: &[Settlement<'_>],
        by: Decider,
        now: Millis,
    ) -> SmallVec<[Outcome; 2]> {
        match (&self.shared, by) {
            (Some(path), Decider::Store) => self.settle_shared(path, settlements).await,
            _ => settlements.iter().map(|each| self.settle_here(each, by, now)).collect(),
        }
    }

    /// Renews leases: each a charge and the refund of the one before. Like [`Self::settle`], but it waits
    /// for a server that hangs, so that the outcome of each renewal is known, and queues nothing: a lease
    /// is renewed when Redis is back.
    pub async fn renew(
        &self,
        settlements: &[Settlement<'_>],
        by: Decider,
        now: Millis,
    ) -> SmallVec<[Outcome; 2]> {
        match (&self.shared, by) {
            (Some(path), Decider::Store) => self.scatter(path).renew(settlements).await,
            _ => settlements.iter().map(|each| self.settle_here(each, by, now)).collect(),
        }
    }

    /// Corrects what was charged in this process; nothing where a limit charges nothing here.
    fn settle_here(&self, settlement: &Settlement<'_>, by: Decider, now: Millis) -> Outcome {
        let mut gateways = 1;
        if let Some(path) = &self.shared {
            let &Settlement { limit, key, .. } = settlement;
            if limit.on_failure != OnFailure::Local {
                return Outcome::Unknown;
            }
            let rest = self.stores.outage_recorder().settled(settlement);
            if rest > 0 {
                path.corrections.refund_merged(limit, key, rest);
            }
            gateways = self.stores.presence.gateways();
        }
        let decision = self.stores.memory.settle(settlement, now, gateways);
        Outcome::Decided(Decided { decision, at: now, by })
    }

    async fn settle_shared(
        &self,
        path: &RedisPath,
        settlements: &[Settlement<'_>],
    ) -> SmallVec<[Outcome; 2]> {
        // A refund of leased tokens stays here; the others go to the store.
        let here =
            |settlement: &Settlement<'_>| path.local.absorb(settlement).map(Outcome::Decided);
        let here: SmallVec<[Option<Outcome>; 4]> = settlements.iter().map(here).collect();
        let rest = settlements.iter().zip(&here).filter(|(_, outcome)| outcome.is_none());
        let rest: SmallVec<[Settlement<'_>; 4]> = rest.map(|(settlement, _)| *settlement).collect();
        let mut settled = Box::pin(self.scatter(path).settle(&rest)).await.into_iter();
        // A refusal until this moment was perhaps made before it arrived, and told another time.
        for Settlement { limit, key, .. } in &rest {
            path.local.invalidate(limit, *key);
        }
        let outcome = |here: Option<Outcome>| here.or_else(|| settled.next()).unwrap_or_default();
        here.into_iter().map(outcome).collect()
    }

    /// What each of these charges would meet by itself now; charges nothing. A record that has expired is
    /// a caller never seen, and tokens that are kept here are left. Without an answer of Redis it tells
    /// what would be decided without one.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] as [`Self::charge`].
    pub async fn look(&self, charges: &[Charge<'_>], now: Millis) -> Result<Verdict, StoreError> {
        let memory = &self.stores.memory;
        let Some(path) = self.shared.as_ref().filter(|_| !charges.is_empty()) else {
            return Ok(memory.look(charges, now));
        };
        let worker = &path.worker;
        let mut verdict = match scatter::common(charges, |charge| worker.place(charge.key)) {
            None => Box::pin(self.scatter(path).look(charges, now)).await?,
            Some(place) => match worker.look(place, charges).await {
                Ok(verdict) => verdict,
                Err(failure) => {
                    self.counts.failed(failure);
                    let gateways = self.stores.presence.gateways();
                    return fallback::look(charges, now, memory, gateways);
                }
            },
        };
        remaining::add_to_looks(&self.stores, charges, &mut verdict);
        Ok(verdict)
    }

    /// Gives all tokens back that are kept here, and sends the corrections that wait: nothing more is
    /// charged through this store. It takes no longer than `within`, nor than a call that has to connect
    /// first; what is left then counts as spent until its window has passed.
    pub async fn leave(&self, within: Duration) {
        if let (Some(path), Some(shared)) = (&self.shared, &self.stores.redis) {
            let maintenance = Maintenance::new(&self.stores, &path.worker, &path.corrections);
            maintenance.finish(shared.patience().min(within)).await;
        }
    }
}

/// A verdict on one charge, known without waiting.
fn verdict(charge: &Charge<'_>, decided: Decided) -> Verdict {
    let mut verdict = Verdict::empty();
    verdict.push(decided, charge.limit.enforce);
    verdict
}
