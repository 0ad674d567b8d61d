//! gRPC over HTTP/2, as a server: messages with their length, statuses, and the text of errors. It
//! knows no service.
//!
//! A call is a POST whose body is one message (unary) or several. The response has a head,
//! messages, and trailers with `grpc-status`; a call that fails before its first message has no
//! body, and its status is in the head (trailers-only). The messages themselves are `prost` structs
//! of the service.
//!
//! | file | content |
//! |---|---|
//! | `frame` | a message behind its length |
//! | `read` | [`read_message`]: the one message of a unary call, from a client |
//! | [`health`] | `grpc.health.v1` |
//! | [`reflection`], [`descriptors`] | server reflection; the descriptors of services |
//! | `status` | [`GrpcStatus`], [`GrpcError`], and how they are written |
//!
//! ```
//! use tidegate_envoy::grpc::{GrpcStatus, decode_message, frame_message};
//!
//! let framed = frame_message(b"hello");
//! assert_eq!(decode_message(&framed), Ok(&b"hello"[..]));
//! assert_eq!(decode_message(&framed[..7]).unwrap_err().status, GrpcStatus::InvalidArgument);
//! ```

pub mod descriptors;
mod frame;
pub mod health;
mod read;
pub mod reflection;
mod status;

pub use self::{
    frame::{Frame, MAX_MESSAGE, decode_message, frame_message, next_frame},
    read::read_message,
    status::{GrpcError, GrpcStatus, percent_encode, trailers},
};

use tidegate_http1::Fields;

/// The media type of requests and responses.
pub const MEDIA_TYPE: &str = "application/grpc";

/// True if a request with these fields is a gRPC request: its `Content-Type` is `application/grpc`,
/// alone or with a suffix such as `+proto`. gRPC-Web is excluded: its clients read the HTTP status.
pub fn is_grpc(fields: &Fields) -> bool {
    let Some(value) = fields.get("content-type") else { return false };
    let Some((start, rest)) = value.split_at_checked(MEDIA_TYPE.len()) else { return false };
    start.eq_ignore_ascii_case(MEDIA_TYPE.as_bytes())
        && matches!(rest.first(), None | Some(b'+' | b';' | b' ' | b'\t'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_media_types_of_grpc_are_grpc() {
        for (value, expected) in [
            ("application/grpc", true),
            ("Application/GRPC", true),
            ("application/grpc+proto", true),
            ("application/grpc; charset=utf-8", true),
            ("application/grpc-web", false),
            ("application/grpc-web+proto", false),
            ("application/grpcx", false),
            ("application/grp", false),
            ("application/json", false),
            ("", false),
        ] {
            let fields: Fields = [("Content-Type", value)].into_iter().collect();
            assert_eq!(is_grpc(&fields), expected, "{value}");
        }
        assert!(!is_grpc(&Fields::default()));
    }
}
