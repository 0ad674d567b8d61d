//! [`AccountStore`]: where the keys of accounts are kept.

use instant_acme::AccountCredentials;

use super::{
    AcmeStorage, StorageError,
    redis::RedisStorage,
    seal::{StorageKey, open, seal},
};

/// The account in a stored text.
///
/// # Errors
///
/// The text is no account's.
pub fn parse_account(stored: &[u8]) -> Result<AccountCredentials, serde_json::Error> {
    serde_json::from_slice(stored)
}

/// Where accounts are kept.
pub(super) enum AccountStore<'s> {
    /// Files in a folder.
    Folder(AcmeStorage),
    /// Redis, where records are sealed if there is a key.
    Redis(&'s RedisStorage, Option<&'s StorageKey>),
}

impl AccountStore<'_> {
    /// Where the account `name` is, for messages.
    pub(super) fn describe(&self, name: &str) -> String {
        match self {
            Self::Folder(_) => format!("file `{name}`"),
            Self::Redis(redis, _) => format!("key `{}` in Redis", redis.key("account", Some(name))),
        }
    }

    /// The stored account; `None` if there is none.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub(super) async fn read(&self, name: &str) -> Result<Option<Vec<u8>>, StorageError> {
        let (redis, key) = match self {
            Self::Folder(storage) => return storage.read(name),
            Self::Redis(redis, key) => (redis, *key),
        };
        let record = redis.account(name).await.map_err(StorageError::Redis)?;
        let Some(record) = record else { return Ok(None) };
        let place = redis.key("account", Some(name));
        let content = open(key, &place, &record);
        content.map(Some).map_err(|error| StorageError::Record { name: place, error })
    }

    /// Stores a new account. If another gateway has stored one meanwhile, that one stays, and is
    /// returned.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub(super) async fn add(
        &self,
        name: &str,
        content: &[u8],
    ) -> Result<Option<Vec<u8>>, StorageError> {
        let (redis, key) = match self {
            Self::Folder(storage) => return storage.write(name, content).map(|()| None),
            Self::Redis(redis, key) => (redis, *key),
        };
        let place = redis.key("account", Some(name));
        let record = seal(key, &place, content);
        let record = record.map_err(|error| StorageError::Record { name: place, error })?;
        if redis.add_account(name, &record).await.map_err(StorageError::Redis)? {
            Ok(None)
        } else {
            self.read(name).await
        }
    }

    /// Forgets an account.
    ///
    /// # Errors
    ///
    /// It cannot be removed.
    pub(super) async fn remove(&self, name: &str) -> Result<(), StorageError> {
        match self {
            Self::Folder(storage) => storage.remove(name),
            Self::Redis(redis, _) => redis.remove_account(name).await.map_err(StorageError::Redis),
        }
    }
}
