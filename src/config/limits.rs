use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::key_part::KeyPart;
use super::text::is_token;
use super::tiers::{Candidate, Tier};
use super::units::{Duration, Status};

/// How much may pass in how long, and who is counted.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// How it counts.
    #[serde(default)]
    pub algorithm: Algorithm,
    /// What may be charged in one window, in units of cost.
    #[schemars(range(min = 1, max = 4_294_967_295_u64))]
    pub quota: u64,
    /// The window's length.
    pub window: Duration,
    /// Sub-windows that a sliding window is divided into; each a whole number of ms. Left out: 6,
    /// or the next smaller number that divides the window.
    #[schemars(range(min = 1, max = 60))]
    pub resolution: Option<u32>,
    /// True: a sliding window counts its oldest sub-window in full until it has left the window, so
    /// that no interval as long as the window holds more than the quota.
    #[serde(default)]
    pub strict: bool,
    /// Who is counted: requests that agree in all of these parts share a counter. `[]` counts
    /// everyone together.
    #[serde(default = "Limit::standard_key")]
    pub key: Vec<KeyPart>,
    /// What one request costs.
    #[serde(default)]
    pub cost: Cost,
    /// The most that a cost from a header may be; left out: the quota.
    pub max_cost: Option<u32>,
    /// Another quota for some callers; the first that matches.
    #[serde(default)]
    pub tiers: Vec<Tier>,
    /// A second quota beside this one: counted and reported, never felt.
    pub candidate: Option<Candidate>,
    /// False: counted and reported, never refused.
    #[serde(default = "yes")]
    pub enforce: bool,
    /// Answers with these statuses are not charged.
    #[serde(default)]
    pub refund: Vec<Status>,
    /// Tokens fetched at a time from Redis, so that not every request asks it.
    #[serde(default)]
    pub reserve: Reserve,
    /// What happens when Redis is lost.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// The longest time that a leaky bucket delays a request; longer: 429. Left out: the window.
    pub max_wait: Option<Duration>,
    /// The most requests that a leaky bucket delays at once, over all gateways that share it; more:
    /// 429.
    pub max_queue: Option<u32>,
}

fn yes() -> bool {
    true
}

impl Limit {
    /// The sub-windows when the file does not say, where they divide the window.
    const RESOLUTION: u32 = 6;

    /// By client address: of the keys that every request has, the one by which a caller who asks
    /// too much stands in nobody's way but its own.
    fn standard_key() -> Vec<KeyPart> {
        vec![KeyPart::ClientIp]
    }

    /// The sub-windows that the window is divided into: one, but for a sliding window.
    pub fn resolution(&self) -> u32 {
        if self.algorithm != Algorithm::SlidingWindow {
            return 1;
        }
        let divides = |&k: &u32| self.window.millis().is_multiple_of(u64::from(k));
        self.resolution.unwrap_or_else(|| (1..=Self::RESOLUTION).rev().find(divides).unwrap_or(1))
    }
}

/// How a limit counts.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// A window that moves with the clock, kept as counters of its sub-windows.
    #[default]
    SlidingWindow,
    /// A window that moves with the clock, kept as the time of every charge; exact, for small
    /// quotas.
    SlidingLog,
    /// A window that starts with its first charge.
    FixedWindow,
    /// A bucket that fills at a constant rate; what is in it may go at once.
    TokenBucket,
    /// A constant rate: what comes faster is delayed.
    LeakyBucket,
    /// Requests in flight: each holds a slot until it ends, on a lease of the window that is renewed.
    Concurrency,
}

/// What happens to a request when Redis cannot be asked.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// This gateway enforces the limit from its own memory.
    #[default]
    Local,
    /// It passes.
    Open,
    /// It is refused with 503.
    Closed,
}

/// What one request costs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Cost {
    /// Always this much.
    Fixed(u32),
    /// What this header of the request says; the name in lower case.
    Header(String),
    /// What this header of the upstream's answer says; the name in lower case.
    Response(String),
}

impl Default for Cost {
    fn default() -> Self {
        Self::Fixed(1)
    }
}

const COST: &str = "a whole number from 1, header:NAME or response:NAME";

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CostVisitor;

        impl Visitor<'_> for CostVisitor {
            type Value = Cost;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(COST)
            }

            fn visit_u64<E: Error>(self, cost: u64) -> Result<Cost, E> {
                let fits = u32::try_from(cost).ok().filter(|&cost| cost > 0);
                let invalid = || E::invalid_value(Unexpected::Unsigned(cost), &self);
                fits.map(Cost::Fixed).ok_or_else(invalid)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Cost, E> {
                match text.split_once(':') {
                    Some(("header", name)) if is_token(name) => {
                        Ok(Cost::Header(name.to_ascii_lowercase()))
                    }
                    Some(("response", name)) if is_token(name) => {
                        Ok(Cost::Response(name.to_ascii_lowercase()))
                    }
                    _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
                }
            }
        }

        deserializer.deserialize_any(CostVisitor)
    }
}

impl Serialize for Cost {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(cost) => serializer.serialize_u32(*cost),
            Self::Header(name) => serializer.collect_str(&format_args!("header:{name}")),
            Self::Response(name) => serializer.collect_str(&format_args!("response:{name}")),
        }
    }
}

impl JsonSchema for Cost {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Cost".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": COST,
            "oneOf": [
                {"type": "integer", "minimum": 1, "maximum": u32::MAX},
                {"type": "string", "pattern": "^(header|response):[!#-'*+.0-9A-Z^-z|~-]+$"},
            ],
        })
    }
}

/// How many tokens are fetched at a time from Redis.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Reserve {
    /// None: Redis decides every request.
    #[default]
    Off,
    /// As many as the traffic asks for.
    Auto,
    /// This many.
    Fixed(u32),
}

const RESERVE: &str = "off, auto or a whole number from 1";

impl<'de> Deserialize<'de> for Reserve {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ReserveVisitor;

        impl Visitor<'_> for ReserveVisitor {
            type Value = Reserve;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(RESERVE)
            }

            fn visit_u64<E: Error>(self, tokens: u64) -> Result<Reserve, E> {
                let fits = u32::try_from(tokens).ok().filter(|&tokens| tokens > 0);
                let invalid = || E::invalid_value(Unexpected::Unsigned(tokens), &self);
                fits.map(Reserve::Fixed).ok_or_else(invalid)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Reserve, E> {
                match text {
                    "off" => Ok(Reserve::Off),
                    "auto" => Ok(Reserve::Auto),
                    _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
                }
            }
        }

        deserializer.deserialize_any(ReserveVisitor)
    }
}

impl fmt::Display for Reserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Auto => f.write_str("auto"),
            Self::Fixed(tokens) => write!(f, "{tokens}"),
        }
    }
}

impl Serialize for Reserve {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_str("off"),
            Self::Auto => serializer.serialize_str("auto"),
            Self::Fixed(tokens) => serializer.serialize_u32(*tokens),
        }
    }
}

impl JsonSchema for Reserve {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Reserve".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": RESERVE,
            "oneOf": [
                {"type": "string", "enum": ["off", "auto"]},
                {"type": "integer", "minimum": 1, "maximum": u32::MAX},
            ],
        })
    }
}
