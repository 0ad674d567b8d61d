//! Reads PEM files.

use std::path::Path;

use rustls::{
    RootCertStore,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
};

use super::{TlsError, TlsFile, file::shown};

/// The certificates in the file, at least one, in the file's order.
pub(super) fn certificates(
    path: &Path,
) -> Result<(TlsFile, Vec<CertificateDer<'static>>), TlsError> {
    let (file, text) = TlsFile::read(path)?;
    Ok((file, certificates_in(path, &text)?))
}

/// The certificates in `text`, the content of the file at `path`: at least one, in its order.
pub(super) fn certificates_in(
    path: &Path,
    text: &[u8],
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => {
            Err(pem_error(path, "no certificate (BEGIN CERTIFICATE)"))
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(pem_error(path, &shown_error(&error))),
    }
}

/// The private key in the file.
pub(super) fn private_key(path: &Path) -> Result<(TlsFile, PrivateKeyDer<'static>), TlsError> {
    let (file, text) = TlsFile::read(path)?;
    Ok((file, private_key_in(path, &text)?))
}

/// The private key in `text`, the content of the file at `path`.
pub(super) fn private_key_in(path: &Path, text: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    if is_encrypted(text) {
        return Err(pem_error(path, "the private key is encrypted"));
    }
    PrivateKeyDer::from_pem_slice(text).map_err(|error| match error {
        pem::Error::NoItemsFound => pem_error(path, "no private key (BEGIN PRIVATE KEY)"),
        error => pem_error(path, &shown_error(&error)),
    })
}

/// The authorities in the file, as trust anchors, and their certificates.
pub(super) fn authorities(
    path: &Path,
) -> Result<(TlsFile, RootCertStore, Vec<CertificateDer<'static>>), TlsError> {
    let mut roots = RootCertStore::empty();
    let (file, certificates) = certificates(path)?;
    for certificate in certificates.iter().cloned() {
        roots.add(certificate).map_err(|error| TlsError::Refused { path: shown(path), error })?;
    }
    Ok((file, roots, certificates))
}

/// True if a private key in the file has a passphrase: `BEGIN ENCRYPTED PRIVATE KEY`, or the header
/// `Proc-Type: 4,ENCRYPTED` of older files.
fn is_encrypted(text: &[u8]) -> bool {
    memchr::memmem::find(text, b"ENCRYPTED").is_some()
}

/// The error's text. The library itself shows the missing end of a section as a list of bytes.
fn shown_error(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { end_marker } => {
            format!("there is no `-----END {}-----`", String::from_utf8_lossy(end_marker))
        }
        error => error.to_string(),
    }
}

fn pem_error(path: &Path, what: &str) -> TlsError {
    TlsError::Pem { path: shown(path), what: what.to_owned() }
}
