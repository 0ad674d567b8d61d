//! The secret that all gateways on one store share, and the keys derived from it.
//!
//! All keys are derived from the configuration alone: gateways agree on them without an exchange,
//! and the keys survive a loss of the data in Redis.

use std::fmt::{self, Write as _};

use aws_lc_rs::hmac::{self, HMAC_SHA256};

/// Part of every derived key, and so of the record format in Redis: a new version changes all keys.
const VERSION: &str = "tidegate 1";

/// The minimum length of a configured secret, in bytes.
pub const MIN_LEN: usize = 16;

/// The secret of all gateways on one store. Each use has its own key, derived by HMAC-SHA-256, so
/// that one key reveals no other: the filters' key can be read in Redis.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct SharedSecret([u8; 32]);

impl fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedSecret(..)")
    }
}

/// The 128-bit secret of a keyed hash, as two halves.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct KeySecret(pub u64, pub u64);

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySecret(..)")
    }
}

impl KeySecret {
    /// The first 128 bits.
    fn from_bytes(bytes: &[u8; 32]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        Self(u64::from_be_bytes(words[0]), u64::from_be_bytes(words[1]))
    }
}

impl SharedSecret {
    /// The secret of gateways with this text and namespace in their configuration.
    pub fn from_text(text: &str, namespace: &str) -> Self {
        // A namespace contains no NUL, so the separator is unambiguous.
        let message = format!("{namespace}\0{text}");
        Self(mac(format!("{VERSION}: configured").as_bytes(), &message))
    }

    /// The secret of gateways that share only a namespace. It is not secret from a client that can
    /// guess the namespace.
    pub fn from_namespace(namespace: &str) -> Self {
        Self(mac(format!("{VERSION}: namespace").as_bytes(), namespace))
    }

    /// A random secret.
    ///
    /// # Errors
    ///
    /// If the operating system provides no random bytes.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// The secret that [`Self::to_hex`] wrote; `None` if `text` is not 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        let is_hex = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
        }
        is_hex.then_some(Self(bytes))
    }

    /// The secret in hexadecimal digits, for a file that only the gateway's user can read.
    pub fn to_hex(self) -> String {
        self.0.iter().fold(String::with_capacity(64), |mut text, byte| {
            // Writing to a `String` cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// The key that hashes the key parts of limits.
    pub fn for_keys(&self) -> KeySecret {
        KeySecret::from_bytes(&self.derive("keys"))
    }

    /// The key that hashes callers to the throttle's tokens.
    pub fn for_tokens(&self) -> KeySecret {
        KeySecret::from_bytes(&self.derive("tokens"))
    }

    /// The key that determines a token's bits in the throttle's filters. It may be read in Redis.
    pub fn for_filters(&self) -> [u8; 32] {
        self.derive("filters")
    }

    /// The key that signs the tickets of the waiting room.
    pub fn for_tickets(&self) -> KeySecret {
        KeySecret::from_bytes(&self.derive("tickets"))
    }

    /// A fingerprint that distinguishes secrets. It may be read in Redis.
    pub fn tag(&self) -> u64 {
        KeySecret::from_bytes(&self.derive("tag")).0
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn derived_keys_are_unique_per_secret_and_use() {
        let text = "a secret of some length";
        let secrets = [
            SharedSecret::from_text(text, "one"),
            SharedSecret::from_text(text, "other"),
            SharedSecret::from_text("another of some length", "one"),
            SharedSecret::from_namespace("one"),
            SharedSecret::from_namespace("other"),
            SharedSecret::from_text("", "one"),
            SharedSecret::random().unwrap(),
            SharedSecret::random().unwrap(),
        ];
        let mut seen = BTreeSet::new();
        for secret in secrets {
            for word in [secret.for_keys().0, secret.for_keys().1] {
                assert!(seen.insert(word));
            }
            assert!(seen.insert(secret.for_tokens().0) && seen.insert(secret.for_tokens().1));
            assert!(seen.insert(secret.for_tickets().0) && seen.insert(secret.for_tickets().1));
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
    fn derived_keys_never_change() {
        let secret = SharedSecret::from_text("0123456789abcdef", "tidegate");
        assert_eq!(secret.for_keys(), KeySecret(0xc768_4ed0_c262_0c95, 0x6203_d5f4_53b6_7df1));
        let from_namespace = SharedSecret::from_namespace("tidegate");
        assert_eq!(
            from_namespace.for_keys(),
            KeySecret(0x74bd_7ea2_c046_65eb, 0x23b7_c05a_5e36_4c02)
        );
    }
}
