//! What the limits of one request say together.

use smallvec::SmallVec;

use super::{Decision, Millis};

/// Where a decision was made, and so where its charge is corrected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Decider {
    /// The store that keeps the counters: this process' memory, or Redis where it is configured.
    Store,
    /// This process' memory, because Redis gave no answer.
    Fallback,
}

/// A decision, with its place and time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Decided {
    /// What the limit says.
    pub decision: Decision,
    /// When it was made, in ms by the clock of the store that made it.
    pub at: Millis,
    /// Which store made it.
    pub by: Decider,
}

impl Decided {
    /// The time that a refund of this charge names: of a leaky bucket, the slot.
    pub fn charged_at(&self) -> Millis {
        self.at + self.decision.wait
    }
}

/// What came of one charge.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Outcome {
    /// A store decided. An admitted charge was made if the whole request was admitted.
    Decided(Decided),
    /// Redis gave no answer, and the limit admits then: nothing was charged.
    Unknown,
    /// The request was refused before this limit was asked, or its charge was undone because another
    /// limit refused.
    #[default]
    NotCharged,
}

impl Outcome {
    /// The decision, if one was made.
    pub fn decided(&self) -> Option<&Decided> {
        match self {
            Self::Decided(decided) => Some(decided),
            Self::Unknown | Self::NotCharged => None,
        }
    }

    /// The decision, if it admits.
    pub fn admitted(&self) -> Option<&Decided> {
        self.decided().filter(|decided| decided.decision.admitted)
    }

    /// The decision, if it refuses.
    pub fn refused(&self) -> Option<&Decided> {
        self.decided().filter(|decided| !decided.decision.admitted)
    }
}

/// What all limits of one request say.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Verdict {
    /// Whether every limit that is enforced admits. If not, none has been charged.
    pub admitted: bool,
    /// One a charge, in the charges' order.
    pub outcomes: SmallVec<[Outcome; 2]>,
}

impl Verdict {
    /// The verdict on no charge: admitted.
    pub fn empty() -> Self {
        Self { admitted: true, outcomes: SmallVec::new() }
    }

    /// Adds the decision of one store on one charge; `enforced`: the limit may refuse.
    pub fn push(&mut self, decided: Decided, enforced: bool) {
        self.admitted &= decided.decision.admitted || !enforced;
        self.outcomes.push(Outcome::Decided(decided));
    }

    /// The decision at `index`, if one was made.
    pub fn decided(&self, index: usize) -> Option<&Decided> {
        self.outcomes.get(index)?.decided()
    }
}

/// How a request fared with its limits: the word that access log, `explain` and `replay` have for it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Admission {
    /// The request ended before its limits were asked.
    #[default]
    Unasked,
    /// Nothing limits it.
    Unlimited,
    /// Every limit that is enforced admits it.
    Admitted,
    /// A limit refuses it.
    Refused,
    /// The throttle refuses it.
    Throttled,
    /// Redis gave no answer, and a limit refuses then.
    Unknown,
}

impl Admission {
    /// Whether limits decided: then answers tell of them.
    pub fn is_decided(self) -> bool {
        matches!(self, Self::Admitted | Self::Refused)
    }

    /// The word for it.
    pub fn label(self) -> &'static str {
        match self {
            Self::Unasked => "unasked",
            Self::Unlimited => "none",
            Self::Admitted => "admitted",
            Self::Refused => "refused",
            Self::Throttled => "throttled",
            Self::Unknown => "unknown",
        }
    }
}
