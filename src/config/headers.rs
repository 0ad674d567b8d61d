use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which rate-limit headers an answer carries.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Headers {
    /// The X-RateLimit family, of the limit with the least left.
    pub x_ratelimit: bool,
    /// The IETF form, of every limit.
    pub standard: Standard,
}

impl Default for Headers {
    fn default() -> Self {
        Self { x_ratelimit: true, standard: Standard::Off }
    }
}

/// Which edition of the IETF form (`RateLimit`, `RateLimit-Policy`) is written.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum Standard {
    /// None: a client library in use reads nothing at all once the standard form is present.
    #[default]
    #[serde(rename = "off")]
    Off,
    /// draft-ietf-httpapi-ratelimit-headers-11.
    #[serde(rename = "draft-11")]
    Draft11,
}
