//! [`AcmeChallenge`]: how an authority checks that the gateway has a domain.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How an authority checks that the gateway has a domain.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum AcmeChallenge {
    /// A TLS handshake with the protocol `acme-tls/1` (RFC 8737).
    #[default]
    #[serde(rename = "tls-alpn-01")]
    TlsAlpn01,
    /// A request for a path below `/.well-known/acme-challenge/` (RFC 8555, 8.3).
    #[serde(rename = "http-01")]
    Http01,
}

impl fmt::Display for AcmeChallenge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TlsAlpn01 => "tls-alpn-01",
            Self::Http01 => "http-01",
        })
    }
}
