//! Charges a request's limits before it is forwarded, and corrects the charges from the response.

use std::{rc::Rc, sync::Arc, time::Duration};

use smallvec::SmallVec;
use tidegate_charge::{Charge, Limit, Verdict};
use tidegate_rules::plan::Admission;
use tidegate_store::{Correction, StoreError, StoreHandle};
use tidegate_system::clock::{CoarseClock, StoreTime};
use tidegate_trace::ChildSpanKind;
use tokio::time::sleep;

use super::{
    Shared,
    background::Background,
    charged_costs::ChargedCosts,
    charged_limit::{ChargedLimit, ChargedLimits},
    concurrency_lease::{ConcurrencyPermits, LeaseTable},
    context::RequestContext,
    draft_response::DraftResponse,
    ledger::Ledger,
};
use crate::metrics::WorkerMetrics;

/// Interval at which a draining worker checks for delayed requests and held permits.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Charges whose verdict has not reached their request yet. If this is dropped before `refunds` is
/// cleared, the request is gone, and the charges are refunded.
pub(super) struct UndeliveredCharge {
    pub(super) background: Rc<Background>,
    /// Cleared on delivery.
    pub(super) refunds: SmallVec<[Correction; 2]>,
}

impl Drop for UndeliveredCharge {
    fn drop(&mut self) {
        if !self.refunds.is_empty() {
            self.background.adjust_in_background(std::mem::take(&mut self.refunds));
        }
    }
}

/// Charges the limits of a worker's requests.
pub(super) struct Charger {
    pub(super) shared: Arc<Shared>,
    pub(super) metrics: Arc<WorkerMetrics>,
    pub(super) store: Rc<StoreHandle>,
    /// The name of the store in spans.
    pub(super) store_name: &'static str,
    /// The calls to the store that outlive their request.
    pub(super) background: Rc<Background>,
    /// The leases of concurrency permits.
    pub(super) leases: Rc<LeaseTable>,
}

impl Charger {
    /// The charger of the current worker.
    pub(super) fn new(
        shared: &Arc<Shared>,
        metrics: &Arc<WorkerMetrics>,
        coarse_clock: CoarseClock,
    ) -> Self {
        let store = Rc::new(shared.store.worker());
        let background = Rc::new(Background::new(Rc::clone(&store), shared.clock.clone()));
        Self {
            shared: Arc::clone(shared),
            metrics: Arc::clone(metrics),
            store,
            store_name: if shared.store.connector().is_some() { "redis" } else { "memory" },
            leases: Rc::new(LeaseTable::new(Rc::clone(&background), coarse_clock)),
            background,
        }
    }

    /// Charges all limits of the request, or none, and records their outcomes. Returns `Admitted`;
    /// `Refused` if an enforced limit refuses; `Unknown` if the store gave no answer and a limit
    /// refuses in that case.
    pub(super) async fn charge(
        &self,
        request: &mut RequestContext,
        limits: &mut ChargedLimits,
    ) -> Admission {
        let kind = || ChildSpanKind::Charge { store: self.store_name, decision: "" };
        request.ledger.tracing.begin_span(&self.shared.clock, kind);
        let admission = self.charge_limits(request, limits).await;
        request.ledger.tracing.end_charge_span(&self.shared.clock, admission);
        admission
    }

    async fn charge_limits(
        &self,
        request: &mut RequestContext,
        limits: &mut ChargedLimits,
    ) -> Admission {
        let must_be_delivered = limits.iter().any(ChargedLimit::must_be_delivered);
        // A store in memory decides without a wait, in which a client could go away.
        let may_wait = self.shared.store.connector().is_some();
        let decided = if must_be_delivered && may_wait {
            // Boxed, so that requests without such limits do not carry its state.
            Box::pin(self.charge_detached(request, limits)).await
        } else {
            let charges: SmallVec<[Charge<'_>; 4]> =
                limits.iter().map(ChargedLimit::charge).collect();
            // Nothing has been awaited since the request arrived.
            let now = request.ledger.arrival.at;
            match self.store.charge_at_once(&charges, now) {
                Some(verdict) => Ok(verdict),
                None => self.store.charge(&charges, now).await,
            }
        };
        let Ok(verdict) = decided else { return Admission::Unknown };
        for (limit, outcome) in limits.iter_mut().zip(verdict.outcomes) {
            limit.outcome = outcome;
            limit.count_outcome();
        }
        if verdict.admitted {
            if must_be_delivered && !may_wait {
                request.held.permits = self.leases.register(limits);
            }
            return Admission::Admitted;
        }
        self.count_refused_callers(request, limits.iter());
        request.ledger.refused_by = refusing(limits.iter());
        if limits.iter().any(ChargedLimit::is_blocked) {
            Admission::Blocked
        } else {
            Admission::Refused
        }
    }

    /// Counts the caller under each enforced limit that refused.
    pub(super) fn count_refused_callers<'l>(
        &self,
        request: &RequestContext,
        limits: impl Iterator<Item = &'l ChargedLimit>,
    ) {
        let consumer = request.ledger.consumer().map(|consumer| consumer.name);
        let now = self.shared.clock.store_time();
        for limit in limits.filter(|charged| charged.limit().enforce) {
            if limit.outcome.refused().is_some() {
                let consumer = consumer.filter(|_| limit.counts_consumers());
                let name = limit.limit().name();
                self.metrics.count_refused_caller(now, name, limit.key().0, consumer);
            }
        }
    }

    /// Charges a request whose limits reserve slots or permits, or estimates. These block other
    /// requests, so if the client goes away before the store answers, the call still finishes, and
    /// its charges are refunded.
    async fn charge_detached(
        &self,
        request: &mut RequestContext,
        limits: &ChargedLimits,
    ) -> Result<Verdict, StoreError> {
        let mut limits = limits.clone();
        let (background, leases) = (Rc::clone(&self.background), Rc::clone(&self.leases));
        let charged = self.background.run_with_output(async move {
            let charges = limits.iter().map(ChargedLimit::charge);
            let charges: SmallVec<[Charge<'_>; 4]> = charges.collect();
            let verdict = background.store.charge(&charges, background.now()).await?;
            drop(charges);
            if !verdict.admitted {
                limits.clear();
            }
            for (limit, outcome) in limits.iter_mut().zip(&verdict.outcomes) {
                limit.outcome = *outcome;
            }
            let permits = leases.register(&limits);
            // Permits are refunded by `ConcurrencyPermits`.
            let without_permit = limits.iter().filter(|limit| !limit.holds_permit());
            let refunds = without_permit.filter_map(ChargedLimit::refund).collect();
            Ok((verdict, permits, UndeliveredCharge { background, refunds }))
        });
        // `None` only if the worker ends.
        let charged: Option<Result<(_, Option<ConcurrencyPermits>, _), _>> = charged.await;
        let lost = StoreError::Unavailable { limit: 0 };
        let (verdict, permits, mut undelivered) = charged.unwrap_or(Err(lost))?;
        undelivered.refunds.clear();
        request.held.permits = permits;
        Ok(verdict)
    }

    /// Corrects the charges from the response's status and cost header. Awaited before the head is
    /// sent, so that its headers and the caller's next request see the corrected counts.
    pub(super) async fn correct_charges(
        &self,
        ledger: &mut Ledger,
        limits: &mut ChargedLimits,
        response: &DraftResponse,
    ) {
        if ledger.admission != Admission::Admitted {
            return;
        }
        let (mut corrected, mut corrections) = (SmallVec::<[_; 2]>::new(), SmallVec::new());
        for limit in limits {
            let Some(cost) = limit.head_cost(response) else { continue };
            ledger.costs.correct(limit, cost);
            if let Some(correction) = limit.correction_to(cost) {
                corrections.push(correction);
                corrected.push(limit);
            }
        }
        if corrections.is_empty() {
            return;
        }
        let kind = || ChildSpanKind::Correction { store: self.store_name };
        ledger.tracing.begin_span(&self.shared.clock, kind);
        // Boxed, so that requests that need no correction do not carry its state.
        let outcomes = Box::pin(self.background.adjust(corrections)).await;
        ledger.tracing.end_span(&self.shared.clock);
        for (limit, outcome) in corrected.into_iter().zip(outcomes) {
            // If a correction was not made, the charge and its outcome stand.
            if outcome.decided().is_some() {
                limit.outcome = outcome;
            }
        }
    }

    /// Returns when no request is delayed, holds a concurrency permit or has an unsettled cost, and
    /// no call to the store is running. Call it when no more requests arrive.
    pub(super) async fn drain(&self) {
        while self.delayed_requests() > 0
            || !self.leases.is_empty()
            || self.background.is_settling()
        {
            sleep(DRAIN_POLL_INTERVAL).await;
        }
        self.background.drain().await;
    }

    /// Returns this worker's leased units to the store and sends its pending corrections, for at
    /// most `timeout`.
    pub(super) async fn return_leased_units(&self, timeout: Duration) {
        self.store.shut_down(timeout).await;
    }

    /// Starts no more calls to the store: the worker's runtime is ending.
    pub(super) fn close(&self) {
        self.background.close();
    }
}

impl Ledger {
    /// Records what the limits of an admitted request were charged, if its access line shows it.
    pub(super) fn note_costs(&mut self, limits: &[ChargedLimit]) {
        if self.access_logger.as_ref().is_some_and(|logger| logger.writer.layout().needs_cost()) {
            self.costs = ChargedCosts::charged(limits);
        }
    }
}

/// The enforced limits that refused, the one with the longest wait last.
pub(super) fn refusing<'l>(
    limits: impl Iterator<Item = &'l ChargedLimit>,
) -> SmallVec<[Arc<Limit>; 1]> {
    let enforced = limits.filter(|charged| charged.limit().enforce);
    let refused = enforced.filter_map(|charged| {
        // Without a retry time, no wait helps: sort the limit last.
        let retry_at = charged.outcome.refused()?.decision.retry_at.unwrap_or(StoreTime::MAX);
        Some((retry_at, charged.limit()))
    });
    let mut refused: SmallVec<[(StoreTime, &Arc<Limit>); 2]> = refused.collect();
    refused.sort_by_key(|(retry_at, _)| *retry_at);
    refused.into_iter().map(|(_, limit)| Arc::clone(limit)).collect()
}
