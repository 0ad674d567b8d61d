//! The hash of a request's caller, for modules that only need to tell callers apart.

use std::{borrow::Cow, net::IpAddr, slice::from_ref};

use smallvec::{SmallVec, smallvec};
use tidegate_http1::Fields;
use tidegate_system::secret::KeySecret;

use super::{
    consumer::Consumer,
    extract::AmbiguousValue,
    key::{
        ADDRESS_TAG, CONSUMER_TAG, FALLBACK_TAG, KeyHasher, KeyPart, KeyPlan, PartSink, Subject,
        TokenHash,
    },
    token::{CredentialSource, Token, token},
};

/// The caller of a request, as 64 bits of a keyed hash.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Caller {
    /// The distinct hashes of the access tokens, in the order of their sources; at least one.
    Tokens(SmallVec<[u64; 2]>),
    /// The hash of the client's address, for a request without a token.
    Address(u64),
}

impl Caller {
    /// The caller of `subject`, under the throttle's secret. `subject` remembers its first token
    /// under `limits`, the secret of limits, so that the headers are searched once.
    ///
    /// # Errors
    /// A token source can be read in more than one way.
    pub fn of(
        subject: &Subject<'_>,
        secret: KeySecret,
        limits: KeySecret,
    ) -> Result<Self, AmbiguousValue> {
        let mut tokens = SmallVec::new();
        let mut first = TokenHash::Missing;
        for source in subject.token_sources {
            if let Some(token) = token(from_ref(source), subject.headers)? {
                let hash = hash_token(&token, secret) as u64;
                if tokens.is_empty() {
                    first = TokenHash::Present(hash_token(&token, limits).into());
                }
                if !tokens.contains(&hash) {
                    tokens.push(hash);
                }
            }
        }
        if let Some(remembered) = subject.token_hash {
            remembered.set(first);
        }
        if tokens.is_empty() {
            let mut hash = KeyHasher::new(secret);
            hash.add_client(FALLBACK_TAG, subject);
            return Ok(Self::Address(hash.finish() as u64));
        }
        Ok(Self::Tokens(tokens))
    }

    /// The caller on a route that authenticates: the consumer, under one hash for all of its
    /// credentials, or else the client's address. A token that the gateway does not verify
    /// identifies no caller there.
    pub fn authenticated(
        consumer: Option<Consumer<'_>>,
        client: IpAddr,
        ipv6_prefix: u8,
        secret: KeySecret,
    ) -> Self {
        let mut hash = KeyHasher::new(secret);
        if let Some(Consumer { name, .. }) = consumer {
            hash.put(CONSUMER_TAG, name.as_bytes());
            return Self::Tokens(smallvec![hash.finish() as u64]);
        }
        hash.add_address(FALLBACK_TAG, client, ipv6_prefix);
        Self::Address(hash.finish() as u64)
    }
}

impl KeyPlan {
    /// The subjects that a request is counted as under this key: one for each of its access tokens,
    /// so a second token does not give the caller a second quota. If the key has no token part, or
    /// the request has no token, `subject` itself.
    ///
    /// # Errors
    /// A token source can be read in more than one way.
    pub fn subjects<'s, 'r>(
        &self,
        subject: &'s Subject<'r>,
    ) -> Result<Cow<'s, [Subject<'r>]>, AmbiguousValue> {
        let mut subjects = Vec::new();
        if subject.token_sources.len() > 1 && self.0.contains(&KeyPart::Token) {
            for source in subject.token_sources {
                let token_sources = from_ref(source);
                if token(token_sources, subject.headers)?.is_some() {
                    subjects.push(Subject { token_sources, token_hash: None, ..*subject });
                }
            }
        }
        // Usually there is one, which is not copied.
        Ok(if subjects.is_empty() { Cow::Borrowed(from_ref(subject)) } else { subjects.into() })
    }
}

/// The key of limits by `token`: the keyed hash of the first token, or of the client's address
/// without a token. An ambiguous token is ignored.
pub fn caller_key(
    sources: &[CredentialSource],
    headers: &Fields,
    client: IpAddr,
    ipv6_prefix: u8,
    secret: KeySecret,
) -> u128 {
    let mut hash = KeyHasher::new(secret);
    let token = token(sources, headers).ok().flatten().unwrap_or_default();
    if hash.add_token(&token) {
        hash.add_address(FALLBACK_TAG, client, ipv6_prefix);
    }
    hash.finish()
}

/// The key of limits by `client_ip`.
pub fn address_key(client: IpAddr, ipv6_prefix: u8, secret: KeySecret) -> u128 {
    let mut hash = KeyHasher::new(secret);
    hash.add_address(ADDRESS_TAG, client, ipv6_prefix);
    hash.finish()
}

/// The keyed hash of the first token among `sources`: the key of limits by `token`. `None` without
/// a token, or if a source is ambiguous.
pub fn token_hash(
    sources: &[CredentialSource],
    headers: &Fields,
    secret: KeySecret,
) -> Option<u128> {
    let token = token(sources, headers).ok()??;
    Some(hash_token(&token, secret))
}

fn hash_token(token: &Token<'_>, secret: KeySecret) -> u128 {
    let mut hash = KeyHasher::new(secret);
    hash.add_token(token);
    hash.finish()
}
