use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::units::{Address, Maximum, Size, Timeout};

/// One address that clients connect to.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Listener {
    /// Where to listen.
    pub address: Address,
    /// Speak TLS on this address.
    pub tls: Option<Tls>,
    /// Expect a PROXY protocol header on every connection.
    #[serde(default)]
    pub proxy_protocol: bool,
}

/// A certificate and its key.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The certificate chain, a PEM file.
    pub cert: PathBuf,
    /// The private key, a PEM file.
    pub key: PathBuf,
}

impl Listener {
    /// Where the gateway listens when the file does not say.
    pub(super) fn standard() -> Vec<Self> {
        let address = Address(([127, 0, 0, 1], 8080).into());
        vec![Self { address, tls: None, proxy_protocol: false }]
    }
}

/// What one client connection may cost.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// The longest time from the accept, or a further request's first byte, to the end of the head;
    /// then 408, or nothing where nothing was sent.
    pub head_timeout: Timeout,
    /// How long a connection may stay open between two requests.
    pub idle_timeout: Timeout,
    /// The longest gap in a request's body, then 408; and in the client's reading of an answer, which is
    /// cut off then.
    pub body_timeout: Timeout,
    /// The longest request line and headers together; then 431.
    pub max_head: Size,
    /// The most header fields in a request; then 431.
    #[schemars(range(min = 1))]
    pub max_headers: u32,
    /// The most client connections open at once, over all workers; more wait to be accepted.
    #[schemars(range(min = 1))]
    pub max_connections: u32,
    /// The most connections open at once of one client address (IPv6: of one network, by
    /// `client.ipv6_prefix`); further ones are closed at once. Trusted proxies have no such bound.
    pub max_connections_per_client: Maximum,
    /// The most requests on one connection; it is closed after the last.
    pub max_requests_per_connection: Maximum,
    /// Treat `//` in a path as `/`, for routing and keys.
    pub merge_slashes: bool,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            head_timeout: Timeout::from_secs(10),
            idle_timeout: Timeout::from_secs(75),
            body_timeout: Timeout::from_secs(30),
            max_head: Size(32 << 10),
            max_headers: 100,
            max_connections: 10_000,
            max_connections_per_client: Maximum(Some(256)),
            max_requests_per_connection: Maximum(None),
            merge_slashes: true,
        }
    }
}
