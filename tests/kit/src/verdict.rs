//! Shorthands for reading a store's verdicts.

use tidegate::{
    charge::{DecisionSource, Outcome, Verdict},
    clock::StoreTime,
    limit::Decision,
};

/// Shorthands for a [`Verdict`].
pub trait VerdictExt {
    /// The decision at `index`, which must have been made.
    fn decision(&self, index: usize) -> Decision;
    /// When the first decision was made, in ms by the clock that decided.
    fn decided_at(&self) -> StoreTime;
    /// Whether some limit was decided by the fallback, or not at all.
    fn is_fallback(&self) -> bool;
}

impl VerdictExt for Verdict {
    fn decision(&self, index: usize) -> Decision {
        self.decided(index).expect("a decision").decision
    }

    fn decided_at(&self) -> StoreTime {
        let mut decided = self.outcomes.iter().filter_map(Outcome::decided);
        decided.next().expect("a decision").at
    }

    fn is_fallback(&self) -> bool {
        self.outcomes.iter().any(|outcome| match outcome {
            Outcome::Decided(decided) => decided.source == DecisionSource::Fallback,
            Outcome::Unknown => true,
            Outcome::NotCharged => false,
        })
    }
}

/// Shorthands for the outcomes of adjustments.
pub trait OutcomesExt {
    /// The state after the adjustment at `index`, which must have been made.
    fn decision(&self, index: usize) -> Decision;
    /// The state after each adjustment. All must have been made.
    fn decisions(&self) -> Vec<Decision>;
    /// Whether each adjustment was made.
    fn are_made(&self) -> Vec<bool>;
}

impl OutcomesExt for [Outcome] {
    fn decision(&self, index: usize) -> Decision {
        self.decisions()[index]
    }

    fn decisions(&self) -> Vec<Decision> {
        let decided = self.iter().map(|outcome| outcome.decided().expect("an adjustment"));
        decided.map(|decided| decided.decision).collect()
    }

    fn are_made(&self) -> Vec<bool> {
        self.iter().map(|outcome| outcome.decided().is_some()).collect()
    }
}
