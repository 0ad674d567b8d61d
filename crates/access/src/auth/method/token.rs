//! Signed tokens of a route: which method verifies one, and what follows.

use std::borrow::Cow;
use std::sync::Arc;

use tidegate_identity::OwnedConsumer;
use tidegate_system::clock::StoreTime;

use super::{AuthError, PresentedCredentials, Proof, RouteAuth, certified};
use crate::auth::consumers::ConsumerTable;
use crate::auth::jwt::{JwtMethod, JwtRefusal, TokenCache};
use crate::auth::kind::AuthMethod;

/// A signed token, and the method that verifies it.
#[derive(Clone, Copy)]
pub struct TokenProof<'r> {
    pub(super) method: &'r JwtMethod,
    pub(super) token: &'r [u8],
}

/// What the verification of a token depends on.
#[derive(Clone, Copy)]
pub struct AuthContext<'r> {
    /// The consumers.
    pub consumers: &'r ConsumerTable,
    /// The tokens that were verified before.
    pub tokens: &'r TokenCache,
    /// The time.
    pub now: StoreTime,
}

impl RouteAuth {
    /// A token, and the method that verifies it: of several, the one of the issuer that the token
    /// names, or else `first`.
    pub(super) fn presented_token<'r>(
        &'r self,
        first: &'r Arc<AuthMethod>,
        token: Cow<'r, [u8]>,
    ) -> PresentedCredentials<'r> {
        let mut methods = self.methods.iter().filter(|method| method.jwt().is_some());
        let has_several = methods.clone().nth(1).is_some();
        let is_of_issuer =
            |method: &&Arc<AuthMethod>| method.jwt().is_some_and(|jwt| jwt.claims_issuer(&token));
        let named = if has_several { methods.find(is_of_issuer) } else { None };
        PresentedCredentials { method: named.unwrap_or(first), proof: Proof::Token(token) }
    }

    /// The error for a token that is not valid, or whose consumer is disabled.
    pub fn invalid_token(&self) -> AuthError {
        AuthError::Unauthenticated(Arc::clone(&self.invalid_token))
    }

    /// Verifies a signed token, or finds it among the ones that were verified: who sends the
    /// request.
    ///
    /// # Errors
    ///
    /// It is not valid, lacks a claim that is required, or cannot be verified yet.
    pub fn verify_token(
        &self,
        proof: TokenProof<'_>,
        context: &AuthContext<'_>,
    ) -> Result<OwnedConsumer, AuthError> {
        let refused = |refusal| AuthError::Unauthenticated(Arc::clone(refusal));
        let verified = proof.method.verify(proof.token, context.tokens, context.now);
        let verified = verified.map_err(|refusal| match refusal {
            JwtRefusal::Invalid => refused(&self.invalid_token),
            JwtRefusal::Expired => refused(&self.expired_token),
            JwtRefusal::MissingClaims(missing) => AuthError::MissingClaims(missing),
            JwtRefusal::KeysUnavailable => AuthError::KeysUnavailable,
        })?;
        let claims = &verified.claims;
        // The name was checked with the token: only a disabled record refuses it.
        let record = certified(&claims.consumer, context.consumers);
        let record = record.ok_or_else(|| refused(&self.invalid_token))?;
        let plan = record.plan.or(claims.plan.as_deref());
        let consumer = OwnedConsumer::with_claims(record.name, plan, claims.claims.clone());
        Ok(consumer.with_billing_day(record.billing_day))
    }
}
