//! [`MessageKind`]: requests and responses have different bounds.

/// Whose body is read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MessageKind {
    /// A request's, of any client.
    Request,
    /// A response's, of a server.
    Response,
}

impl MessageKind {
    /// The maximum length of all trailers together, in bytes. A response's may be as long as its
    /// head: gRPC sends the details of an error in them.
    pub const fn max_trailers(self) -> usize {
        match self {
            Self::Request => 8 * 1024,
            Self::Response => 64 * 1024,
        }
    }
}
