//! One worker's door to the counters.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crossbeam_utils::CachePadded;
use smallvec::SmallVec;
use tokio_util::task::AbortOnDropHandle;

use super::{
    Failure, StoreError, Stores,
    ahead::{Ahead, Known, Stood, reserves, tell_tokens},
    fallback,
    groups::{self, Apart},
    merge,
    redis::Worker,
    returns,
    stats::WorkerCounts,
};
use crate::limit::{Change, Charge, Millis, OnFailure, Settlement, Verdict};

/// How long it may take, beyond what single calls may, to give tokens back when the gateway stops.
const LEAVING: Duration = Duration::from_secs(1);

/// One worker's door to the counters.
pub struct Store {
    pub(super) stores: Arc<Stores>,
    pub(super) counts: Arc<CachePadded<WorkerCounts>>,
    shared: Option<Way>,
}

/// The way to counters in Redis.
struct Way {
    worker: Arc<Worker>,
    ahead: Ahead,
    /// Gives back tokens that are not spent.
    _returning: AbortOnDropHandle<()>,
    /// Brings what was charged here to Redis, when it is back.
    _merging: AbortOnDropHandle<()>,
}

impl Store {
    pub(super) fn new(stores: &Arc<Stores>, counts: Arc<CachePadded<WorkerCounts>>) -> Self {
        let shared = stores.redis.as_ref().map(|shared| {
            let worker = Arc::new(Worker::new(Arc::clone(shared), stores.clock.clone()));
            let returning = returns::run(Arc::clone(&worker), Arc::clone(stores));
            let merging = merge::run(Arc::clone(&worker), Arc::clone(stores));
            Way {
                ahead: Ahead::new(stores, Arc::clone(&worker), Arc::clone(&counts)),
                worker,
                _returning: AbortOnDropHandle::new(tokio::spawn(returning)),
                _merging: AbortOnDropHandle::new(tokio::spawn(merging)),
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
        let Some(way) = self.shared.as_ref().filter(|_| !charges.is_empty()) else {
            return Ok(self.stores.memory.charge(charges, now));
        };
        let [charge] = charges else {
            // Boxed, so that requests with one limit do not carry its state.
            return Box::pin(self.charge_several(&way.ahead, charges, now)).await;
        };
        if let Some(taken) = way.ahead.take(charge) {
            way.ahead.spent();
            return Ok(verdict(charge, taken));
        }
        if let Some(refused) = way.ahead.refused(charge) {
            return Ok(verdict(charge, refused));
        }
        if reserves(charge)
            && let Some(queued) = way.ahead.queue(charge)
        {
            let until = way.ahead.until();
            match Box::pin(queued.outcome(&charge.limit.quota)).await {
                Stood::Decided(known) => return Ok(verdict(charge, known)),
                Stood::Ask => return Box::pin(self.ask_until(charges, now, until)).await,
                Stood::Failed(failure) => {
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
        let Some(Way { worker, ahead, .. }) = &self.shared else {
            return Ok(self.stores.memory.charge(charges, now));
        };
        self.counts.asked();
        let sent = ahead.ticks();
        let verdict = match groups::common(charges, |charge| worker.place(charge.key)) {
            None => Box::pin(self.apart(worker).charge(charges, now)).await?,
            Some(place) => match worker.charge(place, charges).await {
                Ok(verdict) => {
                    self.stores.journal.wake();
                    verdict
                }
                Err(failure) => {
                    self.counts.failed(failure);
                    return self.fall_back(charges, now, failure);
                }
            },
        };
        ahead.hear(charges, &verdict, sent);
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
        let asking = tokio::time::timeout_at(until.into(), self.ask(charges, now));
        if let Ok(decided) = asking.await {
            return decided;
        }
        self.counts.failed(Failure::Timeout);
        self.fall_back(charges, now, Failure::Timeout)
    }

    /// Decides without Redis: by the deny cache, or by each limit's policy. What is charged here is noted, to be merged when
    /// Redis is back, unless by this `failure` it may have been charged there already.
    pub(super) fn fall_back(
        &self,
        charges: &[Charge<'_>],
        now: Millis,
        failure: Failure,
    ) -> Result<Verdict, StoreError> {
        if let Some(denied) = fallback::denied(charges, now, &self.stores) {
            return Ok(denied);
        }
        let (memory, gateways) = (&self.stores.memory, self.stores.presence.gateways());
        let noting = self.stores.noting(failure);
        fallback::decide(charges, now, memory, gateways, &self.counts, noting)
    }

    /// For charges that live at several places.
    fn apart<'a>(&'a self, worker: &'a Arc<Worker>) -> Apart<'a> {
        Apart { worker, counts: &self.counts, stores: &self.stores }
    }

    /// Corrects what a request was charged, and tells what holds after it; `None` where nothing was
    /// corrected in a store. `fallback` is that of the request's verdict: a correction is made where the
    /// charge was. Nobody has to wait for it: it is over within the store's response timeout, and one
    /// whose outcome is unknown is never repeated.
    pub async fn settle(
        &self,
        settlements: &[Settlement<'_>],
        fallback: bool,
        now: Millis,
    ) -> Option<Verdict> {
        let settled = |settlements: &[Settlement<'_>], gateways| {
            let decisions = self.stores.memory.settle(settlements, now, gateways);
            Some(Verdict { fallback, decisions, ..Verdict::empty(now) })
        };
        if settlements.is_empty() {
            return None;
        }
        let Some(Way { worker, ahead, .. }) = &self.shared else { return settled(settlements, 1) };
        if fallback {
            let local = |of: &&Settlement<'_>| of.limit.on_failure == OnFailure::Local;
            let local: SmallVec<[Settlement<'_>; 4]> =
                settlements.iter().filter(local).copied().collect();
            let gateways = self.stores.presence.gateways();
            let noting = self.stores.noted();
            local.iter().for_each(|settlement| noting.settled(settlement, now, gateways));
            return settled(&local, gateways);
        }
        let mut kept: SmallVec<[Settlement<'_>; 4]> = SmallVec::new();
        for settlement in settlements {
            let Settlement { limit, key, change } = *settlement;
            if let Change::Refund { charged_at, cost } = change
                && ahead.take_back(limit, key, charged_at, cost)
            {
                continue;
            }
            kept.push(*settlement);
        }
        let place = worker.place(kept.first()?.key);
        let settled = if kept.iter().any(|settlement| worker.place(settlement.key) != place) {
            Box::pin(self.apart(worker).settle(&kept)).await
        } else {
            let settled = worker.settle(place, &kept).await;
            settled.inspect_err(|&failure| self.counts.failed(failure)).ok()
        };
        // Who was refused until this moment was perhaps refused before it arrived, and told another time.
        for Settlement { limit, key, change } in &kept {
            if settled.is_some() || matches!(change, Change::Refund { .. }) {
                ahead.invalidate(limit, *key);
            }
        }
        settled
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
        let Some(Way { worker, .. }) = self.shared.as_ref().filter(|_| !charges.is_empty()) else {
            return Ok(memory.look(charges, now));
        };
        let mut verdict = match groups::common(charges, |charge| worker.place(charge.key)) {
            None => Box::pin(self.apart(worker).look(charges, now)).await?,
            Some(place) => match worker.look(place, charges).await {
                Ok(verdict) => verdict,
                Err(failure) => {
                    self.counts.failed(failure);
                    let gateways = self.stores.presence.gateways();
                    return fallback::look(charges, now, memory, gateways);
                }
            },
        };
        tell_tokens(&self.stores, charges, &mut verdict);
        Ok(verdict)
    }

    /// Gives all tokens back that are kept here: nothing more is charged at this door. It takes no longer
    /// than the response timeout a few times.
    pub async fn leave(&self) {
        if let (Some(way), Some(shared)) = (&self.shared, &self.stores.redis) {
            let leaving = returns::all(&way.worker, &self.stores, shared.patience());
            // What is left then counts as spent, until its window has passed.
            let _ = tokio::time::timeout(2 * shared.patience() + LEAVING, leaving).await;
        }
    }
}

/// A verdict on one charge, known without waiting.
fn verdict(charge: &Charge<'_>, (decision, now): Known) -> Verdict {
    let mut verdict = Verdict::empty(now);
    verdict.admitted = decision.admitted || !charge.limit.enforce;
    verdict.decisions.push(decision);
    verdict
}
