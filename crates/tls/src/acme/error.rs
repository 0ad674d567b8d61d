//! [`AcmeError`]: why there is no certificate, from what the authority and the library report.

use std::time::Duration;

use instant_acme::Error;
use tidegate_base::sensitive::mask_url;
use tidegate_vocabulary::AcmeChallenge;

use super::{AcmeSettings, StorageError, client::RequestError};
use crate::TlsError;

/// The problem of a request whose nonce is not accepted, as with a busy authority. The library
/// repeats it twice.
const BAD_NONCE: &str = "urn:ietf:params:acme:error:badNonce";

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum AcmeError {
    /// The authority cannot be asked for anything.
    #[error("the directory {directory} cannot be used: {error}")]
    Directory {
        /// The directory's URL.
        directory: Box<str>,
        /// The cause.
        error: String,
    },
    /// There is no account.
    #[error("no account at {directory}: {error}")]
    Account {
        /// The directory's URL.
        directory: Box<str>,
        /// The cause.
        error: String,
    },
    /// The stored account is damaged.
    #[error("the stored account cannot be read: {error}; remove the {place} for a new account")]
    StoredAccount {
        /// Where it is stored.
        place: String,
        /// The cause.
        error: serde_json::Error,
    },
    /// The authority does not check the domain in the configured way.
    #[error("the authority offers no {challenge} for {domain}")]
    NoChallenge {
        /// The domain.
        domain: String,
        /// The configured challenge.
        challenge: AcmeChallenge,
    },
    /// The check of a domain failed.
    #[error("the authority's check of {domain} failed: {problem}")]
    Check {
        /// The domain.
        domain: String,
        /// What the authority reports.
        problem: String,
    },
    /// The order failed.
    #[error("the order failed: {0}")]
    Order(String),
    /// The authority rejected several nonces. The order may be repeated at once.
    #[error("the authority rejected several nonces")]
    RejectedNonces,
    /// The issued certificate is not the ordered one.
    #[error("the issued certificate lacks the name {0}")]
    MissingName(Box<str>),
    /// The issued certificate is not valid now.
    #[error("the issued certificate {0}")]
    NotValid(&'static str),
    /// The issued certificate cannot be used.
    #[error("the issued certificate cannot be used: {0}")]
    Certificate(#[from] TlsError),
    /// The storage cannot be used.
    #[error("{0}")]
    Storage(#[from] StorageError),
    /// The authority refuses requests for a while.
    #[error("the authority refuses requests for {} s: {problem}", .pause.as_secs())]
    Paused {
        /// How long, at most a day.
        pause: Duration,
        /// What it reports.
        problem: String,
    },
    /// The order did not end in time.
    #[error("the order did not end within {0:?}")]
    Timeout(Duration),
}

impl AcmeError {
    /// How long the authority refuses requests; zero if it does not.
    pub(super) fn pause(&self) -> Duration {
        match self {
            Self::Paused { pause, .. } => *pause,
            _ => Duration::ZERO,
        }
    }

    /// The error, if a record in the storage was sealed otherwise.
    pub(super) fn conflict(&self) -> Option<&StorageError> {
        match self {
            Self::Storage(found @ StorageError::Record { error, .. }) if error.is_conflict() => {
                Some(found)
            }
            _ => None,
        }
    }
}

impl From<Error> for AcmeError {
    fn from(error: Error) -> Self {
        if let Some(paused) = paused(&error) {
            paused
        } else if has_type(&error, BAD_NONCE) {
            Self::RejectedNonces
        } else {
            Self::Order(error.to_string())
        }
    }
}

/// The error, if it is an authority's refusal for a while.
pub(super) fn paused(error: &Error) -> Option<AcmeError> {
    let Error::Other(cause) = error else { return None };
    let RequestError::Paused { pause, problem } = cause.downcast_ref()? else { return None };
    Some(AcmeError::Paused { pause: *pause, problem: problem.clone() })
}

/// True if the authority reports a problem of this type.
pub(super) fn has_type(error: &Error, kind: &str) -> bool {
    matches!(error, Error::Api(problem) if problem.r#type.as_deref() == Some(kind))
}

/// The error of a directory that cannot be used.
pub(super) fn directory_error(settings: &AcmeSettings, error: &str) -> AcmeError {
    AcmeError::Directory {
        directory: mask_url(&settings.directory).into(),
        error: error.to_owned(),
    }
}

/// The error of a new account: the connection, or a refusal by the authority.
pub(super) fn account_error(settings: &AcmeSettings, error: &Error) -> AcmeError {
    if let Some(paused) = paused(error) {
        return paused;
    }
    match error {
        Error::Other(cause) if cause.is::<RequestError>() => {
            directory_error(settings, &error.to_string())
        }
        _ if has_type(error, BAD_NONCE) => AcmeError::RejectedNonces,
        Error::Json(_) => directory_error(settings, &error.to_string()),
        _ => refused_account(&settings.directory, error.to_string()),
    }
}

fn refused_account(directory: &str, error: String) -> AcmeError {
    AcmeError::Account { directory: mask_url(directory).into(), error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_account_shows_no_credential_of_the_directory() {
        let error = refused_account("https://me:hush@ca.test/dir?token=hush", "malformed".into());
        let shown = error.to_string();
        assert!(shown.contains("https://***@ca.test/dir?token=***"), "{shown}");
        assert!(!shown.contains("hush"), "{shown}");
    }
}
