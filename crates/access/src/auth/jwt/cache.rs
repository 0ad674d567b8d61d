//! [`TokenCache`]: the verified tokens of a worker, so that a client that returns costs a lookup.

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;

use hashbrown::HashTable;
use siphasher::sip128::{Hasher128 as _, SipHasher24};
use tidegate_system::clock::StoreTime;

use super::key_set::KeySet;
use super::token::{CompactTokenError, MAX_TOKEN};
use super::verifier::{JwtError, JwtVerifier, VerifiedToken};

/// Maximum number of tokens that a worker keeps.
const MAX_TOKENS: usize = 8192;
/// Maximum memory of the claims of a token that is kept, in bytes. With larger ones, a token is
/// verified for each request.
const MAX_CLAIMS: usize = 1024;

/// Tokens that were verified. It has no token, only hashes of tokens under a random secret, so that
/// a client cannot choose two tokens with one hash. Only valid tokens are kept, so a client without
/// one cannot displace others. A full cache replaces a token that was not used for a while (CLOCK).
pub struct TokenCache {
    secret: [u64; 2],
    capacity: usize,
    tokens: RefCell<Tokens>,
}

#[derive(Default)]
struct Tokens {
    slots: Vec<CachedToken>,
    /// Indexes of `slots`, by the digest.
    index: HashTable<u32>,
    /// The slot that is examined next for a replacement.
    hand: usize,
}

struct CachedToken {
    digest: u128,
    token: Arc<VerifiedToken>,
    /// True if it was used again since the hand passed it.
    is_used: Cell<bool>,
}

impl TokenCache {
    /// An empty cache.
    pub fn new() -> Self {
        Self::with_capacity(MAX_TOKENS)
    }

    /// An empty cache for at most `capacity` tokens.
    fn with_capacity(capacity: usize) -> Self {
        // Its keys are the system's random numbers.
        let seed = std::hash::RandomState::new();
        Self {
            secret: [seed.hash_one(0_u64), seed.hash_one(1_u64)],
            capacity,
            tokens: RefCell::default(),
        }
    }

    /// The result of verifying `token`: the kept one if it is still valid, else that of `verifier`.
    ///
    /// # Errors
    ///
    /// The token is not valid.
    pub fn verify(
        &self,
        verifier: &JwtVerifier,
        token: &[u8],
        keys: &KeySet,
        now: StoreTime,
    ) -> Result<Arc<VerifiedToken>, JwtError> {
        if token.len() > MAX_TOKEN {
            return Err(CompactTokenError::TooLong.into());
        }
        let digest = self.digest(verifier, token);
        if let Some(found) = self.tokens.borrow().find(digest) {
            // A key that was dropped drops its tokens, also the kept ones.
            if now < found.claims.expires && keys.has(found.key) {
                return Ok(Arc::clone(found));
            }
        }
        let verified = Arc::new(verifier.verify(token, keys, now)?);
        let memory = verified.claims.claims.as_ref().map_or(0, |claims| claims.memory());
        if memory <= MAX_CLAIMS {
            self.tokens.borrow_mut().insert(digest, Arc::clone(&verified), self.capacity);
        }
        Ok(verified)
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.borrow().slots.len()
    }

    /// True without tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The hash of a token and of the settings that verify it.
    fn digest(&self, verifier: &JwtVerifier, token: &[u8]) -> u128 {
        let mut hasher = SipHasher24::new_with_keys(self.secret[0], self.secret[1]);
        hasher.write_u64(verifier.fingerprint());
        hasher.write(token);
        hasher.finish128().as_u128()
    }
}

impl Default for TokenCache {
    fn default() -> Self {
        Self::new()
    }
}

impl Tokens {
    fn find(&self, digest: u128) -> Option<&Arc<VerifiedToken>> {
        let is_same = |index: &u32| self.slots[*index as usize].digest == digest;
        let slot = &self.slots[*self.index.find(digest as u64, is_same)? as usize];
        slot.is_used.set(true);
        Some(&slot.token)
    }

    fn insert(&mut self, digest: u128, token: Arc<VerifiedToken>, capacity: usize) {
        let is_same = |index: &u32| self.slots[*index as usize].digest == digest;
        if let Some(index) = self.index.find(digest as u64, is_same) {
            self.slots[*index as usize].token = token;
            return;
        }
        // Unused at first, so that tokens which come once displace each other.
        let slot = CachedToken { digest, token, is_used: Cell::new(false) };
        let at = if self.slots.len() < capacity {
            self.slots.push(slot);
            self.slots.len() - 1
        } else {
            let at = self.unused_slot();
            let old = std::mem::replace(&mut self.slots[at], slot).digest;
            let is_old = |index: &u32| *index as usize == at;
            if let Ok(entry) = self.index.find_entry(old as u64, is_old) {
                entry.remove();
            }
            at
        };
        let slots = &self.slots;
        let hash_of = |index: &u32| slots[*index as usize].digest as u64;
        self.index.insert_unique(digest as u64, at as u32, hash_of);
    }

    /// The slot to replace: the first one after the hand that was not used since the hand passed
    /// it.
    fn unused_slot(&mut self) -> usize {
        loop {
            let at = self.hand;
            self.hand = (at + 1) % self.slots.len();
            if !self.slots[at].is_used.replace(false) {
                return at;
            }
        }
    }
}

/// The number of tokens alone.
impl std::fmt::Debug for TokenCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenCache").field("tokens", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
