//! Windows of limits: a length, or an hour, day, week or month by the clocks of a time zone.

use std::fmt;

use jiff::civil::Weekday;
use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};
use serde::{Serialize, Serializer};
use tidegate_limit::{Calendar, CalendarPeriod, Millis};
use tidegate_scalar::{ScalarValue, impl_scalar};

use super::units::Duration;

/// The window of a limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WindowConfig {
    /// Windows of this length.
    Length(Duration),
    /// Windows of a calendar.
    Calendar(CalendarUnit),
}

/// The length of a calendar's windows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CalendarUnit {
    /// An hour.
    Hour,
    /// A day.
    Day,
    /// A week.
    Week,
    /// A month.
    Month,
}

impl CalendarUnit {
    const NAMES: [(&'static str, Self); 4] =
        [("hour", Self::Hour), ("day", Self::Day), ("week", Self::Week), ("month", Self::Month)];

    /// The length that an operator means who wants no calendar.
    pub fn rolling(self) -> &'static str {
        match self {
            Self::Hour => "1h",
            Self::Day => "1d",
            Self::Week => "7d",
            Self::Month => "30d",
        }
    }
}

impl fmt::Display for CalendarUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, unit)| unit == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

impl WindowConfig {
    /// The length of the window. For a calendar: the longest one, without changes of the clocks.
    pub fn millis(self) -> Millis {
        const HOUR: Millis = Millis::from_mins(60);
        match self {
            Self::Length(length) => length.millis(),
            Self::Calendar(CalendarUnit::Hour) => HOUR,
            Self::Calendar(CalendarUnit::Day) => HOUR * 24,
            Self::Calendar(CalendarUnit::Week) => HOUR * (7 * 24),
            Self::Calendar(CalendarUnit::Month) => HOUR * (31 * 24),
        }
    }

    /// The unit of a calendar's windows; `None` for windows of a fixed length.
    pub fn calendar(self) -> Option<CalendarUnit> {
        match self {
            Self::Length(_) => None,
            Self::Calendar(unit) => Some(unit),
        }
    }
}

impl WindowConfig {
    /// The calendar of the windows, in `zone` and with this first day; `None` if they have a fixed
    /// length. A first day of another unit is ignored.
    pub(super) fn calendar_in(
        self,
        zone: Option<&TimeZoneName>,
        starts: Option<WindowStart>,
    ) -> Option<Calendar> {
        let period = match (self.calendar()?, starts) {
            (CalendarUnit::Hour, _) => CalendarPeriod::Hour,
            (CalendarUnit::Day, _) => CalendarPeriod::Day,
            (CalendarUnit::Week, Some(WindowStart::Weekday(starts))) => {
                CalendarPeriod::Week { starts }
            }
            (CalendarUnit::Week, _) => CalendarPeriod::Week { starts: Weekday::Monday },
            (CalendarUnit::Month, Some(WindowStart::Day(starts))) => {
                CalendarPeriod::Month { starts }
            }
            (CalendarUnit::Month, _) => CalendarPeriod::Month { starts: 1 },
        };
        Calendar::new(period, zone.map_or(TimeZoneName::UTC, TimeZoneName::as_str))
    }
}

impl ScalarValue for WindowConfig {
    const EXPECTED: &'static str =
        "a duration such as 250ms, 10s, 30m, 1h or 7d, or hour, day, week or month";
    const PATTERN: &'static str = "^([0-9]+(ms|s|m|h|d)|hour|day|week|month)$";
    const EXAMPLE: &'static str = "1m";
    const RANGE: Option<(&'static str, &'static str)> = Some(("1ms", "366d"));

    fn parse(text: &str) -> Option<Self> {
        let named = CalendarUnit::NAMES.iter().find(|(name, _)| *name == text);
        match named {
            Some(&(_, unit)) => Some(Self::Calendar(unit)),
            None => Duration::parse(text).map(Self::Length),
        }
    }

    fn correction(text: &str) -> Option<String> {
        Duration::correction(text)
    }
}

impl fmt::Display for WindowConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(length) => length.fmt(f),
            Self::Calendar(unit) => unit.fmt(f),
        }
    }
}

impl_scalar!(WindowConfig);

/// A time zone of the IANA database, by its name.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TimeZoneName(String);

impl TimeZoneName {
    /// The name of UTC, the default.
    pub const UTC: &'static str = "UTC";

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl ScalarValue for TimeZoneName {
    const EXPECTED: &'static str =
        "a time zone of the IANA database such as Europe/Berlin, America/New_York or UTC";
    const PATTERN: &'static str = "^[A-Za-z][A-Za-z0-9_+/-]*$";
    const EXAMPLE: &'static str = "Europe/Berlin";

    fn parse(text: &str) -> Option<Self> {
        let calendar = Calendar::new(CalendarPeriod::Day, text)?;
        (calendar.zone() == text).then(|| Self(text.to_owned()))
    }

    fn correction(text: &str) -> Option<String> {
        let calendar = Calendar::new(CalendarPeriod::Day, &text.replace(' ', "_"))?;
        Some(calendar.zone().to_owned())
    }
}

impl fmt::Display for TimeZoneName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl_scalar!(TimeZoneName);

/// The first day of a week or a month.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WindowStart {
    /// Of a month: its day, 1 to 31.
    Day(u8),
    /// Of a week.
    Weekday(Weekday),
}

/// The syntax, for faults and the schema.
pub(super) const START_SYNTAX: &str =
    "for `window: month` a day from 1 to 31, for `window: week` a day such as monday";

pub(super) const WEEKDAYS: [(&str, Weekday); 7] = [
    ("monday", Weekday::Monday),
    ("tuesday", Weekday::Tuesday),
    ("wednesday", Weekday::Wednesday),
    ("thursday", Weekday::Thursday),
    ("friday", Weekday::Friday),
    ("saturday", Weekday::Saturday),
    ("sunday", Weekday::Sunday),
];

impl fmt::Display for WindowStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Day(day) => day.fmt(f),
            Self::Weekday(weekday) => {
                let name = WEEKDAYS.iter().find(|(_, other)| other == weekday);
                f.write_str(name.map_or("", |(name, _)| name))
            }
        }
    }
}

impl<'de> Deserialize<'de> for WindowStart {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StartVisitor;

        impl Visitor<'_> for StartVisitor {
            type Value = WindowStart;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(START_SYNTAX)
            }

            fn visit_u64<E: Error>(self, day: u64) -> Result<WindowStart, E> {
                let valid = u8::try_from(day).ok().filter(|day| (1..=31).contains(day));
                let invalid = || E::invalid_value(Unexpected::Unsigned(day), &self);
                valid.map(WindowStart::Day).ok_or_else(invalid)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<WindowStart, E> {
                let named = WEEKDAYS.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
                match (named, text.parse()) {
                    (Some(&(_, weekday)), _) => Ok(WindowStart::Weekday(weekday)),
                    (None, Ok(day)) => self.visit_u64(day),
                    (None, Err(_)) => Err(E::invalid_value(Unexpected::Str(text), &self)),
                }
            }
        }

        deserializer.deserialize_any(StartVisitor)
    }
}

impl Serialize for WindowStart {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Day(day) => serializer.serialize_u8(*day),
            Self::Weekday(_) => serializer.collect_str(self),
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_window_is_a_length_or_a_unit_of_the_calendar() {
        for text in ["1m", "366d", "hour", "day", "week", "month"] {
            assert_eq!(WindowConfig::parse(text).unwrap().to_string(), text);
        }
        for bad in ["367d", "Month", "2 months", "year", ""] {
            assert!(WindowConfig::parse(bad).is_none(), "{bad}");
        }
        assert_eq!(WindowConfig::correction("2 days").as_deref(), Some("2d"));
    }

    #[test]
    fn a_time_zone_has_the_name_of_the_database() {
        for text in ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+5"] {
            assert_eq!(TimeZoneName::parse(text).unwrap().as_str(), text);
        }
        for bad in ["", "CET+1", "Berlin", "Mars/Olympus", "../etc/passwd", "+02:00"] {
            assert!(TimeZoneName::parse(bad).is_none(), "{bad}");
        }
        let meant = [("europe/berlin", "Europe/Berlin"), ("america/new york", "America/New_York")];
        for (text, meant) in meant {
            assert!(TimeZoneName::parse(text).is_none(), "{text}");
            assert_eq!(TimeZoneName::correction(text).as_deref(), Some(meant));
        }
    }
}
