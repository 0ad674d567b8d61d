//! The kinds of time, one type each, so that no two kinds are compared by mistake. Only two
//! kinds convert to another one: [`Uptime::to_coarse`], [`UnixSeconds::of`].
//!
//! | type | read with | used for |
//! |---|---|---|
//! | [`StoreTime`] | `Clock::store_time`, Redis' `TIME` | the decisions of limits |
//! | [`MonotonicTime`] | `Clock::monotonic` | what threads cache of a store's decisions |
//! | [`CoarseTime`] | `CoarseClock::now`, [`Uptime::to_coarse`] | the deadlines of a worker's connections, the health of upstreams |
//! | [`Uptime`] | `Clock::uptime` | timers and measured durations |
//! | [`UnixSeconds`] | [`UnixSeconds::of`] a [`StoreTime`] | the validity of certificates |
//!
//! | file | content |
//! |---|---|
//! | `millis` | [`Millis`]: a length of time in whole ms |
//! | `unix_seconds` | [`UnixSeconds`]: a time of day in whole seconds |
//!
//! Nothing here reads a clock.
//!
//! The length of a time is [`Millis`] beside the first three, and a [`Duration`] beside
//! the others. Both become a number only at the edge, where they are encoded: in the arguments of a
//! script, in a header, in a log line, in an atomic. What confuses units or kinds does not compile:
//!
//! ```compile_fail,E0308
//! # use tidegate_base::time::StoreTime;
//! let later = StoreTime::ZERO + 5; // seconds, or ms?
//! ```
//!
//! ```compile_fail,E0308
//! # use {std::time::Duration, tidegate_base::time::StoreTime};
//! let later = StoreTime::ZERO + Duration::from_secs(5);
//! ```
//!
//! ```compile_fail,E0308
//! # use tidegate_base::time::{MonotonicTime, StoreTime};
//! let length = StoreTime::ZERO.since(MonotonicTime::ZERO);
//! ```
//!
//! ```compile_fail,E0308
//! # use tidegate_base::time::{CoarseTime, MonotonicTime};
//! let is_over = CoarseTime::ZERO < MonotonicTime::ZERO;
//! ```
//!
//! ```compile_fail,E0308
//! # use tidegate_base::time::StoreTime;
//! let wait: u64 = StoreTime::ZERO.since(StoreTime::ZERO);
//! ```
//!
//! ```compile_fail,E0308
//! # use {std::time::Duration, tidegate_base::time::Millis};
//! let window: Duration = Millis::from_secs(1);
//! ```
//!
//! ```
//! # use tidegate_base::time::{Millis, StoreTime, ms};
//! let later = StoreTime::ZERO + Millis::from_secs(5);
//! assert_eq!(later.since(StoreTime::ZERO), ms(5_000));
//! ```

mod millis;
mod unix_seconds;

use std::{
    ops::{Add, AddAssign, Sub, SubAssign},
    time::Duration,
};

pub use millis::{Millis, ms};
pub use unix_seconds::UnixSeconds;

/// Defines a point in time in whole ms. A length can be added and subtracted, a number cannot; the
/// difference of two points of one kind is a length.
macro_rules! time_in_ms {
    ($(#[$doc:meta])* $name:ident, $from:ident, $as:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// The start of the scale.
            pub const ZERO: Self = Self(0);
            /// Later than any time that is read from a clock.
            pub const MAX: Self = Self(u64::MAX);

            /// The time `ms` after the start of the scale.
            pub const fn $from(ms: u64) -> Self {
                Self(ms)
            }

            /// The ms since the start of the scale, for encoding.
            pub const fn $as(self) -> u64 {
                self.0
            }

            /// The time from `earlier` to this one; zero if `earlier` is later.
            pub const fn since(self, earlier: Self) -> Millis {
                Millis::from_ms(self.0.saturating_sub(earlier.0))
            }

            /// The time from `earlier` to this one; `None` if `earlier` is later.
            pub const fn checked_since(self, earlier: Self) -> Option<Millis> {
                match self.0.checked_sub(earlier.0) {
                    Some(ms) => Some(Millis::from_ms(ms)),
                    None => None,
                }
            }

            /// This time, `length` later, at most [`Self::MAX`].
            #[must_use]
            pub const fn after(self, length: Millis) -> Self {
                Self(self.0.saturating_add(length.as_ms()))
            }

            /// This time, `length` earlier, at least [`Self::ZERO`].
            #[must_use]
            pub const fn before(self, length: Millis) -> Self {
                Self(self.0.saturating_sub(length.as_ms()))
            }

            /// This time `ms` later, or earlier if `ms` is negative.
            #[must_use]
            pub const fn saturating_add_signed(self, ms: i64) -> Self {
                Self(self.0.saturating_add_signed(ms))
            }

            /// The ms from `other` to this time; negative if `other` is later.
            pub const fn ms_since(self, other: Self) -> i64 {
                self.0.cast_signed() - other.0.cast_signed()
            }

            /// This time, rounded up to a multiple of `length` since the start of the scale; at most
            /// [`Self::MAX`].
            #[must_use]
            pub const fn round_up_to(self, length: Millis) -> Self {
                Self(self.0.div_ceil(length.as_ms()).saturating_mul(length.as_ms()))
            }

            /// This time, rounded down to a multiple of `length` since the start of the scale.
            #[must_use]
            pub const fn round_down_to(self, length: Millis) -> Self {
                Self(self.0 / length.as_ms() * length.as_ms())
            }

            /// The whole periods of this length since the start of the scale.
            pub const fn whole_periods(self, length: Millis) -> u64 {
                self.0 / length.as_ms()
            }
        }

        impl Add<Millis> for $name {
            type Output = Self;

            fn add(self, length: Millis) -> Self {
                Self(self.0 + length.as_ms())
            }
        }

        impl AddAssign<Millis> for $name {
            fn add_assign(&mut self, length: Millis) {
                self.0 += length.as_ms();
            }
        }

        impl Sub<Millis> for $name {
            type Output = Self;

            fn sub(self, length: Millis) -> Self {
                Self(self.0 - length.as_ms())
            }
        }

        impl SubAssign<Millis> for $name {
            fn sub_assign(&mut self, length: Millis) {
                self.0 -= length.as_ms();
            }
        }

        /// The time from the right one, which is not later.
        impl Sub for $name {
            type Output = Millis;

            fn sub(self, earlier: Self) -> Millis {
                Millis::from_ms(self.0 - earlier.0)
            }
        }
    };
}

time_in_ms! {
    /// The time by which limits are decided: the wall clock's or Redis', in ms since the Unix
    /// epoch. It may be set back.
    StoreTime, from_unix_ms, as_unix_ms
}

time_in_ms! {
    /// Monotonic time in ms since a `Clock` was created. For a manual clock, the time since its
    /// start.
    MonotonicTime, from_ms, as_ms
}

time_in_ms! {
    /// An [`Uptime`] in whole ms, rounded down. A worker's `CoarseClock` may lag by one
    /// tick.
    CoarseTime, from_ms, as_ms
}

/// Monotonic time in ns since a `Clock` was created, up to 584 years. Timers use it.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Uptime(u64);

impl Uptime {
    /// When the clock was created.
    pub const ZERO: Self = Self(0);
    /// Later than any time that is read from a clock.
    pub const MAX: Self = Self(u64::MAX);

    /// The uptime of a clock that was created this long ago.
    pub const fn from_duration(since_creation: Duration) -> Self {
        Self(nanos(since_creation))
    }

    /// The uptime of a clock that was created this many ns ago.
    pub const fn from_nanos(since_creation: u64) -> Self {
        Self(since_creation)
    }

    /// The time since the clock was created.
    pub const fn as_duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// The time from `earlier` to this; zero if `earlier` is later.
    pub const fn saturating_sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// In whole ms, rounded down.
    pub const fn to_coarse(self) -> CoarseTime {
        CoarseTime(self.0 / 1_000_000)
    }
}

/// `duration` in ns, at most `u64::MAX`.
const fn nanos(duration: Duration) -> u64 {
    let nanos = duration.as_nanos();
    if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 }
}

impl Add<Duration> for Uptime {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }
}

impl AddAssign<Duration> for Uptime {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}
