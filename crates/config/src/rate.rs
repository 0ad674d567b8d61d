//! `100/1m`: a quota and its window in one value, which may stand for a limit.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Unexpected, Visitor};
use tidegate_limit::MAX_UNITS;
use tidegate_scalar::{ScalarValue, impl_scalar};

use super::limits::LimitConfig;
use super::units::Duration;
use super::window::WindowConfig;

/// A quota and its window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rate {
    /// Units of cost per window; at least 1.
    pub quota: u64,
    /// The window; at least 1 ms.
    pub window: WindowConfig,
}

impl Rate {
    /// The rate, if its window has a fixed length.
    pub(super) fn parse_rolling(text: &str) -> Option<Self> {
        Self::parse(text).filter(|rate| rate.window.calendar().is_none())
    }

    /// The rolling rate that the invalid `text` probably means.
    pub(super) fn rolling_correction(text: &str) -> Option<String> {
        match Self::parse(text) {
            Some(Self { quota, window: WindowConfig::Calendar(unit) }) => {
                Some(format!("{quota}/{}", unit.rolling()))
            }
            _ => Self::correction(text),
        }
    }

    /// The bounds of the half of a rate that is outside of them.
    fn wrong_half(text: &str) -> Option<String> {
        let (quota, window) = text.split_once('/')?;
        let is_number = !quota.is_empty() && quota.bytes().all(|b| b.is_ascii_digit());
        let is_amount = window.starts_with(|c: char| c.is_ascii_digit());
        if !is_number || !is_amount {
            return None;
        }
        if Self::parse(&format!("{quota}/1m")).is_none() {
            return Some("a quota from 1 to 9007199254740991 before the `/`".to_owned());
        }
        let expected = Duration::EXPECTED;
        Some(format!("a window from 1ms to 366d after the `/`: {expected}"))
    }
}

impl ScalarValue for Rate {
    const EXPECTED: &'static str =
        "a rate such as 100/1m: a quota from 1 to 9007199254740991, and its window";
    const PATTERN: &'static str = "^[0-9]+/([0-9]+(ms|s|m|h|d)|hour|day|week|month)$";
    const EXAMPLE: &'static str = "100/1m";

    fn parse(text: &str) -> Option<Self> {
        let (quota, window) = text.split_once('/')?;
        let is_number = !quota.starts_with('0') && quota.bytes().all(|b| b.is_ascii_digit());
        let quota =
            quota.parse().ok().filter(|quota| is_number && (1..=MAX_UNITS).contains(quota))?;
        let window = WindowConfig::parse(window).filter(|window| !window.millis().is_zero())?;
        Some(Self { quota, window })
    }

    /// `100/m`, `100 / minute`, `10r/s`.
    fn correction(text: &str) -> Option<String> {
        let (quota, window) = text.split_once('/')?;
        let quota = quota.trim().trim_end_matches(['r', ' ']);
        let units = [("second", "1s"), ("minute", "1m"), ("hour", "1h"), ("day", "1d")];
        let names =
            [("s", "1s"), ("sec", "1s"), ("m", "1m"), ("min", "1m"), ("h", "1h"), ("d", "1d")];
        let window = window.trim();
        let unit = units.iter().chain(&names).find(|(name, _)| window.eq_ignore_ascii_case(name));
        let meant = format!("{quota}/{}", unit?.1);
        Self::parse(&meant).map(|_| meant)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.quota, self.window)
    }
}

impl_scalar!(Rate);

/// A limit as written in a file: a mapping, or only a rate.
pub(super) struct LimitEntry(LimitConfig);

/// The limits of a file.
pub(super) fn read_limits<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, LimitConfig>, D::Error> {
    let entries = BTreeMap::<String, LimitEntry>::deserialize(deserializer)?;
    Ok(entries.into_iter().map(|(name, LimitEntry(limit))| (name, limit)).collect())
}

const EXPECTED: &str = "a rate such as 100/1m, or a mapping with `quota` and `window`";

impl<'de> Deserialize<'de> for LimitEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LimitVisitor;

        impl<'de> Visitor<'de> for LimitVisitor {
            type Value = LimitEntry;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<LimitEntry, E> {
                if let Some(Rate { quota, window }) = Rate::parse_rolling(text) {
                    return Ok(LimitEntry(LimitConfig::new(quota, window)));
                }
                let meant =
                    Rate::rolling_correction(text).map(|meant| format!("`{meant}`: {EXPECTED}"));
                let meant = meant.or_else(|| Rate::wrong_half(text));
                let expected = meant.as_deref().unwrap_or(EXPECTED);
                Err(E::invalid_value(Unexpected::Str(text), &expected))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<LimitEntry, A::Error> {
                LimitConfig::deserialize(MapAccessDeserializer::new(map)).map(LimitEntry)
            }
        }

        deserializer.deserialize_any(LimitVisitor)
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_rate_is_a_quota_and_a_window() {
        for text in ["100/1m", "1/1ms", "9007199254740991/366d", "5/month"] {
            assert_eq!(Rate::parse(text).unwrap().to_string(), text);
        }
        for bad in ["100", "100/", "/1m", "0/1m", "010/1m", "-1/1m", "100/0s", "100/m", "5/1m/1h"] {
            assert!(Rate::parse(bad).is_none(), "{bad}");
        }
        for (text, meant) in [("100/m", "100/1m"), ("5 / minute", "5/1m"), ("10r/s", "10/1s")] {
            assert_eq!(Rate::correction(text).as_deref(), Some(meant));
        }
        assert_eq!(Rate::rolling_correction("100/day").as_deref(), Some("100/1d"));
        assert!(Rate::parse_rolling("100/day").is_none());
        assert_eq!(Rate::correction("a/s"), None);
        for (text, half) in [
            ("0/1m", Some("a quota from 1 to 9007199254740991 before")),
            ("9007199254740992/1m", Some("a quota from 1 to 9007199254740991 before")),
            ("100/0s", Some("a window from 1ms to 366d after")),
            ("100/400d", Some("a window from 1ms to 366d after")),
            ("100/1w", Some("a window from 1ms to 366d after")),
            ("many/1m", None),
        ] {
            let wrong = Rate::wrong_half(text);
            assert_eq!(wrong.as_deref().and_then(|text| text.get(..half?.len())), half, "{text}");
        }
    }
}
