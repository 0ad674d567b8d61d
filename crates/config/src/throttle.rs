//! `throttle`: active-user admission control.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tidegate_scalar::{ScalarValue, impl_scalar, is_token};
use tidegate_vocabulary::ThrottleMode;

use super::status::StatusRange;
use super::units::{Duration, Size};

/// Active-user admission control: while too many users are active, requests of new users are
/// refused with 429, and active users are still served. An access token stands for a user.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ThrottleConfig {
    /// Number of active users above which throttling starts.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000_000_000_000_u64)))]
    pub max_active: u64,
    /// Number of active users below which throttling ends. Default: nine tenths of `max_active`.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000_000_000_000_u64)))]
    pub resume_below: Option<u64>,
    /// Time for which a token stays active after its last upstream response with a status not in
    /// `forget_status`. Whole minutes, 1m to 720h.
    #[serde(default = "ThrottleConfig::default_memory")]
    #[cfg_attr(test, schemars(extend("x-minimum" = "1m", "x-maximum" = "720h")))]
    pub memory: Duration,
    /// Number of distinct tokens per minute that the filters are sized for. Default: twice
    /// `max_active`, at least 10000.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000_000_000)))]
    pub capacity: Option<u64>,
    /// Maximum memory of the filters. They grow, up to 16 times, when there are more tokens than
    /// `capacity`. Default: 8 times the memory for `capacity`, at most three eighths of the
    /// machine's memory.
    pub max_memory: Option<Size>,
    /// Share of inactive tokens that may be treated as active (false positives of all live filters
    /// together): 0.000000001 to 0.5.
    #[serde(default = "ThrottleConfig::default_false_positive")]
    #[cfg_attr(test, schemars(range(min = 0.000_000_001, max = 0.5)))]
    pub false_positive: f64,
    /// Response statuses that do not make a token active, each alone or as a range.
    #[serde(default = "ThrottleConfig::default_forget_status")]
    pub forget_status: Vec<StatusRange>,
    /// When to throttle: by the number of active users, always, or never.
    #[serde(default)]
    pub mode: ThrottleMode,
    /// New users wait for their turn, in the order of their arrival. Default: no waiting room; who
    /// is admitted first when places become free is chance.
    #[serde(default)]
    pub waiting_room: Option<WaitingRoomConfig>,
}

/// Admits new users in the order of their arrival while the throttle is on. A user that waits has a
/// signed ticket, in a cookie or a header.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct WaitingRoomConfig {
    /// Path of a file with the page that waiting users see in a browser: HTML, at most 256 KiB. Its
    /// variables are `{place}`, `{expected_wait}` (in words) and `{retry_after}` (in seconds). It
    /// is read at startup and at each reload. Default: a plain page of the gateway.
    pub page: Option<PathBuf>,
    /// Time after which a ticket expires whose holder does not ask. Whole seconds, 20s to 1h.
    #[cfg_attr(test, schemars(extend("x-minimum" = "20s", "x-maximum" = "1h")))]
    pub ticket_ttl: Duration,
    /// Name of the cookie that carries the ticket.
    pub cookie: CookieName,
}

impl Default for WaitingRoomConfig {
    fn default() -> Self {
        Self {
            page: None,
            ticket_ttl: Duration::from_secs(60),
            cookie: CookieName("tidegate-ticket".to_owned()),
        }
    }
}

/// The name of a cookie.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CookieName(pub String);

impl ScalarValue for CookieName {
    const EXPECTED: &'static str = "the name of a cookie";
    const PATTERN: &'static str = "^[!#-'*+.0-9A-Z^-z|~-]+$";
    const EXAMPLE: &'static str = "tidegate-ticket";

    fn parse(text: &str) -> Option<Self> {
        is_token(text).then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for CookieName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl_scalar!(CookieName);

/// Default `capacity` for each user that may be active.
const CAPACITY_FACTOR: u64 = 2;
/// The smallest default of `capacity`.
const MIN_CAPACITY: u64 = 10_000;
/// The largest `capacity`.
const MAX_CAPACITY: u64 = 1_000_000_000;

impl ThrottleConfig {
    /// `capacity`, or its default, which allows for as many new tokens in a minute as active ones.
    pub fn capacity_or_default(&self) -> u64 {
        let by_users = self.max_active.saturating_mul(CAPACITY_FACTOR);
        self.capacity.unwrap_or_else(|| by_users.clamp(MIN_CAPACITY, MAX_CAPACITY))
    }

    fn default_memory() -> Duration {
        Duration::from_secs(30 * 60)
    }

    fn default_false_positive() -> f64 {
        0.001
    }

    fn default_forget_status() -> Vec<StatusRange> {
        vec![StatusRange::one(401), StatusRange::one(403)]
    }
}
