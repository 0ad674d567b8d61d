use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::key_part::KeyPart;

/// Another quota for some callers; the first tier that matches counts.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// Whose.
    #[serde(rename = "match")]
    pub matches: TierMatch,
    /// What they may be charged in one window, in units of cost.
    #[schemars(range(min = 1, max = 4_294_967_295_u64))]
    pub quota: u64,
}

/// Callers by one of the parts that keys are made of.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TierMatch {
    /// What is looked at, such as `header:x-plan`.
    pub part: KeyPart,
    /// What it may be: one of these. For `client_ip`, networks.
    pub values: Vec<String>,
}

/// A second quota beside the one that counts: tried, never felt.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// What could be charged in one window, in units of cost.
    #[schemars(range(min = 1, max = 4_294_967_295_u64))]
    pub quota: u64,
}
