use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::units::{Duration, Status};

/// Admission by who is active: when too many users are, those who come new wait.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Throttle {
    /// With more active users than this the throttling mode begins.
    #[schemars(range(min = 1))]
    pub max_active: u64,
    /// With fewer than this it ends; left out: nine tenths of `max_active`.
    pub resume_below: Option<u64>,
    /// So long after its last good answer a token is known.
    #[serde(default = "Throttle::memory")]
    pub memory: Duration,
    /// Distinct tokens a minute that the filters are sized for.
    #[serde(default = "Throttle::capacity")]
    #[schemars(range(min = 1))]
    pub capacity: u64,
    /// The share of unknown tokens that may be taken for known, over all live filters together.
    #[serde(default = "Throttle::false_positive")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub false_positive: f64,
    /// An answer with one of these does not make a token known.
    #[serde(default = "Throttle::forget_status")]
    pub forget_status: Vec<Status>,
    /// When to throttle.
    #[serde(default)]
    pub mode: Mode,
}

impl Throttle {
    fn memory() -> Duration {
        Duration::from_secs(30 * 60)
    }

    fn capacity() -> u64 {
        1_000_000
    }

    fn false_positive() -> f64 {
        0.001
    }

    fn forget_status() -> Vec<Status> {
        vec![Status(401), Status(403)]
    }
}

/// When to throttle.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// When too many users are active.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}
