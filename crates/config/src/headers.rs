//! `headers`: the rate-limit headers of responses.

use serde::{Deserialize, Serialize};

/// Rate-limit headers that are written on responses.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Headers {
    /// Write the `X-RateLimit-*` headers, which describe the limit with the least quota left.
    pub x_ratelimit: bool,
    /// Draft of the IETF `RateLimit` and `RateLimit-Policy` headers to write, with one item per
    /// limit.
    pub standard: StandardHeaders,
    /// What happens to headers of these names in a response of an upstream, which has limits of its
    /// own.
    pub upstream: UpstreamRateHeaders,
}

impl Default for Headers {
    fn default() -> Self {
        Self {
            x_ratelimit: true,
            standard: StandardHeaders::Off,
            upstream: UpstreamRateHeaders::Replace,
        }
    }
}

/// What happens to an upstream's own rate-limit headers.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum UpstreamRateHeaders {
    /// The gateway's replace them, on routes with limits.
    #[default]
    Replace,
    /// They are forwarded, and the gateway writes none of their family (`X-RateLimit-*`, or
    /// `RateLimit` and `RateLimit-Policy`) on that response. `Retry-After` is always the
    /// upstream's.
    Keep,
}

/// Draft of the IETF headers `RateLimit` and `RateLimit-Policy` that is written.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum StandardHeaders {
    /// None. This is the default because at least one client library ignores all rate-limit headers
    /// if these are present.
    #[default]
    #[serde(rename = "off")]
    Off,
    /// draft-ietf-httpapi-ratelimit-headers-11.
    #[serde(rename = "draft-11")]
    Draft11,
}
