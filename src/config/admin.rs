//! `admin` and `access_log`: the operator's listener and where requests are logged.

use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::{ScalarValue, impl_scalar};
use super::units::Address;

/// The admin listener: health checks, metrics and the control API.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Admin {
    /// IP address and port of the admin listener. The admin API is unauthenticated: bind it to loopback
    /// or to a private network.
    pub address: Address,
    /// Host names that the admin listener accepts in `Host`, besides IP addresses and `localhost`. Other
    /// names are refused, so that a web page cannot reach the listener by DNS rebinding.
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

/// Destination of the access log.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum AccessLog {
    /// Standard error.
    #[default]
    Stderr,
    /// Standard output.
    Stdout,
    /// No access log.
    Off,
    /// A file, opened for appending, or a FIFO.
    File(PathBuf),
}

impl ScalarValue for AccessLog {
    const EXPECTED: &'static str = "stderr, stdout, off or a file path with a `/` in it";
    const PATTERN: &'static str = "^(stderr|stdout|off|.*/.+)$";
    const EXAMPLE: &'static str = "stderr";

    fn parse(text: &str) -> Option<Self> {
        match text {
            "stderr" => Some(Self::Stderr),
            "stdout" => Some(Self::Stdout),
            "off" => Some(Self::Off),
            path if path.contains('/') && !path.ends_with('/') => Some(Self::File(path.into())),
            _ => None,
        }
    }
}

impl fmt::Display for AccessLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stderr => f.write_str("stderr"),
            Self::Stdout => f.write_str("stdout"),
            Self::Off => f.write_str("off"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

impl_scalar!(AccessLog);
