//! Facts of calendars, and properties of every window. `tests/interop` compares ten years with
//! Python's `zoneinfo`.

use crate::ms;
use proptest::prelude::*;

use super::*;

/// The Unix time, in ms, of a time with its offset such as `2026-03-29T03:00+02:00`.
fn at(text: &str) -> StoreTime {
    store_time(text.parse().unwrap())
}

fn assert_window(period: CalendarPeriod, zone: &str, now: &str, [start, end]: [&str; 2]) {
    let window = Calendar::new(period, zone).unwrap().window_at(at(now));
    let label = format!("{period:?} {zone} {now}");
    assert_eq!(window, CalendarWindow { start: at(start), end: at(end) }, "{label}");
}

#[test]
fn months_start_at_their_day_or_at_the_last_one() {
    let month = |starts, now, bounds| {
        assert_window(CalendarPeriod::Month { starts }, "UTC", now, bounds);
    };
    month(1, "2026-12-31T23:59:59.999Z", ["2026-12-01T00:00Z", "2027-01-01T00:00Z"]);
    month(15, "2026-01-14T12:00Z", ["2025-12-15T00:00Z", "2026-01-15T00:00Z"]);
    month(31, "2026-01-31T00:00Z", ["2026-01-31T00:00Z", "2026-02-28T00:00Z"]);
    month(31, "2028-02-28T12:00Z", ["2028-01-31T00:00Z", "2028-02-29T00:00Z"]);
    month(31, "2028-02-29T12:00Z", ["2028-02-29T00:00Z", "2028-03-31T00:00Z"]);
    month(29, "2026-03-01T12:00Z", ["2026-02-28T00:00Z", "2026-03-29T00:00Z"]);
    month(30, "2026-04-30T12:00Z", ["2026-04-30T00:00Z", "2026-05-30T00:00Z"]);
}

#[test]
fn weeks_start_at_their_day() {
    let week = |starts, now, bounds| {
        assert_window(CalendarPeriod::Week { starts }, "UTC", now, bounds);
    };
    week(Weekday::Monday, "2026-11-29T23:59Z", ["2026-11-23T00:00Z", "2026-11-30T00:00Z"]);
    week(Weekday::Sunday, "2026-11-29T00:00Z", ["2026-11-29T00:00Z", "2026-12-06T00:00Z"]);
}

#[test]
fn days_have_the_length_that_clocks_give_them() {
    let day = |zone, now, bounds| assert_window(CalendarPeriod::Day, zone, now, bounds);
    let berlin = "Europe/Berlin";
    day(berlin, "2026-03-29T12:00+02:00", ["2026-03-29T00:00+01:00", "2026-03-30T00:00+02:00"]);
    day(berlin, "2026-10-25T12:00+01:00", ["2026-10-25T00:00+02:00", "2026-10-26T00:00+01:00"]);
    // Clocks skip midnight.
    day(
        "Africa/Cairo",
        "2026-04-24T12:00+03:00",
        ["2026-04-24T01:00+03:00", "2026-04-25T00:00+03:00"],
    );
    // Clocks are put back at midnight, so that the day's last hour comes twice.
    day(
        "Asia/Beirut",
        "2026-10-24T23:30+02:00",
        ["2026-10-24T00:00+03:00", "2026-10-25T00:00+02:00"],
    );
}

/// From 0:01 on 7 November back to 23:01 on the 6th: the 7th has begun, and does not begin again.
#[test]
fn a_window_that_has_begun_goes_on_when_clocks_are_put_back_over_midnight() {
    let sunday = CalendarPeriod::Week { starts: Weekday::Sunday };
    let seventh = CalendarPeriod::Month { starts: 7 };
    for now in ["2010-11-07T00:00-02:30", "2010-11-06T23:01-03:30", "2010-11-07T00:30-03:30"] {
        for (period, end) in [
            (CalendarPeriod::Day, "2010-11-08T00:00-03:30"),
            (sunday, "2010-11-14T00:00-03:30"),
            (seventh, "2010-12-07T00:00-03:30"),
        ] {
            assert_window(period, "America/St_Johns", now, ["2010-11-07T00:00-02:30", end]);
        }
    }
}

#[test]
fn hours_follow_clocks_that_move_by_a_part_of_an_hour() {
    let hour = |zone, now, bounds| assert_window(CalendarPeriod::Hour, zone, now, bounds);
    hour(
        "Asia/Kathmandu",
        "2026-01-01T12:50+05:45",
        ["2026-01-01T12:00+05:45", "2026-01-01T13:00+05:45"],
    );
    // The second 2:00 starts an hour of its own.
    hour(
        "Europe/Berlin",
        "2026-10-25T02:30+01:00",
        ["2026-10-25T02:00+01:00", "2026-10-25T03:00+01:00"],
    );
    // From 2:00 back to 1:30, and from 2:00 on to 2:30.
    for now in ["2026-04-05T01:15+11:00", "2026-04-05T01:45+10:30"] {
        hour("Australia/Lord_Howe", now, ["2026-04-05T01:00+11:00", "2026-04-05T02:00+10:30"]);
    }
    for now in ["2026-10-04T01:15+10:30", "2026-10-04T02:45+11:00"] {
        hour("Australia/Lord_Howe", now, ["2026-10-04T01:00+10:30", "2026-10-04T03:00+11:00"]);
    }
}

#[test]
fn names_of_zones_are_those_of_the_database() {
    assert!(Calendar::new(CalendarPeriod::Day, "Europe/Berlin").is_some());
    for name in ["", "Berlin", "/etc/localtime", "Europe/Berlin\0"] {
        assert!(Calendar::new(CalendarPeriod::Day, name).is_none(), "{name:?}");
    }
    let lower = Calendar::new(CalendarPeriod::Day, "europe/berlin").unwrap();
    assert_eq!(Some(lower), Calendar::new(CalendarPeriod::Day, "Europe/Berlin"));
    assert_eq!(lower.to_string(), "day in Europe/Berlin");
}

fn any_calendar() -> impl Strategy<Value = Calendar> {
    let zones = [
        "UTC",
        "Europe/Berlin",
        "Asia/Beirut",
        "Australia/Lord_Howe",
        "Pacific/Apia",
        "America/St_Johns",
        "America/Havana",
        "Africa/Casablanca",
    ];
    let period = prop_oneof![
        Just(CalendarPeriod::Hour),
        Just(CalendarPeriod::Day),
        (0_i8..7).prop_map(|day| CalendarPeriod::Week {
            starts: Weekday::from_monday_zero_offset(day).unwrap()
        }),
        (1_u8..=31).prop_map(|starts| CalendarPeriod::Month { starts }),
    ];
    (period, prop::sample::select(zones.to_vec()))
        .prop_map(|(period, zone)| Calendar::new(period, zone).unwrap())
}

proptest! {
    #[test]
    fn windows_follow_each_other_without_gap(
        calendar in any_calendar(),
        now in prop_oneof![
            (0_u64..36_500, 0_u64..8 * 3_600_000).prop_map(|(day, ms)| day * 86_400_000 + ms + 86_400_000),
            946_684_800_000_u64..4_102_444_800_000,
        ],
    ) {
        let now = StoreTime::from_unix_ms(now);
        let window = calendar.window_at(now);
        prop_assert!((window.start..window.end).contains(&now), "{calendar}: {window:?}");
        prop_assert!(window.length() <= calendar.longest());
        prop_assert_eq!(calendar.window_at(window.start), window);
        prop_assert_eq!(calendar.window_at(window.end.before(ms(1))), window);
        prop_assert_eq!(calendar.window_at(window.end).start, window.end);
    }

    #[test]
    fn every_time_is_in_a_window(calendar in any_calendar(), now in any::<u64>()) {
        let window = calendar.window_at(StoreTime::from_unix_ms(now));
        prop_assert!(window.start < window.end || now > u64::MAX - 3_600_000);
    }
}
