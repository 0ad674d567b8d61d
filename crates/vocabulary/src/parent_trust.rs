//! [`ParentTrust`]: whose `traceparent` is trusted.

use serde::{Deserialize, Serialize};

/// The senders whose `traceparent` is trusted.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ParentTrust {
    /// Every client's. Clients then decide how many requests are sampled.
    All,
    /// Only that of peers in `client.trusted_proxies`.
    #[default]
    TrustedProxies,
    /// No sender's.
    None,
}
