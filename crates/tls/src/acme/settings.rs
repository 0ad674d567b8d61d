//! [`AcmeSettings`]: `acme` of a listener, compiled.

use std::{fmt, path::PathBuf};

use tidegate_vocabulary::AcmeChallenge;

use super::{AcmeStorage, names, seal::StorageKey};
use crate::{Certificate, ClientTls};

/// What one certificate needs: two listeners with equal settings share it.
#[derive(Debug, PartialEq)]
pub struct AcmeSettings {
    /// The names of the certificate: sorted, in lower case, without duplicates; at least one.
    pub domains: Box<[Box<str>]>,
    /// The address to which the authority may write.
    pub email: Option<Box<str>>,
    /// The URL of the authority's directory.
    pub directory: Box<str>,
    /// The handshake with the authority.
    pub tls: ClientTls,
    /// How the authority checks the domains.
    pub challenge: AcmeChallenge,
    /// Where accounts and certificates are kept.
    pub storage: StoragePlace,
    /// The account at the authority that the gateway's own belongs to.
    pub external_account: Option<ExternalAccount>,
}

/// Where accounts and certificates are kept.
#[derive(Debug, PartialEq)]
pub enum StoragePlace {
    /// A folder of this gateway.
    Folder(PathBuf),
    /// The Redis of `store`, which gateways share. Records are sealed if there is a key.
    Redis(Option<StorageKey>),
}

impl StoragePlace {
    /// The key that seals records in Redis.
    pub(super) fn storage_key(&self) -> Option<&StorageKey> {
        match self {
            Self::Folder(_) => None,
            Self::Redis(key) => key.as_ref(),
        }
    }

    /// True if gateways share it.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Redis(_))
    }
}

/// An external account (RFC 8555, 7.3.4).
pub struct ExternalAccount {
    /// The key's identifier.
    pub key_id: Box<str>,
    /// The key; `None` if it was not read.
    pub hmac_key: Option<Box<[u8]>>,
}

impl fmt::Debug for ExternalAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalAccount").field("key_id", &self.key_id).finish_non_exhaustive()
    }
}

impl PartialEq for ExternalAccount {
    fn eq(&self, other: &Self) -> bool {
        self.key_id == other.key_id && self.hmac_key == other.hmac_key
    }
}

impl AcmeSettings {
    /// The name of the certificate in the storage: that of its file, with a folder.
    pub fn certificate_name(&self) -> String {
        names::certificate_file(&self.domains, &self.directory)
    }

    /// The certificate in the folder; `None` without one, or if it is kept in Redis. May wait for
    /// the folder.
    pub fn certificate_in_folder(&self) -> Option<Certificate> {
        let StoragePlace::Folder(folder) = &self.storage else { return None };
        let stored = AcmeStorage::new(folder.clone()).certificate(&self.certificate_name())?;
        let missing = self.domains.iter().find(|name| !stored.covers(name));
        if let Some(name) = missing {
            let file = folder.join(self.certificate_name());
            tracing::warn!(file = %file.display(), %name, "a stored certificate lacks a name, and is ordered again");
            return None;
        }
        Some(stored)
    }

    /// The name of the account in the storage.
    pub(super) fn account_name(&self) -> String {
        let email = self.email.as_deref().unwrap_or_default();
        let external = self.external_account.as_ref().map_or("", |own| &own.key_id);
        names::account_file(&[&self.directory, email, external])
    }
}
