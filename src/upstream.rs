//! The HTTP/1.1 client side: forwards requests to upstream servers.
//!
//! A request is retried only if that is safe. Headers that must not be forwarded are dropped, and a client
//! cannot remove a header that limits count by. Idle connections are pooled per worker and server; a
//! failing server is ejected: other servers are preferred to it for a time.
//!
//! | file | content |
//! |---|---|
//! | `forward` | [`LoadBalancer`]: round robin, retries and the retry budget |
//! | `pool` | [`Pool`]: idle connections, and ejection of a failing server |
//! | `connection` | one connection to a server, and one exchange on it |
//! | `request` | [`OutgoingRequest`]: the request's bytes and its streamed body |
//! | `response` | [`ResponseBody`]: the response's streamed body |
//! | `headers` | which header fields are forwarded, dropped or added |

mod connection;
pub mod forward;
pub mod headers;
pub mod pool;
mod request;
pub mod response;

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

pub use forward::{Attempts, ForwardError, LoadBalancer, UpstreamError};
pub use headers::{AddedHeaders, PeerAddress, ProtectedHeaders, write_response_fields};
pub use pool::Pool;
pub use request::OutgoingRequest;
pub use response::ResponseBody;

/// One configured upstream.
#[derive(Debug)]
pub struct Upstream {
    /// The name in metrics and logs.
    pub name: Box<str>,
    /// The index in the snapshot's list.
    pub index: usize,
    /// What produces the response.
    pub kind: UpstreamKind,
}

/// What produces an upstream's responses.
#[derive(Debug)]
pub enum UpstreamKind {
    /// Servers that requests are forwarded to.
    Servers(Servers),
    /// The gateway itself, with a fixed response.
    Fixed(FixedResponse),
}

/// Servers that requests are forwarded to.
#[derive(Debug)]
pub struct Servers {
    /// The servers' addresses; at least one.
    pub addresses: Vec<ServerAddress>,
    /// The timeout of one connect.
    pub connect_timeout: Duration,
    /// The longest time without progress until the response's head.
    pub response_timeout: Duration,
    /// The longest time that an idle connection is kept.
    pub idle_timeout: Duration,
    /// The maximum number of retries of one request. Only idempotent requests without a body are retried.
    pub retries: u32,
}

/// The address of one server.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct ServerAddress {
    /// The name or IP address, without brackets.
    pub host: Box<str>,
    /// The port.
    pub port: u16,
}

impl ServerAddress {
    /// `host:port` as in a `Host` header; an IPv6 address in brackets.
    pub fn authority(&self) -> String {
        let Self { host, port } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

/// A response that the gateway sends without an upstream server.
#[derive(Clone, Debug)]
pub struct FixedResponse {
    /// The status code.
    pub status: StatusCode,
    /// The body.
    pub body: Bytes,
    /// The body's media type.
    pub content_type: HeaderValue,
}
