//! Selects the certificate for a client, with the rules of the handshake and the hosts that the
//! connection may ask for.

use std::{
    path::Path,
    sync::{Arc, OnceLock},
};

use ahash::RandomState;
use hashbrown::HashMap;
use rustls::{
    ServerConfig,
    server::{
        NoServerSessionStorage, ProducesTickets, WebPkiClientVerifier, danger::ClientCertVerifier,
    },
    sign::SingleCertAndKey,
};

use super::{ALPN_HTTP1, ALPN_HTTP2, Certificate, TlsError, TlsFile, file::shown, pem, provider};

/// The indexes of certificates, by name.
type IndexByName = HashMap<Box<str>, usize, RandomState>;

/// The certificates of a listener, by the host name in the client's handshake.
#[derive(Debug)]
pub struct ServerCertificates {
    /// At least one. The first is used for clients that name no host, or an unknown one.
    entries: Box<[Arc<CertificateEntry>]>,
    /// The indexes of exact names.
    exact: IndexByName,
    /// The indexes of wildcards, without `*.`.
    wildcards: IndexByName,
    /// True if some names require a client certificate.
    has_client_auth: bool,
    check: HostCheck,
}

/// The hosts that a connection may ask for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum HostCheck {
    /// As `Covered` if some names require a client certificate, or else as `Any`.
    #[default]
    ByClientAuth,
    /// The hosts that the connection's certificate is valid for.
    Covered,
    /// Any host, unless it requires a client certificate and belongs to another certificate.
    Any,
}

/// One certificate and the rules of its handshakes.
#[derive(Debug)]
pub struct CertificateEntry {
    /// The certificate.
    pub certificate: Certificate,
    /// The rules, for the TLS library.
    pub config: Arc<ServerConfig>,
    /// The file of the CAs that must have issued the client's certificate; `None`: clients need
    /// none.
    client_ca: Option<TlsFile>,
}

/// The certificate that was selected for a connection, among those of its listener at that time.
#[derive(Clone, Debug)]
pub struct SelectedCertificate {
    names: Arc<ServerCertificates>,
    index: usize,
}

impl SelectedCertificate {
    /// The certificate and the rules of its handshakes.
    pub fn entry(&self) -> &CertificateEntry {
        &self.names.entries[self.index]
    }

    /// True if the connection may carry requests for `host`, in lower case and without a port: the
    /// client has shown a certificate if `host` requires one, and the connection's certificate is
    /// valid for it as far as [`HostCheck`] demands that. A request without a host is accepted.
    pub fn serves(&self, host: &str) -> bool {
        let ServerCertificates { has_client_auth, check, .. } = *self.names;
        let must_cover = match check {
            HostCheck::ByClientAuth => has_client_auth,
            HostCheck::Covered => true,
            HostCheck::Any => false,
        };
        host.is_empty()
            || (!must_cover || self.entry().certificate.covers(host))
                && !(has_client_auth && self.avoids_client_auth(host))
    }

    /// True if `host` requires a client certificate, but belongs to another certificate than this
    /// connection's.
    fn avoids_client_auth(&self, host: &str) -> bool {
        let index = self.names.index_of(host);
        index != self.index && self.names.entries[index].client_ca.is_some()
    }
}

/// The authorities that must have issued the certificates of clients.
#[derive(Clone, Debug)]
pub struct ClientAuthorities {
    file: TlsFile,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl ClientAuthorities {
    /// Reads them from a PEM file.
    ///
    /// # Errors
    ///
    /// They cannot be read or used.
    pub fn load(path: &Path) -> Result<Self, TlsError> {
        let (file, roots, _) = pem::authorities(path)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
        let verifier = verifier.build().map_err(|error| TlsError::Refused {
            path: shown(path),
            error: rustls::Error::General(error.to_string()),
        })?;
        Ok(Self { file, verifier })
    }

    /// The file.
    pub fn file(&self) -> &TlsFile {
        &self.file
    }
}

/// The protocols that a listener offers in its handshakes (ALPN).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OfferedProtocols {
    /// HTTP/1.1 alone.
    Http1,
    /// HTTP/2, and HTTP/1.1 for clients without it.
    Http2AndHttp1,
}

impl CertificateEntry {
    /// Builds the rules of handshakes with `certificate`. With `clients`, they need a certificate
    /// from one of these authorities.
    ///
    /// # Errors
    ///
    /// The certificate names no host.
    pub fn new(
        certificate: Certificate,
        clients: Option<&ClientAuthorities>,
        offered: OfferedProtocols,
    ) -> Result<Self, TlsError> {
        if !certificate.names_a_host() {
            let file = certificate.files.first().map(|file| shown(file.path()));
            return Err(TlsError::Nameless { path: file.unwrap_or_default() });
        }
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(|error| TlsError::Refused { path: "TLS".to_owned(), error })?;
        let resolver = Arc::new(SingleCertAndKey::from(Arc::clone(&certificate.key)));
        let mut config = match clients {
            None => {
                let mut config = builder.with_no_client_auth().with_cert_resolver(resolver);
                config.ticketer = ticketer()?;
                config
            }
            Some(clients) => {
                let verifier = Arc::clone(&clients.verifier);
                let mut config =
                    builder.with_client_cert_verifier(verifier).with_cert_resolver(resolver);
                // A resumed session would skip the check of the client's certificate.
                config.send_tls13_tickets = 0;
                config.session_storage = Arc::new(NoServerSessionStorage {});
                config
            }
        };
        let offered = match offered {
            OfferedProtocols::Http1 => &[ALPN_HTTP1][..],
            OfferedProtocols::Http2AndHttp1 => &[ALPN_HTTP2, ALPN_HTTP1],
        };
        config.alpn_protocols = offered.iter().map(|protocol| protocol.to_vec()).collect();
        let client_ca = clients.map(|clients| clients.file.clone());
        Ok(Self { certificate, config: Arc::new(config), client_ca })
    }

    /// The files of the certificate, its key, and the CAs of clients.
    pub fn files(&self) -> impl Iterator<Item = &TlsFile> {
        self.certificate.files.iter().chain(&self.client_ca)
    }
}

impl ServerCertificates {
    /// Indexes `entries`.
    ///
    /// # Errors
    ///
    /// Two certificates have the same name, so the selection would be arbitrary. Returns the name
    /// and their indexes.
    pub fn new(entries: Vec<Arc<CertificateEntry>>) -> Result<Self, (Box<str>, usize, usize)> {
        let (mut exact, mut wildcards) = (IndexByName::default(), IndexByName::default());
        for (index, entry) in entries.iter().enumerate() {
            for name in entry.certificate.names() {
                let earlier = match name.strip_prefix("*.") {
                    Some(parent) => wildcards.insert(parent.into(), index),
                    None => exact.insert(name.into(), index),
                };
                if let Some(earlier) = earlier.filter(|earlier| *earlier != index) {
                    return Err((name.into(), earlier, index));
                }
            }
        }
        let has_client_auth = entries.iter().any(|entry| entry.client_ca.is_some());
        let check = HostCheck::default();
        Ok(Self { entries: entries.into(), exact, wildcards, has_client_auth, check })
    }

    /// The same certificates, for connections that may ask for the hosts of `check`.
    #[must_use]
    pub fn with_check(self, check: HostCheck) -> Self {
        Self { check, ..self }
    }

    /// The hosts that connections may ask for.
    pub fn check(&self) -> HostCheck {
        self.check
    }

    /// One certificate, which all clients get. With `clients`, they need one from these
    /// authorities.
    ///
    /// # Errors
    ///
    /// It names no host.
    pub fn of_one(
        certificate: Certificate,
        clients: Option<&ClientAuthorities>,
        offered: OfferedProtocols,
    ) -> Result<Self, TlsError> {
        let entry = CertificateEntry::new(certificate, clients, offered)?;
        Self::new(vec![Arc::new(entry)]).map_err(|(name, ..)| TlsError::Refused {
            path: name.into(),
            error: rustls::Error::General("a name in two certificates".to_owned()),
        })
    }

    /// Selects the certificate for a client that asks for `name`: the exact name, then a wildcard,
    /// then the first.
    pub fn select(self: &Arc<Self>, name: Option<&str>) -> SelectedCertificate {
        let index = name.map_or(0, |name| {
            let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
            self.index_of(&name)
        });
        SelectedCertificate { names: Arc::clone(self), index }
    }

    /// The index of the certificate for `name`, in lower case.
    fn index_of(&self, name: &str) -> usize {
        let wildcard = || self.wildcards.get(name.split_once('.')?.1);
        self.exact.get(name).or_else(wildcard).copied().unwrap_or(0)
    }

    /// The certificates, in the configuration's order.
    pub fn entries(&self) -> &[Arc<CertificateEntry>] {
        &self.entries
    }
}

/// The key of session tickets. The process has one, so that a session resumes at any worker and
/// after a reload.
fn ticketer() -> Result<Arc<dyn ProducesTickets>, TlsError> {
    static TICKETER: OnceLock<Arc<dyn ProducesTickets>> = OnceLock::new();
    if let Some(ticketer) = TICKETER.get() {
        return Ok(Arc::clone(ticketer));
    }
    let ticketer = rustls::crypto::aws_lc_rs::Ticketer::new()
        .map_err(|error| TlsError::Refused { path: "session tickets".to_owned(), error })?;
    Ok(Arc::clone(TICKETER.get_or_init(|| ticketer)))
}
