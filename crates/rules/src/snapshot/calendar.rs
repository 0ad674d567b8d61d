//! Checks the windows of calendars.

use tidegate_config::{AlgorithmConfig, CalendarUnit, LimitConfig, WindowStart};

use super::algorithm;
use super::section::Section;

/// Reports calendars of algorithms that have none, and settings of a calendar that do not apply to
/// the window.
pub(super) fn check(section: &Section<'_>, limit: &LimitConfig) {
    if !section.can_read(&["window"]) {
        return;
    }
    let unit = limit.window.calendar();
    if let Some(unit) = unit
        && limit.algorithm != AlgorithmConfig::FixedWindow
        && section.can_read(&["algorithm"])
    {
        let what = format!("`{unit}` with `{}`", algorithm::name(limit.algorithm));
        let expected = format!("`algorithm: fixed_window`, or a length such as {}", unit.rolling());
        section.at("window").fault(what, &expected);
    }
    let expected = "it only with `window: hour`, `day`, `week` or `month`";
    let what = format!("`time_zone` with a window of {}", limit.window);
    section.at("time_zone").ensure(limit.time_zone.is_none() || unit.is_some(), &what, expected);
    check_start(section, limit);
}

fn check_start(section: &Section<'_>, limit: &LimitConfig) {
    let Some(starts) = limit.starts else { return };
    let expected = match (limit.window.calendar(), starts) {
        (Some(CalendarUnit::Week), WindowStart::Weekday(_))
        | (Some(CalendarUnit::Month), WindowStart::Day(_)) => return,
        (Some(CalendarUnit::Week), WindowStart::Day(_)) => "a day such as monday",
        (Some(CalendarUnit::Month), WindowStart::Weekday(_)) => "a day from 1 to 31",
        (Some(CalendarUnit::Hour | CalendarUnit::Day) | None, _) => {
            "it only with `window: week` or `window: month`"
        }
    };
    section.at("starts").fault(format!("`{starts}` with a window of {}", limit.window), expected);
}

#[cfg(test)]
mod tests {
    use tidegate_config as config;
    use tidegate_limit::Algorithm;

    use crate::snapshot::{SecretReading, Snapshot};

    fn compile(limit: &str) -> Result<Snapshot, String> {
        let text = format!(
            "limits: {{one: {{quota: 30, {limit}}}}}
plans: {{gold: {{one: 60/month}}}}
upstreams: {{app: {{respond: {{}}}}}}
routes: [{{name: a, upstream: app, limits: [one]}}]
"
        );
        let loaded = config::parse("t.yaml", &text).map_err(|error| error.to_string())?;
        Snapshot::compile(&loaded, SecretReading::Unread).map_err(|faults| faults.to_string())
    }

    #[test]
    fn a_calendar_is_compiled_with_its_zone_and_start() {
        for (limit, expected) in [
            ("window: month", "month from day 1 in UTC"),
            ("window: month, starts: 31, time_zone: Asia/Tokyo", "month from day 31 in Asia/Tokyo"),
        ] {
            let snapshot = compile(&format!("algorithm: fixed_window, {limit}")).unwrap();
            let policy = &snapshot.limits[0];
            let Algorithm::CalendarWindow(calendar) = policy.limit.algorithm() else { panic!() };
            assert_eq!(calendar.to_string(), expected);
        }
    }

    #[test]
    fn settings_that_do_not_apply_are_refused() {
        let fixed = |rest: &str| format!("algorithm: fixed_window, {rest}");
        for (limit, expected) in [
            (
                "window: month".to_owned(),
                "1:35: `month` with `sliding_window`, expected `algorithm: fixed_window`, or a length such as 30d",
            ),
            (
                fixed("window: 1h, time_zone: UTC"),
                "`time_zone` with a window of 1h, expected it only with `window: hour`",
            ),
            (fixed("window: day, starts: 3"), "`3` with a window of day, expected it only with"),
            (fixed("window: week, starts: 3"), "`3` with a window of week, expected a day such as"),
            (fixed("window: month, starts: sunday"), "expected a day from 1 to 31"),
            (
                fixed("window: week"),
                "`60/month`, though the window of `one` is week, expected 60/week",
            ),
        ] {
            let faults = compile(&limit).unwrap_err();
            assert!(faults.contains(expected), "{limit}: {faults}");
        }
    }
}
