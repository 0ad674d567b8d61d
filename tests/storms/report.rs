use std::{collections::BTreeSet, time::Duration};

use crate::storm::{FEW, SLOWEST};

/// The charges of `/few` in a quarter of a second: a replica on the same machine never lags more.
const LAG: u64 = 100;

/// The charges that a fault may make Redis lose.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DataLoss {
    Nothing,
    /// Replication is asynchronous: what was charged just before a primary died may not be at the
    /// replica that takes over.
    Lag,
    /// The old primary keeps charging after the promotion until the gateways detect it: those charges
    /// are lost with it.
    SinceTheFault,
    /// The same, but every gateway has detected it by the time of the first notice.
    UntilNoticed,
    /// Everything charged before the fault; admissions until its detection may be among it.
    AllBefore,
}

/// The figures of a storm.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) requests: u64,
    /// Failed requests caused by Redis, missing responses included.
    pub(crate) failed: Vec<String>,
    pub(crate) calm_p99: Duration,
    pub(crate) down_p99: Duration,
    pub(crate) slowest: Duration,
    /// Admissions of `/few`: before the fault, until its detection, until everything was
    /// merged, and in total.
    pub(crate) admitted: [u64; 4],
    /// Calls that timed out.
    pub(crate) timeouts: u64,
    /// Calls whose connection broke or whose reply was malformed.
    pub(crate) broken: u64,
    /// Calls with an error reply.
    pub(crate) refused: u64,
    /// Local charges that are never merged, for the same reason.
    pub(crate) dropped: u64,
    /// Decisions by `on_failure`.
    pub(crate) fallbacks: u64,
    /// Those after everything was merged: on a busy machine Redis may time out without a fault.
    pub(crate) late: u64,
    /// Callers admitted without Redis.
    pub(crate) without_redis: BTreeSet<usize>,
    /// Time until every worker shares its limits again: since the repair, or since the fault where
    /// the servers repair it themselves.
    pub(crate) recovered: Duration,
}

impl Figures {
    /// Admissions beyond the quota of `/few`.
    pub(crate) fn over(&self) -> u64 {
        self.admitted[3].saturating_sub(FEW)
    }

    /// Calls in flight at the fault: it is unknown whether Redis has charged them.
    fn unknown(&self) -> u64 {
        self.timeouts + self.broken
    }

    /// Whether no client noticed; with slack for timeouts on a busy machine.
    pub(crate) fn is_undisturbed(&self) -> bool {
        self.refused == 0 && self.broken == 0 && (self.fallbacks == 0 || self.timeouts > 0)
    }

    /// Whether only these callers were admitted without Redis; with the same slack.
    pub(crate) fn concerns_only(&self, callers: &BTreeSet<usize>) -> bool {
        !self.without_redis.is_empty()
            && (self.without_redis.is_subset(callers) || self.timeouts > 0)
    }

    /// Checks the figures against the promises.
    pub(crate) fn keep_promises(&self, name: &str, forgets: DataLoss) {
        assert!(self.failed.is_empty(), "{name}: {:?}", &self.failed[..self.failed.len().min(3)]);
        assert!(self.slowest < SLOWEST, "{name}: {self:?}");
        let [before, noticed, merged, end] = self.admitted;
        let forgotten = match forgets {
            DataLoss::Nothing => 0,
            DataLoss::Lag => LAG,
            DataLoss::SinceTheFault => merged - before,
            DataLoss::UntilNoticed => noticed - before + LAG,
            DataLoss::AllBefore => noticed,
        };
        // A call in flight at the fault is decided locally and not merged, since Redis may have charged it
        // already: each may exceed the quota by one. An interrupted merge has the same effect for many.
        let untold = if self.dropped == 0 { self.unknown() } else { merged - before };
        // After the merge Redis admits only what is left, except for
        // further decisions without it.
        let bound = FEW.max(merged) + untold + forgotten + self.late;
        assert!(end <= bound, "{name}: {end} of {bound}: {self:?}");
        // Each gateway counted its share from zero: together at most one more quota.
        let most = 2 * FEW + self.unknown() + forgotten;
        assert!(end <= most, "{name}: {end} of {most}: {self:?}");
        // Nothing is counted twice, except what may have been charged unseen.
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
