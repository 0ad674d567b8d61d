//! The length of a window in units of the protocol.

use prost::Enumeration;

/// A window as a number of units.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct UnitWindow {
    /// The unit.
    pub unit: RateLimitUnit,
    /// How many.
    pub count: u32,
}

const SECOND: u64 = 1_000;
const DAY: u64 = 86_400 * SECOND;
/// The longest window of a limit, in ms.
const MAX_WINDOW: u64 = 366 * DAY;

/// `RateLimitResponse.RateLimit.Unit`, of which `envoy.type.v3.RateLimitUnit` has all but the week.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Enumeration)]
#[repr(i32)]
pub enum RateLimitUnit {
    /// No unit.
    Unknown = 0,
    /// A second.
    Second = 1,
    /// A minute.
    Minute = 2,
    /// An hour.
    Hour = 3,
    /// A day.
    Day = 4,
    /// A month of 30 days.
    Month = 5,
    /// A year of 365 days.
    Year = 6,
    /// A week.
    Week = 7,
}

impl RateLimitUnit {
    /// The units of windows.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// The length in ms; `None` of an unknown unit. As in envoyproxy/ratelimit, a month has 30 days
    /// and a year 365.
    pub fn millis(self) -> Option<u64> {
        Some(match self {
            Self::Unknown => return None,
            Self::Second => SECOND,
            Self::Minute => 60 * SECOND,
            Self::Hour => 3_600 * SECOND,
            Self::Day => DAY,
            Self::Week => 7 * DAY,
            Self::Month => 30 * DAY,
            Self::Year => 365 * DAY,
        })
    }

    /// The unit of this name, in any case.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.as_name().eq_ignore_ascii_case(name))
    }

    /// The name in lower case.
    pub fn as_name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }
}

impl UnitWindow {
    /// A window of `millis` in the largest units that divide it; `None` of a window that is no
    /// whole number of seconds.
    pub fn of_millis(millis: u64) -> Option<Self> {
        let units = RateLimitUnit::ALL.into_iter().rev();
        units.filter_map(|unit| Some((unit, unit.millis()?))).find_map(|(unit, length)| {
            let count = u32::try_from(millis / length).ok()?;
            (count > 0 && millis.is_multiple_of(length)).then_some(Self { unit, count })
        })
    }

    /// The length in ms; `None` without a unit, or of more than 366 days.
    pub fn millis(self) -> Option<u64> {
        let millis = self.unit.millis()?.checked_mul(self.count.into())?;
        (1..=MAX_WINDOW).contains(&millis).then_some(millis)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_window_is_written_in_its_largest_unit() {
        for (millis, unit, count) in [
            (1_000, RateLimitUnit::Second, 1),
            (90_000, RateLimitUnit::Second, 90),
            (60_000, RateLimitUnit::Minute, 1),
            (2 * 3_600_000, RateLimitUnit::Hour, 2),
            (DAY, RateLimitUnit::Day, 1),
            (14 * DAY, RateLimitUnit::Week, 2),
            (30 * DAY, RateLimitUnit::Month, 1),
            (365 * DAY, RateLimitUnit::Year, 1),
            (366 * DAY, RateLimitUnit::Day, 366),
        ] {
            assert_eq!(UnitWindow::of_millis(millis), Some(UnitWindow { unit, count }));
        }
        assert_eq!(UnitWindow::of_millis(500), None);
        assert_eq!(UnitWindow::of_millis(1_500), None);
        assert_eq!(UnitWindow::of_millis(0), None);
        assert_eq!(UnitWindow { unit: RateLimitUnit::Unknown, count: 1 }.millis(), None);
        assert_eq!(UnitWindow { unit: RateLimitUnit::Second, count: 0 }.millis(), None);
        assert_eq!(UnitWindow { unit: RateLimitUnit::Year, count: u32::MAX }.millis(), None);
    }

    #[test]
    fn units_are_found_by_their_names_in_any_case() {
        assert_eq!(RateLimitUnit::of_name("MINUTE"), Some(RateLimitUnit::Minute));
        assert_eq!(RateLimitUnit::of_name("day"), Some(RateLimitUnit::Day));
        for unknown in ["unknown", "minutes", ""] {
            assert_eq!(RateLimitUnit::of_name(unknown), None);
        }
    }

    proptest! {
        #[test]
        fn the_units_have_the_length_of_the_window(seconds in 1..10_000_000_u64) {
            let window = UnitWindow::of_millis(seconds * 1_000).unwrap();
            prop_assert_eq!(window.millis(), Some(seconds * 1_000));
        }
    }
}
