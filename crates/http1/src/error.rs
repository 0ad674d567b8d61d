//! Framing errors, and the status code of each.

use http::StatusCode;

use super::message_kind::MessageKind;

/// Why a message is rejected.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum FramingError {
    /// A line ends in LF without CR.
    #[error("a line ends in a bare LF; expected CR LF")]
    BareLf,
    /// A CR, NUL or other control character inside a line.
    #[error("the message contains a control character")]
    Control,
    /// The request line is not `METHOD SP TARGET SP HTTP/1.1`.
    #[error("the request line is malformed; expected METHOD SP TARGET SP HTTP/1.1")]
    RequestLine,
    /// The method is no token, or has letters in lower case.
    #[error("the method is malformed; expected a word in upper case, such as GET")]
    Method,
    /// The request target has a byte that must be percent-encoded, or is in no form of RFC 9112,
    /// 3.2.
    #[error(
        "the request target is malformed; expected a path such as /items/7?x=1, with characters such as \
         `#` percent-encoded"
    )]
    Target,
    /// The status line is not `HTTP/1.1` or `HTTP/1.0`, a space and a status code from 100 to 599.
    /// Over HTTP/2: the status code is out of that range.
    #[error("the status line is malformed")]
    StatusLine,
    /// A major version other than HTTP/1.
    #[error("the HTTP version is not supported; expected HTTP/1.1 or HTTP/1.0")]
    Version,
    /// A header value that continues on the next line (obs-fold): RFC 9112, 5.2.
    #[error("a header value is folded over two lines; expected one line")]
    Folded,
    /// A header line without a colon, or whose name is not a token.
    #[error("a header name is malformed; expected a token and a colon")]
    HeaderName,
    /// `Content-Length` is not a plain decimal number.
    #[error("Content-Length is malformed; expected one decimal number")]
    LengthMalformed,
    /// `Content-Length` is sent more than once.
    #[error("Content-Length is sent more than once")]
    LengthRepeated,
    /// `Content-Length` and `Transfer-Encoding` in one message.
    #[error("Content-Length and Transfer-Encoding are sent together")]
    LengthAndCoding,
    /// A transfer coding other than exactly `chunked`, or one with HTTP/1.0.
    #[error("the transfer coding is not supported; expected exactly `chunked`, with HTTP/1.1")]
    Coding,
    /// No `Host`, or an empty one.
    #[error("Host is missing or empty")]
    HostMissing,
    /// `Host` is sent more than once, or contradicts `:authority`.
    #[error("Host is sent more than once, or contradicts :authority")]
    HostRepeated,
    /// `Host` is not a host name or address, with an optional port.
    #[error(
        "Host is malformed; expected a host name or IP address of at most 255 bytes, with an optional port"
    )]
    HostMalformed,
    /// `Connection` has too many options. Their number is bounded because each is compared with
    /// each field.
    #[error("Connection has too many options; expected at most 64")]
    ConnectionOptions,
    /// A connection-specific field in an HTTP/2 message: RFC 9113, 8.2.2.
    #[error("a header is specific to HTTP/1 connections, and not allowed in HTTP/2")]
    ConnectionField,
    /// The first line alone exceeds the bound of the head, in bytes.
    #[error("the request line is longer than {0} bytes")]
    TargetTooLong(usize),
    /// The head exceeds its bound, in bytes.
    #[error("the head is larger than {0} bytes")]
    HeadTooLarge(usize),
    /// The head has more fields than this bound.
    #[error("the head has more than {0} header fields")]
    TooManyFields(usize),
    /// A header name is longer than 65,535 bytes.
    #[error("a header name is longer than 65535 bytes")]
    HeaderNameTooLong,
    /// The head did not arrive in time. Made by callers: this crate reads no clock.
    #[error("the request's head did not arrive in time")]
    HeadTimeout,
    /// A chunk's size is malformed or overflows.
    #[error("a chunk's size is malformed")]
    ChunkSize,
    /// No CR LF follows a chunk's data.
    #[error("a chunk's data is not followed by CR LF")]
    ChunkEnd,
    /// A chunk's extensions are malformed or longer than 1 KiB.
    #[error("a chunk's extensions are malformed or longer than 1 KiB")]
    ChunkExtension,
    /// All trailers of such a message together are too long.
    #[error("the trailers are longer than {} KiB", .0.max_trailers() / 1024)]
    TrailersTooLong(MessageKind),
    /// The connection ended before the message did.
    #[error("the connection ended before the message did")]
    Incomplete,
    /// The server sent too many 1xx responses. Made by callers, who count them.
    #[error("too many interim responses")]
    TooManyInterim,
    /// The server answered 101 to a request that did not ask for it.
    #[error("unexpected 101 Switching Protocols: the request did not ask for this upgrade")]
    UnexpectedUpgrade,
}

impl FramingError {
    /// The status code of the response to the client.
    pub fn status(self) -> StatusCode {
        match self {
            Self::HeadTooLarge(_) | Self::TooManyFields(_) | Self::HeaderNameTooLong => {
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
            }
            Self::TargetTooLong(_) => StatusCode::URI_TOO_LONG,
            Self::HeadTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::Version => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}

impl From<FramingError> for std::io::Error {
    fn from(error: FramingError) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, error)
    }
}
