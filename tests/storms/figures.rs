use std::{collections::BTreeSet, time::Duration};

use crate::storm::{FEW, SLOWEST};

/// What `/few` is charged in a quarter of a second: a replica on the same machine is never so late.
const LAG: u64 = 100;

/// What a fault may make Redis forget of what it has charged.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Forgets {
    Nothing,
    /// Replication is asynchronous: what was charged just before a primary died may not be at the
    /// replica that takes over.
    Lag,
    /// The old primary goes on charging after another was made, until the gateways hear of it: that
    /// goes with it.
    SinceTheFault,
    /// The same, but they have all heard of it when it is noticed.
    UntilNoticed,
    /// What was charged before the fault; what passed until it was noticed may be some of it.
    AllBefore,
}

/// What came of a storm.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) requests: u64,
    /// Answers that Redis is to blame for, none included.
    pub(crate) failed: Vec<String>,
    pub(crate) calm_p99: Duration,
    pub(crate) down_p99: Duration,
    pub(crate) slowest: Duration,
    /// What `/few` admitted: before the fault, until it was noticed, until Redis had heard
    /// of all, and in the end.
    pub(crate) admitted: [u64; 4],
    /// Calls without an answer in time.
    pub(crate) timeouts: u64,
    /// Calls whose connection broke, or whose answer made no sense.
    pub(crate) broken: u64,
    /// Calls that a server answered with an error.
    pub(crate) refused: u64,
    /// Sums of local charges that Redis will never hear of, for the same reason.
    pub(crate) dropped: u64,
    /// Decisions that `on_failure` took.
    pub(crate) fallbacks: u64,
    /// Those of them after Redis had heard of all: on a busy machine it may be late by itself.
    pub(crate) late: u64,
    /// Callers that were let in unasked.
    pub(crate) unasked: BTreeSet<usize>,
    /// Until every worker shares its limits again: since the fault was mended, or since it began where
    /// the servers mend it by themselves.
    pub(crate) recovered: Duration,
}

impl Figures {
    /// What passed beyond the quota of `/few`.
    pub(crate) fn over(&self) -> u64 {
        self.admitted[3].saturating_sub(FEW)
    }

    /// Calls of which nobody knows whether Redis has charged them: those in flight at the moment of loss.
    fn unknown(&self) -> u64 {
        self.timeouts + self.broken
    }

    /// Whether nobody noticed anything; on a busy machine Redis may be late by itself.
    pub(crate) fn is_undisturbed(&self) -> bool {
        self.refused == 0 && self.broken == 0 && (self.fallbacks == 0 || self.timeouts > 0)
    }

    /// Whether nobody but these callers was let in unasked; with the same reserve.
    pub(crate) fn concerns_only(&self, callers: &BTreeSet<usize>) -> bool {
        !self.unasked.is_empty() && (self.unasked.is_subset(callers) || self.timeouts > 0)
    }

    /// Holds the figures against what is promised.
    pub(crate) fn keep_promises(&self, name: &str, forgets: Forgets) {
        assert!(self.failed.is_empty(), "{name}: {:?}", &self.failed[..self.failed.len().min(3)]);
        assert!(self.slowest < SLOWEST, "{name}: {self:?}");
        let [before, noticed, merged, end] = self.admitted;
        let forgotten = match forgets {
            Forgets::Nothing => 0,
            Forgets::Lag => LAG,
            Forgets::SinceTheFault => merged - before,
            Forgets::UntilNoticed => noticed - before + LAG,
            Forgets::AllBefore => noticed,
        };
        // A call in flight at the loss is decided here, and not told later, for it may count there
        // already: each may be one too many. A sum whose telling broke off is the same for many.
        let untold = if self.dropped == 0 { self.unknown() } else { merged - before };
        // Once Redis has been told of what passed without it, it admits only what is left, but for what
        // is decided without it again.
        let bound = FEW.max(merged) + untold + forgotten + self.late;
        assert!(end <= bound, "{name}: {end} of {bound}: {self:?}");
        // Each gateway counted from nothing against its share: together a quota more, at the most.
        let most = 2 * FEW + self.unknown() + forgotten;
        assert!(end <= most, "{name}: {end} of {most}: {self:?}");
        // And nothing is counted twice, but for what may have been.
        assert!(end + self.unknown() >= FEW, "{name}: {end} of {FEW}: {self:?}");
    }

    /// One row of the table of storms.
    #[expect(clippy::print_stdout, reason = "figures for a person")]
    pub(crate) fn tell(&self, name: &str) {
        let Self { requests, failed, calm_p99, down_p99, slowest, recovered, .. } = self;
        let ms = |time: &Duration| time.as_secs_f64() * 1_000.0;
        println!(
            "| {name} | {requests} | {} | {:.1} | {:.1} | {:.1} | {} | {:.1} |",
            failed.len(),
            ms(calm_p99),
            ms(down_p99),
            ms(slowest),
            self.over(),
            recovered.as_secs_f64()
        );
    }
}
