//! One certificate chain and its private key.

use std::{fmt, net::IpAddr, path::Path, sync::Arc, time::Duration};

use rustls::{
    pki_types::{CertificateDer, PrivateKeyDer},
    sign::CertifiedKey,
};
use tidegate_base::time::UnixSeconds;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::{TlsError, TlsFile, file::shown, pem, provider};

/// A certificate is reported from this time before its expiry: 14 days.
const SOON: Duration = Duration::from_hours(14 * 24);

/// A certificate chain, its private key, and the contents that the gateway needs.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The chain and the key.
    pub(super) key: Arc<CertifiedKey>,
    /// The DNS names, in lower case; a wildcard begins with `*.`.
    pub(super) names: Box<[Box<str>]>,
    addresses: Box<[IpAddr]>,
    /// The certificate's validity.
    pub validity: Validity,
    /// The files of the chain and of the key, to watch; none if the gateway itself made or ordered
    /// the certificate.
    pub(super) files: Box<[TlsFile]>,
    /// True if the gateway itself made it, and no client trusts it.
    pub(super) is_placeholder: bool,
}

/// When a certificate is valid.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Validity {
    /// The first second.
    pub not_before: UnixSeconds,
    /// The last second.
    pub not_after: UnixSeconds,
}

/// Why a certificate needs the operator's attention.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ValidityProblem {
    /// It is not valid yet.
    NotYetValid,
    /// It has expired.
    Expired,
    /// It expires within 14 days: the number of whole days left.
    ExpiresSoon(u64),
}

impl Validity {
    /// The validity of a certificate; `None` if it is malformed.
    pub(super) fn of(der: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        Some(Self::read(&certificate))
    }

    fn read(certificate: &X509Certificate<'_>) -> Self {
        let validity = certificate.validity();
        let second = |time: x509_parser::time::ASN1Time| {
            UnixSeconds::from_secs(time.timestamp().max(0) as u64)
        };
        Self { not_before: second(validity.not_before), not_after: second(validity.not_after) }
    }

    /// The whole days from `now` until it ends; 0 if it has ended.
    pub fn days_left(self, now: UnixSeconds) -> u64 {
        self.not_after.since(now).as_secs() / (24 * 60 * 60)
    }

    /// The problem at `now`, if there is one.
    pub fn problem(self, now: UnixSeconds) -> Option<ValidityProblem> {
        let is_near = self.not_after.since(now) <= SOON;
        if now < self.not_before {
            Some(ValidityProblem::NotYetValid)
        } else if now > self.not_after {
            Some(ValidityProblem::Expired)
        } else {
            is_near.then(|| ValidityProblem::ExpiresSoon(self.days_left(now)))
        }
    }
}

/// The predicate of a sentence about the certificate, such as `expires in 3 days`.
impl fmt::Display for ValidityProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotYetValid => f.write_str("is not yet valid"),
            Self::Expired => f.write_str("has expired"),
            Self::ExpiresSoon(0) => f.write_str("expires within a day"),
            Self::ExpiresSoon(1) => f.write_str("expires in 1 day"),
            Self::ExpiresSoon(days) => write!(f, "expires in {days} days"),
        }
    }
}

impl Certificate {
    /// A host for an example URL that the certificate covers: a DNS name, or else an address.
    pub fn example_name(&self) -> Option<String> {
        let name = self.names.first().map(|name| match name.strip_prefix("*.") {
            Some(domain) => format!("health.{domain}"),
            None => name.to_string(),
        });
        name.or_else(|| match self.addresses.first()? {
            IpAddr::V4(address) => Some(address.to_string()),
            IpAddr::V6(address) => Some(format!("[{address}]")),
        })
    }

    /// Reads a chain and its key, in PEM.
    ///
    /// # Errors
    ///
    /// A file cannot be read or used, or the key is not the certificate's.
    pub fn load(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let (cert_file, chain) = pem::certificates(cert)?;
        let (key_file, private) = pem::private_key(key)?;
        let files = Box::new([cert_file, key_file]);
        Ok(Self { files, ..Self::new(chain, private, [cert, key])? })
    }

    /// Reads a chain and its key from `text`, in PEM. `path` is its file, for messages; it is not
    /// watched.
    ///
    /// # Errors
    ///
    /// The text cannot be used, or the key is not the certificate's.
    pub fn parse(path: &Path, text: &[u8]) -> Result<Self, TlsError> {
        let chain = pem::certificates_in(path, text)?;
        let mut parsed = Self::new(chain, pem::private_key_in(path, text)?, [path, path])?;
        // An authority orders them as it likes, and the label should survive a renewal.
        parsed.names.sort_unstable();
        Ok(parsed)
    }

    /// A certificate from its chain and key. Messages name the two paths.
    pub(super) fn new(
        chain: Vec<CertificateDer<'static>>,
        private: PrivateKeyDer<'static>,
        [cert, key]: [&Path; 2],
    ) -> Result<Self, TlsError> {
        let (names, addresses, validity) = read(&chain[0], cert)?;
        for issuer in &chain[1..] {
            read(issuer, cert)?;
        }
        let private = provider()
            .key_provider
            .load_private_key(private)
            .map_err(|error| TlsError::Refused { path: shown(key), error })?;
        let certified = CertifiedKey::new(chain, private);
        match certified.keys_match() {
            // A key type that does not reveal its public key cannot be compared.
            Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
            Err(_) => {
                return Err(TlsError::KeyMismatch { cert: shown(cert), key: shown(key) });
            }
        }
        let files = Box::default();
        let key = Arc::new(certified);
        Ok(Self { key, names, addresses, validity, files, is_placeholder: false })
    }

    /// True for [`Self::placeholder`].
    pub fn is_placeholder(&self) -> bool {
        self.is_placeholder
    }

    /// The certificate itself, without the rest of its chain.
    pub fn leaf(&self) -> Option<&CertificateDer<'static>> {
        self.key.cert.first()
    }

    /// The first name, or else the first address, for metrics and logs.
    pub fn label(&self) -> String {
        let name = self.names.first().map(ToString::to_string);
        name.or_else(|| self.addresses.first().map(ToString::to_string)).unwrap_or_default()
    }

    /// The DNS names, in lower case; a wildcard begins with `*.`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }

    /// True if the certificate names a host. A client's certificate need not.
    pub(super) fn names_a_host(&self) -> bool {
        !(self.names.is_empty() && self.addresses.is_empty())
    }

    /// True if the certificate is valid for `host`, a name in lower case or an address, without a
    /// port.
    pub fn covers(&self, host: &str) -> bool {
        let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if let Ok(address) = literal.unwrap_or(host).parse::<IpAddr>() {
            return self.addresses.contains(&address);
        }
        self.names.iter().any(|name| matches(name, host))
    }
}

/// True if a certificate's `name` is valid for `host`: RFC 9525, 6.3. A wildcard stands for one
/// whole label.
fn matches(name: &str, host: &str) -> bool {
    match name.strip_prefix("*.") {
        Some(parent) => host.split_once('.').is_some_and(|(_, rest)| rest == parent),
        None => name == host,
    }
}

type Contents = (Box<[Box<str>]>, Box<[IpAddr]>, Validity);

fn read(der: &CertificateDer<'_>, path: &Path) -> Result<Contents, TlsError> {
    let malformed = |what: String| TlsError::Malformed { path: shown(path), what };
    let (_, certificate) =
        X509Certificate::from_der(der).map_err(|error| malformed(error.to_string()))?;
    let names = certificate
        .subject_alternative_name()
        .map_err(|error| malformed(error.to_string()))?
        .map(|extension| extension.value.general_names.as_slice())
        .unwrap_or_default();
    let dns = names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase().into_boxed_str()),
        _ => None,
    });
    let addresses = names.iter().filter_map(|name| match name {
        GeneralName::IPAddress(bytes) => address(bytes),
        _ => None,
    });
    Ok((dns.collect(), addresses.collect(), Validity::read(&certificate)))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_reported_two_weeks_before_its_end() {
        const DAY: u64 = 24 * 60 * 60;
        let at = UnixSeconds::from_secs;
        let validity = Validity { not_before: at(100 * DAY), not_after: at(190 * DAY) };
        for (now, expected) in [
            (100 * DAY - 1, Some(ValidityProblem::NotYetValid)),
            (100 * DAY, None),
            (176 * DAY - 1, None),
            (176 * DAY, Some(ValidityProblem::ExpiresSoon(14))),
            (190 * DAY, Some(ValidityProblem::ExpiresSoon(0))),
            (190 * DAY + 1, Some(ValidityProblem::Expired)),
        ] {
            assert_eq!(validity.problem(at(now)), expected, "{now}");
        }
    }

    #[test]
    fn a_wildcard_is_one_label() {
        for (name, host, expected) in [
            ("a.test", "a.test", true),
            ("a.test", "b.a.test", false),
            ("*.a.test", "b.a.test", true),
            ("*.a.test", "a.test", false),
            ("*.a.test", "c.b.a.test", false),
        ] {
            assert_eq!(matches(name, host), expected, "{name} {host}");
        }
    }
}
