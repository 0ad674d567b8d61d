//! `mirror`: copies of requests for another upstream.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A share of the requests is also sent to another upstream, whose responses are discarded. Not mirrored are
/// upgrades, gRPC and requests whose body is longer than 64 KiB.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MirrorConfig {
    /// Name of the upstream that the copies are sent to; another one than the route's own.
    pub upstream: String,
    /// Share of the route's requests, in per cent, 1 to 100.
    #[serde(default = "MirrorConfig::default_share")]
    #[schemars(range(min = 1, max = 100))]
    pub share: u8,
}

impl MirrorConfig {
    fn default_share() -> u8 {
        100
    }
}
