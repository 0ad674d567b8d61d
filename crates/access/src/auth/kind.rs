//! [`AuthMethod`]: a way to authenticate, and its kind.

use std::{fmt::Write as _, sync::Arc};

use http::header;
use tidegate_charge::Limit;
use tidegate_identity::ApiKeySource;
use tidegate_tls::CertificateName;

use super::forward::ForwardAuth;
use super::jwt::JwtMethod;

/// A way to authenticate.
#[derive(Debug)]
pub struct AuthMethod {
    /// Its name in the configuration, which is also the realm of its challenges.
    pub name: Box<str>,
    /// What proves who sends a request.
    pub kind: AuthKind,
    /// Bounds the requests of a client address whose credentials are refused; `None`: no bound.
    pub max_failures: Option<Arc<Limit>>,
}

/// What proves who sends a request.
#[derive(Clone, Debug)]
pub enum AuthKind {
    /// An API key.
    ApiKey {
        /// Its places, in order.
        sources: Box<[ApiKeySource]>,
        /// What becomes of the key.
        forwarding: KeyForwarding,
    },
    /// The name and the password of a consumer (RFC 7617).
    Basic {
        /// What becomes of them.
        forwarding: KeyForwarding,
    },
    /// A client certificate that the TLS handshake has verified.
    Certificate {
        /// The part that is the consumer's name.
        consumer: CertificateName,
        /// The text before it.
        prefix: Box<str>,
    },
    /// Another service decides.
    Forward(Arc<ForwardAuth>),
    /// A signed token in `Authorization: Bearer`.
    Jwt(Arc<JwtMethod>),
}

/// What becomes of credentials in a forwarded request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KeyForwarding {
    /// It is removed.
    Remove,
    /// It is forwarded.
    Keep,
}

impl AuthMethod {
    /// The credentials of this method, for a client that has none.
    pub(super) fn describe(&self, out: &mut String) {
        match &self.kind {
            AuthKind::ApiKey { sources, .. } => {
                out.push_str("an API key in ");
                for (index, source) in sources.iter().enumerate() {
                    out.push_str(if index == 0 { "" } else { " or " });
                    // Writing to a string cannot fail.
                    let _ = match source {
                        ApiKeySource::Header(name) if *name == header::AUTHORIZATION => {
                            write!(out, "the header {name} (after `Bearer`)")
                        }
                        ApiKeySource::Header(name) => write!(out, "the header {name}"),
                        ApiKeySource::Query(name) => write!(out, "the query parameter {name}"),
                        ApiKeySource::Cookie(name) => write!(out, "the cookie {name}"),
                    };
                }
            }
            AuthKind::Basic { .. } => out.push_str("a name and a password"),
            AuthKind::Certificate { .. } => out.push_str("a client certificate"),
            AuthKind::Forward(_) => out.push_str("what the authentication service expects"),
            AuthKind::Jwt(_) => {
                out.push_str("a signed token (JWT) in the header authorization (after `Bearer`)");
            }
        }
    }
}
