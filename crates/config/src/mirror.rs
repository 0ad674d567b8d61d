//! `mirror`: copies of requests for another upstream.

use serde::{Deserialize, Serialize};

/// Also sends a share of the requests to another upstream and discards its responses. Upgrades,
/// gRPC, and requests with a body of more than 64 KiB are not mirrored.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MirrorConfig {
    /// Name of the upstream that the copies are sent to. It must differ from the route's upstream.
    pub upstream: String,
    /// Share of the route's requests, in percent, 1 to 100.
    #[serde(default = "MirrorConfig::default_share")]
    #[cfg_attr(test, schemars(range(min = 1, max = 100)))]
    pub share: u8,
}

impl MirrorConfig {
    fn default_share() -> u8 {
        100
    }
}
