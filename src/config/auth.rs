//! `auth`: the ways in which clients authenticate.

use std::fmt;

use http::HeaderName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::forward_auth::ForwardAuthConfig;
use super::jwt::JwtConfig;
use super::rate::Rate;
use super::scalar::{ScalarValue, impl_scalar, is_token};
use super::window::WindowConfig;
use crate::identity::ApiKeySource;
use crate::tls::CertificateName;

/// A way to authenticate. It has exactly one kind: `api_key`, `basic`, `certificate`, `forward` or
/// `jwt`.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AuthMethodConfig {
    /// API keys, whose hashes are in the records of consumers; `{}` takes all defaults. Default: none.
    pub api_key: Option<ApiKeyConfig>,
    /// Names and passwords (RFC 7617), whose hashes are in the records of consumers; `{}` takes all defaults. Default:
    /// none.
    pub basic: Option<BasicAuthConfig>,
    /// Client certificates, on listeners with `client_ca`. Default: none.
    pub certificate: Option<CertificateAuthConfig>,
    /// A service that decides. Default: none.
    pub forward: Option<ForwardAuthConfig>,
    /// Signed tokens (JWT) of an identity provider. Default: none.
    pub jwt: Option<JwtConfig>,
    /// Maximum number of requests of one client address whose credentials are refused, such as `30/1m`, or `off`.
    /// Beyond it, the address gets a 429 before anything is verified.
    #[serde(default)]
    pub max_failures: MaxFailures,
}

/// API keys.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApiKeyConfig {
    /// Places of the key, in order: `header:NAME`, `query:NAME` or `cookie:NAME`. In `header:authorization` it
    /// follows `Bearer`.
    pub from: Vec<ApiKeySource>,
    /// Leave the key in the forwarded request.
    pub forward_credentials: bool,
}

impl Default for ApiKeyConfig {
    fn default() -> Self {
        let from = vec![ApiKeySource::Header(HeaderName::from_static("x-api-key"))];
        Self { from, forward_credentials: false }
    }
}

/// Names and passwords.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct BasicAuthConfig {
    /// Leave `Authorization` in the forwarded request.
    pub forward_credentials: bool,
}

/// Client certificates.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateAuthConfig {
    /// Part of the certificate that is the consumer's name: `san_uri`, `san_dns`, `subject_cn`, or `sha256`, the
    /// fingerprint.
    pub consumer: CertificateName,
}

impl ScalarValue for ApiKeySource {
    const EXPECTED: &'static str = "header:NAME, query:NAME or cookie:NAME";
    const PATTERN: &'static str = "^(query:.+|(header|cookie):[!#-'*+.0-9A-Z^-z|~-]+)$";
    const EXAMPLE: &'static str = "header:x-api-key";

    fn parse(text: &str) -> Option<Self> {
        match text.split_once(':')? {
            ("header", name) => name.parse().ok().map(Self::Header),
            ("query", name) if !name.is_empty() => Some(Self::Query(name.to_owned())),
            ("cookie", name) if is_token(name) => Some(Self::Cookie(name.to_owned())),
            _ => None,
        }
    }

    fn correction(text: &str) -> Option<String> {
        let header = format!("header:{}", text.trim());
        (!text.contains(':')).then(|| Self::parse(&header).map(|_| header)).flatten()
    }
}

impl_scalar!(ApiKeySource);

/// A bound on refused credentials.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MaxFailures {
    /// No bound.
    Off,
    /// This number in a window.
    Rate(Rate),
}

impl Default for MaxFailures {
    fn default() -> Self {
        Self::Rate(Rate { quota: 30, window: WindowConfig::Length(super::Duration::from_secs(60)) })
    }
}

impl ScalarValue for MaxFailures {
    const EXPECTED: &'static str = "off, or a rate such as 30/1m";
    const PATTERN: &'static str = "^(off|[0-9]+/[0-9]+(ms|s|m|h|d))$";
    const EXAMPLE: &'static str = "30/1m";

    fn parse(text: &str) -> Option<Self> {
        if text == "off" { Some(Self::Off) } else { Rate::parse_rolling(text).map(Self::Rate) }
    }

    fn correction(text: &str) -> Option<String> {
        Rate::rolling_correction(text)
    }
}

impl fmt::Display for MaxFailures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Rate(rate) => rate.fmt(f),
        }
    }
}

impl_scalar!(MaxFailures);
