//! Statuses of responses, alone and in ranges.

use std::fmt;

use serde::{Deserialize, Serialize};
use tidegate_base::status::{FINAL_STATUSES, StatusSet};
use tidegate_scalar::{ScalarValue, impl_scalar};

/// The status code of a final response, 200 to 599.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Status(#[cfg_attr(test, schemars(range(min = 200, max = 599)))] pub u16);

/// A status of final responses, or a range of statuses.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct StatusRange {
    /// The first status.
    pub first: u16,
    /// The last status.
    pub last: u16,
}

impl StatusRange {
    /// One status.
    pub const fn one(status: u16) -> Self {
        Self { first: status, last: status }
    }

    /// The status or the range that `text` is; `None` if it is neither.
    pub fn from_text(text: &str) -> Option<Self> {
        Self::parse(text)
    }

    /// True if the range has `status`.
    pub fn contains(self, status: u16) -> bool {
        (self.first..=self.last).contains(&status)
    }

    /// The set of the statuses in `ranges`.
    pub fn set(ranges: &[Self]) -> StatusSet {
        StatusSet::of(ranges.iter().map(|range| range.first..=range.last))
    }
}

impl ScalarValue for StatusRange {
    const EXPECTED: &'static str = "a status from 200 to 599, or a range such as 200-399";
    const PATTERN: &'static str = "^[2-5][0-9][0-9](-[2-5][0-9][0-9])?$";
    const EXAMPLE: &'static str = "200-399";

    fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = Self { first: status(first)?, last: status(last)? };
        (range.first <= range.last).then_some(range)
    }

    fn correction(text: &str) -> Option<String> {
        if let Some(class) = text.strip_suffix("xx") {
            let range = format!("{class}00-{class}99");
            return Self::parse(&range).map(|_| range);
        }
        let (first, last) = text.split_once('-')?;
        let turned = format!("{}-{}", last.trim(), first.trim());
        let spaced = format!("{}-{}", first.trim(), last.trim());
        [spaced, turned].into_iter().find(|range| Self::parse(range).is_some())
    }
}

/// The status that `text` is; `None` if it is none of a final response.
fn status(text: &str) -> Option<u16> {
    let is_code = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|code| is_code && FINAL_STATUSES.contains(code))
}

impl fmt::Display for StatusRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            return self.first.fmt(f);
        }
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl_scalar!(StatusRange);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_one_status_or_two_in_order() {
        for text in ["200", "599", "200-399", "404-404", "200-599"] {
            let range = StatusRange::parse(text).unwrap();
            let shown = if text == "404-404" { "404" } else { text };
            assert_eq!(range.to_string(), shown);
        }
        for (text, meant) in [
            ("399-200", Some("200-399")),
            ("5xx", Some("500-599")),
            ("200 - 299", Some("200-299")),
            ("1xx", None),
            ("199", None),
            ("600", None),
            ("200-600", None),
            ("100-299", None),
            ("2e2", None),
            ("+20", None),
            ("0200", None),
            ("200-", None),
            ("-299", None),
            ("200-250-299", None),
            ("", None),
        ] {
            assert_eq!(StatusRange::parse(text), None, "{text}");
            assert_eq!(StatusRange::correction(text).as_deref(), meant, "{text}");
        }
    }
}
