//! `rate_limit_service`: the listener and the domains of Envoy's rate limit service.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use tidegate_identity::KeyPart;

use super::listen::Tls;
use super::listen_address::ListenAddress;

/// Envoy's rate limit service (version 3), for Envoy, Istio, Contour and other proxies made of
/// Envoy.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RateLimitServiceConfig {
    /// IP address and port of its listener, which serves gRPC over HTTP/2, in clear with prior
    /// knowledge. Port 0 picks a free port; the startup log names it.
    pub address: ListenAddress,
    /// TLS on this listener, with client certificates if they are required (`client_ca`). Default:
    /// none.
    pub tls: Option<Tls>,
    /// Domains, by the names that calls have in `domain`. A call for another domain is admitted.
    pub domains: BTreeMap<String, RateLimitDomainConfig>,
}

/// The syntax of a domain's name, for faults.
pub const DOMAIN_SYNTAX: &str = "a domain of 1 to 128 letters, digits, `_`, `.`, `-`, `/` or `:`";

/// True if a domain may have this name.
pub fn is_domain_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-/:".contains(&byte);
    (1..=128).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// The limits of one domain.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RateLimitDomainConfig {
    /// Names of limits, or maps with `match`. The keys of these limits have parts
    /// `descriptor:NAME`, and a limit applies to the descriptors whose entries have exactly these
    /// names. With `consumer`, keys may also have `consumer` and `plan`, and the limit then applies
    /// to descriptors with that entry as well. Of items with the same names, the first one whose
    /// `match` the descriptor has applies, with all others of the same `match`.
    #[serde(default)]
    pub limits: Vec<DomainLimitConfig>,
    /// Path of a configuration file of envoyproxy/ratelimit for this domain, instead of `limits`.
    /// It is read at each reload. Default: none.
    pub file: Option<PathBuf>,
    /// The entry that names the consumer, as `descriptor:NAME`: plans and overrides then apply to
    /// calls as to requests of that consumer. Default: calls have no consumer.
    pub consumer: Option<KeyPart>,
    /// What happens to a call with several hits (`hits_addend` above 1) that exceed what is left.
    /// `charge`: all of its descriptors are charged, beyond the quota if need be, because it
    /// reports what has happened, as Envoy's `apply_on_stream_done` does; the next call is
    /// refused. `refuse`: nothing is charged. Default: `charge` with `file`, as in
    /// envoyproxy/ratelimit, and else `refuse`.
    pub late_hits: Option<LateHits>,
}

/// What happens to several hits that exceed what is left.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LateHits {
    /// They are charged, and overdraw the quota.
    Charge,
    /// They are refused, and nothing is charged.
    Refuse,
}

/// One of a domain's limits: its name, or a map that also says the values of entries.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DomainLimitConfig {
    /// The limit's name.
    pub limit: Option<String>,
    /// Instead of a limit: its descriptors are not counted.
    pub quota: Option<FixedAnswer>,
    /// The values that entries must have, by their names; `VALUE*` is any value that begins with
    /// VALUE, `*` any value. An entry that the limit's key does not name must be here to be
    /// expected.
    pub matches: BTreeMap<String, String>,
}

/// The answer to descriptors that are not counted.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum FixedAnswer {
    /// All are admitted.
    Unlimited,
    /// None is admitted.
    Blocked,
}

/// The map form of [`DomainLimitConfig`].
#[derive(Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct DomainLimitMap {
    /// The limit's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<String>,
    /// Instead of a limit: `unlimited` admits all of these descriptors, `blocked` none.
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<FixedAnswer>,
    /// The values that entries must have, by their names: VALUE, any value that begins with VALUE
    /// (`VALUE*`), or any (`*`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    r#match: BTreeMap<String, String>,
}

/// The syntax of an item, for faults and the schema.
pub(super) const LIMIT_SYNTAX: &str = "the name of a limit, {limit: NAME, match: {ENTRY: VALUE}} or {quota: unlimited or blocked, match: {ENTRY: VALUE}}";

impl<'de> Deserialize<'de> for DomainLimitConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DomainLimitVisitor;

        impl<'de> Visitor<'de> for DomainLimitVisitor {
            type Value = DomainLimitConfig;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(LIMIT_SYNTAX)
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<DomainLimitConfig, E> {
                Ok(DomainLimitConfig { limit: Some(name.to_owned()), ..Default::default() })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<DomainLimitConfig, A::Error> {
                let map = DomainLimitMap::deserialize(MapAccessDeserializer::new(map))?;
                let DomainLimitMap { limit, quota, r#match: matches } = map;
                Ok(DomainLimitConfig { limit, quota, matches })
            }
        }

        deserializer.deserialize_any(DomainLimitVisitor)
    }
}

impl Serialize for DomainLimitConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let (Some(name), None, true) = (&self.limit, self.quota, self.matches.is_empty()) {
            return serializer.collect_str(name);
        }
        let Self { limit, quota, matches } = self.clone();
        DomainLimitMap { limit, quota, r#match: matches }.serialize(serializer)
    }
}
