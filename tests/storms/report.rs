use std::{collections::BTreeSet, time::Duration};

use crate::storm::{MAX_LATENCY, SMALL_QUOTA};

/// Maximum number of charges of `/small_quota` that replication lag may lose: a quarter of a
/// second's. A replica on the same machine never lags more.
const MAX_LAG_CHARGES: u64 = 100;

/// The charges that Redis may lose by a fault.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DataLoss {
    Nothing,
    /// The last charges before the death of a primary: replication is asynchronous.
    Lag,
    /// Charges since the promotion: until the gateways detect it, they charge at the old primary.
    SinceFault,
    /// Charges from the fault until every gateway has detected it, and the lag.
    UntilDetected,
    /// Everything charged before the fault, and possibly admissions until its detection.
    AllBefore,
}

/// The figures of a storm.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) requests: u64,
    /// Failed requests caused by Redis, including missing responses.
    pub(crate) failed: Vec<String>,
    pub(crate) p99_before: Duration,
    pub(crate) p99_during: Duration,
    pub(crate) slowest: Duration,
    /// Admissions of `/small_quota`: before the fault, until its detection, until Redis decided
    /// everything again, and in total.
    pub(crate) admitted: [u64; 4],
    /// Calls that timed out.
    pub(crate) timeouts: u64,
    /// Calls whose connection broke or whose reply was malformed.
    pub(crate) broken: u64,
    /// Calls with an error reply.
    pub(crate) refused: u64,
    /// Decisions by `on_failure`.
    pub(crate) fallbacks: u64,
    /// Callers admitted without Redis.
    pub(crate) without_redis: BTreeSet<usize>,
    /// Time from the repair until every worker uses Redis again; from the fault if the servers
    /// repair themselves.
    pub(crate) recovered: Duration,
}

impl Figures {
    /// Admissions beyond the quota of `/small_quota`.
    pub(crate) fn excess(&self) -> u64 {
        self.admitted[3].saturating_sub(SMALL_QUOTA)
    }

    /// Calls in flight at the fault, which Redis may have charged.
    fn unknown_outcomes(&self) -> u64 {
        self.timeouts + self.broken
    }

    /// True if no client was affected; with slack for timeouts on a busy machine.
    pub(crate) fn is_unaffected(&self) -> bool {
        self.refused == 0 && self.broken == 0 && (self.fallbacks == 0 || self.timeouts > 0)
    }

    /// True if only these callers were admitted without Redis; with the same slack.
    pub(crate) fn affected_only(&self, callers: &BTreeSet<usize>) -> bool {
        !self.without_redis.is_empty()
            && (self.without_redis.is_subset(callers) || self.timeouts > 0)
    }

    /// Asserts the documented bounds of admission and latency.
    pub(crate) fn assert_documented_bounds(&self, name: &str, data_loss: DataLoss) {
        assert!(self.failed.is_empty(), "{name}: {:?}", &self.failed[..self.failed.len().min(3)]);
        assert!(self.slowest < MAX_LATENCY, "{name}: {self:?}");
        let [before, detected, settled, end] = self.admitted;
        let lost = match data_loss {
            DataLoss::Nothing => 0,
            DataLoss::Lag => MAX_LAG_CHARGES,
            DataLoss::SinceFault => settled - before,
            DataLoss::UntilDetected => detected - before + MAX_LAG_CHARGES,
            DataLoss::AllBefore => detected,
        };
        // Redis' admissions, its lost charges, and the decisions without it: the local shares of
        // the gateways add up to at most one more quota.
        let bound = SMALL_QUOTA + lost + self.fallbacks.min(SMALL_QUOTA);
        assert!(end <= bound, "{name}: {end} of {bound}: {self:?}");
        // No charge is counted twice, except calls with an unknown outcome.
        assert!(
            end + self.unknown_outcomes() >= SMALL_QUOTA,
            "{name}: {end} of {SMALL_QUOTA}: {self:?}"
        );
    }

    /// One row of the table of storms.
    #[expect(clippy::print_stdout, reason = "figures for a person")]
    pub(crate) fn print_row(&self, name: &str) {
        let Self { requests, failed, p99_before, p99_during, slowest, recovered, .. } = self;
        let ms = |time: &Duration| time.as_secs_f64() * 1_000.0;
        println!(
            "| {name} | {requests} | {} | {:.1} | {:.1} | {:.1} | {} | {:.1} |",
            failed.len(),
            ms(p99_before),
            ms(p99_during),
            ms(slowest),
            self.excess(),
            recovered.as_secs_f64()
        );
    }
}
