//! Charges a request's limits before it is forwarded, and corrects the charges from the response.

use std::{rc::Rc, time::Duration};

use smallvec::SmallVec;
use tokio::time::sleep;

use super::{
    Gateway, background::Background, charged_limit::ChargedLimit,
    concurrency_lease::ConcurrencyPermits, context::RequestContext, draft_response::DraftResponse,
};
use crate::{
    error::GatewayError,
    limit::{Admission, Charge, Verdict},
    store::{Correction, StoreError},
    trace::ChildSpanKind,
};

/// Interval at which a draining worker checks for delayed requests and held permits.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Charges whose verdict has not reached their request yet. If this is dropped before `refunds` is
/// cleared, the request is gone, and the charges are refunded.
struct UndeliveredCharge {
    background: Rc<Background>,
    /// Cleared on delivery.
    refunds: SmallVec<[Correction; 2]>,
}

impl Drop for UndeliveredCharge {
    fn drop(&mut self) {
        if !self.refunds.is_empty() {
            self.background.adjust_in_background(std::mem::take(&mut self.refunds));
        }
    }
}

impl Gateway {
    /// Charges all limits of the request, or none.
    ///
    /// # Errors
    ///
    /// [`GatewayError::LimitExceeded`] if an enforced limit refuses;
    /// [`GatewayError::StoreUnavailable`] if the store gave no answer and a limit's failure policy
    /// is to refuse.
    pub(super) async fn charge(&self, context: &mut RequestContext) -> Result<(), GatewayError> {
        self.begin_span(context, || ChildSpanKind::Charge { store: self.store_name, decision: "" });
        let charged = self.charge_limits(context).await;
        self.end_charge_span(context);
        charged
    }

    async fn charge_limits(&self, context: &mut RequestContext) -> Result<(), GatewayError> {
        let decided = if context.limits.iter().any(ChargedLimit::blocks_others) {
            // Boxed, so that requests without such limits do not carry its state.
            Box::pin(self.charge_detached(context)).await
        } else {
            let charges = context.limits.iter().map(ChargedLimit::charge);
            let charges: SmallVec<[Charge<'_>; 4]> = charges.collect();
            self.store.charge(&charges, self.shared.clock.store_time()).await
        };
        let verdict = decided.map_err(|_| {
            context.admission = Admission::Unknown;
            GatewayError::StoreUnavailable
        })?;
        for (limit, outcome) in context.limits.iter_mut().zip(verdict.outcomes) {
            limit.outcome = outcome;
            limit.count_outcome();
        }
        if verdict.admitted {
            context.admission = Admission::Admitted;
            return Ok(());
        }
        context.admission = Admission::Refused;
        self.count_refused_callers(&context.limits);
        Err(GatewayError::LimitExceeded)
    }

    /// Counts the caller under each enforced limit that refused.
    fn count_refused_callers(&self, limits: &[ChargedLimit]) {
        let now = self.shared.clock.now();
        for limit in limits.iter().filter(|own| own.limit().enforce) {
            if limit.outcome.refused().is_some() {
                self.metrics.count_refused_caller(now, &limit.limit().name, limit.key().0);
            }
        }
    }

    /// Charges a request whose limits reserve slots or permits. These block other requests, so if the
    /// client goes away before the store answers, the call still finishes, and its charges are
    /// refunded.
    async fn charge_detached(&self, context: &mut RequestContext) -> Result<Verdict, StoreError> {
        let mut limits = context.limits.clone();
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
        context.permits = permits;
        Ok(verdict)
    }

    /// Corrects the charges from the response's status and cost header. Awaited before the head is
    /// sent, so that its headers and the caller's next request see the corrected counts.
    pub(super) async fn correct_charges(
        &self,
        context: &mut RequestContext,
        response: &DraftResponse,
    ) {
        if context.admission != Admission::Admitted {
            return;
        }
        let (mut limits, mut corrections) = (SmallVec::<[_; 2]>::new(), SmallVec::new());
        for limit in &mut context.limits {
            if let Some(correction) = limit.correction_for(response) {
                corrections.push(correction);
                limits.push(limit);
            }
        }
        if corrections.is_empty() {
            return;
        }
        if let Some(trace) = context.tracing.sampled() {
            let work = ChildSpanKind::Correction { store: self.store_name };
            trace.begin(work, self.shared.clock.uptime());
        }
        // Boxed, so that requests that need no correction do not carry its state.
        let outcomes = Box::pin(self.background.adjust(corrections)).await;
        if let Some(trace) = context.tracing.sampled() {
            trace.end(self.shared.clock.uptime());
        }
        for (limit, outcome) in limits.into_iter().zip(outcomes) {
            // If a correction was not made, the charge and its outcome stand.
            if outcome.decided().is_some() {
                limit.outcome = outcome;
            }
        }
    }

    /// Returns when no request is delayed or holds a concurrency permit, and no call to the store is
    /// running. Call it when no more requests arrive.
    pub async fn drain(&self) {
        while self.delayed_requests() > 0 || !self.leases.is_empty() {
            sleep(DRAIN_POLL_INTERVAL).await;
        }
        self.background.drain().await;
    }

    /// Returns this worker's leased units to the store and sends its pending corrections, for at
    /// most `timeout`.
    pub async fn return_leased_units(&self, timeout: Duration) {
        self.store.shut_down(timeout).await;
    }

    /// Starts no more calls to the store: the worker's runtime is ending.
    pub fn close(&self) {
        self.background.close();
    }
}
