//! The waiting room in the report of a replay. Its field names are the JSON's: a stable interface.

use serde::Serialize;

use super::{caller_name, rfc3339};
use crate::replay::{UserWait, WaitEnd, WaitingCounts};
use crate::time::Millis;

/// What the waiting room would have done.
#[derive(Debug, Serialize)]
pub struct WaitingReport {
    /// Number of waits. A user that waits again counts again.
    pub waited: u64,
    /// Number of waits that ended with an admission.
    pub admitted: u64,
    /// Number of waits that ended because the user gave up.
    pub gave_up: u64,
    /// Number of users that waited when the log ended.
    pub still_waiting: u64,
    /// Number of requests that were refused without a place, because they have no token or one that
    /// was rejected.
    pub without_place: u64,
    /// The wait in seconds that half of the admitted users did not exceed.
    pub wait_p50: Option<u64>,
    /// The wait in seconds that nine tenths of the admitted users did not exceed.
    pub wait_p90: Option<u64>,
    /// The wait in seconds that 99 % of the admitted users did not exceed.
    pub wait_p99: Option<u64>,
    /// The longest wait of an admitted user, in seconds.
    pub wait_max: Option<u64>,
    /// The largest number of users that waited together.
    pub longest_queue: Option<LongestQueue>,
    /// The largest estimate of active users.
    pub most_active: u64,
    /// Time for which only active users were admitted, in seconds.
    pub throttled_seconds: u64,
    /// The longest waits.
    pub longest_waits: Vec<WaitRow>,
}

/// The largest number of users that waited together.
#[derive(Debug, Serialize)]
pub struct LongestQueue {
    /// Its time (RFC 3339).
    pub time: String,
    /// The number.
    pub users: u64,
}

/// The wait of one user.
#[derive(Debug, Serialize)]
pub struct WaitRow {
    /// `token:HASH` or `user:NAME`.
    pub caller: String,
    /// When it began (RFC 3339).
    pub since: String,
    /// Its length in seconds.
    pub waited: u64,
    /// `admitted`, `gave_up`, or `still_waiting` when the log ended.
    pub end: &'static str,
}

impl WaitingReport {
    /// The report of a finished replay, with at most `top` of the longest waits.
    pub(super) fn new(counts: &WaitingCounts, top: usize) -> Self {
        let queue = |(time, users)| LongestQueue { time: rfc3339(time), users };
        let quantile = |share| counts.quantile(share).map(Millis::as_whole_secs);
        Self {
            waited: counts.waited,
            admitted: counts.admitted,
            gave_up: counts.gave_up,
            still_waiting: counts.still_waiting,
            without_place: counts.without_place,
            wait_p50: quantile(0.5),
            wait_p90: quantile(0.9),
            wait_p99: quantile(0.99),
            wait_max: quantile(1.0),
            longest_queue: counts.longest_queue.map(queue),
            most_active: counts.most_active,
            throttled_seconds: counts.throttled.as_whole_secs(),
            longest_waits: counts.longest.iter().rev().take(top).map(WaitRow::new).collect(),
        }
    }
}

impl WaitRow {
    fn new(wait: &UserWait) -> Self {
        Self {
            caller: caller_name(&wait.caller),
            since: rfc3339(wait.since),
            waited: wait.length.as_secs_rounded_up(),
            end: match wait.end {
                WaitEnd::Admitted => "admitted",
                WaitEnd::GaveUp => "gave_up",
                WaitEnd::LogEnded => "still_waiting",
            },
        }
    }
}
