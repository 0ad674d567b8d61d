//! [`Challenges`]: the responses to an authority that checks domains. Orders add them, and workers read them.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use ahash::RandomState;
use bytes::Bytes;
use hashbrown::HashMap;
use parking_lot::Mutex;
use rustls::ServerConfig;

use crate::tls::{TlsError, challenge_rules};

/// The beginning of the paths of `http-01`, before a token (RFC 8555, 8.3).
pub const CHALLENGE_PATH: &str = "/.well-known/acme-challenge/";

/// The current responses.
#[derive(Debug, Default)]
pub struct Challenges {
    /// The number of responses: without one, a worker reads only this.
    count: AtomicUsize,
    responses: Mutex<Responses>,
}

#[derive(Debug, Default)]
struct Responses {
    /// The key authorizations of `http-01`, by token.
    tokens: HashMap<Box<str>, Bytes, RandomState>,
    /// The handshakes of `tls-alpn-01`, by domain.
    handshakes: HashMap<Box<str>, Arc<ServerConfig>, RandomState>,
}

/// What a response is found by.
#[derive(Debug)]
enum ResponseKey {
    Token(Box<str>),
    Domain(Box<str>),
}

/// Removes a response when it is dropped.
#[derive(Debug)]
pub(super) struct PendingResponse {
    challenges: Arc<Challenges>,
    key: ResponseKey,
}

impl Challenges {
    /// The body for a request with this path; `None` if the path has no token of a current order.
    #[inline]
    pub fn http_response(&self, path: &str) -> Option<Bytes> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let token = path.strip_prefix(CHALLENGE_PATH)?;
        self.responses.lock().tokens.get(token).cloned()
    }

    /// The handshake with an authority that checks `domain`; `None` without a current order for it.
    pub fn handshake(&self, domain: &str) -> Option<Arc<ServerConfig>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let domain = domain.to_ascii_lowercase();
        self.responses.lock().handshakes.get(&*domain).cloned()
    }

    /// Responds to `http-01` with `token`, until the result is dropped.
    pub(super) fn respond_to_token(
        self: &Arc<Self>,
        token: &str,
        key_authorization: &str,
    ) -> PendingResponse {
        let body = Bytes::copy_from_slice(key_authorization.as_bytes());
        self.responses.lock().tokens.insert(token.into(), body);
        self.pending(ResponseKey::Token(token.into()))
    }

    /// Responds to `tls-alpn-01` for `domain`, until the result is dropped.
    ///
    /// # Errors
    ///
    /// No certificate can be made for it.
    pub(super) fn respond_to_handshake(
        self: &Arc<Self>,
        domain: &str,
        digest: &[u8],
    ) -> Result<PendingResponse, TlsError> {
        let domain = domain.to_ascii_lowercase();
        let rules = challenge_rules(&domain, digest)?;
        self.responses.lock().handshakes.insert(domain.as_str().into(), rules);
        Ok(self.pending(ResponseKey::Domain(domain.into())))
    }

    fn pending(self: &Arc<Self>, key: ResponseKey) -> PendingResponse {
        self.count.fetch_add(1, Ordering::Release);
        PendingResponse { challenges: Arc::clone(self), key }
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        let mut responses = self.challenges.responses.lock();
        match &self.key {
            ResponseKey::Token(token) => drop(responses.tokens.remove(token)),
            ResponseKey::Domain(domain) => drop(responses.handshakes.remove(domain)),
        }
        self.challenges.count.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_end_with_their_order() {
        let challenges = Arc::new(Challenges::default());
        let first = challenges.respond_to_token("abc", "abc.def");
        let second = challenges.respond_to_handshake("A.test", &[7; 32]).unwrap();
        let body = challenges.http_response("/.well-known/acme-challenge/abc");
        assert_eq!(body.as_deref(), Some(&b"abc.def"[..]));
        for path in ["/.well-known/acme-challenge/", "/.well-known/acme-challenge/ab", "/abc", ""] {
            assert!(challenges.http_response(path).is_none(), "{path}");
        }
        let rules = challenges.handshake("a.TEST").unwrap();
        assert_eq!(rules.alpn_protocols, [b"acme-tls/1"]);
        assert!(challenges.handshake("b.test").is_none());
        drop(first);
        assert!(challenges.http_response("/.well-known/acme-challenge/abc").is_none());
        drop(second);
        assert!(challenges.handshake("a.test").is_none());
    }
}
