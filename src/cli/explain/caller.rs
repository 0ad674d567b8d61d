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
    ) -> Result<Option<OwnedConsumer>, GatewayError> {
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
    ) -> Result<Option<OwnedConsumer>, AuthError> {
        if let Some(name) = self.name {
            return auth.named(name, self.consumers).map(|consumer| Some(consumer.into()));
        }
        let (headers, query) = (&head.fields, head.query());
        let presented = auth.presented(&AuthCredentials { headers, query, certificate: None })?;
        let Some(presented) = presented else { return Ok(None) };
        match auth.verify(&presented, self.consumers, now)? {
            Verification::Consumer(consumer) => Ok(Some(consumer.into())),
            Verification::Password(PasswordProof { credentials, hash, consumer }) => {
                let is_right = is_password_of(hash, credentials.password());
                let consumer = consumer.filter(|_| is_right).ok_or_else(|| auth.invalid())?;
                Ok(Some(consumer.into()))
            }
            Verification::Token(proof) => {
                let tokens = TokenCache::new();
                let context = AuthContext { consumers: self.consumers, tokens: &tokens, now };
                auth.verify_token(proof, &context).map(Some)
            }
            // A service is not asked: it would take the request for a real one. No record in Redis is read.
            Verification::Service(_) | Verification::Stored(_) => Ok(None),
        }
    }
}
