//! The handshake with an upstream.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
    sync::Arc,
};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{InvalidDnsNameError, ServerName},
    sign::SingleCertAndKey,
};

use super::{
    ALPN_HTTP1, ALPN_HTTP2, Certificate, TlsError, TlsFile, Validity, pem, pinned::PinnedVerifier,
    provider,
};

/// The rules of handshakes with the servers of one upstream.
#[derive(Clone, Debug)]
pub struct ClientTls {
    /// The rules, for the TLS library.
    pub config: Arc<ClientConfig>,
    /// The same rules, offering HTTP/1.1 alone.
    pub http1_config: Arc<ClientConfig>,
    /// The validity of the certificate that is shown to servers; `None` without one.
    pub validity: Option<Validity>,
    /// The files that the rules were read from.
    pub files: Arc<[TlsFile]>,
    /// A digest of the settings and files that the rules are made from. After a reload, rules from
    /// unchanged files are equal, so the connections stay.
    digest: u64,
}

impl ClientTls {
    /// The digest of the settings and files: rules with equal ones are equal.
    pub fn digest(&self) -> u64 {
        self.digest
    }
}

impl PartialEq for ClientTls {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for ClientTls {}

impl Hash for ClientTls {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

/// The application protocols that are offered to a server.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum OfferedToServer {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
    /// HTTP/2, or else HTTP/1.1.
    Either,
}

impl ClientTls {
    /// The rules for servers with a certificate from an authority in `ca`, or from the system's
    /// authorities. `certificate` is shown to servers that ask for one.
    ///
    /// # Errors
    ///
    /// A file cannot be read or used, or the system has no authorities.
    pub fn new(
        ca: Option<&Path>,
        certificate: Option<Certificate>,
        offer: OfferedToServer,
    ) -> Result<Self, TlsError> {
        let mut digest = DefaultHasher::new();
        offer.hash(&mut digest);
        let mut files = Vec::new();
        let validity = certificate.as_ref().map(|certificate| certificate.validity);
        files.extend(certificate.iter().flat_map(|certificate| certificate.files.to_vec()));
        let mut listed = Box::default();
        let roots = match ca {
            Some(path) => {
                let (file, roots, certificates) = pem::authorities(path)?;
                files.push(file);
                listed = certificates.into();
                roots
            }
            None => system_roots(&mut digest)?,
        };
        for file in &files {
            file.digest().hash(&mut digest);
        }
        let refused = |error| TlsError::Refused { path: "TLS".to_owned(), error };
        let verifier = PinnedVerifier::new(roots, listed);
        let verifier =
            verifier.map_err(|error| refused(rustls::Error::General(error.to_string())))?;
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(refused)?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match certificate {
            None => builder.with_no_client_auth(),
            Some(certificate) => {
                let resolver = SingleCertAndKey::from(Arc::clone(&certificate.key));
                builder.with_client_cert_resolver(Arc::new(resolver))
            }
        };
        let (http1, http2) = (ALPN_HTTP1.to_vec(), ALPN_HTTP2.to_vec());
        config.alpn_protocols = vec![http1.clone()];
        let http1_config = Arc::new(config.clone());
        config.alpn_protocols = match offer {
            OfferedToServer::Http1 => vec![http1],
            OfferedToServer::Http2 => vec![http2],
            OfferedToServer::Either => vec![http2, http1],
        };
        let files = files.into();
        let config = Arc::new(config);
        Ok(Self { config, http1_config, validity, files, digest: digest.finish() })
    }

    /// Rules by which every handshake fails, for a library that requires rules but connects without
    /// TLS.
    ///
    /// # Errors
    ///
    /// The TLS library refuses its own defaults.
    pub fn without_authorities() -> Result<Arc<ClientConfig>, TlsError> {
        let builder = ClientConfig::builder_with_provider(provider());
        let builder = builder
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Refused { path: "TLS".to_owned(), error })?;
        let builder = builder.with_root_certificates(RootCertStore::empty());
        Ok(Arc::new(builder.with_no_client_auth()))
    }

    /// The name that the certificate of `host` must have: a DNS name or an address.
    ///
    /// # Errors
    ///
    /// `host` is neither.
    pub fn server_name(host: &str) -> Result<ServerName<'static>, InvalidDnsNameError> {
        ServerName::try_from(host.to_owned())
    }
}

/// The system's certificate authorities. Adds them to `digest`.
fn system_roots(digest: &mut DefaultHasher) -> Result<RootCertStore, TlsError> {
    let loaded = rustls_native_certs::load_native_certs();
    loaded.certs.hash(digest);
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(loaded.certs);
    if added > 0 {
        return Ok(roots);
    }
    let what = match loaded.errors.first() {
        Some(error) => error.to_string(),
        None => "the system has no certificate authorities (package ca-certificates)".to_owned(),
    };
    Err(TlsError::Pem { path: "system".to_owned(), what })
}
