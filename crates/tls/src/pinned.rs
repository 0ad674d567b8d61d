//! Verifies the certificates of servers: issued by a listed authority, or listed itself.

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key},
    pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime},
    server::ParsedCertificate,
};
use tidegate_base::time::UnixSeconds;
use webpki::RawPublicKeyEntity;

use super::{Validity, ValidityProblem, certificate_fault::CertificateFault, provider};

/// Accepts each certificate that the TLS library accepts. Also accepts a server's certificate that
/// is itself listed as an authority, byte for byte, such as a self-signed one, which the library
/// refuses.
///
/// The validity of a listed certificate is checked, and the server must have its key. Its name is
/// checked if it has one: without a subject alternative name, as with X.509 version 1, the list
/// itself says which servers it is for (a pinned certificate, RFC 6125, 6.6.2).
#[derive(Debug)]
pub(super) struct PinnedVerifier {
    issued: Arc<WebPkiServerVerifier>,
    listed: Box<[CertificateDer<'static>]>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl PinnedVerifier {
    /// # Errors
    ///
    /// There is no authority.
    pub(super) fn new(
        roots: RootCertStore,
        listed: Box<[CertificateDer<'static>]>,
    ) -> Result<Arc<Self>, rustls::server::VerifierBuilderError> {
        let provider = provider();
        let algorithms = provider.signature_verification_algorithms;
        let issued = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        Ok(Arc::new(Self { issued: issued.build()?, listed, algorithms }))
    }

    fn verify_listed(
        certificate: &CertificateDer<'_>,
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if CertificateFault::of_name(certificate).is_none() {
            verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
        }
        let validity = Validity::of(certificate).ok_or(CertificateError::BadEncoding)?;
        match validity.problem(UnixSeconds::from_secs(now.as_secs())) {
            Some(ValidityProblem::NotYetValid) => Err(CertificateError::NotValidYet.into()),
            Some(ValidityProblem::Expired) => Err(CertificateError::Expired.into()),
            Some(ValidityProblem::ExpiresSoon(_)) | None => Ok(ServerCertVerified::assertion()),
        }
    }

    /// The key of a listed certificate of an old version, which the library cannot read.
    fn old_key<'c>(
        &self,
        certificate: &'c CertificateDer<'_>,
    ) -> Option<SubjectPublicKeyInfoDer<'c>> {
        let is_listed = self.listed.contains(certificate);
        is_listed.then(|| CertificateFault::old_key(certificate)).flatten()
    }
}

/// The error of a certificate that is not listed, with what is wrong if an operator would not find
/// it by the library's.
fn explained(error: Error, certificate: &CertificateDer<'_>) -> Error {
    match CertificateFault::behind(&error, certificate) {
        Some(fault) => Error::Other(OtherError(Arc::new(fault))),
        None => error,
    }
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let issued = self.issued.verify_server_cert(certificate, intermediates, name, ocsp, now);
        match issued {
            Err(_) if self.listed.contains(certificate) => {
                Self::verify_listed(certificate, name, now)
            }
            issued => issued.map_err(|error| explained(error, certificate)),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let Some(key) = self.old_key(certificate) else {
            return self.issued.verify_tls12_signature(message, certificate, signature);
        };
        let key = RawPublicKeyEntity::try_from(&key).map_err(|_| CertificateError::BadEncoding)?;
        // The scheme of TLS 1.2 does not determine the curve.
        let scheme = self.algorithms.mapping.iter().find(|(scheme, _)| *scheme == signature.scheme);
        let mut algorithms = scheme.into_iter().flat_map(|(_, algorithms)| algorithms.iter());
        let is_valid = algorithms.any(|algorithm| {
            key.verify_signature(*algorithm, message, signature.signature()).is_ok()
        });
        if is_valid {
            Ok(HandshakeSignatureValid::assertion())
        } else {
            Err(CertificateError::BadSignature.into())
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match self.old_key(certificate) {
            Some(key) => {
                verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
            }
            None => self.issued.verify_tls13_signature(message, certificate, signature),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.issued.supported_verify_schemes()
    }
}
