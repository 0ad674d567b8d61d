//! [`ChargedCosts`]: what the limits of a request with a variable cost have charged, for its access
//! line.

use std::rc::Rc;

use super::{charged_limit::ChargedLimit, rules::LimitRule};

/// The costs of limits whose cost depends on the request or its response: first as charged, in the
/// end as settled. Empty without such a limit, and then nothing is allocated.
#[derive(Default)]
pub(super) struct ChargedCosts(Vec<ChargedCost>);

struct ChargedCost {
    rule: Rc<LimitRule>,
    units: u64,
}

impl ChargedCosts {
    /// The costs of an admitted request that was charged to `limits`. Candidates are left out, and
    /// so are limits that charged nothing; a limit that counts several keys has one cost.
    pub(super) fn charged(limits: &[ChargedLimit]) -> Self {
        let mut costs = Self::default();
        for limit in limits {
            let policy = &limit.rule().policy;
            if policy.cost.is_variable()
                && !policy.is_candidate()
                && limit.outcome.admitted().is_some()
                && !costs.0.iter().any(|cost| Rc::ptr_eq(&cost.rule, limit.rule()))
            {
                costs.0.push(ChargedCost { rule: Rc::clone(limit.rule()), units: limit.cost() });
            }
        }
        costs
    }

    /// Records that `limit` has charged `units` in the end.
    pub(super) fn correct(&mut self, limit: &ChargedLimit, units: u64) {
        if let Some(cost) = self.0.iter_mut().find(|cost| Rc::ptr_eq(&cost.rule, limit.rule())) {
            cost.units = units;
        }
    }

    /// The name of each limit, and its units.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|cost| (cost.rule.policy.limit.name(), cost.units))
    }
}
