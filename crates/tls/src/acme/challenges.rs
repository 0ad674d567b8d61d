//! [`Challenges`]: the responses to an authority that checks domains. Orders add them, and workers
//! read them.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use ahash::RandomState;
use bytes::Bytes;
use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::sync::Notify;

use super::responses::ChallengeResponse;
use crate::{TlsError, challenge_rules};

/// The beginning of the paths of `http-01`, before a token (RFC 8555, 8.3).
pub const CHALLENGE_PATH: &str = "/.well-known/acme-challenge/";

/// The current responses.
#[derive(Debug, Default)]
pub struct Challenges {
    /// The number of responses: without one, a worker reads only this.
    count: AtomicUsize,
    responses: Mutex<Responses>,
    /// Notified when domains are no longer reserved.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Responses {
    own: ResponseTable,
    /// The responses of other gateways' orders.
    shared: ResponseTable,
    /// The domains that an order proves by `tls-alpn-01`: the authority does not name itself in the
    /// handshake.
    reserved: HashSet<Box<str>, RandomState>,
}

#[derive(Debug, Default)]
struct ResponseTable {
    /// The key authorizations of `http-01`, by token.
    tokens: HashMap<Box<str>, Bytes, RandomState>,
    /// The handshakes of `tls-alpn-01`, by domain.
    handshakes: HashMap<Box<str>, KnownHandshake, RandomState>,
}

/// The handshake for a domain, and the digest that it proves.
#[derive(Clone, Debug)]
struct KnownHandshake {
    digest: [u8; 32],
    rules: Arc<ServerConfig>,
}

/// Removes a response when it is dropped.
#[derive(Debug)]
pub(super) struct PendingResponse {
    challenges: Arc<Challenges>,
    response: ChallengeResponse,
}

/// Domains that no other order of this process proves by `tls-alpn-01`, until it is dropped.
#[derive(Debug)]
pub(super) struct ReservedDomains {
    challenges: Arc<Challenges>,
    domains: Box<[Box<str>]>,
}

impl ResponseTable {
    fn len(&self) -> usize {
        self.tokens.len() + self.handshakes.len()
    }

    /// Adds a response. Takes a handshake that `known` has for the same digest.
    fn insert(&mut self, response: &ChallengeResponse, known: &Self) -> Result<(), TlsError> {
        match response {
            ChallengeResponse::Token { token, key_authorization } => {
                let body = Bytes::copy_from_slice(key_authorization.as_bytes());
                self.tokens.insert(token.clone(), body);
            }
            ChallengeResponse::Handshake { domain, digest } => {
                let known = known.handshakes.get(domain).filter(|own| own.digest == *digest);
                let handshake = match known {
                    Some(known) => known.clone(),
                    None => {
                        KnownHandshake { digest: *digest, rules: challenge_rules(domain, digest)? }
                    }
                };
                self.handshakes.insert(domain.clone(), handshake);
            }
        }
        Ok(())
    }

    fn remove(&mut self, response: &ChallengeResponse) {
        match response {
            ChallengeResponse::Token { token, .. } => drop(self.tokens.remove(token)),
            ChallengeResponse::Handshake { domain, .. } => drop(self.handshakes.remove(domain)),
        }
    }
}

impl Challenges {
    /// The body for a request with this path; `None` if the path has no token of a current order.
    #[inline]
    pub fn http_response(&self, path: &[u8]) -> Option<Bytes> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let token = path.strip_prefix(CHALLENGE_PATH.as_bytes())?;
        let token = std::str::from_utf8(token).ok()?;
        let responses = self.responses.lock();
        let tables = [&responses.own, &responses.shared];
        tables.into_iter().find_map(|table| table.tokens.get(token).cloned())
    }

    /// The handshake with an authority that checks `domain`; `None` without a current order for it.
    pub fn handshake(&self, domain: &str) -> Option<Arc<ServerConfig>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let domain = domain.to_ascii_lowercase();
        let responses = self.responses.lock();
        let tables = [&responses.own, &responses.shared];
        let known = tables.into_iter().find_map(|table| table.handshakes.get(&*domain))?;
        Some(Arc::clone(&known.rules))
    }

    /// Responds to an authority, until the result is dropped.
    ///
    /// # Errors
    ///
    /// No certificate can be made for the domain.
    pub(super) fn respond(
        self: &Arc<Self>,
        response: &ChallengeResponse,
    ) -> Result<PendingResponse, TlsError> {
        let mut responses = self.responses.lock();
        responses.own.insert(response, &ResponseTable::default())?;
        self.count_again(&responses);
        Ok(PendingResponse { challenges: Arc::clone(self), response: response.clone() })
    }

    /// Replaces the responses of other gateways' orders. Of two for one domain, the later one
    /// counts.
    pub(super) fn share(&self, shared: &[ChallengeResponse]) {
        let mut responses = self.responses.lock();
        let mut table = ResponseTable::default();
        for response in shared {
            if let Err(error) = table.insert(response, &responses.shared) {
                tracing::debug!(%error, "a response of another gateway cannot be given");
            }
        }
        responses.shared = table;
        self.count_again(&responses);
    }

    /// Waits until no other order proves one of `domains` by `tls-alpn-01`.
    pub(super) async fn reserve(self: &Arc<Self>, domains: &[Box<str>]) -> ReservedDomains {
        loop {
            // Created before the check, so that a release in between is not missed.
            let freed = self.freed.notified();
            {
                let mut responses = self.responses.lock();
                if domains.iter().all(|domain| !responses.reserved.contains(domain)) {
                    responses.reserved.extend(domains.iter().cloned());
                    return ReservedDomains {
                        challenges: Arc::clone(self),
                        domains: domains.into(),
                    };
                }
            }
            freed.await;
        }
    }

    fn count_again(&self, responses: &Responses) {
        self.count.store(responses.own.len() + responses.shared.len(), Ordering::Release);
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        let mut responses = self.challenges.responses.lock();
        responses.own.remove(&self.response);
        self.challenges.count_again(&responses);
    }
}

impl Drop for ReservedDomains {
    fn drop(&mut self) {
        let mut responses = self.challenges.responses.lock();
        for domain in &self.domains {
            responses.reserved.remove(domain);
        }
        drop(responses);
        self.challenges.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::{future::Future as _, pin::pin, task};

    use super::*;

    fn token(token: &str) -> ChallengeResponse {
        let key_authorization = format!("{token}.def").into();
        ChallengeResponse::Token { token: token.into(), key_authorization }
    }

    fn body(challenges: &Challenges, path: &str) -> Option<Bytes> {
        challenges.http_response(format!("/.well-known/acme-challenge/{path}").as_bytes())
    }

    #[test]
    fn responses_end_with_their_order() {
        let challenges = Arc::new(Challenges::default());
        let first = challenges.respond(&token("abc")).unwrap();
        let second = ChallengeResponse::handshake("A.test", &[7; 32]).unwrap();
        let second = challenges.respond(&second).unwrap();
        assert_eq!(body(&challenges, "abc").as_deref(), Some(&b"abc.def"[..]));
        for path in ["/.well-known/acme-challenge/", "/.well-known/acme-challenge/ab", "/abc", ""] {
            assert!(challenges.http_response(path.as_bytes()).is_none(), "{path}");
        }
        let rules = challenges.handshake("a.TEST").unwrap();
        assert_eq!(rules.alpn_protocols, [b"acme-tls/1"]);
        assert!(challenges.handshake("b.test").is_none());
        drop(first);
        assert!(body(&challenges, "abc").is_none());
        drop(second);
        assert!(challenges.handshake("a.test").is_none());
    }

    #[test]
    fn responses_of_other_gateways_are_replaced_as_a_whole() {
        let challenges = Arc::new(Challenges::default());
        let [old, new] = [1, 2]
            .map(|digest| ChallengeResponse::handshake("a.test", &[digest; 32]).expect("32 bytes"));
        challenges.share(&[token("abc"), old.clone()]);
        let first = challenges.handshake("a.test").unwrap();
        assert!(body(&challenges, "abc").is_some());
        challenges.share(std::slice::from_ref(&old));
        assert!(body(&challenges, "abc").is_none());
        assert!(Arc::ptr_eq(&first, &challenges.handshake("a.test").unwrap()), "it is not remade");
        challenges.share(&[old, new]);
        assert!(!Arc::ptr_eq(&first, &challenges.handshake("a.test").unwrap()), "the later one");
        challenges.share(&[]);
        assert!(challenges.handshake("a.test").is_none());
    }

    #[test]
    fn one_order_at_a_time_proves_a_domain() {
        let challenges = Arc::new(Challenges::default());
        let mut context = task::Context::from_waker(task::Waker::noop());
        let mut reserve = |domains: &[Box<str>]| {
            let reserving = pin!(challenges.reserve(domains));
            match reserving.poll(&mut context) {
                task::Poll::Ready(reserved) => Some(reserved),
                task::Poll::Pending => None,
            }
        };
        let first = reserve(&["a.test".into(), "b.test".into()]).unwrap();
        let other = reserve(&["c.test".into()]).unwrap();
        assert!(reserve(&["b.test".into(), "d.test".into()]).is_none());
        assert!(reserve(&["d.test".into()]).is_some(), "a waiting order reserves nothing");
        drop(first);
        assert!(reserve(&["b.test".into(), "d.test".into()]).is_some());
        drop(other);
    }
}
