//! Windows of calendars against Python's `zoneinfo`, over ten years with their changes of the
//! clocks, leap days and months of 28 to 31 days.

use jiff::civil::Weekday;
use tidegate::clock::ms;
use tidegate::{
    clock::StoreTime,
    limit::{Calendar, CalendarPeriod},
};

use crate::tools::{run, script};

/// Half-hour and quarter-hour offsets, changes by half an hour and by two hours, at midnight and in
/// both hemispheres.
const ZONES: [&str; 12] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "Asia/Kathmandu",
    "Asia/Beirut",
    "Africa/Cairo",
    "Australia/Lord_Howe",
    "Pacific/Chatham",
    "Antarctica/Troll",
    "Atlantic/Azores",
    "Pacific/Kiritimati",
];

/// The period that the script calls `kind`.
fn period(kind: &str) -> CalendarPeriod {
    match kind.split_once('-') {
        Some(("week", day)) => {
            let starts = match day {
                "monday" => Weekday::Monday,
                "thursday" => Weekday::Thursday,
                _ => Weekday::Sunday,
            };
            CalendarPeriod::Week { starts }
        }
        Some((_, day)) => CalendarPeriod::Month { starts: day.parse().expect("a day") },
        None if kind == "hour" => CalendarPeriod::Hour,
        None => CalendarPeriod::Day,
    }
}

#[test]
fn windows_begin_where_zoneinfo_says_for_ten_years() {
    let mut command = script("calendar_windows.py");
    command.args(["2026", "2035"]).args(ZONES);
    let output = run(&mut command);
    assert_eq!(output.code, Some(0), "{}", output.err);
    let mut compared = 0;
    for line in output.out.lines() {
        let mut fields = line.split(' ');
        let (kind, zone) = (fields.next().expect("a kind"), fields.next().expect("a zone"));
        let calendar = Calendar::new(period(kind), zone).expect("a zone");
        let starts: Vec<StoreTime> = fields
            .map(|time| time.parse::<u64>().expect("a time"))
            .map(|time| StoreTime::from_unix_ms(time * 1_000))
            .collect();
        for pair in starts.windows(2) {
            let [start, end] = [pair[0], pair[1]];
            for now in [start, start + ms((end.since(start).as_ms()) / 2), end.before(ms(1))] {
                let window = calendar.window_at(now);
                assert_eq!((window.start, window.end), (start, end), "{kind} {zone} {now:?}");
            }
            compared += 1;
        }
    }
    // Ten years have 87,600 hours, 3,652 days, and each kind of week and month.
    assert!(compared > 90_000 * ZONES.len(), "{compared} windows");
}
