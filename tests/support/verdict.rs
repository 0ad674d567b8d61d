//! What tests read of a verdict.

use tidegate::limit::{Decider, Decision, Millis, Outcome, Verdict};

pub(crate) trait VerdictExt {
    /// The decision at `index`, which must have been made.
    fn decision(&self, index: usize) -> Decision;
    /// When the first decision was made.
    fn now(&self) -> Millis;
    /// Whether Redis gave no answer to some of it.
    fn is_fallback(&self) -> bool;
}

impl VerdictExt for Verdict {
    fn decision(&self, index: usize) -> Decision {
        self.decided(index).expect("a decision").decision
    }

    fn now(&self) -> Millis {
        let mut decided = self.outcomes.iter().filter_map(Outcome::decided);
        decided.next().expect("a decision").at
    }

    fn is_fallback(&self) -> bool {
        self.outcomes.iter().any(|outcome| match outcome {
            Outcome::Decided(decided) => decided.by == Decider::Fallback,
            Outcome::Unknown => true,
            Outcome::NotCharged => false,
        })
    }
}

/// What tests read of corrections.
pub(crate) trait OutcomesExt {
    /// What holds after the correction at `index`, which must have been made.
    fn decision(&self, index: usize) -> Decision;
    /// What holds after each, all of which must have been made.
    fn decisions(&self) -> Vec<Decision>;
    /// Whether each was made.
    fn are_made(&self) -> Vec<bool>;
}

impl OutcomesExt for [Outcome] {
    fn decision(&self, index: usize) -> Decision {
        self.decisions()[index]
    }

    fn decisions(&self) -> Vec<Decision> {
        let decided = self.iter().map(|outcome| outcome.decided().expect("a correction"));
        decided.map(|decided| decided.decision).collect()
    }

    fn are_made(&self) -> Vec<bool> {
        self.iter().map(|outcome| outcome.decided().is_some()).collect()
    }
}
