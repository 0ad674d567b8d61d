//! [`UnixSeconds`]: a time of day in whole seconds.

use std::time::Duration;

use super::StoreTime;

/// A time of day in whole seconds since the Unix epoch, as certificates and key sets have it.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct UnixSeconds(u64);

impl UnixSeconds {
    /// The epoch.
    pub const ZERO: Self = Self(0);
    /// Later than any time that is read from a clock.
    pub const MAX: Self = Self(u64::MAX);

    /// The time `seconds` after the epoch.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds)
    }

    /// The second in which `time` is.
    pub const fn of(time: StoreTime) -> Self {
        Self(time.as_unix_ms() / 1_000)
    }

    /// The seconds since the epoch, for encoding.
    pub const fn as_secs(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to this one; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_secs(self.0.saturating_sub(earlier.0))
    }

    /// This time, `length` later, of which parts of a second do not count; at most [`Self::MAX`].
    #[must_use]
    pub const fn after(self, length: Duration) -> Self {
        Self(self.0.saturating_add(length.as_secs()))
    }

    /// This time, `length` earlier, of which parts of a second do not count; at least
    /// [`Self::ZERO`].
    #[must_use]
    pub const fn before(self, length: Duration) -> Self {
        Self(self.0.saturating_sub(length.as_secs()))
    }
}
