//! `admin`: the operator's listener.

use std::fmt;

use serde::{Deserialize, Serialize};
use tidegate_scalar::{ScalarValue, impl_scalar};

use super::admin_address::AdminAddress;
use super::listen::Tls;
use super::secret::SecretReference;

/// The admin listener: health checks, metrics and the control API.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Admin {
    /// IP address and port of the admin listener, or `unix:` and the path of a socket, to which
    /// only the gateway's user and root can connect. An address beyond loopback requires `token`.
    pub address: AdminAddress,
    /// TLS on this listener, with HTTP/1.1. Default: none; connections are unencrypted.
    pub tls: Option<Tls>,
    /// Bearer token that requests need: `env:NAME` or `file:PATH`, at least 16 bytes, read at
    /// startup. Health checks and the dashboard's page need no token. Without a token, every client
    /// that reaches the listener may use it, so it must be on loopback. Default: none.
    pub token: Option<SecretReference>,
    /// Host names that the admin listener accepts in `Host`, besides IP addresses and `localhost`.
    /// Other names are refused, so that a web page cannot reach the listener by DNS rebinding.
    #[serde(default)]
    pub hosts: Vec<HostName>,
}

/// A host name without a port, in lower case.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostName(pub String);

impl ScalarValue for HostName {
    const EXPECTED: &'static str = "a host name without a port, such as tidegate.internal";
    const PATTERN: &'static str = "^[0-9A-Za-z_]([0-9A-Za-z_.-]*[0-9A-Za-z_])?$";
    const EXAMPLE: &'static str = "tidegate.internal";

    fn parse(text: &str) -> Option<Self> {
        let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let is_outer = |char: char| char.is_ascii_alphanumeric() || char == '_';
        let is_valid = text.len() <= 253
            && text.bytes().all(is_inner)
            && text.starts_with(is_outer)
            && text.ends_with(is_outer);
        is_valid.then(|| Self(text.to_ascii_lowercase()))
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl_scalar!(HostName);
