//! [`LimitReport`]: one limit of a request and its outcome, and the part of them that a response
//! shows.

use tidegate_charge::{Limit, Outcome, StoreDecision};

/// One limit of a request and its outcome.
#[derive(Clone, Copy, Debug)]
pub struct LimitReport<'a> {
    /// The limit, in the caller's tier.
    pub limit: &'a Limit,
    /// The request's cost, in units of the quota.
    pub cost: u64,
    /// The outcome of the charge.
    pub outcome: &'a Outcome,
}

impl<'a> LimitReport<'a> {
    /// The decision, if responses show it. They show only enforced limits, and a concurrency limit
    /// only if it refuses: other requests may take its free permits at any time.
    pub(super) fn advertised(self) -> Option<AdvertisedLimit<'a>> {
        let decided = self.outcome.decided()?;
        let is_shown = self.limit.algorithm().is_predictable() || !decided.decision.admitted;
        (self.limit.enforce && is_shown).then_some(AdvertisedLimit {
            limit: self.limit,
            cost: self.cost,
            decided,
        })
    }

    /// The decision, if responses show it and it refuses the request.
    pub(super) fn refusal(self) -> Option<AdvertisedLimit<'a>> {
        self.advertised().filter(|limit| !limit.decided.decision.admitted)
    }
}

/// A limit that a response shows to the client.
#[derive(Clone, Copy)]
pub(super) struct AdvertisedLimit<'a> {
    pub(super) limit: &'a Limit,
    pub(super) cost: u64,
    pub(super) decided: &'a StoreDecision,
}
