//! [`ChargedLimit`]: one limit of a request, its key and cost, and the outcome of its charge.

use std::{rc::Rc, sync::Arc};

use smallvec::SmallVec;
use tidegate_charge::{BlockEffect, Charge, DecisionSource, Key, Limit, Outcome, StoreDecision};
use tidegate_envoy::rate_limit_service::Permits;
use tidegate_identity::KeyPart;
use tidegate_limit::Change;
use tidegate_rules::respond::LimitReport;
use tidegate_rules::snapshot::{
    ActualCost, Cost, PlannedCharge, QuotaChoice, ResponseOutcome, SettledCost,
};
use tidegate_store::Correction;

use super::{
    draft_response::DraftResponse,
    rules::{LimitRule, WorkerRoute},
};

/// The limits that a request is charged to, in the order of its plan.
pub(super) type ChargedLimits = SmallVec<[ChargedLimit; 2]>;

/// A limit that a request is charged to, and the outcome of the charge.
#[derive(Clone)]
pub(super) struct ChargedLimit {
    rule: Rc<LimitRule>,
    /// The quota that applies to the caller.
    quota: QuotaChoice,
    /// The first day of the consumer's months.
    billing_day: Option<u8>,
    key: Key,
    cost: u64,
    pub(super) outcome: Outcome,
}

impl WorkerRoute {
    /// The limits of a plan on this route, not charged yet.
    pub(super) fn charged_limits(
        &self,
        charges: &[PlannedCharge],
    ) -> impl Iterator<Item = ChargedLimit> {
        charges.iter().filter_map(|planned| ChargedLimit::new(&self.limits, planned))
    }
}

/// The limits and their outcomes, for the response.
pub(super) fn reports(limits: &[ChargedLimit]) -> impl Iterator<Item = LimitReport<'_>> + Clone {
    limits.iter().map(ChargedLimit::report)
}

impl ChargedLimit {
    /// The limit of the planned charge `planned`, not charged yet. `rules` are the limits of the
    /// route.
    pub(super) fn new(rules: &[Rc<LimitRule>], planned: &PlannedCharge) -> Option<Self> {
        let rule = Rc::clone(rules.get(usize::from(planned.limit_index))?);
        let PlannedCharge { key, cost, billing_day, .. } = *planned;
        let quota = planned.quota.clone();
        Some(Self { rule, quota, billing_day, key, cost, outcome: Outcome::NotCharged })
    }

    /// The limit, with the caller's quota.
    pub(super) fn limit(&self) -> &Arc<Limit> {
        self.rule.policy.limit_with(&self.quota).for_billing_day(self.billing_day)
    }

    /// True if the consumer is a part of the key.
    pub(super) fn counts_consumers(&self) -> bool {
        self.rule.policy.key.0.contains(&KeyPart::Consumer)
    }

    /// The rule and its counters.
    pub(super) fn rule(&self) -> &Rc<LimitRule> {
        &self.rule
    }

    pub(super) fn key(&self) -> Key {
        self.key
    }

    pub(super) fn cost(&self) -> u64 {
        self.cost
    }

    /// True if the charge is a permit, which
    /// [`ConcurrencyPermits`](super::concurrency_lease::ConcurrencyPermits) refunds.
    pub(super) fn holds_permit(&self) -> bool {
        self.limit().algorithm().holds_permit()
    }

    /// True if the charge must be refunded if its request is gone before the store replies: it
    /// blocks other charges until it is refunded or the request ends, or is an estimate that the
    /// end of the request settles.
    pub(super) fn must_be_delivered(&self) -> bool {
        self.limit().algorithm().blocks_others() || self.settled_cost().is_some()
    }

    /// The decision that made the charge; `None` if the limit did not admit it, or its cost is 0.
    /// Meaningful only if the whole request was admitted: otherwise nothing was charged.
    pub(super) fn made_charge(&self) -> Option<&StoreDecision> {
        self.outcome.admitted().filter(|_| self.cost > 0)
    }

    /// The charge, for the store.
    pub(super) fn charge(&self) -> Charge<'_> {
        Charge { limit: self.limit(), key: self.key, cost: self.cost }
    }

    /// True if the limit is enforced and delays the request.
    pub(super) fn is_delayed(&self) -> bool {
        let decided = self.outcome.decided();
        decided.is_some_and(|decided| !decided.decision.wait.is_zero()) && self.limit().enforce
    }

    /// The limit and its outcome, for the response.
    pub(super) fn report(&self) -> LimitReport<'_> {
        LimitReport { limit: self.limit(), cost: self.cost, outcome: &self.outcome }
    }

    /// True if the limit is enforced, and its block refuses the request.
    pub(super) fn is_blocked(&self) -> bool {
        self.refused_by_block() && self.limit().enforce
    }

    fn refused_by_block(&self) -> bool {
        let refused = self.outcome.refused();
        refused.is_some_and(|decided| matches!(decided.block, BlockEffect::Refused { .. }))
    }

    /// Counts the outcome in the metrics.
    pub(super) fn count_outcome(&self) {
        let counters = &self.rule.counters;
        match (&self.outcome, self.outcome.refused()) {
            (Outcome::Unknown, _) => counters.unknown.add(1),
            (Outcome::NotCharged, _) => {}
            (Outcome::Decided(_), None) => counters.admitted.add(1),
            (_, Some(_)) if self.limit().enforce => counters.refused.add(1),
            (_, Some(_)) => counters.would_refuse.add(1),
        }
        if self.refused_by_block() {
            counters.blocked.add(1);
        }
    }

    /// The correction that refunds the whole charge; `None` if nothing was charged.
    pub(super) fn refund(&self) -> Option<Correction> {
        let decided = self.made_charge()?;
        let change = Change::Refund { charged_at: decided.charged_at(), cost: self.cost };
        Some(self.correction(change, decided.source))
    }

    /// The correction that gives back the cost: of the permits that were `taken` at a known time,
    /// or else of charges that are not known.
    pub(super) fn release(&self, taken: Permits) -> Correction {
        let cost = self.cost;
        let change = match taken {
            Permits::TakenAt(charged_at) if self.holds_permit() => {
                Change::Refund { charged_at, cost }
            }
            Permits::TakenAt(_) | Permits::None => Change::Release { cost },
        };
        self.correction(change, DecisionSource::Store)
    }

    /// The correction that charges the cost beyond the quota, where the charge was refused.
    pub(super) fn overdraft(&self) -> Correction {
        let source = self.outcome.decided().map_or(DecisionSource::Store, |decided| decided.source);
        self.correction(Change::Overdraw { cost: self.cost }, source)
    }

    /// The cost of the limit, if it is settled when the response ends.
    pub(super) fn settled_cost(&self) -> Option<&SettledCost> {
        self.rule.policy.cost.settled().map(|settled| &**settled)
    }

    /// True if a response with `status` refunds the charge.
    fn is_refunded(&self, status: u16) -> bool {
        self.rule.policy.refunds.include(status)
    }

    /// The final cost, if the head of `response` decides it: 0 if its status refunds the charge,
    /// else that of its header, else what was charged. `None` if the cost is settled when the
    /// response ends.
    pub(super) fn head_cost(&self, response: &DraftResponse) -> Option<u64> {
        if self.is_refunded(response.status().as_u16()) {
            return Some(0);
        }
        let fields = response.upstream_fields();
        match &self.rule.policy.cost {
            Cost::Fixed(_) | Cost::Header { .. } => Some(self.cost),
            Cost::Settled(cost) if matches!(cost.actual, ActualCost::Header(_)) => {
                let reported = fields.and_then(|fields| cost.header_cost(fields));
                let outcome = ResponseOutcome::of(response.status().as_u16());
                Some(cost.settled(reported, outcome, self.cost))
            }
            Cost::Settled(_) => None,
            cost @ Cost::Response { .. } => {
                Some(fields.and_then(|fields| cost.response_cost(fields)).unwrap_or(self.cost))
            }
        }
    }

    /// Counts a final cost in the metrics.
    pub(super) fn count_settled(&self, settled: u64) {
        let counters = &self.rule.counters.settlement;
        counters.settled.add(settled);
        counters.overspent.add(settled.saturating_sub(self.cost));
    }

    /// The correction that makes the charge `cost`; `None` if it is, or if nothing was charged.
    pub(super) fn correction_to(&self, cost: u64) -> Option<Correction> {
        let decided = self.outcome.admitted()?;
        let change = match cost.cmp(&self.cost) {
            std::cmp::Ordering::Less => {
                Change::Refund { charged_at: decided.charged_at(), cost: self.cost - cost }
            }
            std::cmp::Ordering::Equal => return None,
            std::cmp::Ordering::Greater => Change::Overdraw { cost: cost - self.cost },
        };
        Some(self.correction(change, decided.source))
    }

    fn correction(&self, change: Change, source: DecisionSource) -> Correction {
        Correction { limit: Arc::clone(self.limit()), key: self.key, change, source }
    }
}
