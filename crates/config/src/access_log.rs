//! `access_log`: where requests are logged, in which format and with which fields.

use std::fmt;
use std::path::PathBuf;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use tidegate_scalar::{ScalarValue, impl_scalar};
use tidegate_vocabulary::AccessField;

/// The access log. `access_log: PATH` is short for `access_log: {to: PATH}`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AccessLogConfig {
    /// Destination of the log.
    #[serde(default)]
    pub to: LogDestination,
    /// Format of the lines. Default: `text` on a terminal, elsewhere `json`.
    #[serde(default)]
    pub format: Option<AccessLogFormat>,
    /// Fields of the lines, in this order; not with `combined`. Default: all but `referer` and
    /// `user_agent`.
    #[serde(default)]
    pub fields: Option<Vec<AccessField>>,
}

/// Format of the access log.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AccessLogFormat {
    /// One JSON object per line.
    Json,
    /// The format `combined` of nginx and Apache.
    Combined,
    /// Readable lines, with colours on a terminal.
    Text,
}

/// Destination of the access log.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum LogDestination {
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

impl ScalarValue for LogDestination {
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

impl fmt::Display for LogDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stderr => f.write_str("stderr"),
            Self::Stdout => f.write_str("stdout"),
            Self::Off => f.write_str("off"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

impl_scalar!(LogDestination);

const EXPECTED: &str =
    "stderr, stdout, off, a file path with a `/` in it, or a mapping with `to`, `format`, `fields`";

/// `access_log` as written in a file: a mapping, or only a destination.
pub(super) struct AccessLogEntry;

impl AccessLogEntry {
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<AccessLogConfig, D::Error> {
        struct AccessLogVisitor;

        impl<'de> Visitor<'de> for AccessLogVisitor {
            type Value = AccessLogConfig;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<AccessLogConfig, E> {
                match LogDestination::parse(text) {
                    Some(to) => Ok(AccessLogConfig { to, ..AccessLogConfig::default() }),
                    None => Err(E::invalid_value(Unexpected::Str(text), &EXPECTED)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<AccessLogConfig, A::Error> {
                AccessLogConfig::deserialize(MapAccessDeserializer::new(map))
            }
        }

        deserializer.deserialize_any(AccessLogVisitor)
    }

    pub(super) fn serialize<S: Serializer>(
        log: &AccessLogConfig,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match log {
            AccessLogConfig { to, format: None, fields: None } => to.serialize(serializer),
            log => log.serialize(serializer),
        }
    }
}
