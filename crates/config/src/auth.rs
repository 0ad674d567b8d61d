//! `auth`: the ways in which clients authenticate.

use std::fmt;

use http::HeaderName;
use serde::{Deserialize, Serialize};
use tidegate_identity::ApiKeySource;
use tidegate_scalar::{ScalarValue, impl_scalar};
use tidegate_vocabulary::CertificateName;

use super::forward_auth::ForwardAuthConfig;
use super::jwt::JwtConfig;
use super::only_one::{NotOne, only_one};
use super::rate::Rate;
use super::window::WindowConfig;

/// A way to authenticate. It has exactly one kind: `api_key`, `basic`, `certificate`, `forward` or
/// `jwt`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AuthMethodConfig {
    /// API keys, whose hashes are in the records of consumers; `{}` takes all defaults. Default:
    /// none.
    pub api_key: Option<ApiKeyConfig>,
    /// Names and passwords (RFC 7617), whose hashes are in the records of consumers; `{}` takes all
    /// defaults. Default: none.
    pub basic: Option<BasicAuthConfig>,
    /// Client certificates, on listeners with `client_ca`. Default: none.
    pub certificate: Option<CertificateAuthConfig>,
    /// A service that decides. Default: none.
    pub forward: Option<ForwardAuthConfig>,
    /// Signed tokens (JWT) of an identity provider. Default: none.
    pub jwt: Option<JwtConfig>,
    /// Text before the names of this method's consumers, such as `sso:`; for `certificate`,
    /// `forward` and `jwt`, whose names come from outside. Without it, a token whose claim is
    /// `acme` is the consumer `acme` of an API key. Default: none.
    pub prefix: Option<String>,
    /// Maximum number of requests of one client address whose credentials are refused, such as
    /// `30/1m`, or `off`. Beyond it, the address gets a 429 before anything is verified.
    #[serde(default)]
    pub max_failures: MaxFailures,
}

/// How a method authenticates.
#[derive(Clone, Copy, Debug)]
pub enum AuthKindConfig<'c> {
    /// By API keys.
    ApiKey(&'c ApiKeyConfig),
    /// By names and passwords.
    Basic(&'c BasicAuthConfig),
    /// By client certificates.
    Certificate(&'c CertificateAuthConfig),
    /// By a service that decides.
    Forward(&'c ForwardAuthConfig),
    /// By signed tokens.
    Jwt(&'c JwtConfig),
}

impl AuthMethodConfig {
    /// How it authenticates.
    ///
    /// # Errors
    ///
    /// It has none of the keys of a kind, or several.
    pub fn kind(&self) -> Result<AuthKindConfig<'_>, NotOne> {
        only_one([
            ("api_key", self.api_key.as_ref().map(AuthKindConfig::ApiKey)),
            ("basic", self.basic.as_ref().map(AuthKindConfig::Basic)),
            ("certificate", self.certificate.as_ref().map(AuthKindConfig::Certificate)),
            ("forward", self.forward.as_ref().map(AuthKindConfig::Forward)),
            ("jwt", self.jwt.as_ref().map(AuthKindConfig::Jwt)),
        ])
    }
}

/// API keys.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ApiKeyConfig {
    /// Places of the key, in order: `header:NAME`, `query:NAME` or `cookie:NAME`. In
    /// `header:authorization` it follows `Bearer`.
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
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct BasicAuthConfig {
    /// Leave `Authorization` in the forwarded request.
    pub forward_credentials: bool,
}

/// Client certificates.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CertificateAuthConfig {
    /// Part of the certificate that is the consumer's name: `san_uri`, `san_dns`, `subject_cn`, or
    /// `sha256`, the fingerprint.
    pub consumer: CertificateName,
}

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
