//! A message behind its length: a byte that is 1 if the message is compressed, four bytes of its
//! length, and its bytes (gRPC over HTTP/2, "Length-Prefixed-Message").

use super::status::{GrpcError, GrpcStatus};

/// Maximum length of a message, in bytes.
pub const MAX_MESSAGE: usize = 1 << 20;

/// Length of what precedes a message, in bytes.
const PREFIX: usize = 5;

/// The first message of some bytes.
#[derive(Debug, Eq, PartialEq)]
pub struct Frame<'b> {
    /// The message.
    pub message: &'b [u8],
    /// The bytes after it.
    pub rest: &'b [u8],
}

/// The first message of `bytes`; `None` if it is incomplete.
///
/// # Errors
///
/// The message is compressed, or longer than [`MAX_MESSAGE`].
pub fn next_frame(bytes: &[u8]) -> Result<Option<Frame<'_>>, GrpcError> {
    let Some((flag, after_flag)) = bytes.split_first() else { return Ok(None) };
    if *flag != 0 {
        return Err(GrpcError::new(
            GrpcStatus::Unimplemented,
            "compressed messages are not supported; send them with grpc-encoding: identity",
        ));
    }
    let Some((length, rest)) = after_flag.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if length > MAX_MESSAGE {
        return Err(too_long());
    }
    Ok(rest.split_at_checked(length).map(|(message, rest)| Frame { message, rest }))
}

/// The one message of the complete body of a unary call.
///
/// # Errors
///
/// The body is not exactly one message, or [`next_frame`] refuses it.
pub fn decode_message(body: &[u8]) -> Result<&[u8], GrpcError> {
    match next_frame(body)? {
        Some(Frame { message, rest: [] }) => Ok(message),
        Some(_) => Err(GrpcError::new(
            GrpcStatus::InvalidArgument,
            "several messages; expected the one message of a unary call",
        )),
        None => Err(GrpcError::new(
            GrpcStatus::InvalidArgument,
            "the request ends within a message; expected one complete message",
        )),
    }
}

/// `message` behind its length.
pub fn frame_message(message: &[u8]) -> Vec<u8> {
    let mut framed = Vec::with_capacity(PREFIX + message.len());
    framed.push(0);
    framed.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    framed.extend_from_slice(message);
    framed
}

/// The error of a message that is too long.
pub(super) fn too_long() -> GrpcError {
    GrpcError::new(
        GrpcStatus::ResourceExhausted,
        "a message of more than 1 MiB; expected at most 1 MiB",
    )
}

/// Maximum length of the body of a unary call, in bytes.
pub(super) const MAX_BODY: usize = PREFIX + MAX_MESSAGE;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn status(bytes: &[u8]) -> GrpcStatus {
        decode_message(bytes).unwrap_err().status
    }

    #[test]
    fn a_unary_call_has_one_plain_message_of_a_bounded_length() {
        assert_eq!(decode_message(b"\0\0\0\0\0"), Ok(&b""[..]));
        assert_eq!(decode_message(b"\0\0\0\0\x02ab"), Ok(&b"ab"[..]));
        assert_eq!(status(b""), GrpcStatus::InvalidArgument);
        assert_eq!(status(b"\0\0\0\0\x02a"), GrpcStatus::InvalidArgument);
        assert_eq!(status(b"\0\0\0\0\0\0\0\0\0\0"), GrpcStatus::InvalidArgument);
        assert_eq!(status(b"\x01\0\0\0\0"), GrpcStatus::Unimplemented);
        assert_eq!(status(b"\x02"), GrpcStatus::Unimplemented);
        assert_eq!(status(b"\0\0\x10\0\x01"), GrpcStatus::ResourceExhausted);
        let longest = frame_message(&vec![7; MAX_MESSAGE]);
        assert_eq!(decode_message(&longest).map(<[u8]>::len), Ok(MAX_MESSAGE));
        assert_eq!(longest.len(), MAX_BODY);
    }

    proptest! {
        #[test]
        fn a_framed_message_is_read_back(message: Vec<u8>, after: Vec<u8>) {
            let framed = frame_message(&message);
            prop_assert_eq!(decode_message(&framed), Ok(&message[..]));
            let longer = [&framed[..], &after].concat();
            let expected = Frame { message: &message, rest: &after };
            prop_assert_eq!(next_frame(&longer), Ok(Some(expected)));
        }

        #[test]
        fn arbitrary_bytes_are_a_message_or_an_error(bytes: Vec<u8>) {
            if let Ok(message) = decode_message(&bytes) {
                prop_assert_eq!(frame_message(message), bytes);
            }
        }
    }
}
