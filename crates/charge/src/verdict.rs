//! The decisions of all limits of one request.

use smallvec::SmallVec;
use tidegate_base::time::{Millis, StoreTime};
use tidegate_limit::Decision;

/// The store that made a decision. Its charge must be adjusted there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DecisionSource {
    /// The store of the counters: Redis if it is configured, else this process's memory.
    Store,
    /// This process's memory, because Redis gave no answer.
    Fallback,
}

/// A limit's decision, with its store and time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StoreDecision {
    /// The limit's decision.
    pub decision: Decision,
    /// The time of the decision, by the store's clock.
    pub at: StoreTime,
    /// The store that made it.
    pub source: DecisionSource,
    /// What the limit's block has done.
    pub block: BlockEffect,
}

/// What the block of a limit has done to a request.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum BlockEffect {
    /// Nothing: the limit alone decided.
    #[default]
    None,
    /// The limit refused the request, and a block began with this refusal.
    Begun {
        /// The first ms after the block.
        until: StoreTime,
    },
    /// The block refused the request, which the limit has not counted.
    Refused {
        /// The first ms after the block.
        until: StoreTime,
    },
}

impl BlockEffect {
    /// The first ms after the block that is in force; `None` if none is.
    pub fn until(self) -> Option<StoreTime> {
        match self {
            Self::None => None,
            Self::Begun { until } | Self::Refused { until } => Some(until),
        }
    }
}

impl StoreDecision {
    /// A decision at `at`, without a block.
    pub fn new(decision: Decision, at: StoreTime, source: DecisionSource) -> Self {
        Self { decision, at, source, block: BlockEffect::None }
    }

    /// The time until the reset. Not shorter than until a refused request fits, although it
    /// may cost more than the last charged one, for which the reset is: a client that reads both
    /// must not come early.
    pub fn time_to_reset(&self) -> Millis {
        let retry_at = self.decision.retry_at.unwrap_or_default();
        self.decision.reset_at.max(retry_at).since(self.at)
    }

    /// The `charged_at` for a refund of this charge: the time of the decision or, for a leaky
    /// bucket, the start of the slot.
    pub fn charged_at(&self) -> StoreTime {
        self.at + self.decision.wait
    }
}

/// The outcome of one charge.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Outcome {
    /// A store decided. An admitted charge was made only if the whole request was admitted.
    Decided(StoreDecision),
    /// Redis gave no answer, and the limit admits the request. The charge counts as not made: if a
    /// late reply shows that Redis made it, the store refunds it. An adjustment with this outcome
    /// may not have been made.
    Unknown,
    /// The request was refused before this limit was checked, or its charge was undone because
    /// another limit refused.
    #[default]
    NotCharged,
}

impl Outcome {
    /// The decision, if one was made.
    pub fn decided(&self) -> Option<&StoreDecision> {
        match self {
            Self::Decided(decided) => Some(decided),
            Self::Unknown | Self::NotCharged => None,
        }
    }

    /// The decision, if it admits the charge.
    pub fn admitted(&self) -> Option<&StoreDecision> {
        self.decided().filter(|decided| decided.decision.admitted)
    }

    /// The decision, if it refuses the charge.
    #[inline]
    pub fn refused(&self) -> Option<&StoreDecision> {
        self.decided().filter(|decided| !decided.decision.admitted)
    }
}

/// The outcomes of all limits of one request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Verdict {
    /// True if every enforced limit admits the request. Otherwise no limit was charged.
    pub admitted: bool,
    /// One for each charge, in the order of the charges.
    pub outcomes: SmallVec<[Outcome; 2]>,
}

impl Verdict {
    /// The verdict on no charges: admitted.
    pub fn empty() -> Self {
        Self { admitted: true, outcomes: SmallVec::new() }
    }

    /// Adds the decision on one charge; `enforced` is true if the limit may refuse.
    pub fn push(&mut self, decided: StoreDecision, enforced: bool) {
        self.admitted &= decided.decision.admitted || !enforced;
        self.outcomes.push(Outcome::Decided(decided));
    }

    /// True if a charge was made.
    pub fn is_charged(&self) -> bool {
        self.admitted && self.outcomes.iter().any(|outcome| outcome.admitted().is_some())
    }

    /// The decision at `index`, if one was made.
    pub fn decided(&self, index: usize) -> Option<&StoreDecision> {
        self.outcomes.get(index)?.decided()
    }
}
