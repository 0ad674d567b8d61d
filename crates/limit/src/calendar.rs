//! Calendar windows: hours, days, weeks and months by the clocks of a time zone.
//!
//! Their bounds are a function of the time and of the zone's rules alone, so processes agree
//! on them without a message, and no window starts late because its first charge was late.

use std::fmt;

use hashbrown::HashMap;
use jiff::{
    Timestamp, ToSpan,
    civil::{Date, Weekday},
    tz::{TimeZone, TimeZoneDatabase},
};
use parking_lot::Mutex;
use tidegate_base::time::{Millis, StoreTime};

const HOUR: Millis = Millis::from_mins(60);
const DAY: Millis = Millis::from_mins(24 * 60);

/// The longest time by which clocks are put back: two hours, at Troll in Antarctica.
const LONGEST_REPEAT: Millis = Millis::from_mins(120);

/// The zones in use by name. A zone is never freed: the built-in data has about 600.
static ZONES: Mutex<Option<HashMap<Box<str>, &'static Zone, ahash::RandomState>>> =
    Mutex::new(None);

/// Windows of a calendar.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum CalendarPeriod {
    /// The hours.
    Hour,
    /// The days.
    Day,
    /// The weeks.
    Week {
        /// The first day.
        starts: Weekday,
    },
    /// The months.
    Month {
        /// The first day, 1 to 31; the month's last day where the month is shorter.
        starts: u8,
    },
}

/// Windows of a calendar in a time zone.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Calendar {
    period: CalendarPeriod,
    zone: &'static Zone,
}

/// A window of a calendar: from `start` up to `end`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CalendarWindow {
    /// Its first ms.
    pub start: StoreTime,
    /// The first ms after it, which is the start of the next window.
    pub end: StoreTime,
}

/// A time zone with its name.
struct Zone {
    name: Box<str>,
    rules: TimeZone,
}

/// One zone exists once, so that its address identifies it.
impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Zone {}

impl Calendar {
    /// The windows of `period` in the zone with this IANA name, such as `Europe/Berlin`. `None` if
    /// there is no such zone.
    pub fn new(period: CalendarPeriod, zone: &str) -> Option<Self> {
        Some(Self { period, zone: Zone::find(zone)? })
    }

    /// The kind of the windows, and where they start.
    pub fn period(self) -> CalendarPeriod {
        self.period
    }

    /// The IANA name of the time zone.
    pub fn zone(self) -> &'static str {
        &self.zone.name
    }

    /// The same windows with months that start at day `starts`, 1 to 31; other periods stay as they
    /// are.
    #[must_use]
    pub fn with_month_start(self, starts: u8) -> Self {
        let period = match self.period {
            CalendarPeriod::Month { .. } => CalendarPeriod::Month { starts },
            other => other,
        };
        Self { period, ..self }
    }

    /// The first day of its months; 0 if its windows are no months.
    pub fn month_start(self) -> u8 {
        match self.period {
            CalendarPeriod::Month { starts } => starts,
            CalendarPeriod::Hour | CalendarPeriod::Day | CalendarPeriod::Week { .. } => 0,
        }
    }

    /// An upper bound of a window's length.
    pub fn longest(self) -> Millis {
        let regular = match self.period {
            CalendarPeriod::Hour => HOUR,
            CalendarPeriod::Day => DAY,
            CalendarPeriod::Week { .. } => DAY * 7,
            CalendarPeriod::Month { .. } => DAY * 31,
        };
        regular + LONGEST_REPEAT
    }

    /// The window that contains `now`.
    pub fn window_at(self, now: StoreTime) -> CalendarWindow {
        let window = match self.period {
            CalendarPeriod::Hour => self.zone.hour_at(now),
            CalendarPeriod::Day | CalendarPeriod::Week { .. } | CalendarPeriod::Month { .. } => {
                self.days_at(now)
            }
        };
        // No clock reaches the years that the calendar does not know.
        window.unwrap_or_else(|_| {
            let start = now.round_down_to(HOUR);
            CalendarWindow { start, end: start.after(HOUR) }
        })
    }

    /// The window of whole days that contains `now`.
    fn days_at(self, now: StoreTime) -> Result<CalendarWindow, jiff::Error> {
        let today = self.zone.rules.to_datetime(timestamp(now)?).date();
        let window = self.days_with(today)?;
        if now < window.end {
            return Ok(window);
        }
        // Clocks were put back over midnight: the next day has begun already.
        self.days_with(today.tomorrow()?)
    }

    /// The window of whole days that contains `date`.
    fn days_with(self, date: Date) -> Result<CalendarWindow, jiff::Error> {
        let (first, next) = match self.period {
            CalendarPeriod::Hour | CalendarPeriod::Day => (date, date.tomorrow()?),
            CalendarPeriod::Week { starts } => {
                let first = date.checked_sub(i32::from(date.weekday().since(starts)).days())?;
                (first, first.checked_add(7.days())?)
            }
            CalendarPeriod::Month { starts } => {
                let first = month_start(date, starts)?;
                if first <= date {
                    (first, month_start(date.checked_add(1.month())?, starts)?)
                } else {
                    (month_start(date.checked_sub(1.month())?, starts)?, first)
                }
            }
        };
        Ok(CalendarWindow { start: self.zone.day_start(first)?, end: self.zone.day_start(next)? })
    }
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Such as `month from day 15 in Europe/Berlin`. It is in the fingerprints of limits: another text
/// starts new counters.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.period)?;
        match self.period {
            CalendarPeriod::Week { starts } => write!(f, " from {starts:?}")?,
            CalendarPeriod::Month { starts } => write!(f, " from day {starts}")?,
            CalendarPeriod::Hour | CalendarPeriod::Day => {}
        }
        write!(f, " in {}", self.zone.name)
    }
}

impl fmt::Display for CalendarPeriod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week { .. } => "week",
            Self::Month { .. } => "month",
        })
    }
}

impl CalendarWindow {
    /// Its length, at least 1 ms.
    pub fn length(self) -> Millis {
        self.end.since(self.start).max(Millis::MILLISECOND)
    }
}

impl Zone {
    fn find(name: &str) -> Option<&'static Self> {
        let mut zones = ZONES.lock();
        let zones = zones.get_or_insert_default();
        if let Some(zone) = zones.get(name) {
            return Some(zone);
        }
        let rules = TimeZoneDatabase::bundled().get(name).ok()?;
        // Names are found in any case, and some zones have several names.
        let name: Box<str> = rules.iana_name()?.into();
        let zone = match zones.get(&name) {
            Some(zone) => zone,
            None => &*Box::leak(Box::new(Self { name: name.clone(), rules })),
        };
        zones.insert(name, zone);
        Some(zone)
    }

    /// The first moment of `date`. Where clocks skip midnight, that is later than 0:00.
    fn day_start(&self, date: Date) -> Result<StoreTime, jiff::Error> {
        let zoned = date.to_zoned(self.rules.clone())?;
        Ok(store_time(zoned.start_of_day()?.timestamp()))
    }

    /// The hour that contains `now`. It is longer or shorter than 60 minutes where clocks are moved
    /// by a part of an hour.
    fn hour_at(&self, now: StoreTime) -> Result<CalendarWindow, jiff::Error> {
        let at = timestamp(now)?;
        let offset = self.offset_ms(at);
        let local = now.saturating_add_signed(offset);
        let start = local.round_down_to(HOUR).saturating_add_signed(-offset);
        let end = start.after(HOUR);
        let since = self.rules.preceding(at + 1.nanosecond()).next().map(|moved| moved.timestamp());
        let start = match since.map(store_time).filter(|since| start < *since) {
            Some(since) if self.is_full_hour(since) => since,
            Some(since) => self.hour_at(since.before(Millis::MILLISECOND))?.start,
            None => start,
        };
        let until = self.rules.following(at).next().map(|moved| store_time(moved.timestamp()));
        let end = match until.filter(|until| *until <= end) {
            Some(until) if self.is_full_hour(until) => until,
            Some(until) => self.next_full_hour(until)?,
            None => end,
        };
        Ok(CalendarWindow { start, end })
    }

    /// True if the clocks show a full hour at `at`, when they have just been moved.
    fn is_full_hour(&self, at: StoreTime) -> bool {
        self.next_full_hour(at).is_ok_and(|next| next == at)
    }

    /// The first full hour from `at` on, if clocks are not moved before it.
    fn next_full_hour(&self, at: StoreTime) -> Result<StoreTime, jiff::Error> {
        let offset = self.offset_ms(timestamp(at)?);
        let local = at.saturating_add_signed(offset);
        Ok(local.round_up_to(HOUR).saturating_add_signed(-offset))
    }

    /// By how many ms the clocks are ahead of UTC: a number, because it may be negative.
    fn offset_ms(&self, at: Timestamp) -> i64 {
        i64::from(self.rules.to_offset(at).seconds()) * 1_000
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Day `starts` of the month of `date`, or the month's last day.
fn month_start(date: Date, starts: u8) -> Result<Date, jiff::Error> {
    let last = date.days_in_month();
    date.with().day(starts.cast_signed().clamp(1, last)).build()
}

fn timestamp(at: StoreTime) -> Result<Timestamp, jiff::Error> {
    Timestamp::from_millisecond(at.as_unix_ms().cast_signed())
}

fn store_time(at: Timestamp) -> StoreTime {
    StoreTime::from_unix_ms(u64::try_from(at.as_millisecond()).unwrap_or(0))
}

#[cfg(test)]
mod tests;
