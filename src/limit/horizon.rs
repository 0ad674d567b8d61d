//! Up to when a bucket is taken, to a fraction of a millisecond.

use super::{MAX_EXACT, Millis};

/// The record of both buckets: one point in time, the "theoretical arrival time" of GCRA, and what a
/// client was told of it. [`Horizon::default`] is a caller never seen.
///
/// The point is `at + fraction / rate` ms, where `rate` is the quota that the last charge was made
/// under. One unit of it, one millisecond's worth of that quota, is `1 / rate` ms; one unit of cost is
/// a window's worth of ms and so `window` such units. All are whole numbers: nothing is rounded, and
/// so nothing drifts.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Horizon {
    /// When the last charge was made.
    pub seen: Millis,
    /// The reset-at that clients were told; in the past, it means nothing. Never before the point,
    /// and after it where something was given back.
    pub reset_at: Millis,
    at: Millis,
    fraction: u32,
    rate: u32,
}

impl Horizon {
    /// The time that counts for this record: it never runs backwards.
    pub(super) fn settle(&mut self, now: Millis) -> Millis {
        let (now, behind) = super::settle(self.seen, now);
        if behind > 0 {
            self.seen = now;
            self.at = self.at.saturating_sub(behind);
            self.reset_at = self.reset_at.saturating_sub(behind);
        }
        now
    }

    /// The quota that the last charge was made under; 0 before the first.
    pub(super) fn rate(&self) -> u64 {
        u64::from(self.rate)
    }

    /// How far the point is ahead of `now`, in units of `1 / rate` ms; 0 if it is not.
    pub(super) fn ahead(&self, now: Millis) -> u64 {
        self.at.checked_sub(now).map_or(0, |ms| ms * self.rate() + u64::from(self.fraction))
    }

    /// How far the point is ahead of `now`, in units of `1 / rate` ms of another `rate`. What does not
    /// divide evenly is rounded up to a whole ms, once, when the quota has changed.
    pub(super) fn ahead_at(&self, now: Millis, rate: u64) -> u64 {
        if self.rate() == rate {
            return self.ahead(now);
        }
        let up = self.at + u64::from(self.fraction > 0);
        up.saturating_sub(now).saturating_mul(rate).min(MAX_EXACT)
    }

    /// Puts the point `ahead` units of `1 / rate` ms after `now`.
    pub(super) fn set(&mut self, now: Millis, ahead: u64, rate: u64) {
        self.seen = now;
        self.at = now + ahead / rate;
        self.fraction = (ahead % rate) as u32;
        self.rate = rate as u32;
    }

    /// Keeps what clients are told from moving back, and never before the point.
    pub(super) fn promise(&mut self) {
        self.reset_at = self.reset_at.max(self.at + u64::from(self.fraction > 0));
    }
}

/// How far ahead of now the point may be, in ms: 4,460 years, and the packed record ends after twice
/// that. Only what is charged without asking can owe so much.
const FARTHEST: Millis = 1 << 47;

/// `ahead`, in units of `1 / rate` ms, and so many units of cost, `window` of them each, as far as that
/// can be counted exactly.
pub(super) fn owe(ahead: u64, rate: u64, window: Millis, cost: u32) -> u64 {
    let most = rate.saturating_mul(FARTHEST).min(MAX_EXACT);
    let ahead = ahead.min(most);
    ahead + u64::from(cost).min((most - ahead) / window) * window
}
