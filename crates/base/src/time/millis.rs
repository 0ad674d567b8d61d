//! [`Millis`]: a length of time.

use std::{
    fmt,
    iter::Sum,
    ops::{Add, AddAssign, Div, Mul, Rem, Sub, SubAssign},
    time::Duration,
};

/// A length of time in whole ms. One word, so that limits calculate with it as with a number; the
/// unit is in the type, so that seconds and microseconds are not taken for it.
///
/// ```
/// use tidegate_base::time::{Millis, StoreTime};
///
/// let start = StoreTime::from_unix_ms(1_700_000_000_000);
/// let window = Millis::from_secs(60);
/// assert_eq!((start + window).since(start), window);
/// assert_eq!(window.as_ms(), 60_000);
/// ```
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[repr(transparent)]
pub struct Millis(u64);

/// `count` ms; short, for tables.
pub const fn ms(count: u64) -> Millis {
    Millis::from_ms(count)
}

impl Millis {
    /// No time.
    pub const ZERO: Self = Self(0);
    /// Longer than any time that is waited for.
    pub const MAX: Self = Self(u64::MAX);
    /// The unit.
    pub const MILLISECOND: Self = Self(1);

    /// `ms` milliseconds.
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms)
    }

    /// `seconds` seconds, at most [`Self::MAX`].
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000))
    }

    /// `minutes` minutes, at most [`Self::MAX`].
    pub const fn from_mins(minutes: u64) -> Self {
        Self(minutes.saturating_mul(60_000))
    }

    /// `duration`, rounded down to whole ms; at most [`Self::MAX`].
    pub const fn from_duration(duration: Duration) -> Self {
        let ms = duration.as_millis();
        Self(if ms > u64::MAX as u128 { u64::MAX } else { ms as u64 })
    }

    /// The number of ms, for encoding.
    pub const fn as_ms(self) -> u64 {
        self.0
    }

    /// In seconds, for encoding.
    pub const fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1_000.0
    }

    /// In whole seconds, rounded up, for encoding.
    pub const fn as_secs_rounded_up(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// In whole seconds, rounded down, for encoding.
    pub const fn as_whole_secs(self) -> u64 {
        self.0 / 1_000
    }

    /// The same length, for a timer.
    pub const fn as_duration(self) -> Duration {
        Duration::from_millis(self.0)
    }

    /// True if it is no time.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// This length and `other`, at most [`Self::MAX`].
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// This length without `other`, at least [`Self::ZERO`].
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// `times` this length, at most [`Self::MAX`].
    #[must_use]
    pub const fn saturating_mul(self, times: u64) -> Self {
        Self(self.0.saturating_mul(times))
    }

    /// How often `part`, which is not zero, is in this length, rounded up.
    pub const fn div_ceil(self, part: Self) -> u64 {
        self.0.div_ceil(part.0)
    }
}

/// `250ms`, `1500ms`: for messages of tests and logs.
impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0)
    }
}

impl Add for Millis {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Millis {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Millis {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl SubAssign for Millis {
    fn sub_assign(&mut self, other: Self) {
        self.0 -= other.0;
    }
}

impl Mul<u64> for Millis {
    type Output = Self;

    fn mul(self, times: u64) -> Self {
        Self(self.0 * times)
    }
}

impl Div<u64> for Millis {
    type Output = Self;

    fn div(self, parts: u64) -> Self {
        Self(self.0 / parts)
    }
}

/// How often a length is in another one, rounded down.
impl Div for Millis {
    type Output = u64;

    fn div(self, part: Self) -> u64 {
        self.0 / part.0
    }
}

impl Rem for Millis {
    type Output = Self;

    fn rem(self, part: Self) -> Self {
        Self(self.0 % part.0)
    }
}

impl Sum for Millis {
    fn sum<I: Iterator<Item = Self>>(lengths: I) -> Self {
        lengths.fold(Self::ZERO, Add::add)
    }
}
