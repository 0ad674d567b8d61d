//! Who a request is from, for those who only remember whether they have seen it.

use super::{
    key::{FALLBACK, KeyHash, Secret, Sink, Subject},
    reading::Ambiguous,
    token::{TokenSource, token},
};
use crate::framing::Fields;

/// One caller: a keyed hash, and whether an access token stands behind it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Caller {
    /// 64 bits of the keyed hash of the token; without one, of the client's address.
    pub hash: u64,
    /// Whether there is a token.
    pub has_token: bool,
}

impl Caller {
    /// Who `subject` is from.
    pub fn of(subject: &Subject<'_>, secret: Secret) -> Result<Self, Ambiguous> {
        let token = token(subject.token_sources, subject.headers)?;
        let mut hash = KeyHash::new(secret);
        match &token {
            Some(token) => hash.token(token),
            None => hash.address(FALLBACK, subject),
        };
        Ok(Self { hash: hash.finish() as u64, has_token: token.is_some() })
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
