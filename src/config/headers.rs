//! `headers`: the rate-limit headers of responses.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Rate-limit headers that are written on responses.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Headers {
    /// Write the `X-RateLimit-*` headers, which describe the limit with the least quota left.
    pub x_ratelimit: bool,
    /// Draft of the IETF `RateLimit` and `RateLimit-Policy` headers to write, with one item per limit.
    pub standard: StandardHeaders,
}

impl Default for Headers {
    fn default() -> Self {
        Self { x_ratelimit: true, standard: StandardHeaders::Off }
    }
}

/// Draft of the IETF headers `RateLimit` and `RateLimit-Policy` that is written.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum StandardHeaders {
    /// None. This is the default because at least one client library ignores all rate-limit headers if these
    /// are present.
    #[default]
    #[serde(rename = "off")]
    Off,
    /// draft-ietf-httpapi-ratelimit-headers-11.
    #[serde(rename = "draft-11")]
    Draft11,
}
