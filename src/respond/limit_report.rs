//! One limit of a request and what came of it, as an answer tells of it.

use crate::limit::{Algorithm, Decided, Limit, Outcome};

/// One limit of a request, and what came of it.
#[derive(Clone, Copy, Debug)]
pub struct LimitReport<'a> {
    /// The limit, in the caller's tier.
    pub limit: &'a Limit,
    /// What the request costs.
    pub cost: u32,
    /// What came of it.
    pub outcome: &'a Outcome,
}

impl<'a> LimitReport<'a> {
    /// The decision, where a client is told of it: not of a limit that only watches, nor of slots that
    /// were free, which say nothing of how many requests may follow.
    pub(super) fn told(self) -> Option<Reported<'a>> {
        let decided = self.outcome.decided()?;
        let says_nothing =
            self.limit.algorithm == Algorithm::Concurrency && decided.decision.admitted;
        (self.limit.enforce && !says_nothing).then_some(Reported {
            limit: self.limit,
            cost: self.cost,
            decided,
        })
    }

    /// The decision, where it refuses the request.
    pub(super) fn refusing(self) -> Option<Reported<'a>> {
        self.told().filter(|told| !told.decided.decision.admitted)
    }
}

/// A limit that a client is told of.
#[derive(Clone, Copy)]
pub(super) struct Reported<'a> {
    pub(super) limit: &'a Limit,
    pub(super) cost: u32,
    pub(super) decided: &'a Decided,
}
