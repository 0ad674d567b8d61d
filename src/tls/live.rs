//! [`LiveCertificates`]: the certificates of a listener, of which one may be renewed without a reload.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::pki_types::CertificateDer;

use super::{Certificate, ServerCertificates, TlsError, server::OfferedProtocols};

/// The certificates of a listener. A handshake keeps the ones that it began with.
#[derive(Debug)]
pub struct LiveCertificates {
    current: ArcSwap<ServerCertificates>,
    offered: OfferedProtocols,
}

impl LiveCertificates {
    /// Starts with `certificates`, whose handshakes offer `offered`.
    pub fn new(certificates: Arc<ServerCertificates>, offered: OfferedProtocols) -> Self {
        Self { current: ArcSwap::new(certificates), offered }
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
        self.current.store(Arc::new(ServerCertificates::of_one(certificate, self.offered)?));
        Ok(())
    }
}
