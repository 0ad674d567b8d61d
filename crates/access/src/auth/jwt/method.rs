//! [`JwtMethod`]: the method `jwt` of a configuration, with its current keys.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use rustls::ClientConfig;
use tidegate_config::JwtAlgorithm;
use tidegate_system::clock::StoreTime;

use super::cache::TokenCache;
use super::claims::ClaimsError;
use super::live::LiveKeySet;
use super::token::unverified_claims;
use super::verifier::{JwtError, JwtVerifier, VerifiedToken};

/// A method that verifies signed tokens.
#[derive(Debug)]
pub struct JwtMethod {
    verifier: JwtVerifier,
    /// The server of the key set; `None` for a file or a secret.
    server: Option<Arc<KeyServer>>,
    /// The keys. Set once, before the first request: the key set of a server outlives the
    /// configuration that names it.
    keys: OnceLock<Arc<LiveKeySet>>,
    /// The refusal of a token that lacks a scope.
    without_scope: Arc<MissingClaims>,
    /// The refusal of a token that lacks another claim.
    without_claim: Arc<MissingClaims>,
}

/// A server of a key set.
#[derive(Clone)]
pub struct KeyServer {
    /// Where the set is.
    pub location: KeyLocation,
    /// The algorithms that its keys may verify.
    pub algorithms: Box<[JwtAlgorithm]>,
    /// The rules of the handshake with an `https` server.
    pub tls: Arc<ClientConfig>,
    /// Differs if the rules of the handshake do.
    pub tls_digest: u64,
}

/// Where the key set of a server is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum KeyLocation {
    /// At this URL.
    Url(Box<str>),
    /// At the URL that the OpenID Connect configuration of this issuer names.
    Issuer(Box<str>),
}

/// The refusal of a valid token that lacks a required claim: its text, and a challenge (RFC 6750,
/// 3.1).
#[derive(Debug, Eq, PartialEq)]
pub struct MissingClaims {
    /// The text for the client.
    pub detail: Box<str>,
    /// The value of `WWW-Authenticate`; `None` if no scope is missing.
    pub challenge: Option<Box<str>>,
}

/// Why a token does not authenticate its request.
#[derive(Clone, Debug)]
pub(in crate::auth) enum JwtRefusal {
    /// It is not valid.
    Invalid,
    /// It has expired.
    Expired,
    /// It lacks a required claim.
    MissingClaims(Arc<MissingClaims>),
    /// No keys have arrived yet, or the key that it names may be among newer ones, which are on
    /// their way.
    KeysUnavailable,
}

impl KeyServer {
    /// True if both have one set of keys.
    pub fn has_keys_of(&self, other: &Self) -> bool {
        self.location == other.location
            && self.algorithms == other.algorithms
            && self.tls_digest == other.tls_digest
    }

    /// True if `host`, as in a URL, is this machine: `localhost` or a loopback address.
    pub fn is_loopback(host: &str) -> bool {
        let address = host.trim_start_matches('[').trim_end_matches(']');
        host.eq_ignore_ascii_case("localhost")
            || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Debug for KeyServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyServer").field("location", &self.location).finish_non_exhaustive()
    }
}

impl fmt::Display for KeyLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The query may be secret.
            Self::Url(url) => f.write_str(url.split('?').next().unwrap_or_default()),
            Self::Issuer(issuer) => write!(f, "discover at {issuer}"),
        }
    }
}

impl JwtMethod {
    /// The method called `name`, whose keys are set later.
    pub fn new(name: &str, verifier: JwtVerifier, server: Option<KeyServer>) -> Self {
        let without_scope = Arc::new(MissingClaims::scope(name, &verifier));
        let detail = "the token lacks a claim that this request needs".into();
        let without_claim = Arc::new(MissingClaims { detail, challenge: None });
        let (server, keys) = (server.map(Arc::new), OnceLock::new());
        Self { verifier, server, keys, without_scope, without_claim }
    }

    /// How it verifies.
    pub fn verifier(&self) -> &JwtVerifier {
        &self.verifier
    }

    /// The server of its keys; `None` if they are in a file, or a secret.
    pub fn server(&self) -> Option<&Arc<KeyServer>> {
        self.server.as_ref()
    }

    /// Sets the keys; only the first call has an effect.
    pub fn set_keys(&self, keys: Arc<LiveKeySet>) {
        let _ = self.keys.set(keys);
    }

    /// The keys, once they are set.
    pub fn keys(&self) -> Option<&Arc<LiveKeySet>> {
        self.keys.get()
    }

    /// True if a token says that it is of this method's issuer. It may lie: the signature decides.
    pub(in crate::auth) fn claims_issuer(&self, token: &[u8]) -> bool {
        let claims = unverified_claims(token);
        let issuer = &*self.verifier.rules().issuer;
        claims.is_some_and(|claims| claims.text("iss") == Some(issuer))
    }

    /// Verifies `token`, or finds it among the tokens in `cache`.
    pub(in crate::auth) fn verify(
        &self,
        token: &[u8],
        cache: &TokenCache,
        now: StoreTime,
    ) -> Result<Arc<VerifiedToken>, JwtRefusal> {
        let Some(live) = self.keys.get() else { return Err(JwtRefusal::KeysUnavailable) };
        let keys = live.load();
        let Some(keys) = &*keys else { return Err(JwtRefusal::KeysUnavailable) };
        let verified = cache.verify(&self.verifier, token, keys, now).map_err(|error| {
            tracing::debug!(%error, "a token is not valid");
            match error {
                JwtError::UnknownKey if live.may_have_newer(header_of(token)) => {
                    JwtRefusal::KeysUnavailable
                }
                // The key may be a newer one, also with the name of an older one. Unlike above, a
                // signature was verified, which a failure must count.
                JwtError::Signature | JwtError::OtherSignature => {
                    live.want_newer();
                    JwtRefusal::Invalid
                }
                JwtError::Claims(ClaimsError::Expired) => JwtRefusal::Expired,
                _ => JwtRefusal::Invalid,
            }
        })?;
        let Some(lacks) = verified.claims.lacks else { return Ok(verified) };
        let is_scope = self.verifier.rules().required[lacks].is_scope();
        let missing = if is_scope { &self.without_scope } else { &self.without_claim };
        Err(JwtRefusal::MissingClaims(Arc::clone(missing)))
    }
}

/// The header of a token, encoded: it names the key.
fn header_of(token: &[u8]) -> &[u8] {
    token.split(|byte| *byte == b'.').next().unwrap_or_default()
}

impl MissingClaims {
    /// The refusal that names all required scopes.
    fn scope(name: &str, verifier: &JwtVerifier) -> Self {
        let required = &verifier.rules().required;
        let scopes = required.iter().filter(|claim| claim.is_scope());
        let scopes: Vec<&str> = scopes.flat_map(|claim| &claim.values).map(|one| &**one).collect();
        let scopes = scopes.join(" ");
        let detail = format!("this request needs a token with the scope {scopes}").into();
        let challenge =
            format!("Bearer realm=\"{name}\", error=\"insufficient_scope\", scope=\"{scopes}\"");
        Self { detail, challenge: Some(challenge.into()) }
    }
}
