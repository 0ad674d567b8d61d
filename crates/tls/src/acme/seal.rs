//! [`StorageKey`]: seals what is kept in Redis, so that a reader of Redis learns no private key,
//! and a writer cannot replace a certificate.
//!
//! The cipher is AES-256-GCM. Its key is derived from the operator's secret (HKDF-SHA-256), and
//! each record has a random nonce. The name of a record is authenticated with it: a record is no
//! other record.

use std::fmt;

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey},
    hkdf::{HKDF_SHA256, Salt},
};

/// The salt of the derived key. A new one makes all records unreadable.
const SALT: &[u8] = b"tidegate 1: acme storage";
/// What precedes a record that is not sealed.
const PLAIN: &[u8] = b"plain\n";
/// What precedes a sealed record: then follow its nonce, the cipher's text and its tag.
const SEALED: &[u8] = b"aes-256-gcm\n";

/// The operator's secret that seals records.
#[derive(PartialEq)]
pub struct StorageKey {
    /// `None` if it was not read.
    secret: Option<Box<str>>,
}

impl fmt::Debug for StorageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StorageKey(..)")
    }
}

/// Why a record cannot be sealed or read.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SealError {
    /// It has another form.
    #[error("is no record of this version of Tidegate")]
    Unknown,
    /// Another gateway has no key, or had none.
    #[error("is not sealed, although `storage_key` is set")]
    NotSealed,
    /// Another gateway has a key, or had one.
    #[error("is sealed, and `storage_key` is not set")]
    NoKey,
    /// The cipher refuses it.
    #[error("is sealed with another `storage_key`, or damaged")]
    Refused,
    /// The cipher cannot seal.
    #[error("cannot be sealed: the system has no random numbers")]
    Failed,
}

impl SealError {
    /// True if the gateways' configurations may differ, so that a new record would be unreadable
    /// for others.
    pub(super) fn is_conflict(self) -> bool {
        matches!(self, Self::NotSealed | Self::NoKey | Self::Refused)
    }
}

impl StorageKey {
    /// The key of this secret. Without one nothing is sealed or read: [`SealError::NoKey`].
    pub fn new(secret: Option<Box<str>>) -> Self {
        Self { secret }
    }

    fn cipher(&self) -> Result<RandomizedNonceKey, SealError> {
        let secret = self.secret.as_ref().ok_or(SealError::NoKey)?;
        let mut key = [0; 32];
        let extracted = Salt::new(HKDF_SHA256, SALT).extract(secret.as_bytes());
        let expanded = extracted.expand(&[b"aes-256-gcm"], HKDF_SHA256);
        expanded.and_then(|own| own.fill(&mut key)).map_err(|_| SealError::Failed)?;
        RandomizedNonceKey::new(&AES_256_GCM, &key).map_err(|_| SealError::Failed)
    }
}

/// The record with this content, sealed if there is a key. `name` is where it is kept.
///
/// # Errors
///
/// The system has no random numbers.
pub fn seal(key: Option<&StorageKey>, name: &str, content: &[u8]) -> Result<Vec<u8>, SealError> {
    let Some(key) = key else { return Ok([PLAIN, content].concat()) };
    let mut sealed = content.to_vec();
    let nonce = key.cipher()?.seal_in_place_append_tag(Aad::from(name), &mut sealed);
    let nonce = nonce.map_err(|_| SealError::Failed)?;
    Ok([SEALED, nonce.as_ref(), &sealed].concat())
}

/// The content of the record that is kept under `name`.
///
/// # Errors
///
/// It has another form, or was sealed with another key, or under another name.
pub fn open(key: Option<&StorageKey>, name: &str, record: &[u8]) -> Result<Vec<u8>, SealError> {
    if let Some(content) = record.strip_prefix(PLAIN) {
        return if key.is_some() { Err(SealError::NotSealed) } else { Ok(content.to_vec()) };
    }
    let sealed = record.strip_prefix(SEALED).ok_or(SealError::Unknown)?;
    let cipher = key.ok_or(SealError::NoKey)?.cipher()?;
    let (nonce, sealed) = sealed.split_first_chunk::<NONCE_LEN>().ok_or(SealError::Refused)?;
    let (nonce, mut text) = (Nonce::assume_unique_for_key(*nonce), sealed.to_vec());
    let opened = cipher.open_in_place(nonce, Aad::from(name), &mut text);
    opened.map(|content| content.to_vec()).map_err(|_| SealError::Refused)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(secret: &str) -> StorageKey {
        StorageKey::new(Some(secret.into()))
    }

    #[test]
    fn a_record_is_read_with_its_key_and_under_its_name() {
        let (one, other) = (key("0123456789abcdef0123456789abcdef"), key("another"));
        let sealed = seal(Some(&one), "a", b"private").unwrap();
        assert!(memchr::memmem::find(&sealed, b"private").is_none());
        assert_ne!(seal(Some(&one), "a", b"private").unwrap(), sealed, "the nonce is random");
        assert_eq!(open(Some(&one), "a", &sealed).as_deref(), Ok(&b"private"[..]));
        assert_eq!(open(Some(&one), "b", &sealed), Err(SealError::Refused));
        assert_eq!(open(Some(&other), "a", &sealed), Err(SealError::Refused));
        assert_eq!(open(None, "a", &sealed), Err(SealError::NoKey));
        let plain = seal(None, "a", b"private").unwrap();
        assert_eq!(open(None, "a", &plain).as_deref(), Ok(&b"private"[..]));
        assert_eq!(open(Some(&one), "a", &plain), Err(SealError::NotSealed));
        assert_eq!(open(None, "a", b"private"), Err(SealError::Unknown));
        assert_eq!(format!("{one:?}"), "StorageKey(..)");
    }

    /// Gateways of different versions read each other's records. Another implementation of HKDF and
    /// AES-GCM made this one.
    #[test]
    fn the_derived_key_never_changes() {
        let nonce: [u8; NONCE_LEN] = std::array::from_fn(|at| at as u8);
        let sealed = [
            0x79, 0xbb, 0x9c, 0xcc, 0x9a, 0xf4, 0x4e, 0x25, 0x55, 0x96, 0x3b, 0x3e, 0x3e, 0xaa,
            0xf7, 0x97, 0xb5, 0x2d, 0xdc, 0x0f, 0xd2, 0x98, 0x91,
        ];
        let record = [SEALED, &nonce, &sealed].concat();
        let opened = open(Some(&key("0123456789abcdef0123456789abcdef")), "a", &record);
        assert_eq!(opened.as_deref(), Ok(&b"private"[..]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            kind in 0..3_usize, rest in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let record = [[&b""[..], PLAIN, SEALED][kind], &rest].concat();
            prop_assert!(open(Some(&key("a secret")), "a", &record).is_err());
            prop_assert_eq!(open(None, "a", &record).is_ok(), kind == 1);
        }

        #[test]
        fn a_changed_record_is_refused(
            content in prop::collection::vec(any::<u8>(), 0..100), at: prop::sample::Index, bit in 0..8_u8,
        ) {
            let own = key("a secret");
            let mut record = seal(Some(&own), "a", &content).unwrap();
            prop_assert_eq!(open(Some(&own), "a", &record), Ok(content));
            let at = at.index(record.len());
            record[at] ^= 1 << bit;
            prop_assert!(open(Some(&own), "a", &record).is_err());
        }
    }
}
