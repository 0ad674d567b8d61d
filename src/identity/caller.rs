//! Who a request is from, for those who only remember whether they have seen it.

use smallvec::SmallVec;

use super::{
    key::{FALLBACK, KeyHash, KeyPlan, Part, Secret, Sink, Subject},
    reading::Ambiguous,
    token::{TokenSource, token},
};
use crate::framing::Fields;

/// The one that a request is from: 64 bits of a keyed hash.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Caller {
    /// Hashes of its access tokens, one for each source that has one, in the sources' order; at least one.
    Tokens(SmallVec<[u64; 2]>),
    /// The hash of the client's address: there is no token.
    Address(u64),
}

impl Caller {
    /// Who `subject` is from.
    pub fn of(subject: &Subject<'_>, secret: Secret) -> Result<Self, Ambiguous> {
        let mut tokens = SmallVec::new();
        for source in subject.token_sources {
            if let Some(token) = token(std::slice::from_ref(source), subject.headers)? {
                let mut hash = KeyHash::new(secret);
                hash.token(&token);
                let hash = hash.finish() as u64;
                if !tokens.contains(&hash) {
                    tokens.push(hash);
                }
            }
        }
        if tokens.is_empty() {
            let mut hash = KeyHash::new(secret);
            hash.address(FALLBACK, subject);
            return Ok(Self::Address(hash.finish() as u64));
        }
        Ok(Self::Tokens(tokens))
    }
}

impl KeyPlan {
    /// The subjects that a request counts as under this key: one for each access token that it has, so
    /// that a token which is added buys no counter of its own. Where the key has no token, or the
    /// request at most one, the request itself.
    pub fn subjects<'r>(
        &self,
        subject: &Subject<'r>,
    ) -> Result<SmallVec<[Subject<'r>; 1]>, Ambiguous> {
        let mut subjects = SmallVec::new();
        if subject.token_sources.len() > 1 && self.0.contains(&Part::Token) {
            for source in subject.token_sources {
                let token_sources = std::slice::from_ref(source);
                if token(token_sources, subject.headers)?.is_some() {
                    subjects.push(Subject { token_sources, ..*subject });
                }
            }
        }
        if subjects.is_empty() {
            subjects.push(*subject);
        }
        Ok(subjects)
    }
}

/// 64 bits of the keyed hash of the token among `sources`, for those who only tell callers apart; none
/// where there is no token, or not just one.
pub fn token_hash(sources: &[TokenSource], headers: &Fields, secret: Secret) -> Option<u64> {
    let token = token(sources, headers).ok()??;
    let mut hash = KeyHash::new(secret);
    hash.token(&token);
    Some(hash.finish() as u64)
}
