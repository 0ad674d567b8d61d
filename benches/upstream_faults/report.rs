//! The table.

use std::{fmt, time::Duration};

use crate::{configuration::Variant, measure::Row, scenario::Scenario};

/// Most requests at the targets per request of the client if all targets fail: a retry budget of 20
/// %.
const MAX_ATTEMPTS: f64 = 1.2;

/// A markdown table with its heading.
pub(crate) struct Table {
    text: String,
    /// A run in which requests failed before the fault.
    is_disturbed: bool,
}

impl Table {
    pub(crate) fn new(heading: &str) -> Self {
        let columns = "| behavior | proxy | GETs failed | POSTs failed | p99 added, ms | found, s \
                       | used again, s | attempts | foreign | truncated | POSTs twice |\n\
                       |---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n";
        Self { text: format!("{heading}\n\n{columns}"), is_disturbed: false }
    }

    /// Appends a row and returns it. What no proxy may do is bold.
    pub(crate) fn add(&mut self, scenario: &Scenario<'_>, variant: Variant, row: &Row) -> String {
        let seconds = |time: Option<Duration>, is_expected: bool| match time {
            Some(time) => format!("{:.2}", time.as_secs_f64()),
            None if is_expected => "never".to_owned(),
            None => "–".to_owned(),
        };
        let never = |count: usize| {
            if count == 0 { "0".to_owned() } else { format!("**{count}**") }
        };
        let attempts = if matches!(scenario, Scenario::All(_)) && row.attempts > MAX_ATTEMPTS {
            format!("**{:.2}**", row.attempts)
        } else {
            format!("{:.2}", row.attempts)
        };
        let mark = if row.failed_before > 0 { "*" } else { "" };
        self.is_disturbed |= row.failed_before > 0;
        let line = format!(
            "| {scenario}{mark} | {variant} | {:.1} % | {:.1} % | {:.1} | {} | {} | {attempts} | {} | {} | {} |",
            row.failed[0] * 100.0,
            row.failed[1] * 100.0,
            row.added.as_secs_f64() * 1000.0,
            seconds(row.found, scenario.is_findable()),
            seconds(row.used_again, scenario.is_used_again()),
            never(row.foreign),
            never(row.truncated),
            never(row.repeated),
        );
        self.text.extend([&line, "\n"]);
        line
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        if self.is_disturbed {
            f.write_str("\n\\* Requests failed before the fault, too: the machine was busy.\n")?;
        }
        Ok(())
    }
}
