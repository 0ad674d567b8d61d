//! The bearer token of the admin API: refuses requests without it, except requests that need none.

use std::sync::Arc;

use aws_lc_rs::{
    constant_time::verify_slices_are_equal,
    digest::{Digest, SHA256, digest},
};
use axum::{
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{connections::Activity, problem::problem};

/// The paths that need no token: probes of orchestrators, and the dashboard's files, which have no
/// secret and read the API with the token that the operator types in.
const OPEN_PATHS: [&str; 6] =
    ["/", "/dashboard.css", "/dashboard.js", "/favicon.svg", "/healthz", "/readyz"];

/// The token that requests must have; `None` admits all.
#[derive(Clone, Debug)]
pub struct AdminToken(Option<Arc<Digest>>);

/// How requests of the admin API are authenticated.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Authentication {
    /// Not at all.
    None,
    /// By the token of `admin.token`, except on open paths.
    Token,
}

/// True if the request's token is right, or none is needed. An extension of each request.
#[derive(Clone, Copy, Debug)]
pub(super) struct IsAuthenticated(pub(super) bool);

/// The token cannot be sent in a header.
#[derive(Debug, thiserror::Error)]
#[error("the token has a character that `Authorization: Bearer` cannot carry")]
pub struct TokenError;

impl AdminToken {
    /// No token: for a port on loopback.
    pub fn none() -> Self {
        Self(None)
    }

    /// The token `text`.
    ///
    /// # Errors
    ///
    /// `text` has white space or a character that is not visible ASCII.
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let is_sendable = text.bytes().all(|byte| byte.is_ascii_graphic());
        is_sendable.then(|| Self(Some(digest(&SHA256, text.as_bytes()).into()))).ok_or(TokenError)
    }

    /// What requests need.
    pub(super) fn authentication(&self) -> Authentication {
        match self.0 {
            Some(_) => Authentication::Token,
            None => Authentication::None,
        }
    }

    /// True if `headers` have the token. Every wrong token takes the same time: digests are
    /// compared in constant time.
    fn admits(&self, headers: &HeaderMap) -> bool {
        let Some(expected) = &self.0 else { return true };
        let mut values = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return false };
        let Some((scheme, token)) = value.as_bytes().split_at_checked("Bearer ".len()) else {
            return false;
        };
        let sent = digest(&SHA256, token);
        scheme.eq_ignore_ascii_case(b"Bearer ")
            && verify_slices_are_equal(sent.as_ref(), expected.as_ref().as_ref()).is_ok()
    }
}

/// True if requests for `path` need no token.
pub(super) fn is_open(path: &str) -> bool {
    OPEN_PATHS.contains(&path)
}

/// Refuses requests without the token, except for open paths.
pub(super) async fn check_token(
    State(token): State<AdminToken>,
    mut request: Request,
    next: Next,
) -> Response {
    let is_authenticated = token.admits(request.headers());
    if let Some(activity) = request.extensions().get::<Arc<Activity>>() {
        activity.set_authenticated(is_authenticated);
    }
    if !is_authenticated && !is_open(request.uri().path()) {
        let detail = "the admin API needs its token; expected `Authorization: Bearer` and the token that \
                      `admin.token` refers to";
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer realm=\"tidegate admin\"")];
        return (challenge, problem(StatusCode::UNAUTHORIZED, detail, &[])).into_response();
    }
    request.extensions_mut().insert(IsAuthenticated(is_authenticated));
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_the_whole_token_is_admitted() {
        let token = AdminToken::new("0123456789abcdef").unwrap();
        let admits = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, HeaderValue::from_static(value));
            }
            token.admits(&headers)
        };
        assert!(admits(&["Bearer 0123456789abcdef"]) && admits(&["bearer 0123456789abcdef"]));
        for wrong in [
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdeff",
            "Bearer  0123456789abcdef",
            "Bearer ",
            "Bearer",
            "Basic 0123456789abcdef",
            "0123456789abcdef",
            "",
        ] {
            assert!(!admits(&[wrong]), "{wrong}");
        }
        assert!(!admits(&[]));
        assert!(!admits(&["Bearer 0123456789abcdef", "Bearer 0123456789abcdef"]));
        assert!(AdminToken::none().admits(&HeaderMap::new()));
        for unfit in ["0123456789 abcdef", "0123456789abcdé"] {
            assert!(AdminToken::new(unfit).is_err(), "{unfit}");
        }
    }
}
