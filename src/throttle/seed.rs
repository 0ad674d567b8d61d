//! What a throttle's tokens are hashed under.

use std::fmt;

use siphasher::sip::SipHasher13;

use crate::secret::SharedSecret;

/// 48 bytes: 16 for the keyed hash of the token itself, which never leaves the request, and 32 for the
/// `bloomfilter` crate's positions.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Seed {
    /// The secret of the token's own hash.
    pub secret: (u64, u64),
    /// The crate's seed; it stands in each payload's header, and tells filters of another secret.
    pub positions: [u8; 32],
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(..)")
    }
}

impl Seed {
    /// That of all gateways with this secret.
    pub fn of(secret: &SharedSecret) -> Self {
        Self { secret: secret.for_tokens(), positions: secret.for_filters() }
    }

    /// The two keyed hashes that positions are made from.
    pub fn sips(&self) -> [SipHasher13; 2] {
        let (halves, _) = self.positions.as_chunks::<16>();
        std::array::from_fn(|i| SipHasher13::new_with_key(&halves[i]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_follows_from_the_secret_and_is_not_shown() {
        let [one, same, other] = ["one", "one", "other"].map(SharedSecret::of_namespace);
        let [one, same, other] = [one, same, other].map(|secret| Seed::of(&secret));
        assert!(one == same && one.secret != other.secret && one.positions != other.positions);
        assert_eq!(format!("{one:?}"), "Seed(..)");
        assert_ne!(one.sips()[0].key(), one.sips()[1].key());
    }
}
