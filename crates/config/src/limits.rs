//! `limits`: quota, window, key and algorithm of each rate limit.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use tidegate_identity::KeyPart;
use tidegate_limit::{Calendar, MAX_UNITS};
use tidegate_scalar::is_token;
use tidegate_vocabulary::OnFailure;

use super::cost::SettledCostConfig;
use super::status::StatusRange;
use super::tiers::{Candidate, TierConfig};
use super::units::Duration;
use super::window::{TimeZoneName, WindowConfig, WindowStart};

/// A rate limit: a quota per window, counted per key.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LimitConfig {
    /// Algorithm by which requests are counted.
    #[serde(default)]
    pub algorithm: AlgorithmConfig,
    /// Maximum units of cost charged per window. With `concurrency`, units in flight at once.
    #[cfg_attr(test, schemars(range(min = 1, max = MAX_UNITS)))]
    pub quota: u64,
    /// Length of the window, or `hour`, `day`, `week` or `month` for windows of the calendar, which
    /// only `fixed_window` has. With `concurrency`, the duration of a permit's lease, at least 1s.
    pub window: WindowConfig,
    /// Time zone whose clocks the calendar's windows follow, by its name in the IANA database.
    /// Default: UTC.
    pub time_zone: Option<TimeZoneName>,
    /// First day of the calendar's windows: of a `month` its day, or its last day where it is
    /// shorter; of a `week` a day such as monday. Default: 1, monday.
    pub starts: Option<WindowStart>,
    /// Number of sub-windows of a `sliding_window`. It must divide the window into whole
    /// milliseconds. Default: 6, or the next smaller number that divides the window.
    #[cfg_attr(test, schemars(range(min = 1, max = 60)))]
    pub resolution: Option<u32>,
    /// Count the oldest sub-window of a `sliding_window` in full until it has left the window, so
    /// that no interval of the window's length admits more than the quota. If false, its count is
    /// weighted by the share of it that is still in the window.
    #[serde(default)]
    pub strict: bool,
    /// Parts of the request that form the key. Requests with equal values in all parts share a
    /// counter; `[]` counts all requests together.
    #[serde(default = "LimitConfig::default_key")]
    pub key: Vec<KeyPart>,
    /// Units of the quota that one request costs: a fixed number, the value of a header of the
    /// request (`header:NAME`) or of the upstream's response (`response:NAME`), or a map: an
    /// estimate is charged before, and settled when the response ends.
    #[serde(default)]
    pub cost: CostConfig,
    /// Maximum cost that a header may give. A request header above it is answered with 400; a
    /// response header above it is charged as this maximum. Default: the quota (`leaky_bucket`: the
    /// slots within `max_wait`).
    #[cfg_attr(test, schemars(range(min = 1, max = MAX_UNITS)))]
    pub max_cost: Option<u64>,
    /// Other quotas for some callers. The first tier that matches applies.
    #[serde(default)]
    pub tiers: Vec<TierConfig>,
    /// A second quota to try out: counted and reported in metrics as `NAME~candidate`, never
    /// enforced.
    pub candidate: Option<Candidate>,
    /// Refuse requests that exceed the quota. If false, they are counted and reported, but
    /// admitted.
    #[serde(default = "LimitConfig::default_enforce")]
    pub enforce: bool,
    /// Response statuses that refund the request's charge, each alone or as a range such as
    /// `200-399`, including those of the gateway's own responses such as 502.
    #[serde(default)]
    pub refund: Vec<StatusRange>,
    /// The only response statuses whose requests are charged, each alone or as a range such as
    /// `500-599`. A request is charged when it arrives, and its charge is refunded if its response
    /// has another status. Not with `refund`. Default: every status.
    pub charge_on: Option<Vec<StatusRange>>,
    /// Refuse a caller that this limit has refused too often, for some time and without counting.
    /// Not with `reserve`. Default: no block.
    pub block: Option<BlockConfig>,
    /// Units of the quota that the gateway leases from Redis at a time, so that most requests need
    /// no Redis call. Only for `sliding_window` and `fixed_window`, and not with
    /// `cost: response:NAME`.
    #[serde(default)]
    pub reserve: Reserve,
    /// How requests are decided while Redis is unavailable.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Maximum time that a `leaky_bucket` delays a request. A request that would wait longer is
    /// refused with
    /// 429. Default: the window.
    #[cfg_attr(test, schemars(extend("x-minimum" = "0ms", "x-maximum" = "1193h")))]
    pub max_wait: Option<Duration>,
    /// Maximum number of requests that a `leaky_bucket` delays at once, over all gateways that
    /// share it. Further requests are refused with 429. Default: only `max_wait` bounds them.
    pub max_queue: Option<u32>,
}

impl LimitConfig {
    /// Default number of sub-windows, if it divides the window.
    const DEFAULT_RESOLUTION: u32 = 6;

    /// A limit of `quota` per `window`, with the defaults of all other keys.
    pub fn new(quota: u64, window: WindowConfig) -> Self {
        Self {
            algorithm: AlgorithmConfig::default(),
            quota,
            window,
            time_zone: None,
            starts: None,
            resolution: None,
            strict: false,
            key: Self::default_key(),
            cost: CostConfig::default(),
            max_cost: None,
            tiers: Vec::new(),
            candidate: None,
            enforce: Self::default_enforce(),
            refund: Vec::new(),
            charge_on: None,
            block: None,
            reserve: Reserve::default(),
            on_failure: OnFailure::default(),
            max_wait: None,
            max_queue: None,
        }
    }

    fn default_enforce() -> bool {
        true
    }

    /// The client's address: every request has one, and one caller's requests do not use up
    /// another's quota.
    fn default_key() -> Vec<KeyPart> {
        vec![KeyPart::ClientIp]
    }

    /// The calendar of its windows; `None` if they have a fixed length.
    pub fn calendar(&self) -> Option<Calendar> {
        self.window.calendar_in(self.time_zone.as_ref(), self.starts)
    }

    /// Number of sub-windows in the window; 1 unless the algorithm is `sliding_window`.
    pub fn resolution(&self) -> u32 {
        if self.algorithm != AlgorithmConfig::SlidingWindow {
            return 1;
        }
        let divides = |&k: &u32| self.window.millis().as_ms().is_multiple_of(u64::from(k));
        self.resolution
            .unwrap_or_else(|| (1..=Self::DEFAULT_RESOLUTION).rev().find(divides).unwrap_or(1))
    }
}

/// A block of callers that a limit refuses again and again.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BlockConfig {
    /// Number of refusals by the limit after which its key is blocked, 1 to 1000000.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000_000)))]
    pub after: u32,
    /// Time within which they are counted, from the first refusal on: 1s to 24h.
    #[cfg_attr(test, schemars(extend("x-minimum" = "1s", "x-maximum" = "24h")))]
    pub within: Duration,
    /// Length of the block: 1s to 30d.
    #[cfg_attr(test, schemars(extend("x-minimum" = "1s", "x-maximum" = "30d")))]
    pub r#for: Duration,
}

/// Algorithm by which a limit counts.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AlgorithmConfig {
    /// A sliding window, stored as one counter per sub-window. Its cost does not depend on the
    /// quota.
    #[default]
    SlidingWindow,
    /// A sliding window, stored as the time of every charge: exact to the millisecond, for small
    /// quotas.
    SlidingLog,
    /// One counter per window. A window starts with its first charge, unless it is one of the
    /// calendar; when it ends, the count starts at 0.
    FixedWindow,
    /// A bucket of `quota` tokens, refilled at a constant rate of quota per window. It allows
    /// bursts.
    TokenBucket,
    /// Requests are released at a constant rate of quota per window; faster ones are delayed.
    LeakyBucket,
    /// Bounds the requests in flight: each holds a permit until it ends. The window is the duration
    /// of the permit's lease, which the gateway renews.
    Concurrency,
}

/// Units of the quota that one request costs.
#[derive(Clone, Debug, PartialEq)]
pub enum CostConfig {
    /// A fixed number of units.
    Fixed(u64),
    /// The value of this request header; the name in lower case.
    Header(String),
    /// The value of this header of the upstream's response; the name in lower case.
    Response(String),
    /// An estimate, settled when the response ends.
    Settled(Box<SettledCostConfig>),
}

impl Default for CostConfig {
    fn default() -> Self {
        Self::Fixed(1)
    }
}

/// The syntax of a cost, for faults and the schema.
pub(super) const COST_SYNTAX: &str = "a whole number from 1 to 9007199254740991, header:NAME, response:NAME, or a map that settles it";

impl<'de> Deserialize<'de> for CostConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CostVisitor;

        impl<'de> Visitor<'de> for CostVisitor {
            type Value = CostConfig;

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<CostConfig, A::Error> {
                let settled = SettledCostConfig::deserialize(MapAccessDeserializer::new(map))?;
                Ok(CostConfig::Settled(Box::new(settled)))
            }

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(COST_SYNTAX)
            }

            fn visit_u64<E: Error>(self, cost: u64) -> Result<CostConfig, E> {
                let fits = Some(cost).filter(|cost| (1..=MAX_UNITS).contains(cost));
                let invalid = || E::invalid_value(Unexpected::Unsigned(cost), &self);
                fits.map(CostConfig::Fixed).ok_or_else(invalid)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<CostConfig, E> {
                match text.split_once(':') {
                    Some(("header", name)) if is_token(name) => {
                        Ok(CostConfig::Header(name.to_ascii_lowercase()))
                    }
                    Some(("response", name)) if is_token(name) => {
                        Ok(CostConfig::Response(name.to_ascii_lowercase()))
                    }
                    _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
                }
            }
        }

        deserializer.deserialize_any(CostVisitor)
    }
}

impl Serialize for CostConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(cost) => serializer.serialize_u64(*cost),
            Self::Header(name) => serializer.collect_str(&format_args!("header:{name}")),
            Self::Response(name) => serializer.collect_str(&format_args!("response:{name}")),
            Self::Settled(settled) => settled.serialize(serializer),
        }
    }
}

/// Number of units leased from Redis at a time.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Reserve {
    /// No lease: Redis decides every request.
    #[default]
    Off,
    /// A number that adapts to the request rate.
    Auto,
    /// A fixed number of units.
    Fixed(u32),
}

/// The range of a fixed reserve.
pub(super) const RESERVE_RANGE: std::ops::RangeInclusive<u32> = 1..=1 << 20;
/// The syntax of a reserve, for faults and the schema.
pub(super) const RESERVE_SYNTAX: &str = "off, auto or a whole number from 1 to 1048576";

impl<'de> Deserialize<'de> for Reserve {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ReserveVisitor;

        impl Visitor<'_> for ReserveVisitor {
            type Value = Reserve;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(RESERVE_SYNTAX)
            }

            fn visit_u64<E: Error>(self, units: u64) -> Result<Reserve, E> {
                let fits = u32::try_from(units).ok().filter(|units| RESERVE_RANGE.contains(units));
                let invalid = || E::invalid_value(Unexpected::Unsigned(units), &self);
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
