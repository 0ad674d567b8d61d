//! [`LimitIdentity`]: distinguishes a limit's records from other limits' records.

use tidegate_base::mix::folded_multiply;

/// A limit's identity: the pair of its name and fingerprint, with a precomputed hash of both.
///
/// The quota's number of units is not part of it: a reload that changes only this number keeps the
/// counters.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LimitIdentity {
    name: Box<str>,
    fingerprint: u64,
    hash: u128,
}

impl LimitIdentity {
    /// The identity of a limit. `fingerprint` is a hash of the settings that its counters depend
    /// on: algorithm, window, resolution, key parts.
    pub fn new(name: impl Into<Box<str>>, fingerprint: u64) -> Self {
        let name = name.into();
        let hash = hash(&name, fingerprint);
        Self { name, fingerprint, hash }
    }

    /// The configured name; shown in headers and metrics.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A hash of the settings that the counters depend on; see [`Self::new`].
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// A hash of name and fingerprint. A store xors it with a [`Key`](super::Key) to identify a
    /// record: two limits with the same key parts share a `Key`, but not a record. It needs no
    /// secret, because clients cannot choose names.
    pub fn hash(&self) -> u128 {
        self.hash
    }
}

fn hash(name: &str, fingerprint: u64) -> u128 {
    let (words, rest) = name.as_bytes().as_chunks::<8>();
    let folded =
        words.iter().fold(mix(fingerprint), |hash, word| mix(hash ^ u64::from_le_bytes(*word)));
    let rest = rest.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
    // The length distinguishes names whose last words differ only in leading zero bytes.
    let low = mix(mix(folded ^ rest) ^ name.len() as u64);
    u128::from(low) | u128::from(mix(!low)) << 64
}

/// Mixes 64 bits. Gateways exchange the results through Redis, so the constants must not change.
fn mix(value: u64) -> u64 {
    folded_multiply(value ^ 0x9e37_79b9_7f4a_7c15, 0xa076_1d64_78bd_642f)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn hash_is_unique_per_name_and_fingerprint() {
        let mut seen = BTreeSet::new();
        let mut names: Vec<String> = (0..5_000).map(|n| format!("limit-{n}")).collect();
        names.extend((0..20).map(|n| "a".repeat(n)));
        names.extend((0..20).map(|n| "\0".repeat(n + 1)));
        for name in &names {
            for fingerprint in [0, 1, u64::MAX] {
                let identity = LimitIdentity::new(name.as_str(), fingerprint);
                assert!(seen.insert(identity.hash()), "{name:?} {fingerprint}");
            }
        }
    }
}
