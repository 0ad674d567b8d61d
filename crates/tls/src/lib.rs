//! TLS: certificates and the rules of handshakes with clients and upstreams.
//!
//! Everything is read and checked when a configuration is loaded, so a handshake only looks a name
//! up.
//!
//! The protocol itself is `rustls`. Whether a client that has a certificate may do something is not
//! decided here.
//!
//! | file | content |
//! |---|---|
//! | `certificate` | [`Certificate`]: one chain and its key; its names and its expiry |
//! | `certificate_fault` | [`CertificateFault`]: what is wrong with a server's certificate |
//! | `server` | [`ServerCertificates`]: selects a client's certificate |
//! | `live` | [`LiveCertificates`]: the certificates of a listener, which may be renewed |
//! | `self_made` | certificates that the gateway makes itself, for ACME |
//! | `client_certificate` | [`ClientCertificate`]: the names in a client's certificate |
//! | `client` | [`ClientTls`]: the handshake with an upstream |
//! | `pinned` | verifies an upstream's certificate against listed ones |
//! | `pem` | reads PEM files |
//! | `failure` | [`HandshakeFailure`]: why a handshake with a server failed |
//! | `file` | [`TlsFile`]: a file and a digest of its content, to detect a change |
//! | `acme` | certificates that are ordered from an authority |
//! | `http_client` | the client of the gateway's own requests: to authorities, key servers, services and collectors |
//!
//! ```
//! use std::path::Path;
//! use tidegate_tls::Certificate;
//!
//! let error = Certificate::load(Path::new("no-such.crt"), Path::new("no-such.key")).unwrap_err();
//! assert!(error.to_string().contains("no-such.crt"));
//! ```

pub mod acme;
mod certificate;
mod certificate_fault;
pub mod client;
mod client_certificate;
mod failure;
mod file;
pub mod http_client;
mod live;
mod pem;
mod pinned;
mod self_made;
pub mod server;

pub use certificate::{Certificate, Validity, ValidityProblem};
pub use certificate_fault::CertificateFault;
pub use client::ClientTls;
pub use client_certificate::{CertificateName, ClientCertificate};
pub use failure::HandshakeFailure;
pub use file::TlsFile;
pub use live::LiveCertificates;
pub use self_made::challenge_rules;
pub use server::{ClientAuthorities, HostCheck, SelectedCertificate, ServerCertificates};

use std::{path::Path, sync::Arc};

use rustls::crypto::CryptoProvider;
use tidegate_system::file::FileError;

/// ALPN's protocol name for HTTP/2.
pub const ALPN_HTTP2: &[u8] = b"h2";
/// ALPN's protocol name for HTTP/1.1.
pub const ALPN_HTTP1: &[u8] = b"http/1.1";
/// ALPN's protocol name for the check of a domain by an ACME authority (RFC 8737).
pub const ALPN_ACME: &[u8] = b"acme-tls/1";

/// Why a certificate, a key or a list of authorities cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read.
    #[error("`{path}`: {error}")]
    Unreadable {
        /// The file.
        path: String,
        /// The system's error.
        error: FileError,
    },
    /// The file has no PEM section of the expected kind, or a damaged one.
    #[error("`{path}`: {what}")]
    Pem {
        /// The file.
        path: String,
        /// What is wrong.
        what: String,
    },
    /// A certificate is malformed.
    #[error("`{path}`: the certificate is malformed: {what}")]
    Malformed {
        /// The file.
        path: String,
        /// What is wrong.
        what: String,
    },
    /// The certificate has no name that a client could ask for.
    #[error("`{path}`: the certificate names no host (no subject alternative name)")]
    Nameless {
        /// The file.
        path: String,
    },
    /// The private key and the certificate do not match.
    #[error("the key in `{key}` is not the key of the certificate in `{cert}`")]
    KeyMismatch {
        /// The certificate's file.
        cert: String,
        /// The key's file.
        key: String,
    },
    /// The TLS library refuses the key or the authorities.
    #[error("`{path}` cannot be used: {error}")]
    Refused {
        /// The file.
        path: String,
        /// The library's error.
        error: rustls::Error,
    },
}

impl TlsError {
    /// True if the error is about the file at `path`.
    pub fn concerns(&self, path: &Path) -> bool {
        let file = match self {
            Self::Unreadable { path, .. }
            | Self::Pem { path, .. }
            | Self::Malformed { path, .. }
            | Self::Nameless { path }
            | Self::Refused { path, .. } => path,
            Self::KeyMismatch { key, .. } => key,
        };
        Path::new(file) == path
    }

    /// True if the error is about a certificate's key. Both may be in one file.
    pub fn is_about_key(&self, cert: &Path, key: &Path) -> bool {
        match self {
            Self::Pem { what, .. } if cert == key => what.contains("private key"),
            _ => self.concerns(key),
        }
    }

    /// The expectation, for the text of a fault.
    pub fn expected(&self) -> &'static str {
        match self {
            Self::Unreadable { path, error } => error.expected_at(Path::new(path)),
            Self::Pem { what, .. } if what.contains("encrypted") => {
                "a private key without a passphrase"
            }
            Self::Pem { .. } | Self::Malformed { .. } => "a file in PEM",
            Self::Nameless { .. } => {
                "a certificate with subject alternative names, such as one from `openssl req ... -addext subjectAltName=DNS:localhost`"
            }
            Self::KeyMismatch { .. } => "the private key of the certificate",
            Self::Refused { .. } => "a certificate and a key that TLS 1.2 and 1.3 can use",
        }
    }
}

/// The process's TLS cryptography.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: std::sync::OnceLock<Arc<CryptoProvider>> = std::sync::OnceLock::new();
    Arc::clone(PROVIDER.get_or_init(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider())))
}
