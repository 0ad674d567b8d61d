//! [`Unauthenticated`]: the refusal of a request that is not authenticated.

use std::fmt;
use std::sync::Arc;

use http::header;
use tidegate_identity::ApiKeySource;

use super::kind::{AuthKind, AuthMethod};

/// Why a request is not authenticated.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AuthRefusal {
    /// It has no credentials.
    Missing,
    /// Its credentials are not valid.
    Invalid,
    /// Its signed token is not valid.
    InvalidToken,
    /// Its signed token has expired.
    ExpiredToken,
}

impl AuthRefusal {
    /// True if a signature was verified to find out.
    pub fn is_of_token(self) -> bool {
        matches!(self, Self::InvalidToken | Self::ExpiredToken)
    }
}

/// The refusal of a request that is not authenticated: its text, and a challenge for each method.
#[derive(Debug, Eq, PartialEq)]
pub struct Unauthenticated {
    /// The reason.
    pub reason: AuthRefusal,
    /// The text for the client. It does not say what is wrong with credentials.
    pub detail: Box<str>,
    /// The values of `WWW-Authenticate`.
    pub challenges: Box<[Box<str>]>,
}

/// The text for a client with wrong credentials.
const INVALID: &str = "the credentials are not valid";
/// The text for a client with an expired token: it needs a new one. No guess comes this far.
const EXPIRED: &str = "the token has expired";

impl Unauthenticated {
    /// The refusal of a request without credentials.
    pub(super) fn missing(methods: &[Arc<AuthMethod>]) -> Self {
        let mut detail = "the request has no credentials; expected ".to_owned();
        for (index, method) in methods.iter().enumerate() {
            detail.push_str(if index == 0 { "" } else { ", or " });
            method.describe(&mut detail);
        }
        let challenges = challenges(methods, "");
        Self { reason: AuthRefusal::Missing, detail: detail.into(), challenges }
    }

    /// The refusal of a request with wrong credentials, for this `reason`.
    pub(super) fn wrong(methods: &[Arc<AuthMethod>], reason: AuthRefusal) -> Self {
        let detail = if reason == AuthRefusal::ExpiredToken { EXPIRED } else { INVALID };
        // RFC 6750, 3.1.
        let error = format!(", error=\"invalid_token\", error_description=\"{detail}\"");
        let challenges = challenges(methods, &error);
        Self { reason, detail: detail.into(), challenges }
    }
}

impl fmt::Display for Unauthenticated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

/// A challenge for each way to send credentials. `error` is added to those after `Bearer`.
fn challenges(methods: &[Arc<AuthMethod>], error: &str) -> Box<[Box<str>]> {
    let mut challenges: Vec<Box<str>> = Vec::new();
    for AuthMethod { name, kind, .. } in methods.iter().map(|method| &**method) {
        match kind {
            AuthKind::ApiKey { sources, .. } => {
                challenges.extend(sources.iter().map(|source| match source {
                    ApiKeySource::Header(header) if *header == header::AUTHORIZATION => {
                        format!("Bearer realm=\"{name}\"{error}").into()
                    }
                    ApiKeySource::Header(header) => place(name, "header", header.as_str()),
                    ApiKeySource::Query(parameter) => place(name, "query", parameter),
                    ApiKeySource::Cookie(cookie) => place(name, "cookie", cookie),
                }));
            }
            AuthKind::Basic { .. } => {
                challenges.push(format!("Basic realm=\"{name}\", charset=\"UTF-8\"").into());
            }
            AuthKind::Certificate { .. } => {
                challenges.push(format!("Certificate realm=\"{name}\"").into());
            }
            AuthKind::Jwt(_) => {
                challenges.push(format!("Bearer realm=\"{name}\"{error}").into());
            }
            // Its own answers are the challenges.
            AuthKind::Forward(_) => {}
        }
    }
    challenges.into()
}

/// The challenge for an API key in a place. Its scheme is not registered, as no scheme for API keys
/// is.
fn place(realm: &str, kind: &str, name: &str) -> Box<str> {
    let is_quotable = |c: &char| matches!(c, ' '..='~') && !matches!(c, '"' | '\\');
    let name: String = name.chars().filter(is_quotable).collect();
    format!("ApiKey realm=\"{realm}\", in=\"{kind}\", name=\"{name}\"").into()
}
