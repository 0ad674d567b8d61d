//! Certificates that the gateway makes itself: the one of a listener whose first order is not
//! complete, and the responses to `tls-alpn-01` (RFC 8737).

use std::{path::Path, sync::Arc};

use rcgen::{CertificateParams, CustomExtension, DistinguishedName, DnType, KeyPair};
use rustls::{
    ServerConfig,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    sign::{CertifiedKey, SingleCertAndKey},
};

use super::{ALPN_ACME, Certificate, TlsError, provider};

/// What messages call such a certificate.
const OWN: &str = "a certificate of the gateway's own";
/// The name of the issuer, as clients show it.
const ISSUER: &str = "Tidegate, until the first ACME order is complete";

impl Certificate {
    /// A certificate for `domains` that no client trusts: it is its own issuer.
    ///
    /// # Errors
    ///
    /// A domain is no DNS name, or the system has no random numbers.
    pub fn placeholder(domains: &[Box<str>]) -> Result<Self, TlsError> {
        let names: Vec<String> = domains.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).map_err(|error| failed(&error))?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, ISSUER);
        let key = KeyPair::generate().map_err(|error| failed(&error))?;
        let certificate = params.self_signed(&key).map_err(|error| failed(&error))?;
        let path = Path::new(OWN);
        let mut made = Self::new(vec![certificate.der().clone()], der(&key), [path, path])?;
        made.is_placeholder = true;
        Ok(made)
    }
}

/// The rules of the handshake in which an authority checks `domain`. `digest` is the SHA-256 of the
/// key authorization.
///
/// # Errors
///
/// `domain` is no DNS name, or the system has no random numbers.
pub fn challenge_rules(domain: &str, digest: &[u8]) -> Result<Arc<ServerConfig>, TlsError> {
    let params = CertificateParams::new(vec![domain.to_owned()]);
    let mut params = params.map_err(|error| failed(&error))?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let key = KeyPair::generate().map_err(|error| failed(&error))?;
    let certificate = params.self_signed(&key).map_err(|error| failed(&error))?;
    let private = provider().key_provider.load_private_key(der(&key));
    let private = private.map_err(|error| TlsError::Refused { path: OWN.to_owned(), error })?;
    // Not `Certificate::new`: the extension is critical, and the library does not know it.
    let certified = CertifiedKey::new(vec![certificate.der().clone()], private);
    let resolver = SingleCertAndKey::from(certified);
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(|error| TlsError::Refused { path: "TLS".to_owned(), error })?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(resolver));
    config.alpn_protocols = vec![ALPN_ACME.to_vec()];
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

fn der(key: &KeyPair) -> PrivateKeyDer<'static> {
    PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()))
}

fn failed(error: &rcgen::Error) -> TlsError {
    let error = rustls::Error::General(error.to_string());
    TlsError::Refused { path: OWN.to_owned(), error }
}

#[cfg(test)]
mod tests {
    use tidegate_base::time::UnixSeconds;

    use super::*;

    #[test]
    fn a_placeholder_has_all_domains() {
        let made = Certificate::placeholder(&["a.test".into(), "b.test".into()]).unwrap();
        assert!(made.covers("a.test") && made.covers("b.test") && !made.covers("c.test"));
        let now = UnixSeconds::from_secs(1_800_000_000);
        assert_eq!(made.validity.problem(now), None);
    }
}
