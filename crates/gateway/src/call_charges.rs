//! The charges of a call to the rate limit service.
//!
//! What is given back was given back, so nothing refuses it. Then all charges are made, or none. A
//! call with late hits reports what has happened: where its charges do not fit, they are made beyond
//! the quota.

use std::{mem, rc::Rc, sync::Arc};

use smallvec::SmallVec;
use tidegate_charge::{Charge, LeaseSize, Limit, Outcome, StoreDecision};
use tidegate_envoy::rate_limit_service::{LimitOutcome, LimitRole, Permits};
use tidegate_limit::{Decision, Millis};
use tidegate_rules::plan::Admission;
use tidegate_rules::respond::LimitReport;
use tidegate_rules::snapshot::{DescriptorRule, HitAct, OnRefusal, PlannedCall, PlannedHit};
use tidegate_store::{Correction, StoreError};
use tidegate_trace::ChildSpanKind;

use super::{
    background::Background,
    charged_limit::ChargedLimit,
    charging::{Charger, UndeliveredCharge, refusing},
    context::RequestContext,
    rules::WorkerDomain,
};

/// The charges of a call, and what they have decided.
#[derive(Default)]
pub(super) struct CallCharges {
    /// What applies to each descriptor.
    rules: SmallVec<[DescriptorRule; 4]>,
    hits: SmallVec<[CallHit; 4]>,
    on_refusal: OnRefusal,
}

/// A charge, a peek or a refund of a call, and its outcome.
struct CallHit {
    /// The indices of its descriptors.
    descriptors: SmallVec<[usize; 1]>,
    act: HitAct,
    limit: ChargedLimit,
    role: LimitRole,
    /// When the permits were taken that a refund gives back.
    taken: Permits,
}

impl CallHit {
    fn refuses(&self) -> bool {
        self.limit.limit().enforce && self.limit.outcome.refused().is_some()
    }

    fn has_record_of(&self, other: &Self) -> bool {
        Rc::ptr_eq(self.limit.rule(), other.limit.rule()) && self.limit.key() == other.limit.key()
    }

    /// The charge by which the counts are read again. A refusal then has the time at which the same
    /// hits fit or, if they are more than the quota, one hit.
    fn reading(&self) -> Charge<'_> {
        let charge = self.limit.charge();
        let cost = match self.act {
            HitAct::Refund => 0,
            HitAct::Charge if charge.cost > charge.limit.quota.limit => charge.limit.cost,
            HitAct::Charge | HitAct::Peek => charge.cost,
        };
        Charge { cost, ..charge }
    }

    /// Shows the counts that a later reading has `found`. What was decided stands.
    fn update(&mut self, found: &StoreDecision) {
        let decided = match self.limit.outcome {
            Outcome::Unknown => return,
            // Its counts are in another store.
            Outcome::Decided(own) if own.source != found.source => return,
            Outcome::Decided(own) => Some(own),
            Outcome::NotCharged => None,
        };
        let is_refused = match decided {
            Some(own) => !own.decision.admitted,
            None => found.decision.used > found.decision.limit,
        };
        let retry_at =
            if found.decision.admitted { Some(found.at) } else { found.decision.retry_at };
        let decision = Decision {
            admitted: !is_refused,
            retry_at: retry_at.filter(|_| is_refused),
            wait: Millis::ZERO,
            ..found.decision
        };
        let own = decided.unwrap_or(*found);
        // A refund of the charge names the time at which it was made.
        let at = if is_refused { found.at } else { own.at };
        self.limit.outcome = Outcome::Decided(StoreDecision { decision, at, ..own });
    }
}

impl CallCharges {
    /// The charges of a plan in `domain`, not made yet.
    pub(super) fn new(domain: &WorkerDomain, planned: PlannedCall) -> Self {
        let hits = planned.hits.into_iter().filter_map(|hit| {
            let limit = ChargedLimit::new(&domain.limits, &hit.charge)?;
            let role = domain.settings.role(hit.charge.limit_index);
            let PlannedHit { descriptors, act, taken, .. } = hit;
            Some(CallHit { descriptors, act, limit, role, taken })
        });
        let (rules, on_refusal) = (planned.rules, planned.on_refusal);
        Self { rules, hits: hits.collect(), on_refusal }
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
        if self.decide() != Admission::Admitted {
            return Permits::None;
        }
        let permits = self.of(HitAct::Charge).filter(|own| own.holds_permit());
        let taken = permits.filter_map(|own| Some(own.made_charge()?.charged_at()));
        taken.max().map_or(Permits::None, Permits::TakenAt)
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

    /// The decision on the whole call.
    pub(super) fn decide(&self) -> Admission {
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

/// How the charges of a call are made.
impl CallCharges {
    /// True if the call must be charged to its end although Envoy cancels it: it says what has
    /// happened, or takes what only it can give back.
    fn must_end(&self) -> bool {
        let must_end = |hit: &CallHit| match hit.act {
            HitAct::Refund => true,
            HitAct::Charge => hit.limit.must_be_delivered(),
            HitAct::Peek => false,
        };
        self.on_refusal == OnRefusal::Overdraw || self.hits.iter().any(must_end)
    }

    /// Gives back, then charges.
    async fn make(&mut self, background: &Background) -> Result<(), StoreError> {
        self.give_back(background).await;
        let charged = self.charge(background).await;
        let is_overdrawn = match self.on_refusal {
            OnRefusal::Nothing => false,
            OnRefusal::Overdraw => self.overdraw(background, &charged).await,
        };
        if charged.is_ok() && (is_overdrawn || self.has_outdated_refund()) {
            self.read_again(background).await;
        }
        charged
    }

    async fn give_back(&mut self, background: &Background) {
        let refunds = self.hits.iter().filter(|hit| hit.act == HitAct::Refund);
        let refunds: SmallVec<[Correction; 2]> =
            refunds.map(|hit| hit.limit.release(hit.taken)).collect();
        if !refunds.is_empty() {
            let outcomes = background.adjust(refunds).await;
            self.set_outcomes(HitAct::Refund, outcomes);
        }
    }

    /// Makes all charges or none, in one call to the store. A peek that finds nothing left refuses
    /// the call, and then nothing is charged.
    async fn charge(&mut self, background: &Background) -> Result<(), StoreError> {
        let store = &background.store;
        if self.of(HitAct::Peek).next().is_some() {
            let peeked = store.peek(&self.charges(HitAct::Peek), background.now()).await?;
            self.set_outcomes(HitAct::Peek, peeked.outcomes);
        }
        for hit in self.hits.iter().filter(|hit| hit.act == HitAct::Peek && hit.refuses()) {
            hit.limit.count_outcome();
        }
        if self.of(HitAct::Charge).next().is_none() {
            return Ok(());
        }
        let charges = self.charges(HitAct::Charge);
        if self.decide().is_refused() {
            let peeked = store.peek(&charges, background.now()).await?;
            drop(charges);
            self.set_outcomes(HitAct::Charge, peeked.outcomes);
        } else {
            let charged = store.charge(&charges, background.now()).await?;
            drop(charges);
            self.set_outcomes(HitAct::Charge, charged.outcomes);
            self.of(HitAct::Charge).for_each(ChargedLimit::count_outcome);
        }
        Ok(())
    }

    /// Charges beyond the quota what [`Self::charge`] has not charged. Where the store gave no
    /// answer, a queue keeps the charge until it does. True if counts have changed.
    async fn overdraw(&self, background: &Background, charged: &Result<(), StoreError>) -> bool {
        let is_decided = charged.is_ok();
        let is_charged = is_decided && !self.decide().is_refused();
        let is_missing = |own: &&ChargedLimit| {
            let is_made = is_charged && own.outcome.admitted().is_some();
            !own.holds_permit() && !is_made
        };
        let (answered, unanswered): (SmallVec<[_; 2]>, SmallVec<[_; 2]>) = self
            .of(HitAct::Charge)
            .filter(is_missing)
            .partition(|own| is_decided && own.outcome != Outcome::Unknown);
        background.adjust_in_background(unanswered.into_iter().map(ChargedLimit::overdraft));
        if answered.is_empty() {
            return false;
        }
        let overdrafts = answered.into_iter().map(ChargedLimit::overdraft);
        let outcomes = background.adjust(overdrafts.collect()).await;
        outcomes.iter().all(|outcome| outcome.decided().is_some())
    }

    /// True if a refund's outcome is not what is left: the store does not know what gateways have
    /// left of the units that they reserved, or its record was charged after it.
    fn has_outdated_refund(&self) -> bool {
        let is_outdated = |refund: &CallHit| {
            let mut others = self.hits.iter().filter(|hit| hit.act == HitAct::Charge);
            refund.limit.limit().lease_size != LeaseSize::Off
                || others.any(|hit| hit.has_record_of(refund))
        };
        self.hits.iter().filter(|hit| hit.act == HitAct::Refund).any(is_outdated)
    }

    /// Reads the counts after all changes, for the response.
    async fn read_again(&mut self, background: &Background) {
        let charges: SmallVec<[Charge<'_>; 4]> = self.hits.iter().map(CallHit::reading).collect();
        let found = background.store.peek(&charges, background.now()).await;
        drop(charges);
        // Without an answer, the older counts stay.
        let outcomes = found.map(|verdict| verdict.outcomes).unwrap_or_default();
        for (hit, found) in self.hits.iter_mut().zip(&outcomes) {
            if let Some(found) = found.decided() {
                hit.update(found);
            }
        }
    }

    fn charges(&self, act: HitAct) -> SmallVec<[Charge<'_>; 4]> {
        self.of(act).map(ChargedLimit::charge).collect()
    }

    /// The corrections that refund the charges of a call that was cancelled: of a report, only the
    /// permits.
    fn refunds(&self) -> SmallVec<[Correction; 2]> {
        if self.decide().is_refused() {
            return SmallVec::new();
        }
        let is_refunded =
            |own: &&ChargedLimit| self.on_refusal == OnRefusal::Nothing || own.holds_permit();
        self.of(HitAct::Charge).filter(is_refunded).filter_map(ChargedLimit::refund).collect()
    }
}

impl Charger {
    /// Makes the charges of a call, and decides it.
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
        request.ledger.tracing.begin_span(&self.shared.clock, kind);
        let made = if call.must_end() {
            self.charge_to_the_end(call).await
        } else {
            call.make(&self.background).await
        };
        let admission = if made.is_ok() { call.decide() } else { Admission::Unknown };
        request.ledger.admission = admission;
        request.ledger.tracing.end_charge_span(&self.shared.clock, admission);
        if admission.is_refused() {
            self.count_refused_callers(request, call.limits());
            request.ledger.refused_by = refusing(call.limits());
            if request.ledger.refused_by.is_empty() {
                request.ledger.refused_by.extend(call.blocked_by().map(Arc::clone));
            }
        }
        made
    }

    /// Makes the charges of a call even if Envoy cancels it. What it has taken is then refunded.
    async fn charge_to_the_end(&self, call: &mut CallCharges) -> Result<(), StoreError> {
        let (mut own, background) = (mem::take(call), Rc::clone(&self.background));
        let charged = self.background.run_with_output(async move {
            let made = own.make(&background).await;
            let refunds = own.refunds();
            (own, made, UndeliveredCharge { background, refunds })
        });
        // `None` only if the worker ends.
        let charged: Option<(_, Result<(), StoreError>, UndeliveredCharge)> = charged.await;
        let (own, made, mut undelivered) = charged.ok_or(StoreError::Unavailable { limit: 0 })?;
        undelivered.refunds.clear();
        *call = own;
        made
    }
}
