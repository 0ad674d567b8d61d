//! `error_bodies`: bodies of a route's own for errors that the gateway makes.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The body of a response to a request that the gateway refuses or that failed. It may have the variables
/// `{retry_after}`, the seconds of `Retry-After`, and `{limit}`, the names of the limits that refused.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorBodyConfig {
    /// Path of a file with the body, at most 256 KiB. It is read at the start and again at each reload. A body
    /// has either `file` or `body`. Default: `body`.
    pub file: Option<PathBuf>,
    /// The body. Default: `file`.
    pub body: Option<String>,
    /// Value of the response's `Content-Type` header.
    pub content_type: String,
}
