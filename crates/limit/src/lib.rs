//! The limit algorithms: pure functions of `(state, quota, now, cost)`.
//!
//! Nothing here reads a clock, does I/O or waits. Each algorithm is one file with a Lua counterpart
//! of the same name in `lua/` of Tidegate's repository, for records that several processes share in
//! Redis. `rust_and_lua_decide_alike` (`tests/stores/differential.rs`) runs random sequences through
//! both. Every algorithm but [`block`] has the same five functions: `decide` (checks, charges
//! nothing), `charge` (charges, checks nothing), `admit` (both), `refund` and `expires_at`.
//!
//! Every algorithm promises (`properties.rs` tests it): a refused request is not charged,
//! `retry_at` is exact to the ms, and `reset_at` never moves back.
//!
//! It is no store: the caller keeps each [`AlgorithmState`], decides what a key is, and passes the
//! time, as a [`StoreTime`]. Costs are whole units, from 0 to [`MAX_UNITS`],
//! or less for some algorithms ([`Algorithm::max_units`]).
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
//! | `acquire` | units that a process acquires from a shared record in batches |
//!
//! ```
//! use tidegate_limit::{AlgorithmState, Millis, Quota, StoreTime};
//!
//! // Two requests a minute, counted in sub-windows of 10 s.
//! let quota = Quota::sliding(2, Millis::from_secs(60), 6);
//! let mut state = AlgorithmState::fresh(quota.algorithm);
//! let now = StoreTime::from_unix_ms(1_700_000_000_000);
//! assert!(state.admit(&quota, now, 1).admitted);
//! assert!(state.admit(&quota, now + Millis::from_ms(5), 1).admitted);
//!
//! let refused = state.admit(&quota, now + Millis::from_ms(10), 1);
//! assert!(!refused.admitted);
//! let retry_at = refused.retry_at.expect("a cost of 1 fits the quota");
//! assert!(!state.admit(&quota, retry_at - Millis::MILLISECOND, 1).admitted);
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
pub mod leaky_bucket;
#[cfg(test)]
mod properties;
pub mod sliding_log;
pub mod sliding_window;
mod state;
pub mod token_bucket;

pub use acquire::{Grant, MAX_LEASED_UNITS, UnitDemand, UnitReturn};
pub use algorithm::Algorithm;
pub use calendar::{Calendar, CalendarPeriod, CalendarWindow};
pub use counts::Counts;
pub use gcra::GcraState;
pub use state::AlgorithmState;

pub use tidegate_base::time::{Millis, StoreTime, ms};

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

/// Maximum step back of a clock that counts as jitter between clocks: the record's time
/// then stands still. After a larger step, the clock counts as set back, and the record moves back
/// with it.
pub const MAX_STEP_BACK: Millis = Millis::from_secs(5);

/// Maximum debt of a caller, in quotas. A cost that is known after its request is charged up to
/// this: one wrong report must not block its caller for years, nor keep a record for that long. A bucket refills one quota in a window, so ten quotas are paid back in ten windows.
/// The debts of the other algorithms leave with their window.
pub const MAX_DEBT_QUOTAS: u64 = 10;

/// Maximum number of sub-windows in a window.
pub const MAX_RESOLUTION: u32 = 60;

/// The units that a caller may use in a window, and the algorithm that counts them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Quota {
    /// Maximum units of cost charged in one window.
    pub limit: u64,
    /// The window's length; of a calendar, an upper bound of its windows' lengths.
    pub window: Millis,
    /// The algorithm that counts the units.
    pub algorithm: Algorithm,
}

impl Quota {
    /// A quota of `limit` units in each `window`.
    pub const fn new(limit: u64, window: Millis, algorithm: Algorithm) -> Self {
        Self { limit, window, algorithm }
    }

    /// A quota of a sliding window, not strict, with `resolution` sub-windows.
    pub const fn sliding(limit: u64, window: Millis, resolution: u32) -> Self {
        Self::new(limit, window, Algorithm::SlidingWindow { resolution, strict: false })
    }

    /// A quota of `limit` units in each window of `calendar`.
    pub fn calendar(limit: u64, calendar: Calendar) -> Self {
        Self::new(limit, calendar.longest(), Algorithm::CalendarWindow(calendar))
    }

    /// The length of a sub-window.
    pub fn sub_window(&self) -> Millis {
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
            | Algorithm::Block { .. } => end.before(self.sub_window()),
        }
    }

    /// The number by which quotas with the same [`Self::limit`] on one record differ, at most 2^32 - 1: a bucket's
    /// `max_wait` in ms, a sliding window's strictness, a month's first day.
    pub fn variant(&self) -> u32 {
        match self.algorithm {
            Algorithm::LeakyBucket { max_wait } => {
                u32::try_from(max_wait.as_ms()).unwrap_or(u32::MAX)
            }
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

    /// The time after a charge for which its correction can have an effect.
    pub fn correction_window(&self) -> Millis {
        match self.algorithm {
            Algorithm::SlidingWindow { .. } => self.window + self.sub_window(),
            Algorithm::LeakyBucket { max_wait } => self.window + max_wait,
            Algorithm::SlidingLog
            | Algorithm::FixedWindow
            | Algorithm::CalendarWindow(_)
            | Algorithm::TokenBucket
            | Algorithm::Concurrency
            | Algorithm::Block { .. } => self.window,
        }
    }
}

/// A change to a caller's charges.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Change {
    /// Refunds units of an earlier charge, as far as they still count. Usage never goes below 0.
    Refund {
        /// The time at which the units were charged, by the clock that decided; for a leaky bucket,
        /// plus [`Decision::wait`].
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
    /// The reset time. It never moves back, unless the clock was set back.
    /// While it is in the future, only a charge or a lowered quota moves it.
    pub reset_at: StoreTime,
    /// The first ms at which the same charge would be admitted if nothing else were charged. `None`
    /// if it is admitted, or if its cost is above the quota.
    pub retry_at: Option<StoreTime>,
    /// Time for which the caller must delay the admitted request; zero unless the limit is a leaky
    /// bucket.
    pub wait: Millis,
}

impl Decision {
    /// Sets the used units, and with them the remaining ones.
    pub fn set_used(&mut self, used: u64) {
        (self.used, self.remaining) = (used, self.limit.saturating_sub(used));
    }
}

/// The time at which to read a record that was updated at `updated_at`, and the time by which
/// the record must first be moved back: zero unless the clock was set back.
fn clamp_to_record(updated_at: StoreTime, now: StoreTime) -> (StoreTime, Millis) {
    match updated_at.since(now) {
        Millis::ZERO => (now, Millis::ZERO),
        behind if behind <= MAX_STEP_BACK => (updated_at, Millis::ZERO),
        behind => (now, behind),
    }
}
