//! The consumer that sends the request of `explain`.

use crate::auth::jwt::TokenCache;
use crate::auth::{
    AuthContext, AuthCredentials, AuthError, ConsumerTable, PasswordProof, RouteAuth, Verification,
    is_password_of,
};
use crate::clock::StoreTime;
use crate::error::{AuthOutage, FailedAuthentication, GatewayError};
use crate::http1::RequestHead;
use crate::identity::OwnedConsumer;

/// The consumers, and the one that the operator names.
#[derive(Clone, Copy)]
pub(super) struct ExplainedCaller<'a> {
    pub(super) consumers: &'a ConsumerTable,
    /// `None`: the request's own credentials decide.
    pub(super) name: Option<&'a str>,
}

/// What is known of the sender of the request.
#[derive(Debug, Default)]
pub(super) struct ExplainedIdentity {
    /// The consumer.
    pub(super) consumer: Option<OwnedConsumer>,
    /// Why the consumer is not known, though the request may have one.
    pub(super) undecided: Option<&'static str>,
}

impl ExplainedIdentity {
    fn known(consumer: impl Into<OwnedConsumer>) -> Self {
        Self { consumer: Some(consumer.into()), undecided: None }
    }

    fn undecided(reason: &'static str) -> Self {
        Self { consumer: None, undecided: Some(reason) }
    }
}

impl ExplainedCaller<'_> {
    /// The consumer that sends the request with this head at `now`, by the `auth` of its route.
    ///
    /// # Errors
    ///
    /// Its credentials are missing, wrong, or can be read in more than one way.
    pub(super) fn identify(
        &self,
        auth: &RouteAuth,
        head: &RequestHead,
        now: StoreTime,
    ) -> Result<ExplainedIdentity, GatewayError> {
        self.find(auth, head, now).map_err(|error| match error {
            AuthError::Ambiguous(error) => GatewayError::Ambiguous(error),
            AuthError::Unauthenticated(refused) => {
                let failed = FailedAuthentication { refused, counted_by: None };
                GatewayError::Unauthenticated(Box::new(failed))
            }
            AuthError::MissingClaims(missing) => GatewayError::MissingClaims(missing),
            AuthError::KeysUnavailable => GatewayError::CannotAuthenticate(AuthOutage::Keys),
        })
    }

    fn find(
        &self,
        auth: &RouteAuth,
        head: &RequestHead,
        now: StoreTime,
    ) -> Result<ExplainedIdentity, AuthError> {
        if let Some(name) = self.name {
            return auth.named(name, self.consumers).map(ExplainedIdentity::known);
        }
        let (headers, query) = (&head.fields, head.query());
        let presented = auth.presented(&AuthCredentials { headers, query, certificate: None })?;
        let Some(presented) = presented else { return Ok(ExplainedIdentity::default()) };
        match auth.verify(&presented, self.consumers, now)? {
            Verification::Consumer(consumer) => Ok(ExplainedIdentity::known(consumer)),
            Verification::Password(PasswordProof { credentials, hash, consumer }) => {
                let is_right = is_password_of(hash, credentials.password());
                let consumer = consumer.filter(|_| is_right).ok_or_else(|| auth.invalid())?;
                Ok(ExplainedIdentity::known(consumer))
            }
            Verification::Token(proof) => {
                let tokens = TokenCache::new();
                let context = AuthContext { consumers: self.consumers, tokens: &tokens, now };
                match auth.verify_token(proof, &context) {
                    // Only a file of keys was read.
                    Err(AuthError::KeysUnavailable) => Ok(ExplainedIdentity::undecided(
                        "the keys of the token's issuer are at a URL, which `explain` does not fetch",
                    )),
                    verified => verified.map(ExplainedIdentity::known),
                }
            }
            // It would take the request for a real one.
            Verification::Service(_) => {
                Ok(ExplainedIdentity::undecided("a service decides, which `explain` does not ask"))
            }
            // The explanation says that no record in Redis is read.
            Verification::Stored(_) => Ok(ExplainedIdentity::default()),
        }
    }
}
