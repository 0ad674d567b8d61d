//! The limit algorithms: pure functions of `(state, quota, now, cost)`.
//!
//! Nothing here reads a clock, does I/O or waits. Each algorithm is one file with a Lua counterpart
//! of the same name in `lua/` of Tidegate's repository, and a differential test runs random sequences through both. Every
//! algorithm has the same five functions: `decide` (checks, charges nothing), `charge` (charges,
//! checks nothing), `admit` (both), `refund` and `expires_at`.
//!
//! Every algorithm promises (`properties.rs` tests it): a refused request is not charged,
//! `retry_at` is exact to the ms, and `reset_at` never moves back.
//!
//! It is no store: the caller keeps each [`AlgorithmState`], decides what a key is, and passes the
//! time, as a [`StoreTime`] in ms since 1970. Costs are whole units, from 0 to [`MAX_UNITS`].
//!
//! | file | content |
//! |---|---|
//! | [`sliding_window`], [`sliding_log`], [`fixed_window`] | one algorithm each, with its bound on admissions |
//! | [`token_bucket`], [`leaky_bucket`], [`concurrency`] | one algorithm each, with its bound on admissions |
//! | [`block`] | refuses callers that a limit has refused too often |
//! | `algorithm` | the algorithms and their properties |
//! | `calendar` | hours, days, weeks and months by the clocks of a time zone |
//! | `state` | the record of any algorithm |
//! | `gcra` | the record of both buckets: a theoretical arrival time |
//! | `free_slots`, `counts` | the refunded slots of a leaky bucket; the counters of a sliding window |
//! | `identity` | the identity of a limit, which distinguishes its records |
//! | `acquire` | units that a process acquires from a shared record in batches |
//! | `verdict` | the decisions of all limits of one request |
//!
//! ```
//! use tidegate_limit::{AlgorithmState, Quota, StoreTime};
//!
//! // Two requests a minute, counted in sub-windows of 10 s.
//! let quota = Quota::sliding(2, 60_000, 6);
//! let mut state = AlgorithmState::fresh(quota.algorithm);
//! let now = StoreTime::from_unix_ms(1_700_000_000_000);
//! assert!(state.admit(&quota, now, 1).admitted);
//! assert!(state.admit(&quota, now + 5, 1).admitted);
//!
//! let refused = state.admit(&quota, now + 10, 1);
//! assert!(!refused.admitted);
//! let retry_at = refused.retry_at.expect("a cost of 1 fits the quota");
//! assert!(!state.admit(&quota, retry_at - 1, 1).admitted);
//! assert!(state.admit(&quota, retry_at, 1).admitted);
//! ```

mod acquire;
mod algorithm;
pub mod block;
mod calendar;
pub mod concurrency;
mod counts;
pub mod fixed_window;
mod free_slots;
mod gcra;
mod identity;
pub mod leaky_bucket;
#[cfg(test)]
mod properties;
pub mod sliding_log;
pub mod sliding_window;
mod state;
pub mod token_bucket;
mod verdict;

use std::sync::Arc;

pub use acquire::{Acquisition, Grant, MAX_LEASED_UNITS, UnitDemand, UnitReturn};
pub use algorithm::Algorithm;
pub use calendar::{Calendar, CalendarPeriod, CalendarWindow};
pub use counts::Counts;
pub use gcra::GcraState;
pub use identity::LimitIdentity;
pub use state::AlgorithmState;
pub use verdict::{BlockEffect, DecisionSource, Outcome, StoreDecision, Verdict};

use tidegate_base::mix::folded_multiply;
pub use tidegate_base::time::StoreTime;

/// Maximum units of a quota, a cost or a count: 2^53 - 1. Lua counts in doubles, which hold every
/// whole number up to it; JSON's readers do the same. A count saturates at it.
pub const MAX_UNITS: u64 = (1 << 53) - 1;

/// Maximum product of a bucket's quota and its window or `max_wait` (ms). Up to it, Lua computes
/// exactly, as Rust does.
pub const MAX_QUOTA_MILLIS: u64 = 1 << 52;

/// Maximum backlog of a bucket, in quota-milliseconds (see [`GcraState`]). It is slightly below
/// 2^53, up to which Lua counts and divides exactly. Without an overdraft, [`MAX_QUOTA_MILLIS`]
/// keeps the backlog below about half of it.
pub const MAX_EXACT_BACKLOG: u64 = (1 << 53) - (1 << 36);

/// Maximum step back of a clock, in ms, that counts as jitter between clocks: the record's time
/// then stands still. After a larger step, the clock counts as set back, and the record moves back
/// with it.
pub const MAX_STEP_BACK: u64 = 5_000;

/// Maximum debt of a caller, in quotas. A cost that is known after its request is charged up to
/// this: one wrong number of an upstream must not block its caller for years, nor keep a record for
/// that long. A bucket refills one quota in a window, so ten quotas are paid back in ten windows.
/// The debts of the other algorithms leave with their window.
pub const MAX_DEBT_QUOTAS: u64 = 10;

/// What the name of a block has after that of its limit. No configured name has the character `~`.
const BLOCK_SUFFIX: &str = "~block";

/// Distinguishes the fingerprints of blocks. It must not change, because records in Redis have it
/// in their name.
const BLOCK_FINGERPRINT: u64 = 0x9e37_79b9_7f4a_7c15;

/// Maximum number of sub-windows in a window.
pub const MAX_RESOLUTION: u32 = 60;

/// The caller that a limit counts: a keyed 128-bit hash of the limit's key parts, never the parts
/// themselves.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Key(pub u128);

/// The units that a caller may use in a window, and the algorithm that counts them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Quota {
    /// Maximum units of cost charged in one window.
    pub limit: u64,
    /// The window's length in ms; of a calendar, an upper bound of its windows' lengths.
    pub window: u64,
    /// The algorithm that counts the units.
    pub algorithm: Algorithm,
}

impl Quota {
    /// A quota of `limit` units in each `window` (ms).
    pub const fn new(limit: u64, window: u64, algorithm: Algorithm) -> Self {
        Self { limit, window, algorithm }
    }

    /// A quota of a sliding window, not strict, with `resolution` sub-windows.
    pub const fn sliding(limit: u64, window: u64, resolution: u32) -> Self {
        Self::new(limit, window, Algorithm::SlidingWindow { resolution, strict: false })
    }

    /// A quota of `limit` units in each window of `calendar`.
    pub fn calendar(limit: u64, calendar: Calendar) -> Self {
        Self::new(limit, calendar.longest(), Algorithm::CalendarWindow(calendar))
    }

    /// The length of a sub-window in ms.
    pub fn sub_window(&self) -> u64 {
        self.window / u64::from(self.algorithm.resolution())
    }

    /// The start of the sub-window that ends at `end`.
    pub fn sub_window_start(&self, end: StoreTime) -> StoreTime {
        match self.algorithm {
            Algorithm::FixedWindow | Algorithm::CalendarWindow(_) => {
                fixed_window::window_start(self, end)
            }
            Algorithm::SlidingWindow { .. }
            | Algorithm::SlidingLog
            | Algorithm::TokenBucket
            | Algorithm::LeakyBucket { .. }
            | Algorithm::Concurrency
            | Algorithm::Block { .. } => end.minus_ms(self.sub_window()),
        }
    }

    /// The number by which quotas with the same [`Self::limit`] on one record differ, at most 2^32 - 1: a bucket's
    /// `max_wait`, a sliding window's strictness, a month's first day.
    pub fn variant(&self) -> u32 {
        match self.algorithm {
            Algorithm::LeakyBucket { max_wait } => max_wait,
            Algorithm::SlidingWindow { strict, .. } => strict.into(),
            Algorithm::CalendarWindow(calendar) => calendar.month_start().into(),
            Algorithm::SlidingLog
            | Algorithm::FixedWindow
            | Algorithm::TokenBucket
            | Algorithm::Concurrency
            | Algorithm::Block { .. } => 0,
        }
    }

    /// The units that a caller without usage may use at once: the limit or, if requests are
    /// delayed, the slots within the longest delay. Equals [`Decision::limit`].
    pub fn capacity(&self) -> u64 {
        match self.algorithm {
            Algorithm::LeakyBucket { .. } => leaky_bucket::capacity(self),
            Algorithm::SlidingWindow { .. }
            | Algorithm::SlidingLog
            | Algorithm::FixedWindow
            | Algorithm::CalendarWindow(_)
            | Algorithm::TokenBucket
            | Algorithm::Concurrency
            | Algorithm::Block { .. } => self.limit,
        }
    }

    /// Maximum of [`Decision::used`] that costs charged after their requests lead to: see
    /// [`MAX_DEBT_QUOTAS`].
    pub fn max_overdrawn(&self) -> u64 {
        let debt = self.limit.saturating_mul(MAX_DEBT_QUOTAS);
        self.capacity().saturating_add(debt).min(MAX_UNITS)
    }

    /// The time after a charge for which its correction can have an effect, in ms.
    pub fn correction_window(&self) -> u64 {
        match self.algorithm {
            Algorithm::SlidingWindow { .. } => self.window + self.sub_window(),
            Algorithm::LeakyBucket { max_wait } => self.window + u64::from(max_wait),
            Algorithm::SlidingLog
            | Algorithm::FixedWindow
            | Algorithm::CalendarWindow(_)
            | Algorithm::TokenBucket
            | Algorithm::Concurrency
            | Algorithm::Block { .. } => self.window,
        }
    }
}

/// The decision on a request while Redis is unavailable.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize, serde::Serialize),
    serde(rename_all = "snake_case")
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum OnFailure {
    /// This gateway enforces its share of the limit from its own memory.
    #[default]
    Local,
    /// The request is admitted.
    Open,
    /// The request is refused with 503.
    Closed,
}

/// How many units a gateway takes from the shared store in one call.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum LeaseSize {
    /// The cost of the request: every request calls the store.
    #[default]
    Off,
    /// A batch that adapts to the rate at which the units are used.
    Auto,
    /// Batches of this many units.
    Units(u64),
}

/// One configured limit.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Its name, and a fingerprint of the settings that its counters depend on.
    pub identity: LimitIdentity,
    /// The quota of each caller, and the algorithm that decides.
    pub quota: Quota,
    /// The cost of one request.
    pub cost: u64,
    /// The decision when the shared store gives no answer.
    pub on_failure: OnFailure,
    /// How many units a gateway takes from the shared store in one call.
    pub lease_size: LeaseSize,
    /// True if the limit may refuse. If false (a dry run), it charges the requests that it would
    /// admit, and affects no request.
    pub enforce: bool,
    /// The block that is charged beside the limit; `None` if the limit blocks no caller.
    pub block: Option<Arc<Limit>>,
    /// The limit with months that start at day 1, 2 and so on up to 31, if customers have billing
    /// days under it.
    pub by_billing_day: Option<Arc<[Arc<Limit>]>>,
    /// The caller's number for it, such as its index in a list.
    pub index: usize,
}

impl Limit {
    /// An enforced limit of requests that cost 1. It leases no units; while Redis is unavailable,
    /// each gateway enforces its share.
    pub fn new(identity: LimitIdentity, quota: Quota) -> Self {
        Self {
            identity,
            quota,
            cost: 1,
            on_failure: OnFailure::Local,
            lease_size: LeaseSize::Off,
            enforce: true,
            block: None,
            by_billing_day: None,
            index: 0,
        }
    }

    /// The configured name; shown in headers and metrics.
    pub fn name(&self) -> &str {
        self.identity.name()
    }

    /// The block that is charged beside this limit: it begins after `after` refusals within
    /// `within` ms, and lasts `duration` ms.
    #[must_use]
    pub fn with_block(self, after: u64, within: u64, duration: u32) -> Self {
        let name = format!("{}{BLOCK_SUFFIX}", self.name());
        let fingerprint = folded_multiply(self.identity.fingerprint() ^ within, BLOCK_FINGERPRINT);
        let block = Self {
            identity: LimitIdentity::new(name, fingerprint),
            quota: Quota::new(after, within, Algorithm::Block { duration }),
            cost: 1,
            lease_size: LeaseSize::Off,
            ..self.clone()
        };
        Self { block: Some(Arc::new(block)), ..self }
    }

    /// The limit with another quota.
    #[must_use]
    pub fn with_quota(&self, quota: Quota) -> Self {
        let limit = Self { quota, by_billing_day: None, ..self.clone() };
        if self.by_billing_day.is_some() { limit.with_billing_days() } else { limit }
    }

    /// The limit, where the months of a consumer start at its billing day. No other than a
    /// calendar's months do.
    #[must_use]
    pub fn with_billing_days(self) -> Self {
        let Algorithm::CalendarWindow(calendar) = self.quota.algorithm else { return self };
        if calendar.month_start() == 0 {
            return self;
        }
        let of_day = |day| {
            let algorithm = Algorithm::CalendarWindow(calendar.with_month_start(day));
            Arc::new(Self { quota: Quota { algorithm, ..self.quota }, ..self.clone() })
        };
        let by_billing_day = Some((1..=31).map(of_day).collect());
        Self { by_billing_day, ..self }
    }

    /// The limit for a consumer with this billing day.
    #[inline]
    pub fn for_billing_day(self: &Arc<Self>, day: Option<u8>) -> &Arc<Self> {
        let of_day = || self.by_billing_day.as_ref()?.get(usize::from(day?).checked_sub(1)?);
        of_day().unwrap_or(self)
    }

    /// The name of the limit that this block belongs to.
    pub fn blocked_name(&self) -> &str {
        self.name().strip_suffix(BLOCK_SUFFIX).unwrap_or(self.name())
    }

    /// The algorithm that decides.
    pub fn algorithm(&self) -> Algorithm {
        self.quota.algorithm
    }
}

/// A request's charge to one limit for one caller.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The limit to charge.
    pub limit: &'a Arc<Limit>,
    /// The caller to charge.
    pub key: Key,
    /// The cost in the quota's units. A cost of 0 is always admitted and charges nothing.
    pub cost: u64,
}

/// A correction of an earlier charge: see [`Change`].
#[derive(Clone, Copy, Debug)]
pub struct Adjustment<'a> {
    /// The limit that was charged.
    pub limit: &'a Arc<Limit>,
    /// The caller that was charged.
    pub key: Key,
    /// What to change.
    pub change: Change,
}

/// A change to a caller's charges.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Change {
    /// Refunds units of an earlier charge, as far as they still count. Usage never goes below 0.
    Refund {
        /// The time at which the units were charged, by the clock that decided; for a leaky bucket,
        /// plus [`Decision::wait`]. See [`StoreDecision::charged_at`].
        charged_at: StoreTime,
        /// How many units.
        cost: u64,
    },
    /// Refunds units of earlier charges whose times are not known, as far as they still count: the
    /// newest ones or, of permits, the ones whose leases end first. Usage never goes below 0.
    Release {
        /// How many units.
        cost: u64,
    },
    /// Charges more units without a check, even if that overdraws the quota, up to
    /// [`Quota::max_overdrawn`]. For a block: counts refusals of its limit. For permits: takes them
    /// without a bound, because a renewal does.
    Overdraw {
        /// How many units.
        cost: u64,
    },
}

impl Change {
    /// True if it gives units back.
    pub fn gives_back(self) -> bool {
        match self {
            Self::Refund { .. } | Self::Release { .. } => true,
            Self::Overdraw { .. } => false,
        }
    }

    /// The number of units that are refunded or charged.
    pub fn cost(self) -> u64 {
        let (Self::Refund { cost, .. } | Self::Release { cost } | Self::Overdraw { cost }) = self;
        cost
    }
}

/// The decision of one limit on one charge.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Decision {
    /// True if this limit admits the request, whatever the request's other limits decide.
    pub admitted: bool,
    /// The quota that was enforced.
    pub limit: u64,
    /// The units of cost that are left after this request.
    pub remaining: u64,
    /// The units of cost that are used after this request. Above `limit` only if the quota was
    /// lowered or overdrawn.
    pub used: u64,
    /// The reset time in ms since the epoch. It never moves back, unless the clock was set back.
    /// While it is in the future, only a charge or a lowered quota moves it.
    pub reset_at: StoreTime,
    /// The first ms at which the same charge would be admitted if nothing else were charged. `None`
    /// if it is admitted, or if its cost is above the quota.
    pub retry_at: Option<StoreTime>,
    /// Time for which the caller must delay the admitted request, in ms; 0 unless the limit is a
    /// leaky bucket.
    pub wait: u64,
}

impl Decision {
    /// Sets the used units, and with them the remaining ones.
    pub fn set_used(&mut self, used: u64) {
        (self.used, self.remaining) = (used, self.limit.saturating_sub(used));
    }
}

/// The time at which to read a record that was updated at `updated_at`, and the number of ms by
/// which the record must first be moved back: 0 unless the clock was set back.
fn clamp_to_record(updated_at: StoreTime, now: StoreTime) -> (StoreTime, u64) {
    match updated_at.saturating_sub(now) {
        0 => (now, 0),
        behind if behind <= MAX_STEP_BACK => (updated_at, 0),
        behind => (now, behind),
    }
}
