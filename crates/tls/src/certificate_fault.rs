//! [`CertificateFault`]: what is wrong with a server's certificate if the TLS library's error does
//! not show it.

use rustls::{
    CertificateError, Error,
    pki_types::{CertificateDer, SubjectPublicKeyInfoDer},
};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate, X509Version};

/// What is wrong with a server's certificate.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CertificateFault {
    /// It names no host.
    #[error(
        "the certificate has no subjectAltName: list it in `tls.ca` itself, or make one with `openssl req -x509 \
         -newkey rsa:2048 -nodes -subj /CN=NAME -addext subjectAltName=DNS:NAME -keyout key.pem -out cert.pem`"
    )]
    Nameless,
    /// It is older than version 3, and so has no extensions.
    #[error(
        "the certificate is X.509 version 1 or 2: list it in `tls.ca` itself, or make one of version 3 with `openssl req \
         -x509 -newkey rsa:2048 -nodes -subj /CN=NAME -addext subjectAltName=DNS:NAME -keyout key.pem -out cert.pem`"
    )]
    OldVersion,
    /// It is that of an authority.
    #[error(
        "the certificate is that of an authority (CA:TRUE), such as a self-signed one, and not listed in `tls.ca` itself"
    )]
    Authority,
}

impl CertificateFault {
    /// Why no name can be compared with the certificate's, if it has none.
    pub(super) fn of_name(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        if parsed.version() != X509Version::V3 {
            return Some(Self::OldVersion);
        }
        (!names_a_host(&parsed)).then_some(Self::Nameless)
    }

    /// The fault of the certificate that the library refuses with `error`.
    pub(super) fn behind(error: &Error, certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        if parsed.version() != X509Version::V3 {
            return Some(Self::OldVersion);
        }
        match error {
            Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            ) => (!names_a_host(&parsed)).then_some(Self::Nameless),
            Error::InvalidCertificate(CertificateError::Other(_)) => {
                parsed.is_ca().then_some(Self::Authority)
            }
            _ => None,
        }
    }

    /// The key of a certificate of an old version.
    pub(super) fn old_key<'c>(
        certificate: &'c CertificateDer<'_>,
    ) -> Option<SubjectPublicKeyInfoDer<'c>> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        let is_old = parsed.version() != X509Version::V3;
        is_old.then(|| SubjectPublicKeyInfoDer::from(parsed.tbs_certificate.subject_pki.raw))
    }
}

/// True if the certificate has a subject alternative name that is a DNS name or an address.
fn names_a_host(parsed: &X509Certificate<'_>) -> bool {
    // A malformed or repeated extension counts as a name, which the library then refuses.
    match parsed.subject_alternative_name() {
        Ok(Some(extension)) => extension
            .value
            .general_names
            .iter()
            .any(|name| matches!(name, GeneralName::DNSName(_) | GeneralName::IPAddress(_))),
        Ok(None) => false,
        Err(_) => true,
    }
}
