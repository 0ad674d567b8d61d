//! [`LiveCertificates`]: the certificates of a listener, of which one may be renewed without a
//! reload.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::pki_types::CertificateDer;

use super::{
    Certificate, ClientAuthorities, ServerCertificates, TlsError, TlsFile, server::OfferedProtocols,
};

/// The certificates of a listener. A handshake keeps the ones that it began with.
#[derive(Debug)]
pub struct LiveCertificates {
    current: ArcSwap<ServerCertificates>,
    /// What [`Self::replace`] asks clients for; `None`: they need no certificate.
    clients: Option<ClientAuthorities>,
    offered: OfferedProtocols,
}

impl LiveCertificates {
    /// Starts with `certificates`, whose handshakes offer `offered`. With a certificate that
    /// replaces them, clients need one from `clients`.
    pub fn new(
        certificates: Arc<ServerCertificates>,
        clients: Option<ClientAuthorities>,
        offered: OfferedProtocols,
    ) -> Self {
        Self { current: ArcSwap::new(certificates), clients, offered }
    }

    /// The file of the authorities of clients.
    pub fn client_file(&self) -> Option<&TlsFile> {
        self.clients.as_ref().map(ClientAuthorities::file)
    }

    /// The current certificates.
    pub fn load(&self) -> Arc<ServerCertificates> {
        self.current.load_full()
    }

    /// True if this certificate is presented to clients.
    pub fn presents(&self, leaf: &CertificateDer<'_>) -> bool {
        let current = self.current.load();
        current.entries().iter().any(|entry| entry.certificate.leaf() == Some(leaf))
    }

    /// Presents `certificate` alone to the clients of new connections.
    ///
    /// # Errors
    ///
    /// It names no host.
    pub fn replace(&self, certificate: Certificate) -> Result<(), TlsError> {
        let clients = self.clients.as_ref();
        let certificates = ServerCertificates::of_one(certificate, clients, self.offered)?;
        let certificates = certificates.with_check(self.current.load().check());
        self.current.store(Arc::new(certificates));
        Ok(())
    }
}
