use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::{Text, text_value};
use super::units::Address;

/// The operator's port: health, metrics and the control API.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Admin {
    /// Where to listen. It asks for no password: keep it on loopback or a private network.
    pub address: Address,
    /// Names that it answers to, beside IP addresses and `localhost`: a web page must not reach it under
    /// the page's own name.
    #[serde(default)]
    pub hosts: Vec<HostName>,
}

/// A host's name without a port, in lower case.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostName(pub String);

impl Text for HostName {
    const EXPECTED: &'static str = "a host's name without a port, such as tidegate.internal";
    const PATTERN: &'static str = "^[0-9A-Za-z_]([0-9A-Za-z_.-]*[0-9A-Za-z_])?$";

    fn read(text: &str) -> Option<Self> {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let outer = |char: char| char.is_ascii_alphanumeric() || char == '_';
        let sound = text.len() <= 253
            && text.bytes().all(inner)
            && text.starts_with(outer)
            && text.ends_with(outer);
        sound.then(|| Self(text.to_ascii_lowercase()))
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

text_value!(HostName);

/// Where the access log goes, one JSON object a request.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum AccessLog {
    /// To standard error.
    #[default]
    Stderr,
    /// To standard output.
    Stdout,
    /// Nowhere.
    Off,
    /// Appended to a file, or to a FIFO.
    File(PathBuf),
}

impl Text for AccessLog {
    const EXPECTED: &'static str = "stderr, stdout, off or a file's path with a `/` in it";
    const PATTERN: &'static str = "^(stderr|stdout|off|.*/.+)$";

    fn read(text: &str) -> Option<Self> {
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

text_value!(AccessLog);
