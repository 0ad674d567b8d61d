//! One limit of a request: its rule, who is counted, what it costs, and what came of it.

use std::{rc::Rc, sync::Arc};

use super::{draft::Draft, rules::LimitRule};
use crate::{
    limit::{Change, Charge, Decider, Key, Limit, Outcome},
    respond::LimitReport,
    snapshot::LimitRequest,
    store::Correction,
};

/// One limit of a request.
pub(super) struct ChargedLimit {
    rule: Rc<LimitRule>,
    /// Which of the limit's tiers the caller is in, if any.
    tier: Option<u16>,
    key: Key,
    cost: u32,
    pub(super) outcome: Outcome,
}

impl ChargedLimit {
    /// The limit that `request` asks, before it is charged. `rules` are those of the request's route.
    pub(super) fn new(rules: &[Rc<LimitRule>], request: &LimitRequest) -> Option<Self> {
        let rule = Rc::clone(rules.get(usize::from(request.limit))?);
        let LimitRequest { key, cost, tier, .. } = *request;
        Some(Self { rule, tier, key, cost, outcome: Outcome::NotCharged })
    }

    /// The limit, in the caller's tier.
    pub(super) fn limit(&self) -> &Arc<Limit> {
        self.rule.policy.limit(self.tier)
    }

    /// The rule, and what is counted of it.
    pub(super) fn rule(&self) -> &Rc<LimitRule> {
        &self.rule
    }

    pub(super) fn key(&self) -> Key {
        self.key
    }

    pub(super) fn cost(&self) -> u32 {
        self.cost
    }

    /// What the store is asked.
    pub(super) fn charge(&self) -> Charge<'_> {
        Charge { limit: self.limit(), key: self.key, cost: self.cost }
    }

    /// What an answer tells of it.
    pub(super) fn report(&self) -> LimitReport<'_> {
        LimitReport { limit: self.limit(), cost: self.cost, outcome: &self.outcome }
    }

    /// Counts what came of it.
    pub(super) fn count(&self) {
        let counters = &self.rule.counters;
        match (&self.outcome, self.outcome.refused()) {
            (Outcome::Unknown, _) => counters.unknown.add(1),
            (Outcome::NotCharged, _) => {}
            (Outcome::Decided(_), None) => counters.admitted.add(1),
            (_, Some(_)) if self.limit().enforce => counters.refused.add(1),
            (_, Some(_)) => counters.would_refuse.add(1),
        }
    }

    /// What gives the whole charge back, if one was made.
    pub(super) fn refund(&self) -> Option<Correction> {
        let decided = self.outcome.admitted().filter(|_| self.cost > 0)?;
        let change = Change::Refund { charged_at: decided.charged_at(), cost: self.cost };
        Some(self.correction(change, decided.by))
    }

    /// What an answer changes of the charge.
    pub(super) fn adjustment(&self, answer: &Draft) -> Option<Correction> {
        let decided = self.outcome.admitted()?;
        let (policy, charged_at) = (&self.rule.policy, decided.charged_at());
        if policy.refund.contains(&answer.status().as_u16()) {
            return self.refund();
        }
        let cost = policy.cost.told(answer.upstream_fields()?)?;
        let change = match cost.cmp(&self.cost) {
            std::cmp::Ordering::Less => Change::Refund { charged_at, cost: self.cost - cost },
            std::cmp::Ordering::Equal => return None,
            std::cmp::Ordering::Greater => Change::Overdraw { cost: cost - self.cost },
        };
        Some(self.correction(change, decided.by))
    }

    fn correction(&self, change: Change, by: Decider) -> Correction {
        Correction { limit: Arc::clone(self.limit()), key: self.key, change, by }
    }
}
