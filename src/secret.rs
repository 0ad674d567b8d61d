//! The secret that the gateways of one store share, and what is derived from it.
//!
//! All keys follow from the configuration alone: gateways need not agree on anything, and no key changes
//! when Redis was emptied.

use std::fmt;

use ring::hmac::{self, HMAC_SHA256};

/// What is derived under another version is another secret. It is a part of the format in Redis.
const VERSION: &str = "tidegate 1";

/// The fewest bytes that a configured secret has.
pub const MIN_LEN: usize = 16;

/// What the gateways of one store hash under. Each use has a key of its own, by HMAC-SHA-256, so that none
/// tells of another: the one for filters stands in Redis.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct SharedSecret([u8; 32]);

impl fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedSecret(..)")
    }
}

impl SharedSecret {
    /// The one of gateways that are configured with the same text and namespace.
    pub fn configured(text: &str, namespace: &str) -> Self {
        // No namespace has a 0 in it.
        let message = format!("{namespace}\0{text}");
        Self(mac(format!("{VERSION}: configured").as_bytes(), &message))
    }

    /// The one of gateways that share a namespace alone: no secret to anybody who can guess that.
    pub fn of_namespace(namespace: &str) -> Self {
        Self(mac(format!("{VERSION}: namespace").as_bytes(), namespace))
    }

    /// A random one.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// The keyed hash of limits' keys is under this.
    pub fn for_keys(&self) -> (u64, u64) {
        halves(&self.derive("keys"))
    }

    /// The keyed hash of the throttle's tokens is under this.
    pub fn for_tokens(&self) -> (u64, u64) {
        halves(&self.derive("tokens"))
    }

    /// Where a token's bits are in the throttle's filters follows from this. It may be read in Redis.
    pub fn for_filters(&self) -> [u8; 32] {
        self.derive("filters")
    }

    /// Tells one secret from another. It may be read in Redis.
    pub fn tag(&self) -> u64 {
        halves(&self.derive("tag")).0
    }

    fn derive(&self, purpose: &str) -> [u8; 32] {
        mac(&self.0, purpose)
    }
}

fn mac(key: &[u8], message: &str) -> [u8; 32] {
    let tag = hmac::sign(&hmac::Key::new(HMAC_SHA256, key), message.as_bytes());
    let mut bytes = [0; 32];
    bytes.copy_from_slice(tag.as_ref());
    bytes
}

fn halves(bytes: &[u8; 32]) -> (u64, u64) {
    let (words, _) = bytes.as_chunks::<8>();
    (u64::from_be_bytes(words[0]), u64::from_be_bytes(words[1]))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_secret_and_every_use_has_a_key_of_its_own() {
        let text = "a secret of some length";
        let secrets = [
            SharedSecret::configured(text, "one"),
            SharedSecret::configured(text, "other"),
            SharedSecret::configured("another of some length", "one"),
            SharedSecret::of_namespace("one"),
            SharedSecret::of_namespace("other"),
            SharedSecret::configured("", "one"),
            SharedSecret::random().unwrap(),
            SharedSecret::random().unwrap(),
        ];
        let mut seen = BTreeSet::new();
        for secret in secrets {
            for word in [secret.for_keys().0, secret.for_keys().1] {
                assert!(seen.insert(word));
            }
            assert!(seen.insert(secret.for_tokens().0) && seen.insert(secret.for_tokens().1));
            let filters = secret.for_filters();
            assert!(
                filters
                    .as_chunks::<8>()
                    .0
                    .iter()
                    .all(|word| seen.insert(u64::from_be_bytes(*word)))
            );
            assert!(seen.insert(secret.tag()));
            assert_eq!(format!("{secret:?}"), "SharedSecret(..)");
        }
    }

    /// Gateways of different versions share counters.
    #[test]
    fn what_is_derived_never_changes() {
        let secret = SharedSecret::configured("0123456789abcdef", "tidegate");
        assert_eq!(secret.for_keys(), (0xc768_4ed0_c262_0c95, 0x6203_d5f4_53b6_7df1));
        let of_namespace = SharedSecret::of_namespace("tidegate");
        assert_eq!(of_namespace.for_keys(), (0x74bd_7ea2_c046_65eb, 0x23b7_c05a_5e36_4c02));
    }
}
