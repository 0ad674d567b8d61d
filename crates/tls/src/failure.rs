//! [`HandshakeFailure`]: why TLS with a server failed, without anything that the server sent.

use std::{fmt, io};

use rustls::{AlertDescription, CertificateError, Error};

use super::CertificateFault;

/// The reason why TLS with a server failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HandshakeFailure {
    /// The certificate is from no listed authority, and not listed itself.
    UnknownIssuer,
    /// The certificate has expired.
    Expired,
    /// The certificate is not valid yet.
    NotYetValid,
    /// The certificate is not for the name of the target.
    OtherName,
    /// The certificate is not for servers.
    Purpose,
    /// The certificate has this fault.
    Fault(CertificateFault),
    /// The certificate, or its signature, cannot be used.
    Certificate,
    /// The server has no version or cipher in common with the gateway.
    Incompatible,
    /// The server's bytes are not TLS.
    NotTls,
    /// The server has refused the handshake.
    Alert(AlertDescription),
    /// Another error.
    Other,
}

impl HandshakeFailure {
    /// The reason in this error of a stream; `None` if it is not one of TLS.
    pub fn of(error: &io::Error) -> Option<Self> {
        Some(Self::from(error.get_ref()?.downcast_ref::<Error>()?))
    }
}

impl From<&Error> for HandshakeFailure {
    fn from(error: &Error) -> Self {
        match error {
            Error::InvalidCertificate(error) => Self::from(error),
            Error::InvalidMessage(_)
            | Error::InappropriateMessage { .. }
            | Error::InappropriateHandshakeMessage { .. }
            | Error::PeerSentOversizedRecord => Self::NotTls,
            Error::PeerIncompatible(_) | Error::NoApplicationProtocol => Self::Incompatible,
            Error::AlertReceived(alert) => Self::Alert(*alert),
            Error::Other(other) => match other.0.downcast_ref() {
                Some(fault) => Self::Fault(*fault),
                None => Self::Other,
            },
            _ => Self::Other,
        }
    }
}

impl From<&CertificateError> for HandshakeFailure {
    fn from(error: &CertificateError) -> Self {
        match error {
            CertificateError::UnknownIssuer => Self::UnknownIssuer,
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                Self::NotYetValid
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Self::OtherName
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                Self::Purpose
            }
            _ => Self::Certificate,
        }
    }
}

impl fmt::Display for HandshakeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownIssuer => "the issuer of the certificate is unknown",
            Self::Expired => "the certificate has expired",
            Self::NotYetValid => "the certificate is not yet valid",
            Self::OtherName => "the certificate is for another name",
            Self::Purpose => "the certificate is not for servers",
            Self::Certificate => "the certificate cannot be used",
            Self::Fault(fault) => return fault.fmt(f),
            Self::Incompatible => "no version, cipher or protocol in common",
            Self::NotTls => "the server does not speak TLS",
            Self::Alert(alert) => return write!(f, "the server sent the alert {alert:?}"),
            Self::Other => "the handshake failed",
        })
    }
}

#[cfg(test)]
mod tests {
    use rustls::{InvalidMessage, PeerIncompatible};

    use super::*;

    #[test]
    fn errors_have_reasons_without_what_the_server_sent() {
        let names = CertificateError::NotValidForNameContext {
            expected: "app.test".try_into().unwrap(),
            presented: vec!["DnsName(\"secret.test\")".to_owned()],
        };
        let incompatible = PeerIncompatible::ServerDoesNotSupportTls12Or13;
        for (error, expected) in [
            (CertificateError::UnknownIssuer.into(), "the issuer of the certificate is unknown"),
            (CertificateError::Expired.into(), "the certificate has expired"),
            (CertificateError::NotValidYet.into(), "the certificate is not yet valid"),
            (names.into(), "the certificate is for another name"),
            (CertificateError::InvalidPurpose.into(), "the certificate is not for servers"),
            (CertificateError::BadSignature.into(), "the certificate cannot be used"),
            (incompatible.into(), "no version, cipher or protocol in common"),
            (InvalidMessage::InvalidContentType.into(), "the server does not speak TLS"),
            (
                Error::AlertReceived(AlertDescription::CertificateRequired),
                "the server sent the alert CertificateRequired",
            ),
            (Error::DecryptError, "the handshake failed"),
        ] {
            let error = io::Error::new(io::ErrorKind::InvalidData, error);
            assert_eq!(HandshakeFailure::of(&error).unwrap().to_string(), expected);
        }
        assert_eq!(HandshakeFailure::of(&io::ErrorKind::TimedOut.into()), None);
    }
}
