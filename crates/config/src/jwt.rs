//! `jwt` of a way to authenticate: signed tokens of an identity provider.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use http::Uri;
use serde::{Deserialize, Serialize};
use tidegate_scalar::{ScalarValue, impl_scalar};

use super::secret::SecretReference;
use super::units::Duration;
pub use tidegate_vocabulary::JwtAlgorithm;

/// Signed tokens (JWT, RFC 7519) of an identity provider, in `Authorization: Bearer`. They are
/// verified by the gateway and stay in the forwarded request.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct JwtConfig {
    /// Issuer of the tokens: their claim `iss` must be equal to it.
    pub issuer: String,
    /// Audiences, of which the claim `aud` of a token must name at least one.
    pub audiences: Vec<String>,
    /// Where the public keys are: the URL or the path of a JWK Set (RFC 7517), or `discover`, which
    /// finds the URL at `ISSUER/.well-known/openid-configuration`. A file is watched. Default:
    /// none, with `secret`.
    pub jwks: Option<JwksLocation>,
    /// CA certificates (PEM) that the server of an `https://` key set is verified against. Default:
    /// the system's CA certificates.
    pub tls_ca: Option<PathBuf>,
    /// Secret of tokens that are signed with HMAC, at least 32 bytes: `env:NAME` or `file:PATH`.
    /// Every holder of the secret can issue tokens, so `jwks` is better where the issuer has public
    /// keys. Default: none.
    pub secret: Option<SecretReference>,
    /// Algorithms of signatures that are accepted. Those of HMAC need `secret`, the other ones
    /// `jwks`. Default: RS256, ES256 and EdDSA; with `secret` HS256.
    pub algorithms: Option<Vec<JwtAlgorithm>>,
    /// Difference of clocks that is tolerated when `exp`, `nbf` and `iat` are checked.
    #[serde(default = "JwtConfig::default_leeway")]
    #[cfg_attr(test, schemars(extend("x-minimum" = "0s", "x-maximum" = "10m")))]
    pub leeway: Duration,
    /// Claim that names the consumer, as `claim:NAME`.
    #[serde(default)]
    pub consumer: ClaimReference,
    /// Claim that names the plan of a consumer whose record has none, as `claim:NAME`. A name that
    /// is not in `plans` is no plan. Default: none.
    pub plan: Option<ClaimReference>,
    /// Values that claims must have, by the claim's name: a token without one of them gets a 403. A
    /// list must contain the values; the texts of `scope` and `scp` are lists of words.
    #[serde(default)]
    pub require: BTreeMap<String, Vec<String>>,
}

impl JwtConfig {
    fn default_leeway() -> Duration {
        Duration::from_secs(30)
    }
}

/// Where a set of public keys is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum JwksLocation {
    /// At the URL that the issuer's OpenID Connect configuration names.
    Discover,
    /// At this URL, `http` or `https`.
    Url(Uri),
    /// In this file.
    File(PathBuf),
}

impl ScalarValue for JwksLocation {
    const EXPECTED: &'static str =
        "an https:// URL without user and password, the path of a file, or discover";
    const PATTERN: &'static str = "^(https?://[^/?#@]+(/[^#@]*)?|[^:]+)$";
    const EXAMPLE: &'static str = "https://id.example.com/jwks.json";
    // A URL may contain a password, although none is allowed.
    const SECRET: bool = true;

    fn parse(text: &str) -> Option<Self> {
        if text == "discover" {
            return Some(Self::Discover);
        }
        if !text.contains("://") {
            let is_path = !text.is_empty() && !text.contains(':');
            return is_path.then(|| Self::File(text.into()));
        }
        let url: Uri = text.parse().ok()?;
        let is_http = matches!(url.scheme_str(), Some("http" | "https"));
        let has_host = url.host().is_some_and(|host| !host.is_empty());
        (is_http && has_host && !text.contains(['@', '#'])).then_some(Self::Url(url))
    }
}

impl fmt::Display for JwksLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Discover => f.write_str("discover"),
            Self::Url(url) => url.fmt(f),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

impl_scalar!(JwksLocation);

/// A claim of a token, by its name.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ClaimReference(pub String);

impl Default for ClaimReference {
    fn default() -> Self {
        Self("sub".to_owned())
    }
}

impl ScalarValue for ClaimReference {
    const EXPECTED: &'static str = "claim:NAME";
    const PATTERN: &'static str = "^claim:.+$";
    const EXAMPLE: &'static str = "claim:sub";

    fn parse(text: &str) -> Option<Self> {
        let name = text.strip_prefix("claim:")?;
        (!name.is_empty()).then(|| Self(name.to_owned()))
    }

    fn correction(text: &str) -> Option<String> {
        let name = text.trim();
        (!name.is_empty() && !name.contains(':')).then(|| format!("claim:{name}"))
    }
}

impl fmt::Display for ClaimReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "claim:{}", self.0)
    }
}

impl_scalar!(ClaimReference);

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn places_of_keys_are_urls_files_or_discovered() {
        for text in [
            "discover",
            "https://id.example.com/jwks.json",
            "http://127.0.0.1:9/jwks?p=1",
            "/etc/jwks.json",
            "keys/jwks.json",
        ] {
            assert_eq!(JwksLocation::parse(text).unwrap().to_string(), text);
        }
        for wrong in ["", "ftp://h/x", "https://", "https://me:pw@h/x", "https://h/#x", "env:X"] {
            assert!(JwksLocation::parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_claim_has_a_name() {
        assert_eq!(ClaimReference::parse("claim:https://a.test/x").unwrap().0, "https://a.test/x");
        assert!(ClaimReference::parse("claim:").is_none());
        assert_eq!(ClaimReference::correction(" sub").as_deref(), Some("claim:sub"));
    }
}
