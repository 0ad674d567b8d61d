//! What can be wrong with a message's framing.

use http::StatusCode;

/// Why a message is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Fault {
    /// A line ends in LF without CR.
    #[error("a line of the head ends in a bare LF; expected CR LF")]
    BareLf,
    /// A CR, NUL or other control character inside a line.
    #[error("the head contains a control character")]
    Control,
    /// The request line is not `METHOD SP TARGET SP HTTP/1.1`.
    #[error("the request line is malformed; expected METHOD SP TARGET SP HTTP/1.1")]
    RequestLine,
    /// The status line is not `HTTP/1.1 SP 200`.
    #[error("the status line is malformed")]
    StatusLine,
    /// Neither HTTP/1.0 nor HTTP/1.1.
    #[error("the HTTP version is not supported; expected HTTP/1.1 or HTTP/1.0")]
    Version,
    /// A header line that goes on on the next one.
    #[error("a header line is folded")]
    Folded,
    /// A header without a colon, or whose name is empty or has characters that no name has.
    #[error("a header's name is malformed")]
    HeaderName,
    /// `Content-Length` is no plain decimal number.
    #[error("Content-Length is malformed; expected one decimal number")]
    LengthMalformed,
    /// `Content-Length` more than once.
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
    /// `Host` more than once.
    #[error("Host is sent more than once")]
    HostRepeated,
    /// `Host` with characters that no host has.
    #[error("Host is malformed")]
    HostMalformed,
    /// `Connection` names more than any honest message does: each name is held against each field.
    #[error("Connection has too many options; expected at most 64")]
    ConnectionOptions,
    /// The request line alone is longer than a head may be.
    #[error("the request target is too long")]
    TargetTooLong,
    /// The head has more bytes or headers than configured.
    #[error("the head is too large")]
    HeadTooLarge,
    /// The head did not come in time.
    #[error("the request's head did not arrive in time")]
    HeadTimeout,
    /// A chunk's size is malformed or overflows.
    #[error("a chunk's size is malformed")]
    ChunkSize,
    /// A chunk is not followed by CR LF.
    #[error("a chunk does not end where its size says")]
    ChunkEnd,
    /// A chunk's extensions or the trailers are malformed or too long.
    #[error("the chunk extensions or trailers are malformed or too long")]
    Trailer,
    /// The connection ended before the message did.
    #[error("the connection ended before the message did")]
    Incomplete,
    /// More interim answers than any honest upstream sends.
    #[error("too many interim answers")]
    Interim,
    /// An upstream switched protocols without being asked to.
    #[error("a protocol switch that nobody asked for")]
    UnaskedSwitch,
}

impl Fault {
    /// The status that tells a client of it.
    pub fn status(self) -> StatusCode {
        match self {
            Self::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::TargetTooLong => StatusCode::URI_TOO_LONG,
            Self::HeadTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::Version => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            _ => StatusCode::BAD_REQUEST,
        }
    }
}

impl From<Fault> for std::io::Error {
    fn from(fault: Fault) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, fault)
    }
}
