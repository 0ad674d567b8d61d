//! `tiers` and `candidate` of a limit: its alternative quotas.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::key_part::KeyPart;

/// Another quota for some callers. The first tier that matches applies.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// Callers that the tier applies to.
    #[serde(rename = "match")]
    pub matches: TierMatch,
    /// Quota of these callers, in units of cost per window. Window and counter are those of the limit.
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub quota: u32,
}

/// Callers, selected by the value of one part of the request.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TierMatch {
    /// Part of the request that is compared, such as `header:x-plan`.
    pub part: KeyPart,
    /// Values that match. For `client_ip`, networks or single addresses.
    pub values: Vec<String>,
}

/// A second quota to try out beside the enforced one.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// Quota to try out, in units of cost per window.
    #[schemars(range(min = 1, max = 4_294_967_295_u32))]
    pub quota: u32,
}
