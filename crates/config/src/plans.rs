//! `plans`: the quotas of consumers, by limit, and their priorities.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, Error, MapAccess, Unexpected, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Serialize, Serializer};
use tidegate_limit::MAX_UNITS;
use tidegate_scalar::ScalarValue as _;

use super::pattern::{RATE_WINDOWS, amounts_pattern, range_pattern};
use super::rate::Rate;
use super::units::DURATION_UNITS;

/// The quotas of one plan, by limit, and the priority of its consumers under the key `priority`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PlanConfig {
    /// From 0, the most important, to 9; `None`: the default.
    pub priority: Option<u8>,
    /// The quotas, by limit.
    pub quotas: BTreeMap<String, PlanQuota>,
}

/// The key of a plan's priority, which no limit may have as its name.
pub const PRIORITY_KEY: &str = "priority";

impl<'de> Deserialize<'de> for PlanConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PlanVisitor;

        impl<'de> Visitor<'de> for PlanVisitor {
            type Value = PlanConfig;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping of limits to quotas")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PlanConfig, A::Error> {
                let mut plan = PlanConfig::default();
                while let Some(key) = map.next_key::<String>()? {
                    if key == PRIORITY_KEY {
                        plan.priority = Some(map.next_value()?);
                    } else {
                        plan.quotas.insert(key, map.next_value()?);
                    }
                }
                Ok(plan)
            }
        }

        deserializer.deserialize_map(PlanVisitor)
    }
}

impl Serialize for PlanConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(priority) = self.priority {
            map.serialize_entry(PRIORITY_KEY, &priority)?;
        }
        for (limit, quota) in &self.quotas {
            map.serialize_entry(limit, quota)?;
        }
        map.end()
    }
}

/// The quota of a plan's consumers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PlanQuota {
    /// Units of cost per window.
    Units(u64),
    /// The same, with the window, which must be the limit's.
    Rate(Rate),
    /// The limit does not apply.
    Unlimited,
    /// The limit admits none of their requests.
    Blocked,
}

/// The syntax, for faults and the schema.
pub(super) const SYNTAX: &str =
    "a quota such as 1000, or 1000/1m with the limit's own window; unlimited; or 0, which blocks";
pub(super) const UNLIMITED: &str = "unlimited";
const BLOCKED: &str = "blocked";

/// True if a quota may have this number of units.
fn is_valid(units: u64) -> bool {
    (1..=MAX_UNITS).contains(&units)
}

impl PlanQuota {
    /// Parses the quota of an override: like a plan's, and `blocked` instead of 0.
    pub fn of_override(text: &str) -> Option<Self> {
        match text {
            UNLIMITED => Some(Self::Unlimited),
            BLOCKED => Some(Self::Blocked),
            _ if text.contains('/') => Rate::parse(text).map(Self::Rate),
            _ => {
                let is_number =
                    !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
                let units = text.parse().ok().filter(|units| is_number && is_valid(*units))?;
                Some(Self::Units(units))
            }
        }
    }

    /// The pattern of texts that [`Self::of_override`] accepts.
    pub fn override_pattern() -> String {
        let units = range_pattern(1, MAX_UNITS);
        let windows = amounts_pattern(RATE_WINDOWS, &DURATION_UNITS);
        format!("^(({units})(/({windows}|hour|day|week|month))?|{UNLIMITED}|{BLOCKED})$")
    }
}

/// As [`PlanQuota::of_override`] reads it.
impl fmt::Display for PlanQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Units(units) => units.fmt(f),
            Self::Rate(rate) => rate.fmt(f),
            Self::Unlimited => f.write_str(UNLIMITED),
            Self::Blocked => f.write_str(BLOCKED),
        }
    }
}

impl<'de> Deserialize<'de> for PlanQuota {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PlanQuotaVisitor;

        impl Visitor<'_> for PlanQuotaVisitor {
            type Value = PlanQuota;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(SYNTAX)
            }

            fn visit_u64<E: Error>(self, quota: u64) -> Result<PlanQuota, E> {
                match quota {
                    0 => Ok(PlanQuota::Blocked),
                    units if is_valid(units) => Ok(PlanQuota::Units(units)),
                    _ => Err(E::invalid_value(Unexpected::Unsigned(quota), &self)),
                }
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<PlanQuota, E> {
                PlanQuota::of_text(text).ok_or_else(|| {
                    let meant = Rate::correction(text).map(|meant| format!("`{meant}`: {SYNTAX}"));
                    let expected = meant.as_deref().unwrap_or(SYNTAX);
                    E::invalid_value(Unexpected::Str(text), &expected)
                })
            }
        }

        deserializer.deserialize_any(PlanQuotaVisitor)
    }
}

impl PlanQuota {
    /// The quota that an operator gives in a command.
    ///
    /// # Errors
    ///
    /// What was expected instead.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        match text.parse() {
            Ok(0) => Ok(Self::Blocked),
            Ok(units) if is_valid(units) => Ok(Self::Units(units)),
            _ => Self::of_text(text).ok_or(SYNTAX),
        }
    }

    fn of_text(text: &str) -> Option<Self> {
        if text == UNLIMITED { Some(Self::Unlimited) } else { Rate::parse(text).map(Self::Rate) }
    }
}

impl Serialize for PlanQuota {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Units(units) => serializer.serialize_u64(*units),
            Self::Rate(rate) => serializer.collect_str(rate),
            Self::Unlimited => serializer.serialize_str(UNLIMITED),
            Self::Blocked => serializer.serialize_u64(0),
        }
    }
}
