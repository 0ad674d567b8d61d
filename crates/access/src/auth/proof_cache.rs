//! [`ProofCache`]: credentials that were verified a short time ago, so that a caller who returns
//! costs a lookup.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use parking_lot::Mutex;
use siphasher::sip128::{Hasher128 as _, SipHasher24};
use tidegate_system::clock::MonotonicTime;
use tidegate_system::secret::KeySecret;

/// Number of sets, unless the owner of a cache chooses another one.
const SETS: usize = 1 << 12;
/// Entries in a set.
const WAYS: usize = 4;

/// The results of verified credentials, until each one's end. It holds no credentials, only their
/// hashes under a random secret of the process, and is of a fixed size: a new entry replaces the
/// one in its set that ends soonest.
///
/// If only what was verified is stored, a client without valid credentials cannot displace
/// anything.
pub struct ProofCache<V> {
    secret: KeySecret,
    sets: Box<[Mutex<Set<V>>]>,
}

type Set<V> = [Option<Proven<V>>; WAYS];

/// The result of verified credentials.
struct Proven<V> {
    digest: ProofDigest,
    until: MonotonicTime,
    value: V,
}

/// The keyed hash of credentials.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ProofDigest(u128);

impl<V: Clone> ProofCache<V> {
    /// An empty cache, whose hashes have a random secret.
    pub fn new() -> Self {
        Self::with_sets(SETS)
    }

    /// An empty cache of `sets` sets, rounded up to a power of two, with four results in each.
    pub fn with_sets(sets: usize) -> Self {
        // Each state has random keys of its own.
        let random = || RandomState::new().build_hasher().finish();
        let sets =
            (0..sets.max(1).next_power_of_two()).map(|_| Mutex::new(Set::default())).collect();
        Self { secret: KeySecret(random(), random()), sets }
    }

    /// The digest of credentials that consist of these parts.
    pub fn digest<'p>(&self, parts: impl IntoIterator<Item = &'p [u8]>) -> ProofDigest {
        let mut hash = SipHasher24::new_with_keys(self.secret.0, self.secret.1);
        for part in parts {
            // The length comes first, so that no two lists of parts are hashed alike.
            hash.write_u64(part.len() as u64);
            hash.write(part);
        }
        ProofDigest(hash.finish128().as_u128())
    }

    /// The result of these credentials, if they were verified and it has not ended at `now`.
    pub fn get(&self, digest: ProofDigest, now: MonotonicTime) -> Option<V> {
        let set = self.set(digest).lock();
        let mut entries = set.iter().flatten();
        let found = entries.find(|entry| entry.digest == digest && now < entry.until)?;
        Some(found.value.clone())
    }

    /// Stores the result of verified credentials until `until`.
    pub fn insert(&self, digest: ProofDigest, until: MonotonicTime, value: V) {
        let mut set = self.set(digest).lock();
        let is_same =
            |entry: &Option<Proven<V>>| entry.as_ref().is_some_and(|entry| entry.digest == digest);
        let end = |entry: &Option<Proven<V>>| entry.as_ref().map(|entry| entry.until);
        let at = set.iter().position(is_same);
        let at = at.or_else(|| (0..WAYS).min_by_key(|way| end(&set[*way])));
        set[at.unwrap_or_default()] = Some(Proven { digest, until, value });
    }

    /// Forgets the result of these credentials.
    pub fn remove(&self, digest: ProofDigest) {
        for entry in self.set(digest).lock().iter_mut() {
            if entry.as_ref().is_some_and(|entry| entry.digest == digest) {
                *entry = None;
            }
        }
    }

    fn set(&self, digest: ProofDigest) -> &Mutex<Set<V>> {
        &self.sets[digest.0 as usize & (self.sets.len() - 1)]
    }
}

impl<V: Clone> Default for ProofCache<V> {
    fn default() -> Self {
        Self::new()
    }
}

/// Nothing of the content: it belongs to credentials.
impl<V> std::fmt::Debug for ProofCache<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProofCache").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> MonotonicTime {
        MonotonicTime::from_ms(ms)
    }

    #[test]
    fn a_result_is_found_until_its_end() {
        let cache = ProofCache::new();
        let digest = cache.digest([&b"me"[..], b"secret"]);
        assert_eq!(cache.get(digest, at(0)), None);
        cache.insert(digest, at(100), 1);
        assert_eq!((cache.get(digest, at(99)), cache.get(digest, at(100))), (Some(1), None));
        cache.insert(digest, at(200), 2);
        assert_eq!(cache.get(digest, at(100)), Some(2));
        cache.remove(cache.digest([&b"other"[..]]));
        assert_eq!(cache.get(digest, at(100)), Some(2));
        cache.remove(digest);
        assert_eq!(cache.get(digest, at(100)), None);
        for other in [&[&b"mes"[..], b"ecret"][..], &[b"mesecret"], &[b"me", b"secret", b""]] {
            assert_eq!(cache.get(cache.digest(other.iter().copied()), at(0)), None, "{other:?}");
        }
    }

    #[test]
    fn digests_of_two_processes_differ() {
        let (one, other) = (ProofCache::<()>::new(), ProofCache::<()>::new());
        assert_ne!(one.digest([&b"a"[..]]), other.digest([&b"a"[..]]));
    }

    #[test]
    fn a_full_set_loses_the_entry_that_ends_first() {
        let cache = ProofCache::new();
        let in_set = |index: u128| ProofDigest(index << 64);
        for index in 0..=WAYS as u128 {
            cache.insert(in_set(index), at(1_000 + u64::from(index != 1)), index);
        }
        let found = |index| cache.get(in_set(index), at(0));
        assert_eq!((found(1), found(0), found(4)), (None, Some(0), Some(4)));
    }
}
