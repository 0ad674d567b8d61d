//! [`OnFailure`]: what is decided while Redis is unavailable.

use serde::{Deserialize, Serialize};

/// The decision on a request while Redis is unavailable.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// This gateway enforces its share of the limit from its own memory.
    #[default]
    Local,
    /// The request is admitted.
    Open,
    /// The request is refused with 503.
    Closed,
}
