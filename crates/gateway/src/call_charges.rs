//! The charges of a call to the rate limit service: all of them are made, or none.

use std::{rc::Rc, sync::Arc};

use smallvec::SmallVec;
use tidegate_envoy::rate_limit_service::{LimitOutcome, LimitRole, Permits};
use tidegate_limit::{Charge, LeaseSize, Limit, Outcome, Verdict};
use tidegate_rules::plan::Admission;
use tidegate_rules::respond::LimitReport;
use tidegate_rules::snapshot::{DescriptorRule, HitAct, OnRefusal, PlannedCall};
use tidegate_store::{Correction, StoreError};
use tidegate_trace::ChildSpanKind;

use super::{
    Gateway,
    charged_limit::ChargedLimit,
    charging::{UndeliveredCharge, refusing},
    context::RequestContext,
    rules::WorkerDomain,
};

/// The charges of a call, and what they have decided.
pub(super) struct CallCharges {
    /// What applies to each descriptor.
    rules: SmallVec<[DescriptorRule; 4]>,
    hits: SmallVec<[CallHit; 4]>,
    /// The decision on the whole call.
    pub(super) admission: Admission,
}

/// A charge, a peek or a refund of a call, and its outcome.
struct CallHit {
    /// The indices of its descriptors.
    descriptors: SmallVec<[usize; 1]>,
    act: HitAct,
    on_refusal: OnRefusal,
    limit: ChargedLimit,
    role: LimitRole,
}

impl CallHit {
    fn refuses(&self) -> bool {
        self.limit.limit().enforce && self.limit.outcome.refused().is_some()
    }
}

impl CallCharges {
    /// The charges of a plan in `domain`, not made yet.
    pub(super) fn new(domain: &WorkerDomain, planned: PlannedCall) -> Self {
        let hits = planned.hits.into_iter().filter_map(|hit| {
            let limit = ChargedLimit::new(&domain.limits, &hit.charge)?;
            let role = domain.settings.role(hit.charge.limit_index);
            let (descriptors, act, on_refusal) = (hit.descriptors, hit.act, hit.on_refusal);
            Some(CallHit { descriptors, act, on_refusal, limit, role })
        });
        Self { rules: planned.rules, hits: hits.collect(), admission: Admission::Unlimited }
    }

    /// The limit that admits a descriptor never, if one does.
    pub(super) fn blocked_by(&self) -> Option<&Arc<Limit>> {
        self.rules.iter().find_map(|rule| match rule {
            DescriptorRule::Blocked(limit) => Some(limit),
            DescriptorRule::Limits => None,
        })
    }

    /// What applies to the descriptor with this index.
    pub(super) fn rule(&self, descriptor: usize) -> Option<&DescriptorRule> {
        self.rules.get(descriptor)
    }

    /// The limits of the descriptor with this index.
    pub(super) fn outcomes(&self, descriptor: usize) -> impl Iterator<Item = LimitOutcome<'_>> {
        let hits = self.hits.iter().filter(move |hit| hit.descriptors.contains(&descriptor));
        hits.map(|hit| LimitOutcome {
            limit: hit.limit.limit(),
            outcome: &hit.limit.outcome,
            role: hit.role,
        })
    }

    /// The limits and their outcomes, for header fields.
    pub(super) fn reports(&self) -> impl Iterator<Item = LimitReport<'_>> + Clone {
        self.hits.iter().map(|hit| hit.limit.report())
    }

    /// The limits, for the process log.
    pub(super) fn limits(&self) -> impl Iterator<Item = &ChargedLimit> {
        self.hits.iter().map(|hit| &hit.limit)
    }

    /// Whether the call has taken permits, which its sender gives back.
    pub(super) fn permits(&self) -> Permits {
        let holds = |own: &ChargedLimit| own.limit().algorithm().holds_permit();
        let is_taken = self.admission == Admission::Admitted && self.of(HitAct::Charge).any(holds);
        if is_taken { Permits::Taken } else { Permits::None }
    }

    fn of(&self, act: HitAct) -> impl Iterator<Item = &ChargedLimit> + Clone {
        self.hits.iter().filter(move |hit| hit.act == act).map(|hit| &hit.limit)
    }

    fn set_outcomes(&mut self, act: HitAct, outcomes: impl IntoIterator<Item = Outcome>) {
        let hits = self.hits.iter_mut().filter(|hit| hit.act == act);
        for (hit, outcome) in hits.zip(outcomes) {
            hit.limit.outcome = outcome;
        }
    }

    fn decide(&self) -> Admission {
        if self.blocked_by().is_some() {
            return Admission::Refused;
        }
        if self.hits.iter().any(|hit| hit.limit.is_blocked()) {
            Admission::Blocked
        } else if self.hits.iter().any(CallHit::refuses) {
            Admission::Refused
        } else if self.hits.is_empty() {
            Admission::Unlimited
        } else {
            Admission::Admitted
        }
    }
}

impl Gateway {
    /// Makes the charges of a call, all or none, then its refunds. A peek that finds nothing left
    /// refuses the call, and then nothing is charged.
    ///
    /// # Errors
    ///
    /// The store gives no answer, and a limit refuses in that case.
    pub(super) async fn charge_call(
        &self,
        request: &mut RequestContext,
        call: &mut CallCharges,
    ) -> Result<(), StoreError> {
        let kind = || ChildSpanKind::Charge { store: self.store_name, decision: "" };
        self.begin_span(&mut request.ledger.tracing, kind);
        let made = self.make_charges(call).await;
        call.admission = if made.is_ok() { call.decide() } else { Admission::Unknown };
        request.ledger.admission = call.admission;
        self.end_charge_span(&mut request.ledger.tracing, call.admission);
        if call.admission.is_refused() {
            self.count_refused_callers(request, call.limits());
            request.ledger.refused_by = refusing(call.limits());
            if request.ledger.refused_by.is_empty() {
                request.ledger.refused_by.extend(call.blocked_by().map(Arc::clone));
            }
        }
        made
    }

    async fn make_charges(&self, call: &mut CallCharges) -> Result<(), StoreError> {
        if call.of(HitAct::Peek).next().is_some() {
            let outcomes = self.peek_limits(call.of(HitAct::Peek)).await?;
            call.set_outcomes(HitAct::Peek, outcomes);
        }
        let is_refused = call.decide().is_refused();
        for hit in call.hits.iter().filter(|hit| hit.act == HitAct::Peek && hit.refuses()) {
            hit.limit.count_outcome();
        }
        if call.of(HitAct::Charge).next().is_some() {
            if is_refused {
                let outcomes = self.peek_limits(call.of(HitAct::Charge)).await?;
                call.set_outcomes(HitAct::Charge, outcomes);
            } else {
                let outcomes = self.charge_limits_of(call.of(HitAct::Charge)).await?;
                call.set_outcomes(HitAct::Charge, outcomes);
                call.of(HitAct::Charge).for_each(ChargedLimit::count_outcome);
            }
        }
        if call.decide().is_refused() {
            self.overdraw(call).await;
        }
        if call.of(HitAct::Refund).next().is_some() && !call.decide().is_refused() {
            let refunds = call.of(HitAct::Refund).map(ChargedLimit::release);
            let refunds: SmallVec<[Correction; 2]> = refunds.collect();
            let outcomes = self.background.adjust(refunds).await;
            call.set_outcomes(HitAct::Refund, outcomes);
            let is_leased = |own: &ChargedLimit| own.limit().lease_size != LeaseSize::Off;
            if call.of(HitAct::Refund).any(is_leased) {
                // The store does not know what gateways have left of the units that they reserved.
                let charges = call.of(HitAct::Refund).map(|own| Charge { cost: 0, ..own.charge() });
                let charges: SmallVec<[Charge<'_>; 4]> = charges.collect();
                let verdict = self.store.peek(&charges, self.shared.clock.store_time()).await?;
                drop(charges);
                call.set_outcomes(HitAct::Refund, verdict.outcomes);
            }
        }
        Ok(())
    }

    /// Charges the late hits of a refused call beyond the quota: what they report has happened. The
    /// call keeps the outcomes of its refusal.
    async fn overdraw(&self, call: &CallCharges) {
        let reports = call.hits.iter().filter(|hit| hit.on_refusal == OnRefusal::Overdraw);
        let overdrafts: SmallVec<[Correction; 2]> =
            reports.map(|hit| hit.limit.overdraft()).collect();
        if !overdrafts.is_empty() {
            self.background.adjust(overdrafts).await;
        }
    }

    async fn peek_limits<'l>(
        &self,
        limits: impl Iterator<Item = &'l ChargedLimit>,
    ) -> Result<SmallVec<[Outcome; 2]>, StoreError> {
        let charges: SmallVec<[Charge<'_>; 4]> = limits.map(ChargedLimit::charge).collect();
        let verdict = self.store.peek(&charges, self.shared.clock.store_time()).await?;
        Ok(verdict.outcomes)
    }

    /// Charges all limits or none, in one call to the store. If one of them holds a permit, the
    /// call to the store finishes even if Envoy cancels its own, and the charges are then refunded.
    async fn charge_limits_of<'l>(
        &self,
        limits: impl Iterator<Item = &'l ChargedLimit> + Clone,
    ) -> Result<SmallVec<[Outcome; 2]>, StoreError> {
        if !limits.clone().any(ChargedLimit::must_be_delivered) {
            let charges: SmallVec<[Charge<'_>; 4]> = limits.map(ChargedLimit::charge).collect();
            let verdict = self.store.charge(&charges, self.shared.clock.store_time()).await?;
            return Ok(verdict.outcomes);
        }
        let mut limits: SmallVec<[ChargedLimit; 4]> = limits.cloned().collect();
        let background = Rc::clone(&self.background);
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
            let refunds = limits.iter().filter_map(ChargedLimit::refund).collect();
            Ok((verdict, UndeliveredCharge { background, refunds }))
        });
        // `None` only if the worker ends.
        let charged: Option<Result<(Verdict, UndeliveredCharge), StoreError>> = charged.await;
        let lost = StoreError::Unavailable { limit: 0 };
        let (verdict, mut undelivered) = charged.unwrap_or(Err(lost))?;
        undelivered.refunds.clear();
        Ok(verdict.outcomes)
    }
}
