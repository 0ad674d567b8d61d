//! The status of a call, and how it is written.

use std::borrow::Cow;

use tidegate_http1::Fields;

/// Maximum length of a status' text, in bytes before it is encoded. Clients bound the header list,
/// some at 8 KiB.
const MAX_TEXT: usize = 1024;

/// The gRPC status codes that the gateway sends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GrpcStatus {
    /// The call succeeded.
    Ok = 0,
    /// The client has cancelled the call.
    Cancelled = 1,
    /// A failure without a code of its own.
    Unknown = 2,
    /// The request is wrong, whatever the state of the server.
    InvalidArgument = 3,
    /// The time is over.
    DeadlineExceeded = 4,
    /// The asked-for thing does not exist.
    NotFound = 5,
    /// The caller may not do this.
    PermissionDenied = 7,
    /// A quota is used up, or something is too large.
    ResourceExhausted = 8,
    /// There is no such method.
    Unimplemented = 12,
    /// A broken message, or a bug.
    Internal = 13,
    /// The service cannot be reached now; a retry may help.
    Unavailable = 14,
    /// The caller is not authenticated.
    Unauthenticated = 16,
}

/// Why a call failed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct GrpcError {
    /// The status.
    pub status: GrpcStatus,
    /// The text for the caller: what is wrong, and what was expected.
    pub message: Cow<'static, str>,
}

impl GrpcError {
    /// An error with a text.
    pub fn new(status: GrpcStatus, message: impl Into<Cow<'static, str>>) -> Self {
        Self { status, message: message.into() }
    }

    /// Writes the status and the text, as header fields or as trailers.
    pub fn write(&self, fields: &mut Fields) {
        fields.push_number("grpc-status", self.status as u64);
        fields.push("grpc-message", percent_encode(&self.message));
    }
}

/// The trailers of a call that has succeeded.
pub fn trailers() -> Fields {
    let mut fields = Fields::new();
    fields.push_number("grpc-status", GrpcStatus::Ok as u64);
    fields
}

/// Encodes `text` for `grpc-message`: percent-encoded UTF-8, in which printable ASCII other than
/// `%` stands for itself. Text beyond 1024 bytes is left out.
pub fn percent_encode(text: &str) -> String {
    let text = &text[..text.floor_char_boundary(MAX_TEXT)];
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if matches!(byte, b' '..=b'~') && byte != b'%' {
            encoded.push(byte.into());
        } else {
            let digit = |value: u8| char::from(b"0123456789ABCDEF"[usize::from(value)]);
            encoded.extend(['%', digit(byte >> 4), digit(byte & 15)]);
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_percent_encoded_and_bounded() {
        assert_eq!(percent_encode("a b~: 100%"), "a b~: 100%25");
        assert_eq!(percent_encode("\u{e9}\r\n\u{7f}"), "%C3%A9%0D%0A%7F");
        assert_eq!(percent_encode(&"\u{e9}".repeat(MAX_TEXT)).len(), 3 * MAX_TEXT);
        let odd = format!("a{}", "\u{e9}".repeat(MAX_TEXT));
        assert_eq!(percent_encode(&odd).len(), 1 + 3 * (MAX_TEXT - 2));
    }

    #[test]
    fn an_error_has_its_code_and_text() {
        let mut fields = Fields::new();
        GrpcError::new(GrpcStatus::NotFound, "no caf\u{e9}").write(&mut fields);
        assert_eq!(fields.get("grpc-status"), Some(&b"5"[..]));
        assert_eq!(fields.get("grpc-message"), Some(&b"no caf%C3%A9"[..]));
        assert_eq!(trailers().get("grpc-status"), Some(&b"0"[..]));
    }
}
