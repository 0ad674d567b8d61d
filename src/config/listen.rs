use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::units::{Address, Duration, Size};

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
    pub head_timeout: Duration,
    /// How long a connection may stay open without a request.
    pub idle_timeout: Duration,
    /// The longest gap between two reads of a request's body; then 408.
    pub body_timeout: Duration,
    /// The longest request line and headers together; then 431.
    pub max_head: Size,
    /// The most header fields in a request; then 431.
    #[schemars(range(min = 1))]
    pub max_headers: u32,
    /// The most client connections open at once, over all workers; more wait to be accepted.
    #[schemars(range(min = 1))]
    pub max_connections: u32,
    /// Treat `//` in a path as `/`, for routing and keys.
    pub merge_slashes: bool,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(30),
            max_head: Size(32 << 10),
            max_headers: 100,
            max_connections: 10_000,
            merge_slashes: true,
        }
    }
}
