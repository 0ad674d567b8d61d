//! `overrides`: where quotas that operators set at run time are kept.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where overrides are kept without Redis: quotas that the admin API sets for a consumer, a key or
/// a plan.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OverridesConfig {
    /// Path of a YAML file, which the admin API writes and an operator may edit. Its folder must be
    /// writable. When the file changes, it is read again, and nothing else changes; a faulty file
    /// keeps the overrides that were read before. With `store.redis`, overrides are in Redis, and
    /// this must not be set.
    pub file: PathBuf,
}
