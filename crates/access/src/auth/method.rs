//! [`RouteAuth`]: how the requests of a route authenticate, and which consumers may use it.

mod token;

use std::{borrow::Cow, cell::OnceCell, sync::Arc};

use http::{HeaderName, header};

pub use self::token::{AuthContext, TokenProof};
use tidegate_config::is_consumer_name;
use tidegate_http1::Fields;
use tidegate_identity::{
    AmbiguousValue, ApiKeySource, Consumer, PasswordRemoval, RemovedCredentials, single_header,
    trim,
};
use tidegate_system::clock::StoreTime;
use tidegate_tls::ClientCertificate;

use super::{
    bearer::BearerContent,
    consumers::{ConsumerTable, KeyValidity, prefixed_name},
    forward::{ForwardAuth, may_be_sent_in_parts},
    jwt::{JwtMethod, MissingClaims},
    key::KeyHash,
    kind::{AuthKind, AuthMethod, KeyForwarding},
    password::BasicCredentials,
    refusal::{AuthRefusal, Unauthenticated},
};

/// What becomes of a request without credentials.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WithoutCredentials {
    /// It is refused.
    Refuse,
    /// It proceeds without a consumer.
    Proceed,
}

/// The consumers that may use a route.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct AllowedConsumers {
    /// The names of their plans.
    pub plans: Box<[Box<str>]>,
    /// Their own names.
    pub names: Box<[Box<str>]>,
}

/// How the requests of a route authenticate.
#[derive(Debug)]
pub struct RouteAuth {
    /// The methods. The first one whose credentials a request has decides.
    methods: Box<[Arc<AuthMethod>]>,
    bearer: BearerContent,
    without_credentials: WithoutCredentials,
    /// `None`: all consumers.
    allowed: Option<AllowedConsumers>,
    removed_credentials: RemovedCredentials,
    missing: Arc<Unauthenticated>,
    invalid: Arc<Unauthenticated>,
    invalid_token: Arc<Unauthenticated>,
    expired_token: Arc<Unauthenticated>,
}

/// The parts of a request that authentication reads.
#[derive(Clone, Copy)]
pub struct AuthCredentials<'r> {
    /// The headers.
    pub headers: &'r Fields,
    /// The query, without the question mark.
    pub query: Option<&'r str>,
    /// The client's certificate, if the connection has one.
    pub certificate: Option<&'r ClientCertificate>,
}

/// The credentials of a request, before they are verified.
pub struct PresentedCredentials<'r> {
    /// The method that they belong to.
    pub method: &'r Arc<AuthMethod>,
    proof: Proof<'r>,
}

enum Proof<'r> {
    /// A key, and its hash once it was needed.
    Key(Cow<'r, [u8]>, OnceCell<KeyHash>),
    /// The name in a verified certificate; `None` if it has no such name.
    CertifiedName(Option<Cow<'r, str>>),
    /// A name and a password; `None` if they are malformed.
    Password(Option<BasicCredentials>),
    /// What the service needs.
    Service(&'r Arc<ForwardAuth>),
    /// A signed token.
    Token(Cow<'r, [u8]>),
}

/// What is known of credentials without a wait.
pub enum Verification<'r> {
    /// They are a consumer's.
    Consumer(Consumer<'r>),
    /// They are a consumer's if its password is right, which takes a while to find out.
    Password(PasswordProof<'r>),
    /// This service decides.
    Service(&'r Arc<ForwardAuth>),
    /// A signed token, for [`RouteAuth::verify_token`].
    Token(TokenProof<'r>),
    /// The consumers are in a store: to be verified again with the table that the store has for
    /// this query.
    Stored(ConsumerQuery<'r>),
}

/// What is looked up in a store of consumers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConsumerQuery<'r> {
    /// The consumer that has the key with this hash.
    Key(KeyHash),
    /// The consumer with this name.
    Name(&'r str),
}

/// A password, and the hash that it is compared with.
pub struct PasswordProof<'r> {
    /// The credentials.
    pub credentials: &'r BasicCredentials,
    /// The hash.
    pub hash: &'r str,
    /// The consumer if the password is right. `None` if no consumer has this name and a password:
    /// the hash is another one's then, so that the time of the refusal does not tell which names
    /// exist.
    pub consumer: Option<Consumer<'r>>,
}

impl RouteAuth {
    /// The authentication by `methods`, at least one, of the consumers in `allowed`.
    pub fn new(
        methods: Vec<Arc<AuthMethod>>,
        without_credentials: WithoutCredentials,
        allowed: Option<AllowedConsumers>,
    ) -> Self {
        let removed_keys = methods.iter().filter_map(|method| match &method.kind {
            AuthKind::ApiKey { sources, forwarding: KeyForwarding::Remove } => Some(&**sources),
            _ => None,
        });
        let removes_passwords = |method: &Arc<AuthMethod>| {
            matches!(method.kind, AuthKind::Basic { forwarding: KeyForwarding::Remove })
        };
        let passwords = if methods.iter().any(removes_passwords) {
            PasswordRemoval::Remove
        } else {
            PasswordRemoval::Keep
        };
        let removed_credentials =
            RemovedCredentials::new(removed_keys.flatten().cloned(), passwords);
        let bearer = BearerContent::of(&methods);
        let removed_credentials = match bearer {
            BearerContent::OneKind => removed_credentials,
            BearerContent::KeyOrToken => removed_credentials.except_tokens(),
        };
        let missing = Unauthenticated::missing(&methods);
        let wrong = |reason| Arc::new(Unauthenticated::wrong(&methods, reason));
        let invalid = wrong(AuthRefusal::Invalid);
        let invalid_token = wrong(AuthRefusal::InvalidToken);
        let expired_token = wrong(AuthRefusal::ExpiredToken);
        Self {
            methods: methods.into(),
            bearer,
            without_credentials,
            allowed,
            removed_credentials,
            missing: Arc::new(missing),
            invalid,
            invalid_token,
            expired_token,
        }
    }

    /// The methods, in their order.
    pub fn methods(&self) -> &[Arc<AuthMethod>] {
        &self.methods
    }

    /// The headers that decide who sends a request, or tell the upstream.
    pub fn headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.methods.iter().flat_map(|method| method.headers())
    }

    /// The headers that a service adds to a forwarded request. A client's own are removed from
    /// every request.
    pub fn copied_headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.methods.iter().flat_map(|method| match &method.kind {
            AuthKind::Forward(service) => &*service.copied_headers,
            AuthKind::ApiKey { .. }
            | AuthKind::Basic { .. }
            | AuthKind::Certificate { .. }
            | AuthKind::Jwt(_) => &[],
        })
    }

    /// The keys that are removed from a forwarded request.
    pub fn removed_credentials(&self) -> &RemovedCredentials {
        &self.removed_credentials
    }

    /// The credentials that decide who sends a request: the first that it has, by the order of the
    /// methods. `None` without any, if the route admits such requests.
    ///
    /// # Errors
    ///
    /// A place of credentials can be read in more than one way, or the request has none and needs
    /// some.
    pub fn presented<'r>(
        &'r self,
        request: &AuthCredentials<'r>,
    ) -> Result<Option<PresentedCredentials<'r>>, AuthError> {
        for method in &self.methods {
            let proof = method.proof(request, self).map_err(AuthError::Ambiguous)?;
            match proof {
                None => {}
                Some(Proof::Token(token)) => return Ok(Some(self.presented_token(method, token))),
                Some(proof) => return Ok(Some(PresentedCredentials { method, proof })),
            }
        }
        match self.without_credentials {
            WithoutCredentials::Proceed => Ok(None),
            WithoutCredentials::Refuse => {
                Err(AuthError::Unauthenticated(Arc::clone(&self.missing)))
            }
        }
    }

    /// Verifies credentials of this route at the time `now`: who sends the request.
    ///
    /// # Errors
    ///
    /// They are not valid. The error is the same for an unknown and an expired key and for a
    /// disabled consumer.
    pub fn verify<'r>(
        &self,
        presented: &'r PresentedCredentials<'_>,
        consumers: &'r ConsumerTable,
        now: StoreTime,
    ) -> Result<Verification<'r>, AuthError> {
        if consumers.is_in_store()
            && let Some(query) = presented.query()
        {
            return Ok(Verification::Stored(query));
        }
        let verification = match &presented.proof {
            Proof::Key(key, hash) => {
                let hash = hash.get_or_init(|| KeyHash::of(key));
                let found = consumers.key(hash, now);
                let found = found.filter(|key| key.validity == KeyValidity::Valid);
                found.map(|key| Verification::Consumer(key.consumer))
            }
            Proof::CertifiedName(name) => {
                let consumer = name.as_deref().and_then(|name| certified(name, consumers));
                consumer.map(Verification::Consumer)
            }
            Proof::Password(credentials) => {
                let proof = credentials.as_ref().and_then(|own| password_proof(own, consumers));
                proof.map(Verification::Password)
            }
            Proof::Service(service) => Some(Verification::Service(service)),
            Proof::Token(token) => {
                let method = presented.method.jwt();
                method.map(|method| Verification::Token(TokenProof { method, token }))
            }
        };
        verification.ok_or_else(|| self.invalid())
    }

    /// The error for credentials that are not valid.
    pub fn invalid(&self) -> AuthError {
        AuthError::Unauthenticated(Arc::clone(&self.invalid))
    }

    /// The refusal of credentials that are not valid.
    pub fn refusal(&self) -> &Arc<Unauthenticated> {
        &self.invalid
    }

    /// The consumer called `name`, without credentials: for a log, or for an operator who asks.
    ///
    /// # Errors
    ///
    /// It is disabled, or no consumer can have this name.
    pub fn named<'r>(
        &self,
        name: &'r str,
        consumers: &'r ConsumerTable,
    ) -> Result<Consumer<'r>, AuthError> {
        certified(name, consumers).ok_or_else(|| self.invalid())
    }

    /// What becomes of a request without credentials.
    pub fn without_credentials(&self) -> WithoutCredentials {
        self.without_credentials
    }

    /// True if this consumer may use the route. A request without a consumer may if the route has
    /// no list.
    pub fn allows(&self, consumer: Option<Consumer<'_>>) -> bool {
        let Some(allowed) = &self.allowed else { return true };
        let Some(Consumer { name, plan, .. }) = consumer else { return false };
        allowed.names.iter().any(|other| **other == *name)
            || plan.is_some_and(|plan| allowed.plans.iter().any(|other| **other == *plan))
    }
}

impl PresentedCredentials<'_> {
    /// What is looked up to verify them, if consumers are in a store. `None` if that is not known
    /// yet, or if no consumer can have the name.
    fn query(&self) -> Option<ConsumerQuery<'_>> {
        let name = match &self.proof {
            Proof::Key(key, hash) => {
                return Some(ConsumerQuery::Key(*hash.get_or_init(|| KeyHash::of(key))));
            }
            Proof::CertifiedName(name) => name.as_deref()?,
            Proof::Password(credentials) => credentials.as_ref()?.account()?,
            Proof::Service(_) | Proof::Token(_) => return None,
        };
        is_consumer_name(name).then_some(ConsumerQuery::Name(name))
    }
}

/// What the password of these credentials is compared with; `None` if no consumer has one.
fn password_proof<'r>(
    credentials: &'r BasicCredentials,
    consumers: &'r ConsumerTable,
) -> Option<PasswordProof<'r>> {
    let found = credentials.account().and_then(|name| consumers.consumer(name));
    let found = found.filter(|found| !found.is_disabled);
    match found.and_then(|found| found.password.map(|hash| (hash, found.consumer))) {
        Some((hash, consumer)) => {
            Some(PasswordProof { credentials, hash, consumer: Some(consumer) })
        }
        None => {
            consumers.any_password().map(|hash| PasswordProof { credentials, hash, consumer: None })
        }
    }
}

/// The consumer that a certificate, a token or a service names. It needs no record; a disabled one
/// is refused.
pub fn certified<'r>(name: &'r str, consumers: &'r ConsumerTable) -> Option<Consumer<'r>> {
    match consumers.consumer(name) {
        Some(found) => (!found.is_disabled).then_some(found.consumer),
        None => is_consumer_name(name).then_some(Consumer::new(name, None)),
    }
}

impl AuthMethod {
    /// Its settings, if it verifies signed tokens.
    pub fn jwt(&self) -> Option<&JwtMethod> {
        match &self.kind {
            AuthKind::Jwt(jwt) => Some(jwt),
            _ => None,
        }
    }

    /// The credentials of this method in a request, if it has some. A service is always asked,
    /// unless the route admits requests without credentials and this one has none that the service
    /// reads.
    fn proof<'r>(
        &'r self,
        request: &AuthCredentials<'r>,
        route: &RouteAuth,
    ) -> Result<Option<Proof<'r>>, AmbiguousValue> {
        match &self.kind {
            AuthKind::ApiKey { sources, .. } => {
                for source in sources {
                    let key = source.read(request.headers, request.query)?;
                    let is_token = |key: &Cow<'_, [u8]>| {
                        source.is_authorization() && route.bearer.is_token(key)
                    };
                    if let Some(key) = key.filter(|key| !is_token(key)) {
                        return Ok(Some(Proof::Key(key, OnceCell::new())));
                    }
                }
                Ok(None)
            }
            AuthKind::Certificate { consumer, prefix } => Ok(request.certificate.map(|own| {
                let name = own.name(*consumer).map(|name| prefixed_name(prefix, name));
                Proof::CertifiedName(name)
            })),
            AuthKind::Basic { .. } => {
                let value = single_header(request.headers, &header::AUTHORIZATION)?;
                Ok(value
                    .map(trim)
                    .and_then(BasicCredentials::read)
                    .map(|read| Proof::Password(read.ok())))
            }
            AuthKind::Forward(service) => {
                for name in
                    service.request_headers.iter().filter(|name| !may_be_sent_in_parts(name))
                {
                    single_header(request.headers, name)?;
                }
                let is_asked = route.without_credentials == WithoutCredentials::Refuse
                    || service.has_credentials(request.headers);
                Ok(is_asked.then_some(Proof::Service(service)))
            }
            AuthKind::Jwt(_) => {
                let source = ApiKeySource::Header(header::AUTHORIZATION);
                let token = source.read(request.headers, request.query)?;
                Ok(token.filter(|token| !route.bearer.is_key(token)).map(Proof::Token))
            }
        }
    }

    /// The headers that may carry credentials, or are set by a service.
    fn headers(&self) -> Vec<&HeaderName> {
        match &self.kind {
            AuthKind::ApiKey { sources, .. } => {
                let headers = sources.iter().filter_map(|source| match source {
                    ApiKeySource::Header(name) => Some(name),
                    ApiKeySource::Query(_) | ApiKeySource::Cookie(_) => None,
                });
                headers.collect()
            }
            AuthKind::Basic { .. } | AuthKind::Jwt(_) => vec![&header::AUTHORIZATION],
            AuthKind::Certificate { .. } => Vec::new(),
            AuthKind::Forward(service) => {
                service.request_headers.iter().chain(&service.copied_headers).collect()
            }
        }
    }
}

/// Why a request is not authenticated.
#[derive(Clone, Debug)]
pub enum AuthError {
    /// A place of credentials can be read in more than one way.
    Ambiguous(AmbiguousValue),
    /// The credentials are missing or not valid.
    Unauthenticated(Arc<Unauthenticated>),
    /// A valid token lacks a claim that is required.
    MissingClaims(Arc<MissingClaims>),
    /// The keys that verify a token are not known yet.
    KeysUnavailable,
}

#[cfg(test)]
mod tests;
