use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::{Text, text_value};
use super::units::Address;

/// The operator's door: health, metrics and the control API.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Admin {
    /// Where to listen. It asks nobody for a password: keep it on loopback or a private network.
    pub address: Address,
}

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
