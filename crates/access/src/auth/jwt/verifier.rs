//! [`JwtVerifier`]: verifies tokens by the settings of a method.

use std::hash::{DefaultHasher, Hash, Hasher};

use tidegate_config::JwtAlgorithm;
use tidegate_system::clock::StoreTime;

use super::claims::{CheckedClaims, ClaimRules, ClaimsError};
use super::key_set::{KeyFingerprint, KeySet};
use super::token::{CompactToken, CompactTokenError};

/// Verifies tokens. Pure: the keys and the time are parameters.
#[derive(Debug)]
pub struct JwtVerifier {
    algorithms: Box<[JwtAlgorithm]>,
    rules: ClaimRules,
    fingerprint: u64,
}

/// A token that was verified.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VerifiedToken {
    /// What is kept of its claims.
    pub claims: CheckedClaims,
    /// The key that verified it: without this key, the token is not valid any more.
    pub key: KeyFingerprint,
}

/// Why a token is not valid. For logs and tests: a client is only informed of an expiry.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum JwtError {
    /// It is no token, or has a header that is not supported.
    #[error("{0}")]
    Token(#[from] CompactTokenError),
    /// The algorithm is not a configured one.
    #[error("the algorithm is not allowed")]
    Algorithm,
    /// It names a key that the set does not have.
    #[error("the key is not in the key set")]
    UnknownKey,
    /// The key that the token names does not verify the signature.
    #[error("the signature is wrong")]
    Signature,
    /// The token names no key of the set, and none of those without a name verifies the signature.
    #[error("the signature is wrong, or that of another key")]
    OtherSignature,
    /// The claims are refused.
    #[error("{0}")]
    Claims(#[from] ClaimsError),
}

impl JwtVerifier {
    /// A verifier of signatures by `algorithms` and claims by `rules`.
    pub fn new(algorithms: Vec<JwtAlgorithm>, rules: ClaimRules) -> Self {
        let mut hasher = DefaultHasher::new();
        (&algorithms, &rules).hash(&mut hasher);
        Self { algorithms: algorithms.into(), rules, fingerprint: hasher.finish() }
    }

    /// The algorithms.
    pub fn algorithms(&self) -> &[JwtAlgorithm] {
        &self.algorithms
    }

    /// What the claims must be.
    pub fn rules(&self) -> &ClaimRules {
        &self.rules
    }

    /// A hash of the settings: a token that other settings have verified must be verified again.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Verifies `token` with `keys` at the time `now`. Nothing of its claims is read before its
    /// signature is verified.
    ///
    /// # Errors
    ///
    /// It is not valid.
    pub fn verify(
        &self,
        token: &[u8],
        keys: &KeySet,
        now: StoreTime,
    ) -> Result<VerifiedToken, JwtError> {
        let token = CompactToken::parse(token)?;
        let algorithm = token.header.algorithm;
        if !self.algorithms.contains(&algorithm) {
            return Err(JwtError::Algorithm);
        }
        let id = token.header.key_id.as_deref();
        if keys.lacks(id) {
            return Err(JwtError::UnknownKey);
        }
        let key = keys.verify(id, algorithm, token.signed, &token.signature);
        let refused = if keys.has_id(id) { JwtError::Signature } else { JwtError::OtherSignature };
        let key = key.ok_or(refused)?;
        let claims = self.rules.check(&token.payload, now)?;
        Ok(VerifiedToken { claims, key: key.fingerprint })
    }
}

#[cfg(test)]
mod tests;
