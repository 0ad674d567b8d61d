//! Changes of consumers in Redis, for the admin API.
//!
//! The consumer's record is the truth: a key is valid only if it lists the key's hash. So a key is
//! added to the consumer's record first, and removed from it first, and no two records must change
//! together.

use tidegate_config::{ConsumerConfig, ConsumerKeyConfig};
use tidegate_redis::RedisFailure;

use super::{
    lookup::ConsumerStore,
    query::OwnedQuery,
    record::{MAX_KEYS, RequestedConsumer, check, hash_of, read_consumer, text_of},
    redis::RecordText,
};
use crate::auth::{KeyHash, is_consumer_name};

/// Number of attempts, if others change the same record meanwhile.
const ATTEMPTS: usize = 16;

/// What a change did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ChangeOutcome {
    /// There was nothing before.
    Created,
    /// It took the place of another.
    Replaced,
}

/// A consumer that was created or replaced.
#[derive(Debug)]
pub struct PutConsumer {
    /// Whether there was one before.
    pub outcome: ChangeOutcome,
    /// Its record now.
    pub consumer: ConsumerConfig,
}

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The new record is faulty.
    #[error("{0}")]
    Faulty(String),
    /// There is no such consumer.
    #[error("no consumer has this name")]
    UnknownConsumer,
    /// The consumer has no such key.
    #[error("the consumer has no key with this hash or id")]
    UnknownKey,
    /// Several keys have the id.
    #[error("several keys of the consumer have this id; expected the hash of one")]
    AmbiguousKey,
    /// The key is another consumer's.
    #[error("a key with this hash belongs to another consumer; expected another key")]
    OtherOwner,
    /// The consumer has the maximum number of keys.
    #[error("the consumer has {MAX_KEYS} keys; expected that one is removed first")]
    TooManyKeys,
    /// The record in Redis is malformed.
    #[error(
        "the consumer's record in Redis is malformed; expected that it is created again or deleted"
    )]
    Malformed,
    /// Others changed the record again and again.
    #[error("other changes of the same consumer came first; expected another attempt")]
    Contended,
    /// No reply from Redis; the change may have been made in part.
    #[error("no reply from Redis ({}); repeat the request, which may have been executed in part", .0.label())]
    Redis(RedisFailure),
}

impl From<RedisFailure> for ChangeError {
    fn from(failure: RedisFailure) -> Self {
        Self::Redis(failure)
    }
}

/// A record as it was read.
struct StoredText {
    /// Empty without a record.
    text: Vec<u8>,
    /// `None` without a record, and if it is malformed.
    consumer: Option<ConsumerConfig>,
}

impl ConsumerStore {
    /// The record of the consumer called `name`, read from Redis.
    ///
    /// # Errors
    ///
    /// It cannot be read, does not exist, or is malformed.
    pub async fn show(&self, name: &str) -> Result<ConsumerConfig, ChangeError> {
        self.stored(name).await?.existing()
    }

    /// Creates the consumer, or replaces its record. Credentials that the request does not name
    /// stay.
    ///
    /// # Errors
    ///
    /// A key is another consumer's, or Redis gives no reply.
    pub async fn put(&self, requested: &RequestedConsumer) -> Result<PutConsumer, ChangeError> {
        let name = &requested.consumer.name;
        for hash in requested.consumer.keys.iter().filter_map(hash_of) {
            self.ensure_free(&hash, name).await?;
        }
        let mut consumer = requested.consumer.clone();
        let before = self.replace(name, |before| {
            consumer = requested.merged(before.consumer.as_ref());
            check(&consumer).map_err(ChangeError::Faulty)?;
            Ok(Some(consumer.clone()))
        });
        let before = before.await?;
        let claimed = self.claim_keys(&consumer).await;
        let earlier: Vec<KeyHash> = keys_of(&before).collect();
        let kept: Vec<KeyHash> = consumer.keys.iter().filter_map(hash_of).collect();
        self.forget(name, earlier.iter().chain(&kept).copied());
        claimed?;
        self.release_keys(name, earlier.iter().filter(|hash| !kept.contains(hash))).await?;
        let is_new = before.text.is_empty();
        let outcome = if is_new { ChangeOutcome::Created } else { ChangeOutcome::Replaced };
        Ok(PutConsumer { outcome, consumer })
    }

    /// Deletes the consumer and its keys.
    ///
    /// # Errors
    ///
    /// It does not exist, or Redis gives no reply.
    pub async fn delete(&self, name: &str) -> Result<(), ChangeError> {
        let deleted = self.replace(name, |before| {
            if before.text.is_empty() { Err(ChangeError::UnknownConsumer) } else { Ok(None) }
        });
        let before = deleted.await?;
        let keys = before.consumer.iter().flat_map(|before| &before.keys);
        let keys: Vec<KeyHash> = keys.filter_map(hash_of).collect();
        self.forget(name, keys.iter().copied());
        self.release_keys(name, keys.iter()).await
    }

    /// Adds a key, or replaces the key with its hash.
    ///
    /// # Errors
    ///
    /// The consumer does not exist or has too many keys, the key is another consumer's, or Redis
    /// gives no reply.
    pub async fn add_key(
        &self,
        name: &str,
        key: &ConsumerKeyConfig,
    ) -> Result<ChangeOutcome, ChangeError> {
        let expected = "`sha256` is wrong, expected 64 hexadecimal digits";
        let hash = hash_of(key).ok_or_else(|| ChangeError::Faulty(expected.to_owned()))?;
        self.ensure_free(&hash, name).await?;
        let before = self.replace(name, |before| {
            let mut consumer = before.existing()?;
            match consumer.keys.iter().position(|own| own.sha256 == key.sha256) {
                Some(index) => consumer.keys[index] = key.clone(),
                None if consumer.keys.len() >= MAX_KEYS => return Err(ChangeError::TooManyKeys),
                None => consumer.keys.push(key.clone()),
            }
            check(&consumer).map_err(ChangeError::Faulty)?;
            Ok(Some(consumer))
        });
        let before = before.await?;
        let claimed = self.claim(&hash, name).await;
        self.forget(name, keys_of(&before).chain([hash]));
        claimed?;
        let is_new = !keys_of(&before).any(|own| own == hash);
        Ok(if is_new { ChangeOutcome::Created } else { ChangeOutcome::Replaced })
    }

    /// Removes the key with this hash in hexadecimal digits, or with this id. Returns it.
    ///
    /// # Errors
    ///
    /// The consumer has no such key or several, or Redis gives no reply.
    pub async fn remove_key(
        &self,
        name: &str,
        key: &str,
    ) -> Result<ConsumerKeyConfig, ChangeError> {
        let mut removed = None;
        let before = self.replace(name, |before| {
            let mut consumer = before.existing()?;
            let own = consumer.keys.remove(key_index(&consumer, key)?);
            removed = Some(own);
            Ok(Some(consumer))
        });
        let before = before.await?;
        let removed = removed.ok_or(ChangeError::UnknownKey)?;
        self.forget(name, keys_of(&before));
        self.release_keys(name, hash_of(&removed).iter()).await?;
        Ok(removed)
    }

    async fn stored(&self, name: &str) -> Result<StoredText, ChangeError> {
        if !is_consumer_name(name) {
            return Err(ChangeError::UnknownConsumer);
        }
        let text = match self.records.read(&self.records.names.of_name(name)).await? {
            RecordText::Text(text) => text,
            RecordText::Missing | RecordText::OtherType => Vec::new(),
        };
        let consumer = read_consumer(name, &text);
        Ok(StoredText { text, consumer })
    }

    /// Replaces the consumer's record by what `change` makes of it; `None` deletes it. Returns what
    /// was there before.
    async fn replace(
        &self,
        name: &str,
        mut change: impl FnMut(&StoredText) -> Result<Option<ConsumerConfig>, ChangeError>,
    ) -> Result<StoredText, ChangeError> {
        let address = self.records.names.of_name(name);
        for _ in 0..ATTEMPTS {
            let before = self.stored(name).await?;
            let new = change(&before)?.map(|consumer| text_of(&consumer)).unwrap_or_default();
            if self.records.swap(&address, &before.text, new.as_bytes()).await? {
                return Ok(before);
            }
        }
        Err(ChangeError::Contended)
    }

    /// The name in the record of a key; empty without one.
    async fn owner(&self, hash: &KeyHash) -> Result<Vec<u8>, ChangeError> {
        Ok(match self.records.read(&self.records.names.of_key(hash)).await? {
            RecordText::Text(name) => name,
            RecordText::Missing | RecordText::OtherType => Vec::new(),
        })
    }

    /// Checks that no other consumer than `name` has this key. Returns the name in the key's
    /// record.
    async fn ensure_free(&self, hash: &KeyHash, name: &str) -> Result<Vec<u8>, ChangeError> {
        let owner = self.owner(hash).await?;
        if owner.is_empty() || owner == name.as_bytes() {
            return Ok(owner);
        }
        // What a consumer lists is its own; another record is a rest.
        let Ok(other) = std::str::from_utf8(&owner) else { return Ok(owner) };
        match self.stored(other).await {
            Ok(stored) if keys_of(&stored).any(|own| own == *hash) => Err(ChangeError::OtherOwner),
            Ok(_) | Err(ChangeError::UnknownConsumer) => Ok(owner),
            Err(error) => Err(error),
        }
    }

    async fn claim_keys(&self, consumer: &ConsumerConfig) -> Result<(), ChangeError> {
        for hash in consumer.keys.iter().filter_map(hash_of) {
            self.claim(&hash, &consumer.name).await?;
        }
        Ok(())
    }

    /// Makes the record of a key name its consumer.
    async fn claim(&self, hash: &KeyHash, name: &str) -> Result<(), ChangeError> {
        let address = self.records.names.of_key(hash);
        for _ in 0..ATTEMPTS {
            let owner = self.ensure_free(hash, name).await?;
            if owner == name.as_bytes()
                || self.records.swap(&address, &owner, name.as_bytes()).await?
            {
                return Ok(());
            }
        }
        Err(ChangeError::Contended)
    }

    /// Deletes the records of keys that the consumer called `name` no longer has.
    async fn release_keys<'h>(
        &self,
        name: &str,
        hashes: impl Iterator<Item = &'h KeyHash>,
    ) -> Result<(), ChangeError> {
        for hash in hashes {
            // Another text is another consumer's.
            self.records.swap(&self.records.names.of_key(hash), name.as_bytes(), b"").await?;
        }
        Ok(())
    }

    /// Makes this gateway read a changed consumer again.
    fn forget(&self, name: &str, hashes: impl Iterator<Item = KeyHash>) {
        let queries: Vec<OwnedQuery> =
            hashes.map(OwnedQuery::Key).chain([OwnedQuery::Name(name.into())]).collect();
        self.cache().forget(&queries);
    }
}

impl StoredText {
    fn existing(&self) -> Result<ConsumerConfig, ChangeError> {
        match &self.consumer {
            Some(consumer) => Ok(consumer.clone()),
            None if self.text.is_empty() => Err(ChangeError::UnknownConsumer),
            None => Err(ChangeError::Malformed),
        }
    }
}

fn keys_of(stored: &StoredText) -> impl Iterator<Item = KeyHash> {
    stored.consumer.iter().flat_map(|own| &own.keys).filter_map(hash_of)
}

/// The index of the key with this hash, or else with this id.
fn key_index(consumer: &ConsumerConfig, key: &str) -> Result<usize, ChangeError> {
    let hash = KeyHash::from_hex(key);
    let has_hash = |own: &ConsumerKeyConfig| hash.is_some() && hash_of(own) == hash;
    if let Some(index) = consumer.keys.iter().position(has_hash) {
        return Ok(index);
    }
    let has_id = |own: &ConsumerKeyConfig| own.id.as_deref() == Some(key);
    let index = consumer.keys.iter().position(has_id).ok_or(ChangeError::UnknownKey)?;
    if consumer.keys[index + 1..].iter().any(has_id) {
        return Err(ChangeError::AmbiguousKey);
    }
    Ok(index)
}
