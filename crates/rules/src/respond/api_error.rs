//! Errors in the form that the clients of an API read: an extension member of the problem document
//! (RFC 9457, 3.2), or an error of JSON-RPC around it.

use std::fmt::Write;

use http::StatusCode;
use serde::Serialize;

use super::{
    LimitReport, LocalReply,
    problem::{RefusedBy, describe_refusal, refused_limits, refused_retry_after},
};
use crate::error::GatewayError;
use crate::snapshot::ErrorFormat;

/// The form of a JSON error.
#[derive(Clone, Copy, Debug, Default)]
pub struct ApiError<'r> {
    /// The API whose clients read it.
    pub format: ErrorFormat,
    /// The `id` of the JSON-RPC call, as JSON; `None` if it is not known.
    pub call_id: Option<&'r str>,
}

/// The `error` of `OpenAI` and Anthropic, whose clients read `message` and `type`, and `code`.
#[derive(Serialize)]
struct ModelError<'m> {
    message: &'m str,
    r#type: &'static str,
    code: &'static str,
}

/// The `error` of Google's APIs.
#[derive(Serialize)]
struct GoogleError<'m> {
    code: u16,
    message: &'m str,
    status: &'static str,
}

impl ApiError<'_> {
    /// Adds the error to `reply`, which has a problem document. `limits` are the limits of the
    /// request.
    pub(super) fn add_to<'a>(
        self,
        reply: &mut LocalReply,
        error: &GatewayError,
        limits: impl Iterator<Item = LimitReport<'a>> + Clone,
    ) {
        if self.format == ErrorFormat::Problem {
            return;
        }
        let (status, message) = (reply.status, message(error, limits));
        if self.format == ErrorFormat::JsonRpc {
            reply.body = self.rpc_response(&reply.body, status, &message).into();
            return reply.fields.set("content-type", "application/json");
        }
        let names = Names::of(status);
        let members = match self.format {
            ErrorFormat::Gemini => {
                let (code, status) = (status.as_u16(), names.google);
                member("error", &GoogleError { code, message: &message, status })
            }
            ErrorFormat::Ollama => member("error", &message),
            ErrorFormat::Bedrock => {
                [member("message", &message), member("__type", &names.amazon)].concat()
            }
            _ => {
                let Names { kind, code, .. } = names;
                member("error", &ModelError { message: &message, r#type: kind, code })
            }
        };
        let document = reply.body.strip_suffix(b"}\n").unwrap_or(&reply.body);
        reply.body = [document, members.as_bytes(), b"}\n"].concat().into();
    }

    /// The error response of JSON-RPC 2.0 with this problem document.
    fn rpc_response(self, document: &[u8], status: StatusCode, message: &str) -> Vec<u8> {
        let id = self.call_id.unwrap_or("null");
        let code = match status.as_u16() {
            429 => "-32029",
            401 | 403 => "-32001",
            _ => "-32000",
        };
        let message = member("message", &message);
        let head = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{{\"code\":{code}{message},\"data\":"
        );
        [head.as_bytes(), document.trim_ascii_end(), b"}}\n"].concat()
    }
}

/// A member of an object, after others.
fn member(name: &str, value: &impl Serialize) -> String {
    // A string and a struct of strings and numbers can always be written.
    let value = serde_json::to_string(value).unwrap_or_default();
    format!(",\"{name}\":{value}")
}

/// One sentence, with the seconds after which to try again.
fn message<'a>(
    error: &GatewayError,
    limits: impl Iterator<Item = LimitReport<'a>> + Clone,
) -> String {
    let retry_after = refused_retry_after(error, limits.clone());
    let mut text = String::new();
    match error {
        GatewayError::LimitExceeded => {
            let (refused_by, names) = (RefusedBy::of(limits.clone()), refused_limits(limits));
            describe_refusal(&names, refused_by, retry_after, |piece| text.push_str(piece));
        }
        // Its text has the seconds.
        GatewayError::TooManyFailures(_) => text += &error.detail(),
        _ => {
            text += &error.detail();
            if let Some(seconds) = retry_after {
                // Writing to a string cannot fail.
                let _ = write!(text, "; retry in {seconds} s");
            }
        }
    }
    text
}

/// What APIs call the errors of a status.
struct Names {
    /// The `type` of `OpenAI` and Anthropic.
    kind: &'static str,
    /// The `code` of `OpenAI`.
    code: &'static str,
    /// The `status` of Google.
    google: &'static str,
    /// The type of Amazon.
    amazon: &'static str,
}

impl Names {
    fn of(status: StatusCode) -> Self {
        let [kind, code, google, amazon] = match status.as_u16() {
            401 => [
                "authentication_error",
                "invalid_api_key",
                "UNAUTHENTICATED",
                "AccessDeniedException",
            ],
            403 => [
                "permission_error",
                "permission_denied",
                "PERMISSION_DENIED",
                "AccessDeniedException",
            ],
            404 => ["not_found_error", "not_found", "NOT_FOUND", "ResourceNotFoundException"],
            413 => [
                "request_too_large",
                "request_too_large",
                "INVALID_ARGUMENT",
                "ValidationException",
            ],
            429 => [
                "rate_limit_error",
                "rate_limit_exceeded",
                "RESOURCE_EXHAUSTED",
                "ThrottlingException",
            ],
            503 => ["overloaded_error", "overloaded", "UNAVAILABLE", "ServiceUnavailableException"],
            504 => ["timeout_error", "timeout", "DEADLINE_EXCEEDED", "ModelTimeoutException"],
            500.. => ["api_error", "server_error", "INTERNAL", "InternalServerException"],
            _ => [
                "invalid_request_error",
                "invalid_request",
                "INVALID_ARGUMENT",
                "ValidationException",
            ],
        };
        Self { kind, code, google, amazon }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::problem;
    use super::*;
    use crate::error::DeniedAddress;

    fn body(format: ErrorFormat, error: &GatewayError) -> Value {
        let mut reply = problem(error, std::iter::empty(), "id");
        ApiError { format, call_id: Some("\"a\\\"1\"") }.add_to(
            &mut reply,
            error,
            std::iter::empty(),
        );
        serde_json::from_slice(&reply.body).unwrap()
    }

    #[test]
    fn each_api_gets_its_error_in_the_problem_document() {
        let error = GatewayError::StoreUnavailable;
        let detail = error.detail();
        let message = format!("{detail}; retry in 1 s");
        for (format, own) in [
            (ErrorFormat::Problem, json!({})),
            (
                ErrorFormat::Openai,
                json!({"error": {"message": message, "type": "overloaded_error", "code": "overloaded"}}),
            ),
            (
                ErrorFormat::Anthropic,
                json!({"error": {"message": message, "type": "overloaded_error", "code": "overloaded"}}),
            ),
            (
                ErrorFormat::Gemini,
                json!({"error": {"code": 503, "message": message, "status": "UNAVAILABLE"}}),
            ),
            (
                ErrorFormat::Bedrock,
                json!({"message": message, "__type": "ServiceUnavailableException"}),
            ),
            (ErrorFormat::Ollama, json!({"error": message})),
        ] {
            let mut expected = json!({
                "type": "urn:tidegate:problem:store-unavailable", "title": "Store unavailable", "status": 503,
                "detail": detail, "retry-after": 1, "request-id": "id",
            });
            for (name, value) in own.as_object().unwrap() {
                expected[name] = value.clone();
            }
            assert_eq!(body(format, &error), expected, "{format:?}");
        }
    }

    #[test]
    fn a_json_rpc_error_has_the_id_and_the_document() {
        for (error, code) in [
            (GatewayError::AccessDenied(DeniedAddress::NotAllowed), -32001),
            (GatewayError::NoRoute, -32000),
            (GatewayError::StoreUnavailable, -32000),
        ] {
            let body = body(ErrorFormat::JsonRpc, &error);
            assert_eq!((&body["jsonrpc"], &body["id"]), (&json!("2.0"), &json!("a\"1")));
            assert_eq!(body["error"]["code"], code);
            assert_eq!(body["error"]["data"]["detail"], *error.detail());
        }
    }
}
