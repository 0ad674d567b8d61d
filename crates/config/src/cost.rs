//! The `cost` of a limit as a map: an estimate is charged before a request, and settled when its
//! response ends.

use std::{collections::BTreeMap, fmt};

use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use tidegate_limit::MAX_UNITS;
use tidegate_scalar::{ScalarValue, impl_scalar, is_token, with_reason};
use tidegate_usage::json_path_fault;
use tidegate_usage::{JsonPath, Preset};

/// A cost that is known when the response ends: an estimate is charged before, and the difference
/// afterwards.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SettledCostConfig {
    /// Units that are charged before: a number, a member of the request's JSON body (`json:PATH`)
    /// or a header of the request (`header:NAME`). With `preset`, a member counts once for each
    /// choice that the request asks for. Default: 1; with `preset`, the member that bounds the
    /// tokens of a choice.
    pub estimate: Option<EstimateConfig>,
    /// Units that are charged before a request that lacks the member or the header of `estimate`,
    /// or whose body is not JSON or has the member beyond `max_inspect`. Default: 1.
    #[cfg_attr(test, schemars(range(min = 1, max = 9_007_199_254_740_991_u64)))]
    pub missing_estimate: Option<u64>,
    /// Units that are charged in the end: a member of the response's JSON body, or of the last
    /// server-sent event that has it (`json:PATH`), a header of the response (`header:NAME`), the
    /// bytes of its body (`bytes`), or the milliseconds from the request's head to the last byte
    /// (`duration_ms`).
    pub actual: Option<ActualConfig>,
    /// Instead of `actual`, members of the response's JSON body, each with a factor: a weighted
    /// sum, rounded up. With `preset`, factors of `input` and `output`.
    #[cfg_attr(test, schemars(extend("additionalProperties" = {
        "type": "number", "format": "double", "minimum": 0, "maximum": 1_000_000_000,
    })))]
    pub weights: Option<BTreeMap<String, f64>>,
    /// Instead of `actual`, the tokens that a known API reports.
    pub preset: Option<Preset>,
    /// Units that are charged in the end if the response does not report its cost: a number, or
    /// `estimate`. Default: `estimate`.
    pub missing: Option<MissingConfig>,
    /// Units that are charged in the end if the response is an error (a status from 400, of the
    /// upstream or of the gateway) that does not report its cost: a number, or `missing`. Default:
    /// 0.
    pub failed: Option<FailedConfig>,
    /// Maximum of the estimate and of the final charge. Default: none. A request whose estimate is
    /// more than its quota is refused.
    #[cfg_attr(test, schemars(range(min = 1, max = 9_007_199_254_740_991_u64)))]
    pub max: Option<u64>,
}

/// Units that are charged before a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum EstimateConfig {
    /// A fixed number.
    Units(u64),
    /// The value of this request header; the name in lower case.
    Header(String),
    /// The member of the request's JSON body at this path.
    Json(JsonPath),
}

/// Units that are charged when the response has ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ActualConfig {
    /// The value of this header of the response; the name in lower case.
    Header(String),
    /// The member of the response's JSON body at this path.
    Json(JsonPath),
    /// The bytes of the response's body.
    Bytes,
    /// The milliseconds from the request's head to the response's last byte.
    DurationMs,
}

/// Units that are charged if the response does not report its cost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MissingConfig {
    /// The estimate.
    Estimate,
    /// A fixed number.
    Units(u64),
}

/// Units that are charged if the response is an error that does not report its cost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FailedConfig {
    /// The same as of any other response.
    Missing,
    /// A fixed number.
    Units(u64),
}

/// The syntax of an estimate, for faults and the schema.
pub(super) const ESTIMATE_SYNTAX: &str =
    "a whole number from 1 to 9007199254740991, json:PATH such as json:max_tokens, or header:NAME";
/// The syntax of `missing`, for faults and the schema.
pub(super) const MISSING_SYNTAX: &str = "a whole number from 0 to 9007199254740991, or estimate";

/// The syntax of `failed`, for faults and the schema.
pub(super) const FAILED_SYNTAX: &str = "a whole number from 0 to 9007199254740991, or missing";

impl<'de> Deserialize<'de> for EstimateConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EstimateVisitor;

        impl Visitor<'_> for EstimateVisitor {
            type Value = EstimateConfig;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(ESTIMATE_SYNTAX)
            }

            fn visit_u64<E: Error>(self, units: u64) -> Result<EstimateConfig, E> {
                if (1..=MAX_UNITS).contains(&units) {
                    Ok(EstimateConfig::Units(units))
                } else {
                    Err(E::invalid_value(Unexpected::Unsigned(units), &self))
                }
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<EstimateConfig, E> {
                let read = match text.split_once(':') {
                    Some(("header", name)) if is_token(name) => {
                        Some(EstimateConfig::Header(name.to_ascii_lowercase()))
                    }
                    Some(("json", path)) => path.parse().ok().map(EstimateConfig::Json),
                    _ => None,
                };
                read.ok_or_else(|| {
                    let expected = with_reason(ESTIMATE_SYNTAX, json_path_fault(text));
                    E::invalid_value(Unexpected::Str(text), &&*expected)
                })
            }
        }

        deserializer.deserialize_any(EstimateVisitor)
    }
}

impl Serialize for EstimateConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Units(units) => serializer.serialize_u64(*units),
            Self::Header(name) => serializer.collect_str(&format_args!("header:{name}")),
            Self::Json(path) => serializer.collect_str(&format_args!("json:{path}")),
        }
    }
}

impl ScalarValue for ActualConfig {
    const EXPECTED: &'static str =
        "json:PATH such as json:usage.total_tokens, header:NAME, bytes or duration_ms";
    const PATTERN: &'static str = "^(bytes|duration_ms|json:(\\*\\.)?[^\\s\"*+()=<>,|&\\[\\]]+|header:[!#-'*+.0-9A-Z^-z|~-]+)$";
    const EXAMPLE: &'static str = "json:usage.total_tokens";

    fn parse(text: &str) -> Option<Self> {
        match text.split_once(':') {
            None if text == "bytes" => Some(Self::Bytes),
            None if text == "duration_ms" => Some(Self::DurationMs),
            Some(("header" | "response", name)) if is_token(name) => {
                Some(Self::Header(name.to_ascii_lowercase()))
            }
            Some(("json", path)) => path.parse().ok().map(Self::Json),
            _ => None,
        }
    }

    fn reason(text: &str) -> Option<String> {
        json_path_fault(text)
    }
}

impl fmt::Display for ActualConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Json(path) => write!(f, "json:{path}"),
            Self::Bytes => f.write_str("bytes"),
            Self::DurationMs => f.write_str("duration_ms"),
        }
    }
}

impl_scalar!(ActualConfig);

/// Reads a number of units, or `word`, which is `None`.
struct UnitsVisitor {
    word: &'static str,
    syntax: &'static str,
}

impl Visitor<'_> for UnitsVisitor {
    type Value = Option<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.syntax)
    }

    fn visit_u64<E: Error>(self, units: u64) -> Result<Option<u64>, E> {
        if units <= MAX_UNITS {
            Ok(Some(units))
        } else {
            Err(E::invalid_value(Unexpected::Unsigned(units), &self))
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Option<u64>, E> {
        if text == self.word {
            Ok(None)
        } else {
            Err(E::invalid_value(Unexpected::Str(text), &self))
        }
    }
}

impl<'de> Deserialize<'de> for MissingConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let visitor = UnitsVisitor { word: "estimate", syntax: MISSING_SYNTAX };
        Ok(deserializer.deserialize_any(visitor)?.map_or(Self::Estimate, Self::Units))
    }
}

impl Serialize for MissingConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Units(units) => serializer.serialize_u64(*units),
            Self::Estimate => serializer.serialize_str("estimate"),
        }
    }
}

impl<'de> Deserialize<'de> for FailedConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let visitor = UnitsVisitor { word: "missing", syntax: FAILED_SYNTAX };
        Ok(deserializer.deserialize_any(visitor)?.map_or(Self::Missing, Self::Units))
    }
}

impl Serialize for FailedConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Units(units) => serializer.serialize_u64(*units),
            Self::Missing => serializer.serialize_str("missing"),
        }
    }
}
