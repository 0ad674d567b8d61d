//! Errors of the admin API as problem documents (RFC 9457).

use axum::{
    body::Bytes,
    extract::{FromRequest, Request, rejection::BytesRejection},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;

use super::MAX_ADMIN_BODY;

/// A problem document (RFC 9457).
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(super) struct ProblemDocument<'a> {
    /// Always `about:blank`: the title is the status in words.
    r#type: &'static str,
    /// The status in words.
    title: &'static str,
    /// The status code.
    status: u16,
    /// What is wrong, and what was expected.
    detail: &'a str,
    /// The faults of the configuration, after a reload.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    faults: &'a [String],
}

/// A request's whole body. A body that is too long or ended early is refused with a problem
/// document.
pub(super) struct WholeBody(pub(super) Bytes);

impl<S: Send + Sync> FromRequest<S> for WholeBody {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let body = Bytes::from_request(request, state).await;
        body.map(Self).map_err(|rejected| rejected_body(&rejected))
    }
}

/// The response to a request whose body is too long or ended early.
fn rejected_body(rejected: &BytesRejection) -> Response {
    let detail = match rejected.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            format!("the request's body is too long; expected at most {MAX_ADMIN_BODY} bytes")
        }
        _ => "the request's body ended early; expected a whole body".to_owned(),
    };
    problem(rejected.status(), &detail, &[])
}

/// A problem document, with the `faults` of the configuration if there are any.
pub(super) fn problem(status: StatusCode, detail: &str, faults: &[String]) -> Response {
    let problem = ProblemDocument {
        r#type: "about:blank",
        title: status.canonical_reason().unwrap_or("Error"),
        status: status.as_u16(),
        detail,
        faults,
    };
    let kind = [(header::CONTENT_TYPE, "application/problem+json")];
    match serde_json::to_string(&problem) {
        Ok(body) => (status, kind, body).into_response(),
        Err(_) => status.into_response(),
    }
}
