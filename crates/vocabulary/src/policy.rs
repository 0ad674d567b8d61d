//! [`Policy`]: which target a request goes to.

use serde::{Deserialize, Serialize};

/// Load-balancing policy: the rule that chooses a target for a request.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Each target in turn, in proportion to the weights.
    RoundRobin,
    /// Of two random targets, the one with fewer requests in flight.
    #[default]
    LeastRequests,
    /// Of two random targets, the one with the lower product of latency and requests in flight.
    PeakEwma,
    /// The target to which `hash_key` maps the request: always the same for a key, while it is in
    /// service and not overloaded.
    Hash,
}
