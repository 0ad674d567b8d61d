//! The length of a window in units of the protocol.

use prost::Enumeration;
use tidegate_base::time::Millis;

/// A window as a number of units.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct UnitWindow {
    /// The unit.
    pub unit: RateLimitUnit,
    /// How many.
    pub count: u32,
}

const SECOND: Millis = Millis::from_secs(1);
const DAY: Millis = days(1);
/// The longest window of a limit.
const MAX_WINDOW: Millis = days(366);

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

    /// The length; `None` of an unknown unit. As in envoyproxy/ratelimit, a month has 30 days and a
    /// year 365.
    pub fn length(self) -> Option<Millis> {
        Some(match self {
            Self::Unknown => return None,
            Self::Second => SECOND,
            Self::Minute => Millis::from_mins(1),
            Self::Hour => Millis::from_mins(60),
            Self::Day => DAY,
            Self::Week => days(7),
            Self::Month => days(30),
            Self::Year => days(365),
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
    /// A window of this length in the largest units that divide it; `None` of a window that is no
    /// whole number of seconds.
    pub fn of_length(length: Millis) -> Option<Self> {
        let units = RateLimitUnit::ALL.into_iter().rev();
        units.filter_map(|unit| Some((unit, unit.length()?))).find_map(|(unit, one)| {
            let count = u32::try_from(length / one).ok()?;
            (count > 0 && (length % one).is_zero()).then_some(Self { unit, count })
        })
    }

    /// The length; `None` without a unit, or of more than 366 days.
    pub fn length(self) -> Option<Millis> {
        let length = self.unit.length()?.saturating_mul(self.count.into());
        (Millis::MILLISECOND..=MAX_WINDOW).contains(&length).then_some(length)
    }
}

const fn days(count: u64) -> Millis {
    Millis::from_mins(24 * 60 * count)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_window_is_written_in_its_largest_unit() {
        for (length, unit, count) in [
            (SECOND, RateLimitUnit::Second, 1),
            (SECOND * 90, RateLimitUnit::Second, 90),
            (SECOND * 60, RateLimitUnit::Minute, 1),
            (SECOND * 2 * 3_600, RateLimitUnit::Hour, 2),
            (DAY, RateLimitUnit::Day, 1),
            (days(14), RateLimitUnit::Week, 2),
            (days(30), RateLimitUnit::Month, 1),
            (days(365), RateLimitUnit::Year, 1),
            (days(366), RateLimitUnit::Day, 366),
        ] {
            assert_eq!(UnitWindow::of_length(length), Some(UnitWindow { unit, count }));
        }
        for millis in [500, 1_500, 0] {
            assert_eq!(UnitWindow::of_length(Millis::from_ms(millis)), None);
        }
        assert_eq!(UnitWindow { unit: RateLimitUnit::Unknown, count: 1 }.length(), None);
        assert_eq!(UnitWindow { unit: RateLimitUnit::Second, count: 0 }.length(), None);
        assert_eq!(UnitWindow { unit: RateLimitUnit::Year, count: u32::MAX }.length(), None);
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
            let length = Millis::from_secs(seconds);
            let window = UnitWindow::of_length(length).unwrap();
            prop_assert_eq!(window.length(), Some(length));
        }
    }
}
