//! `acme` of a listener's `tls`: certificates from an authority that speaks ACME (RFC 8555).

use std::fmt;
use std::path::PathBuf;

use http::Uri;
use serde::{Deserialize, Serialize};
use tidegate_scalar::{ScalarValue, impl_scalar};
use tidegate_vocabulary::AcmeChallenge;

use super::secret::SecretReference;

/// A certificate that the gateway orders and renews itself, by ACME (RFC 8555). Setting it means
/// agreement to the authority's terms of service.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AcmeConfig {
    /// DNS names of the certificate, 1 to 100, without wildcards: neither challenge can prove one.
    #[cfg_attr(test, schemars(length(min = 1, max = 100)))]
    pub domains: Vec<DomainName>,
    /// Address to which the authority may write. Default: none.
    pub email: Option<EmailAddress>,
    /// URL of the authority's directory. Default: Let's Encrypt.
    #[serde(default)]
    pub directory: DirectoryUrl,
    /// Path of the CA certificates (PEM) that the directory's own certificate is verified against,
    /// for a private authority. Default: the system's CA certificates.
    pub directory_ca: Option<PathBuf>,
    /// How the authority checks the domains: `tls-alpn-01` connects to port 443, and this listener
    /// answers; `http-01` connects to port 80, and every listener without `tls` answers.
    #[serde(default)]
    pub challenge: AcmeChallenge,
    /// Where the account's key and the certificates with their keys are kept: the path of a folder,
    /// which is made if it is missing, and which only the gateway's user can read; or `redis`, the
    /// Redis of `store`, so that all gateways with it make one order, and respond to the authority
    /// for each other.
    #[serde(default)]
    pub storage: AcmeStorageConfig,
    /// Secret that encrypts what is kept in Redis: `env:NAME` or `file:PATH`, at least 32 bytes. It
    /// must be the same on all gateways. Default: none; anyone who can read Redis has the private
    /// keys.
    pub storage_key: Option<SecretReference>,
    /// Path of a PEM file with the CAs that must have issued the client's certificate (mTLS).
    /// Default: clients need no certificate.
    pub client_ca: Option<PathBuf>,
    /// External account binding, for an authority that requires an account of its own. Default:
    /// none.
    pub eab: Option<EabConfig>,
}

/// Where accounts and certificates are kept.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AcmeStorageConfig {
    /// The Redis of `store`.
    Redis,
    /// A folder.
    Folder(PathBuf),
}

impl Default for AcmeStorageConfig {
    fn default() -> Self {
        Self::Folder("/var/lib/tidegate/acme".into())
    }
}

impl ScalarValue for AcmeStorageConfig {
    const EXPECTED: &'static str = "`redis`, or the path of a folder";
    const PATTERN: &'static str = "^.+$";
    const EXAMPLE: &'static str = "redis";

    fn parse(text: &str) -> Option<Self> {
        match text {
            "" => None,
            "redis" => Some(Self::Redis),
            path => Some(Self::Folder(path.into())),
        }
    }
}

impl fmt::Display for AcmeStorageConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redis => f.write_str("redis"),
            Self::Folder(path) => path.display().fmt(f),
        }
    }
}

impl_scalar!(AcmeStorageConfig);

/// An external account at the authority (RFC 8555, 7.3.4).
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EabConfig {
    /// Identifier of the key.
    pub key_id: String,
    /// The key, in base64url: `env:NAME` or `file:PATH`.
    pub hmac_key: SecretReference,
}

/// A DNS name, in lower case, without a wildcard.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct DomainName(pub String);

impl ScalarValue for DomainName {
    const EXPECTED: &'static str = "a DNS name without a wildcard, such as www.example.com; an international name in its form `xn--`";
    const PATTERN: &'static str = "^([0-9A-Za-z]([0-9A-Za-z-]{0,61}[0-9A-Za-z])?\\.)*[A-Za-z]([0-9A-Za-z-]{0,61}[0-9A-Za-z])?$";
    const EXAMPLE: &'static str = "www.example.com";

    fn parse(text: &str) -> Option<Self> {
        let is_label = |label: &str| {
            let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            let is_edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
            label.len() <= 63
                && label.bytes().all(is_allowed)
                && is_edge(label.bytes().next())
                && is_edge(label.bytes().last())
        };
        let top = text.rsplit('.').next()?;
        // No top-level domain begins with a digit, and an address ends with a number.
        let is_name = text.len() <= 253
            && text.split('.').all(is_label)
            && top.starts_with(|first: char| first.is_ascii_alphabetic());
        is_name.then(|| Self(text.to_ascii_lowercase()))
    }
}

impl fmt::Display for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl_scalar!(DomainName);

/// An address of electronic mail.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EmailAddress(pub String);

impl ScalarValue for EmailAddress {
    const EXPECTED: &'static str = "one address of electronic mail, such as admin@example.com";
    const PATTERN: &'static str = "^[!-?A-~]+@[!-?A-~]+$";
    const EXAMPLE: &'static str = "admin@example.com";

    fn parse(text: &str) -> Option<Self> {
        let (user, host) = text.split_once('@')?;
        let is_part = |part: &str| {
            // A comma or a question mark would begin another part of a `mailto:` URL.
            let is_allowed = |byte: u8| byte.is_ascii_graphic() && !b"@,?%".contains(&byte);
            !part.is_empty() && part.bytes().all(is_allowed)
        };
        (is_part(user) && is_part(host)).then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for EmailAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl_scalar!(EmailAddress);

/// The URL of an authority's directory.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DirectoryUrl(pub Uri);

impl Default for DirectoryUrl {
    /// That of Let's Encrypt.
    fn default() -> Self {
        Self(Uri::from_static("https://acme-v02.api.letsencrypt.org/directory"))
    }
}

impl ScalarValue for DirectoryUrl {
    const EXPECTED: &'static str = "an https:// URL without user and password";
    const PATTERN: &'static str = "^https://[^/?#@]+(/[^#@]*)?$";
    const EXAMPLE: &'static str = "https://acme-v02.api.letsencrypt.org/directory";
    // A URL may contain a password, although none is allowed.
    const SECRET: bool = true;

    fn parse(text: &str) -> Option<Self> {
        let url: Uri = text.parse().ok()?;
        let has_host = url.host().is_some_and(|host| !host.is_empty());
        let is_https = url.scheme_str() == Some("https");
        (is_https && has_host && !text.contains(['@', '#'])).then_some(Self(url))
    }
}

impl fmt::Display for DirectoryUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl_scalar!(DirectoryUrl);

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_domain_is_a_dns_name_without_a_wildcard() {
        for (text, name) in [
            ("www.Example.com", "www.example.com"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("localhost", "localhost"),
            ("0-1.a", "0-1.a"),
        ] {
            assert_eq!(DomainName::parse(text).unwrap().to_string(), name);
        }
        let long = "a".repeat(64);
        for bad in
            ["*.a.test", "a..test", ".a", "a.", "-a.test", "a-.test", "127.0.0.1", "a_b.test", ""]
                .into_iter()
                .chain([long.as_str(), "a b", "::1", "a.test:443", "bücher.example"])
        {
            assert!(DomainName::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_storage_is_redis_or_a_folder() {
        assert_eq!(AcmeStorageConfig::parse("redis"), Some(AcmeStorageConfig::Redis));
        for path in ["./redis", "/redis", "Redis"] {
            assert_eq!(
                AcmeStorageConfig::parse(path),
                Some(AcmeStorageConfig::Folder(path.into()))
            );
        }
        assert_eq!(AcmeStorageConfig::parse(""), None);
    }

    #[test]
    fn an_email_address_is_one_address() {
        assert!(EmailAddress::parse("a.b+c@example.com").is_some());
        for bad in ["a", "@a", "a@", "a@b@c", "a@b,c@d", "mailto:a@b?x", "a b@c", ""] {
            assert!(EmailAddress::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_directory_has_https() {
        for good in ["https://localhost:14000/dir", "https://a.test/?x=1"] {
            assert_eq!(DirectoryUrl::parse(good).unwrap().to_string(), good);
        }
        for bad in ["http://a.test/dir", "https:///dir", "https://u:p@a.test/", "/dir", "a.test"] {
            assert!(DirectoryUrl::parse(bad).is_none(), "{bad}");
        }
    }
}
