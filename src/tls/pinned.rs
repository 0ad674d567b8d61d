//! Verifies the certificates of servers: issued by a listed authority, or listed itself.

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
};

use super::{Validity, ValidityProblem, provider};

/// Accepts each certificate that the TLS library accepts. Also accepts a server's certificate that is itself
/// listed as an authority, such as a self-signed one, which the library refuses. The name and the validity are
/// checked in both cases.
#[derive(Debug)]
pub(super) struct PinnedVerifier {
    issued: Arc<WebPkiServerVerifier>,
    listed: Box<[CertificateDer<'static>]>,
}

impl PinnedVerifier {
    /// # Errors
    ///
    /// There is no authority.
    pub(super) fn new(
        roots: RootCertStore,
        listed: Box<[CertificateDer<'static>]>,
    ) -> Result<Arc<Self>, rustls::server::VerifierBuilderError> {
        let issued = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
        Ok(Arc::new(Self { issued: issued.build()?, listed }))
    }

    fn verify_listed(
        certificate: &CertificateDer<'_>,
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
        let validity = Validity::of(certificate).ok_or(CertificateError::BadEncoding)?;
        match validity.problem(now.as_secs()) {
            Some(ValidityProblem::NotYetValid) => Err(CertificateError::NotValidYet.into()),
            Some(ValidityProblem::Expired) => Err(CertificateError::Expired.into()),
            Some(ValidityProblem::ExpiresSoon(_)) | None => Ok(ServerCertVerified::assertion()),
        }
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
        if issued.is_err() && self.listed.contains(certificate) {
            return Self::verify_listed(certificate, name, now);
        }
        issued
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.issued.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.issued.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.issued.supported_verify_schemes()
    }
}
