//! The record of both buckets: GCRA's theoretical arrival time, exact to a fraction of a
//! millisecond.

use tidegate_base::time::{Millis, StoreTime};

use super::{MAX_EXACT_BACKLOG, Quota};

/// The theoretical arrival time (TAT) of GCRA: the time from which no charge counts any more.
/// [`GcraState::default`] is a new caller's.
///
/// The TAT is `at + fraction / rate` ms, where `rate` is the quota of the last charge. The backlog
/// is the time from now to the TAT. It is counted in units of `1 / rate` ms (quota-milliseconds);
/// one unit of cost is `unit_backlog` of them. All are whole numbers, so nothing is rounded and nothing
/// drifts.
///
/// Source: the generic cell rate algorithm (virtual scheduling) of ITU-T I.371.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct GcraState {
    /// The time of the last charge or refund.
    pub updated_at: StoreTime,
    /// The reset time that was reported; not valid if it has passed.
    pub reset_at: StoreTime,
    at: StoreTime,
    fraction: u32,
    rate: u32,
}

impl GcraState {
    /// The time at which to read the record: never before `updated_at`, unless the clock was set
    /// back; the record then moves back with it.
    pub(super) fn follow_clock(&mut self, now: StoreTime) -> StoreTime {
        let (now, behind) = super::clamp_to_record(self.updated_at, now);
        if !behind.is_zero() {
            self.updated_at = now;
            self.at = self.at.before(behind);
            self.reset_at = self.reset_at.before(behind);
        }
        now
    }

    /// The quota of the last charge; 0 before the first.
    pub(super) fn rate(&self) -> u64 {
        u64::from(self.rate)
    }

    /// The time from `now` to the TAT, in units of `1 / rate` ms; 0 if it has passed.
    pub(super) fn backlog(&self, now: StoreTime) -> u64 {
        let left = self.at.checked_since(now);
        left.map_or(0, |left| left.as_ms() * self.rate() + u64::from(self.fraction))
    }

    /// [`Self::backlog`], in units of the given `rate`. If that is not the record's rate, the TAT
    /// is rounded up to a whole ms first.
    pub(super) fn backlog_at_rate(&self, now: StoreTime, rate: u64) -> u64 {
        if self.rate() == rate {
            return self.backlog(now);
        }
        let left = self.tat_rounded_up().since(now);
        left.as_ms().saturating_mul(rate).min(MAX_EXACT_BACKLOG)
    }

    /// Sets the TAT to `backlog` units of `1 / rate` ms after `now`.
    pub(super) fn set_backlog(&mut self, now: StoreTime, backlog: u64, rate: u64) {
        self.updated_at = now;
        self.at = now + Millis::from_ms(backlog / rate);
        self.fraction = (backlog % rate) as u32;
        self.rate = rate as u32;
    }

    /// The first ms at which the record is equivalent to a new caller's: the TAT and `reset_at`
    /// have passed.
    pub(super) fn expires_at(&self) -> StoreTime {
        self.reset_at.max(self.tat_rounded_up())
    }

    /// Checks the record after a charge or a refund.
    pub(super) fn check_invariants(&self) {
        debug_assert!(self.fraction < self.rate.max(1), "more than a ms: {self:?}");
        debug_assert!(self.rate > 0 || self.at == StoreTime::ZERO, "no rate: {self:?}");
        debug_assert!(self.reset_at >= self.updated_at, "reset before a charge: {self:?}");
    }

    fn tat_rounded_up(&self) -> StoreTime {
        self.at + Millis::from_ms(u64::from(self.fraction > 0))
    }
}

/// Maximum backlog: 4,460 years, half of the range of the packed record. Only overdrafts can
/// reach it.
const MAX_BACKLOG: Millis = Millis::from_ms(1 << 47);

/// The backlog of one unit of cost, in units of `1 / rate` ms. It passes in `window / rate`, so it
/// has as many of them as the window has ms.
pub(super) fn unit_backlog(quota: &Quota) -> u64 {
    quota.window.as_ms()
}

/// Adds `cost` to a backlog in units of `1 / rate` ms; the rate is the quota. Near the maximum, adds
/// only as many units of cost as fit, so that the sum can be counted exactly.
pub(super) fn extend_backlog(backlog: u64, quota: &Quota, cost: u64) -> u64 {
    let unit = unit_backlog(quota);
    let max = quota.limit.saturating_mul(MAX_BACKLOG.as_ms()).min(MAX_EXACT_BACKLOG);
    let backlog = backlog.min(max);
    backlog + cost.min((max - backlog) / unit) * unit
}
