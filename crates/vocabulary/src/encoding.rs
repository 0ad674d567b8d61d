//! [`Encoding`]: the content codings that the gateway applies.

use serde::{Deserialize, Serialize};

/// A content coding that the gateway can apply.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// gzip (RFC 1952), which all clients support.
    Gzip,
    /// Zstandard (RFC 8878): smaller and faster than gzip, with a window of at most 256 KiB.
    Zstd,
}

impl Encoding {
    /// The name in `Content-Encoding`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }
}
