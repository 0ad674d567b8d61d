//! Keys of the throttle's hashes.

use std::fmt;

use siphasher::sip::SipHasher13;
use tidegate_system::secret::{KeySecret, SharedSecret};

/// The secret that hashes tokens, and the key of the positions in the filters. Filters have only
/// hashes of tokens, never tokens.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct HashKeys {
    /// The secret that hashes tokens.
    pub token_secret: KeySecret,
    /// The seed of the `bloomfilter` crate. Each payload's header contains it, so filters with
    /// another secret are recognized.
    pub positions: [u8; 32],
}

impl fmt::Debug for HashKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKeys(..)")
    }
}

impl HashKeys {
    /// The keys of all gateways with this secret.
    pub fn of(secret: &SharedSecret) -> Self {
        Self { token_secret: secret.for_tokens(), positions: secret.for_filters() }
    }

    /// The two keyed hash functions that determine positions.
    pub fn hashers(&self) -> [SipHasher13; 2] {
        let (halves, _) = self.positions.as_chunks::<16>();
        std::array::from_fn(|i| SipHasher13::new_with_key(&halves[i]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_keys_are_derived_from_the_secret_and_not_printed() {
        let [one, same, other] = ["one", "one", "other"].map(SharedSecret::from_namespace);
        let [one, same, other] = [one, same, other].map(|secret| HashKeys::of(&secret));
        assert!(
            one == same
                && one.token_secret != other.token_secret
                && one.positions != other.positions
        );
        assert_eq!(format!("{one:?}"), "HashKeys(..)");
        assert_ne!(one.hashers()[0].key(), one.hashers()[1].key());
    }
}
