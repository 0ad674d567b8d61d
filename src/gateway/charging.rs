//! Limits as a request meets them: charged before it is forwarded, corrected when it is answered.

use std::{rc::Rc, sync::Arc, time::Duration};

use smallvec::SmallVec;
use tokio::time::sleep;

use super::{
    Gateway,
    background::Background,
    charged_limit::ChargedLimit,
    context::RequestContext,
    draft::Draft,
    leases::{ConcurrencyPermit, LeasedCharge},
};
use crate::{
    error::GatewayError,
    limit::{Admission, Algorithm, Change, Charge, Outcome, Verdict},
    store::{Correction, StoreError},
};

/// How often it is looked whether requests are still held when a worker ends.
const A_MOMENT: Duration = Duration::from_millis(1);

/// A request's charges before the request has heard of them; given back if it never does.
struct Uncollected {
    background: Rc<Background>,
    refunds: SmallVec<[Correction; 2]>,
}

impl Drop for Uncollected {
    fn drop(&mut self) {
        if !self.refunds.is_empty() {
            self.background.correct(std::mem::take(&mut self.refunds));
        }
    }
}

impl Gateway {
    /// Charges all limits of the request, or none.
    pub(super) async fn charge(&self, context: &mut RequestContext) -> Result<(), GatewayError> {
        let decided = if context.limits.iter().any(takes_a_slot) {
            // Boxed, so that requests that take no slot do not carry its state.
            Box::pin(self.charge_to_end(context)).await
        } else {
            let charges = context.limits.iter().map(ChargedLimit::charge);
            let charges: SmallVec<[Charge<'_>; 4]> = charges.collect();
            self.store.charge(&charges, self.shared.clock.now()).await
        };
        let verdict = decided.map_err(|_| {
            context.admission = Admission::Unknown;
            GatewayError::StoreUnavailable
        })?;
        for (limit, outcome) in context.limits.iter_mut().zip(verdict.outcomes) {
            limit.outcome = outcome;
            limit.count();
        }
        if verdict.admitted {
            context.admission = Admission::Admitted;
            return Ok(());
        }
        context.admission = Admission::Refused;
        Err(GatewayError::Refused)
    }

    /// Charges a request that takes slots, which no other request can have meanwhile: if the request ends
    /// before the store has answered, all of its charges are given back.
    async fn charge_to_end(&self, context: &mut RequestContext) -> Result<Verdict, StoreError> {
        let wanted = context.limits.iter().map(|limit| LeasedCharge {
            limit: Arc::clone(limit.limit()),
            key: limit.key(),
            cost: limit.cost(),
        });
        let wanted: SmallVec<[LeasedCharge; 2]> = wanted.collect();
        let (background, leases) = (Rc::clone(&self.background), Rc::clone(&self.leases));
        let charged = self.background.finish(async move {
            let charges = wanted.iter().map(LeasedCharge::charge);
            let charges: SmallVec<[Charge<'_>; 4]> = charges.collect();
            let verdict = background.store.charge(&charges, background.now()).await?;
            let permit = leases.take(&wanted, &verdict);
            let refunds = refunds(&wanted, &verdict);
            Ok((verdict, permit, Uncollected { background, refunds }))
        });
        // Only a worker that ends drops the task.
        let charged: Option<Result<(_, Option<ConcurrencyPermit>, _), _>> = charged.await;
        let lost = StoreError::Unavailable { limit: 0 };
        let (verdict, permit, mut uncollected) = charged.unwrap_or(Err(lost))?;
        uncollected.refunds.clear();
        context.permit = permit;
        Ok(verdict)
    }

    /// Corrects what was charged by what the answer says, before its head is sent: the next request of
    /// the same caller meets the corrected count, and the headers are those of the correction.
    pub(super) async fn adjust(&self, context: &mut RequestContext, answer: &Draft) {
        if context.admission != Admission::Admitted {
            return;
        }
        let (mut limits, mut corrections) = (SmallVec::<[_; 2]>::new(), SmallVec::new());
        for limit in &mut context.limits {
            if let Some(correction) = limit.adjustment(answer) {
                corrections.push(correction);
                limits.push(limit);
            }
        }
        if corrections.is_empty() {
            return;
        }
        // Boxed, so that requests that need no correction do not carry its state.
        let settled = Box::pin(self.background.settle(corrections)).await;
        for (limit, outcome) in limits.into_iter().zip(settled) {
            // Where none was made the charge stands, and so does what is told of it.
            if outcome.decided().is_some() {
                limit.outcome = outcome;
            }
        }
    }

    /// Returns when no request is held, none holds a slot, and no correction is under way. To be called
    /// when nothing more comes.
    pub async fn settled(&self) {
        while self.held() > 0 || !self.leases.is_empty() {
            sleep(A_MOMENT).await;
        }
        self.background.drained().await;
    }

    /// Gives back to the store, in this time, what it keeps for requests that will not come.
    pub async fn leave(&self, within: Duration) {
        self.store.leave(within).await;
    }

    /// Tells the store nothing more: the worker's runtime ends.
    pub fn end(&self) {
        self.background.end();
    }
}

/// Whether a charge of this limit takes a slot: one that passes, or is held while the request lasts.
fn takes_a_slot(limit: &ChargedLimit) -> bool {
    matches!(limit.limit().algorithm, Algorithm::Concurrency | Algorithm::LeakyBucket)
}

/// What gives charges back, but for those that a [`ConcurrencyPermit`] holds.
fn refunds(wanted: &[LeasedCharge], verdict: &Verdict) -> SmallVec<[Correction; 2]> {
    let charged = wanted.iter().zip(&verdict.outcomes).filter(|_| verdict.admitted);
    let refund = |(LeasedCharge { limit, key, cost }, outcome): (&LeasedCharge, &Outcome)| {
        let decided = outcome.admitted().filter(|_| *cost > 0)?;
        let change = Change::Refund { charged_at: decided.charged_at(), cost: *cost };
        let is_leased = limit.algorithm == Algorithm::Concurrency;
        let correction = Correction { limit: Arc::clone(limit), key: *key, change, by: decided.by };
        (!is_leased).then_some(correction)
    };
    charged.filter_map(refund).collect()
}
