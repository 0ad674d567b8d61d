//! `compress`: compression of response bodies.

use serde::{Deserialize, Serialize};
use tidegate_vocabulary::Encoding;

use super::units::Size;

/// Compression of an upstream's responses. Some responses are never compressed: event streams,
/// gRPC, upgrades, and responses with a `Content-Encoding`, a range, a digest or
/// `Cache-Control: no-transform`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Compress {
    /// Encodings, in order of preference. The order decides if the client prefers neither.
    #[serde(default = "Compress::default_encodings")]
    pub encodings: Vec<Encoding>,
    /// Minimum `Content-Length` of a body. A body of unknown length is compressed.
    #[serde(default = "Compress::default_min_size")]
    pub min_size: Size,
    /// Media types that are compressed, without parameters, such as `application/json` or `text/*`.
    #[serde(default = "Compress::default_types")]
    pub types: Vec<String>,
    /// Level of each encoding: a higher one costs more CPU time and gives smaller bodies.
    #[serde(default)]
    pub level: CompressLevel,
}

impl Compress {
    fn default_encodings() -> Vec<Encoding> {
        vec![Encoding::Zstd, Encoding::Gzip]
    }

    fn default_min_size() -> Size {
        Size(1 << 10)
    }

    fn default_types() -> Vec<String> {
        let types = [
            "text/*",
            "application/javascript",
            "application/json",
            "application/ld+json",
            "application/manifest+json",
            "application/problem+json",
            "application/wasm",
            "application/xml",
            "application/xhtml+xml",
            "application/atom+xml",
            "application/rss+xml",
            "image/svg+xml",
        ];
        types.map(str::to_owned).to_vec()
    }
}

/// The levels of compression.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CompressLevel {
    /// Level of gzip, 1 to 9.
    #[serde(default = "CompressLevel::default_gzip")]
    #[cfg_attr(test, schemars(range(min = 1, max = 9)))]
    pub gzip: u8,
    /// Level of zstd, 1 to 12.
    #[serde(default = "CompressLevel::default_zstd")]
    #[cfg_attr(test, schemars(range(min = 1, max = 12)))]
    pub zstd: u8,
}

impl CompressLevel {
    fn default_gzip() -> u8 {
        5
    }

    fn default_zstd() -> u8 {
        3
    }
}

impl Default for CompressLevel {
    fn default() -> Self {
        Self { gzip: Self::default_gzip(), zstd: Self::default_zstd() }
    }
}
