//! [`Override`]: one override, and its id.

use std::{fmt, time::Duration};

use aws_lc_rs::digest::{SHA256, digest};
use tidegate_charge::Key;
use tidegate_config::{LastYear, PlanQuota};
use tidegate_system::clock::StoreTime;

/// A quota that an operator has set.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Override {
    /// The limit's name.
    pub limit: Box<str>,
    /// What it applies to.
    pub target: OverrideTarget,
    /// The quota instead of the configured one.
    pub quota: PlanQuota,
    /// The first ms at which it no longer applies; `None`: it has no end.
    pub until: Option<StoreTime>,
    /// Why it was set, in the operator's words; may be empty.
    pub reason: Box<str>,
    /// Who set it; empty if that is not known.
    pub by: Box<str>,
    /// When it was set; `None` if that is not known.
    pub set_at: Option<StoreTime>,
}

/// What an override applies to.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum OverrideTarget {
    /// The caller with this key.
    Key(Key),
    /// The consumer of this name.
    Consumer(Box<str>),
    /// The consumers of this plan.
    Plan(Box<str>),
}

/// The id of an override, derived from its limit and target: a limit has one override for a target.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct OverrideId(u128);

impl Override {
    /// The id.
    pub fn id(&self) -> OverrideId {
        OverrideId::of(&self.limit, &self.target)
    }

    /// True if it applies at `now`.
    pub fn is_in_force(&self, now: StoreTime) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

/// For the log: without the reason, which is a field of its own.
impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}: {}", self.limit, self.target, self.quota)?;
        match self.until {
            Some(until) => write!(f, " until {}", time_text(until)),
            None => Ok(()),
        }
    }
}

impl OverrideTarget {
    /// Its kind and value, as the keys of a record.
    pub fn parts(&self) -> (&'static str, String) {
        match self {
            Self::Key(Key(key)) => ("hash", format!("{key:032x}")),
            Self::Consumer(name) => ("consumer", name.to_string()),
            Self::Plan(name) => ("plan", name.to_string()),
        }
    }
}

impl fmt::Display for OverrideTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, value) = self.parts();
        write!(f, "{kind} {value}")
    }
}

impl OverrideId {
    /// The id of the override of `target` under the limit called `limit`.
    pub fn of(limit: &str, target: &OverrideTarget) -> Self {
        let (kind, value) = target.parts();
        // No name contains NUL, so the separator is unambiguous.
        let hash = digest(&SHA256, format!("{limit}\0{kind}\0{value}").as_bytes());
        let (words, _) = hash.as_ref().as_chunks::<16>();
        Self(words.first().map_or(0, |word| u128::from_be_bytes(*word)))
    }

    /// Parses what [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        let is_hex =
            text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        is_hex.then(|| u128::from_str_radix(text, 16).ok())?.map(Self)
    }
}

/// 32 hexadecimal digits.
impl fmt::Display for OverrideId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A time as text, such as `2026-12-01T00:00:00Z`.
pub fn time_text(time: StoreTime) -> String {
    let since = Duration::from_millis(time.as_unix_ms());
    let time = std::time::UNIX_EPOCH + since;
    humantime::format_rfc3339(time).to_string()
}

/// Parses a time with its zone, or a date, which is its first second; before the year 2200.
pub(super) fn parse_time(text: &str) -> Option<StoreTime> {
    let since = LastYear::OF_OVERRIDES.parse(text)?;
    Some(StoreTime::from_unix_ms(since.as_millis() as u64))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_are_stable_and_differ_by_limit_kind_and_value() {
        let consumer = |name: &str| OverrideTarget::Consumer(name.into());
        let id = OverrideId::of("a", &consumer("acme")).to_string();
        assert_eq!(id, "ec37a79ad899928d8898a2f69565e7eb", "it is stored");
        let ids = [
            OverrideId::of("a", &consumer("acme")),
            OverrideId::of("b", &consumer("acme")),
            OverrideId::of("a", &consumer("acm")),
            OverrideId::of("a", &OverrideTarget::Plan("acme".into())),
            OverrideId::of("a", &OverrideTarget::Key(Key(7))),
            OverrideId::of("a", &OverrideTarget::Key(Key(8))),
        ];
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
        for id in ids {
            assert_eq!(OverrideId::parse(&id.to_string()), Some(id));
        }
        for text in ["", "7", &"g".repeat(32), &"+".repeat(32), &"A".repeat(32), &"0".repeat(33)] {
            assert_eq!(OverrideId::parse(text), None, "{text}");
        }
    }

    #[test]
    fn times_are_read_as_they_are_written() {
        for (text, written) in [
            ("2026-12-01", Some("2026-12-01T00:00:00Z")),
            ("2026-12-01T10:00:00Z", Some("2026-12-01T10:00:00Z")),
            ("2026-12-01T10:00:00.125Z", Some("2026-12-01T10:00:00.125000000Z")),
            ("2200-01-01", None),
            ("1969-12-31", None),
            ("2026-13-01", None),
            ("2026-12-01T10:00:00", None),
            ("soon", None),
            ("", None),
        ] {
            let read = parse_time(text);
            assert_eq!(read.map(time_text).as_deref(), written, "{text}");
            assert_eq!(read.map(time_text).as_deref().and_then(parse_time), read, "{text}");
        }
    }
}
