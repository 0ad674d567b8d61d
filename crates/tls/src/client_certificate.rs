//! [`ClientCertificate`]: the names in a client's certificate that the TLS handshake has verified.

use std::fmt::Write as _;
pub use tidegate_vocabulary::CertificateName;

use aws_lc_rs::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// The names in a client's certificate. Of several names of one kind, none is used: two readers
/// could choose different ones.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ClientCertificate {
    san_uri: Option<Box<str>>,
    san_dns: Option<Box<str>>,
    subject_cn: Option<Box<str>>,
    sha256: Box<str>,
}

impl ClientCertificate {
    /// Reads a certificate. A malformed one has only its fingerprint.
    pub fn read(der: &CertificateDer<'_>) -> Self {
        let mut sha256 = String::with_capacity(64);
        for byte in digest(&SHA256, der).as_ref() {
            // Writing to a string cannot fail.
            let _ = write!(sha256, "{byte:02x}");
        }
        let sha256 = sha256.into_boxed_str();
        let Ok((_, certificate)) = X509Certificate::from_der(der) else {
            return Self { sha256, ..Self::default() };
        };
        let names = certificate.subject_alternative_name().ok().flatten();
        let names = || names.iter().flat_map(|names| &names.value.general_names);
        let uris = names().filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        });
        let hosts = names().filter_map(|name| match name {
            GeneralName::DNSName(host) => Some(*host),
            _ => None,
        });
        let common = certificate.subject().iter_common_name().map(|name| name.as_str().ok());
        Self {
            san_uri: only(uris.map(Some)),
            san_dns: only(hosts.map(Some)).map(|host| host.to_ascii_lowercase().into()),
            subject_cn: only(common),
            sha256,
        }
    }

    /// The name in this part of the certificate; `None` if there is none, or more than one.
    pub fn name(&self, part: CertificateName) -> Option<&str> {
        match part {
            CertificateName::SanUri => self.san_uri.as_deref(),
            CertificateName::SanDns => self.san_dns.as_deref(),
            CertificateName::SubjectCn => self.subject_cn.as_deref(),
            CertificateName::Sha256 => Some(&self.sha256),
        }
    }
}

/// The text, if there is exactly one.
fn only<'n>(mut names: impl Iterator<Item = Option<&'n str>>) -> Option<Box<str>> {
    let first = names.next()??;
    names.next().is_none().then(|| first.into())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn certificate(names: &[SanType], common: Option<&str>) -> ClientCertificate {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names.to_vec();
        params.distinguished_name = rcgen::DistinguishedName::new();
        if let Some(common) = common {
            params.distinguished_name.push(DnType::CommonName, common);
        }
        let key = KeyPair::generate().unwrap();
        ClientCertificate::read(params.self_signed(&key).unwrap().der())
    }

    #[test]
    fn a_name_is_used_if_it_is_the_only_one() {
        let uri = |text: &str| SanType::URI(text.try_into().unwrap());
        let host = |text: &str| SanType::DnsName(text.try_into().unwrap());
        let one = certificate(&[uri("spiffe://a/acme"), host("Acme.test")], Some("acme"));
        assert_eq!(one.name(CertificateName::SanUri), Some("spiffe://a/acme"));
        assert_eq!(one.name(CertificateName::SanDns), Some("acme.test"));
        assert_eq!(one.name(CertificateName::SubjectCn), Some("acme"));
        assert_eq!(one.name(CertificateName::Sha256).map(str::len), Some(64));
        let several = certificate(&[uri("a:b"), uri("a:c"), host("a.test"), host("b.test")], None);
        for part in [CertificateName::SanUri, CertificateName::SanDns, CertificateName::SubjectCn] {
            assert_eq!(several.name(part), None);
        }
        let malformed = ClientCertificate::read(&CertificateDer::from(vec![1, 2, 3]));
        assert_eq!(malformed.name(CertificateName::SubjectCn), None);
        assert!(malformed.name(CertificateName::Sha256).is_some());
    }
}
