//! `error_bodies`: a route's own bodies for the gateway's error responses.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The body of the gateway's response to a refused or failed request. Variables are
/// `{retry_after}`, the seconds of `Retry-After`, `{limit}`, the names of the limits that refused,
/// and in a waiting room `{place}` and `{expected_wait}`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ErrorBodyConfig {
    /// Path of a file with the body, at most 256 KiB. It is read at startup and at each reload. Set
    /// either `file` or `body`. Default: `body`.
    pub file: Option<PathBuf>,
    /// The body. Default: `file`.
    pub body: Option<String>,
    /// Value of the response's `Content-Type` header.
    pub content_type: String,
}
