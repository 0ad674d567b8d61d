//! Parts of an upstream: balancing, health checks, ejection, retries and adaptive concurrency.

use std::fmt;

use serde::{Deserialize, Serialize};
use tidegate_scalar::{ScalarValue, impl_scalar};

use super::status::StatusRange;
use super::units::Duration;

/// Health checks of the targets (active health): the gateway regularly requests a path from each
/// target.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct HealthCheck {
    /// Path of the `GET` request to each target, with or without a query.
    pub path: String,
    /// Time between two checks of a target, varied at random by up to a tenth.
    #[cfg_attr(test, schemars(extend("x-minimum" = "100ms", "x-maximum" = "1h")))]
    pub interval: Duration,
    /// Maximum time for a check, from the connect to the head of its response.
    #[cfg_attr(test, schemars(extend("x-minimum" = "1ms", "x-maximum" = "1m")))]
    pub timeout: Duration,
    /// Number of failed checks in a row after which a target is down, 1 to 100.
    #[cfg_attr(test, schemars(range(min = 1, max = 100)))]
    pub unhealthy_after: u32,
    /// Number of passed checks in a row after which a target that was down is up, 1 to 100.
    #[cfg_attr(test, schemars(range(min = 1, max = 100)))]
    pub healthy_after: u32,
    /// Statuses that pass a check, each alone or as a range.
    pub status: Vec<StatusRange>,
    /// Value of `Host` in a check. Default: the target's host and port.
    pub host: Option<String>,
}

impl Default for HealthCheck {
    fn default() -> Self {
        Self {
            path: "/".to_owned(),
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(1),
            unhealthy_after: 3,
            healthy_after: 2,
            status: vec![StatusRange { first: 200, last: 299 }],
            host: None,
        }
    }
}

/// Ejection of targets that fail requests (passive health).
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Ejection {
    /// Number of failures in a row that eject a target, 1 to 1000. A failed connect ejects it at
    /// once.
    #[cfg_attr(test, schemars(range(min = 1, max = 1000)))]
    pub failures: u32,
    /// Duration of the first ejection. It doubles each time the target fails again soon after its
    /// return.
    #[cfg_attr(test, schemars(extend("x-minimum" = "100ms", "x-maximum" = "24h")))]
    pub duration: Duration,
    /// Maximum duration of an ejection.
    #[cfg_attr(test, schemars(extend("x-minimum" = "100ms", "x-maximum" = "24h")))]
    pub max_duration: Duration,
    /// Maximum share of the targets, in percent, that is ejected at a time while others are in
    /// service, 0 to
    /// 100. With 0 no target is ejected.
    #[cfg_attr(test, schemars(range(max = 100)))]
    pub max_share: u32,
}

impl Default for Ejection {
    fn default() -> Self {
        Self {
            failures: 5,
            duration: Duration::from_secs(10),
            max_duration: Duration::from_secs(300),
            max_share: 50,
        }
    }
}

/// Bounds of the maximum number of requests in flight at a target, which follows the target's
/// latency.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct AdaptiveConcurrency {
    /// Lower bound of the adapted maximum, 1 to 100000.
    #[cfg_attr(test, schemars(range(min = 1, max = 100_000)))]
    pub min: u32,
    /// Upper bound of the adapted maximum, 1 to 100000.
    #[cfg_attr(test, schemars(range(min = 1, max = 100_000)))]
    pub max: u32,
}

impl Default for AdaptiveConcurrency {
    fn default() -> Self {
        Self { min: 4, max: 1000 }
    }
}

/// A failure after which a request may be sent to another target.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum RetryCondition {
    /// `connect`: no connection could be opened.
    Connect,
    /// `reset`: the connection broke, or the response was malformed, before the head was complete.
    Reset,
    /// `timeout`: no head arrived within `response_timeout`.
    Timeout,
    /// A response with one of these statuses, from 502 to 504.
    Status(StatusRange),
}

impl ScalarValue for RetryCondition {
    const EXPECTED: &'static str =
        "connect, reset, timeout, 502, 503, 504 or a range of these such as 502-504";
    const PATTERN: &'static str = "^(connect|reset|timeout|50[2-4](-50[2-4])?)$";
    const EXAMPLE: &'static str = "connect";

    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "connect" => Self::Connect,
            "reset" => Self::Reset,
            "timeout" => Self::Timeout,
            _ => {
                let range = StatusRange::parse(text)?;
                let is_within = 502 <= range.first && range.last <= 504;
                return is_within.then_some(Self::Status(range));
            }
        })
    }
}

impl fmt::Display for RetryCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect => f.write_str("connect"),
            Self::Reset => f.write_str("reset"),
            Self::Timeout => f.write_str("timeout"),
            Self::Status(status) => status.fmt(f),
        }
    }
}

impl_scalar!(RetryCondition);
