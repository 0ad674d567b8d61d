//! `rate_limit_service`: the listener and the domains of Envoy's rate limit service.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::listen::Tls;
use super::listen_address::ListenAddress;
use crate::identity::KeyPart;

/// Envoy's rate limit service (version 3), for Envoy, Istio, Contour and other proxies made of Envoy.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimitServiceConfig {
    /// IP address and port of its listener, which serves gRPC over HTTP/2, in clear with prior knowledge.
    /// Port 0 picks a free port; the startup log names it.
    pub address: ListenAddress,
    /// TLS on this listener, with client certificates if they are required (`client_ca`). Default: none.
    pub tls: Option<Tls>,
    /// Domains, by the names that calls have in `domain`. A call for another domain is admitted.
    pub domains: BTreeMap<String, RateLimitDomainConfig>,
}

/// The limits of one domain.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimitDomainConfig {
    /// Names of limits. Their keys have parts `descriptor:NAME`, and a limit applies to the descriptors whose entries
    /// have exactly these names. With `consumer`, keys may also have `consumer` and `plan`, and the limit then applies to
    /// descriptors with that entry as well.
    #[serde(default)]
    pub limits: Vec<String>,
    /// Path of a configuration file of envoyproxy/ratelimit for this domain, instead of `limits`. It is read at each
    /// reload. Default: none.
    pub file: Option<PathBuf>,
    /// The entry that names the consumer, as `descriptor:NAME`: plans and overrides then apply to calls as to requests
    /// of that consumer. Default: calls have no consumer.
    pub consumer: Option<KeyPart>,
}
