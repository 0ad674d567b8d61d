//! `client`: how the client's address and access token are determined.

use http::header;
use serde::{Deserialize, Serialize};
use tidegate_identity::CredentialSource;

use super::units::Cidr;

/// How the client's address and access token are determined.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Client {
    /// Networks of the proxies in front of the gateway. `X-Forwarded-For` is trusted only on their
    /// connections, and is read from right to left.
    pub trusted_proxies: Vec<Cidr>,
    /// Prefix length, in bits, to which IPv6 client addresses are truncated before they are
    /// counted.
    #[cfg_attr(test, schemars(range(min = 1, max = 128)))]
    pub ipv6_prefix: u8,
    /// Headers and cookies that carry an access token. If a request carries several tokens, each is
    /// counted.
    pub token: Vec<CredentialSource>,
}

impl Default for Client {
    fn default() -> Self {
        Self {
            trusted_proxies: Vec::new(),
            ipv6_prefix: 64,
            token: vec![CredentialSource::Header(header::AUTHORIZATION)],
        }
    }
}
