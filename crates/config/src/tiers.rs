//! `tiers` and `candidate` of a limit: its alternative quotas.

use std::fmt;

use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use tidegate_identity::KeyPart;
use tidegate_limit::MAX_UNITS;

/// Another quota for some callers. The first tier that matches applies.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TierConfig {
    /// Callers that the tier applies to.
    #[serde(rename = "match")]
    pub matches: TierMatchConfig,
    /// Quota of these callers, in units of cost per window, or `unlimited`: the limit does not
    /// count them. Window and counter are the limit's.
    pub quota: TierQuota,
}

/// The quota of a tier.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TierQuota {
    /// Units of cost per window.
    Units(u64),
    /// The limit does not apply.
    Unlimited,
}

/// The syntax of a tier's quota, for faults and the schema.
pub(super) const QUOTA_SYNTAX: &str = "a whole number from 1 to 9007199254740991, or unlimited";
pub(super) const UNLIMITED: &str = "unlimited";

impl<'de> Deserialize<'de> for TierQuota {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct QuotaVisitor;

        impl Visitor<'_> for QuotaVisitor {
            type Value = TierQuota;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(QUOTA_SYNTAX)
            }

            fn visit_u64<E: Error>(self, quota: u64) -> Result<TierQuota, E> {
                let fits = Some(quota).filter(|quota| (1..=MAX_UNITS).contains(quota));
                let invalid = || E::invalid_value(Unexpected::Unsigned(quota), &self);
                fits.map(TierQuota::Units).ok_or_else(invalid)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<TierQuota, E> {
                match text {
                    UNLIMITED => Ok(TierQuota::Unlimited),
                    _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
                }
            }
        }

        deserializer.deserialize_any(QuotaVisitor)
    }
}

impl Serialize for TierQuota {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Units(units) => serializer.serialize_u64(*units),
            Self::Unlimited => serializer.serialize_str(UNLIMITED),
        }
    }
}

/// Callers, selected by the value of one part of the request.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TierMatchConfig {
    /// Part of the request that is compared, such as `header:x-plan`.
    pub part: KeyPart,
    /// Values that match. For `client_ip`, networks or single addresses.
    pub values: Vec<String>,
}

/// A second quota to try out while the first is enforced.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// Quota to try out, in units of cost per window.
    #[cfg_attr(test, schemars(range(min = 1, max = MAX_UNITS)))]
    pub quota: u64,
}
