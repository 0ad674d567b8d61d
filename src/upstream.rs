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
//! | `connection` | one connection of HTTP/1.1 to a server, and one exchange on it |
//! | `http2` | the connections of HTTP/2 to a server, and one exchange on one of them |
//! | `request` | [`OutgoingRequest`]: the request's bytes and its streamed body |
//! | `response` | [`ResponseBody`]: the response's streamed body |
//! | `upgrade`, `tunnel` | a request's upgrade to another protocol; [`UpstreamTunnel`]: the upstream's end of the tunnel |
//! | `headers` | which header fields are forwarded, dropped or added |

mod connection;
pub mod forward;
pub mod headers;
mod http2;
pub mod pool;
mod request;
pub mod response;
pub mod tunnel;
mod upgrade;

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use proxy_header::{ProxiedAddress, ProxyHeader};
use rustls::pki_types::ServerName;

pub use forward::{Attempts, ForwardError, LoadBalancer, UpstreamError};
pub use headers::{AddedHeaders, PeerAddress, ProtectedHeaders, write_response_fields};
pub use http2::RequestLost;
pub use pool::Pool;
pub use request::OutgoingRequest;
pub use response::ResponseBody;
pub use tunnel::{UpstreamContent, UpstreamTunnel};

use crate::tls::ClientTls;

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
    /// The servers; at least one.
    pub targets: Vec<Target>,
    /// The timeout of one connect.
    pub connect_timeout: Duration,
    /// The longest time without progress until the response's head.
    pub response_timeout: Duration,
    /// The longest time that an idle connection is kept.
    pub idle_timeout: Duration,
    /// The maximum number of retries of one request. Only idempotent requests without a body are retried.
    pub retries: u32,
}

/// A server and how it is spoken to. Connections are pooled by it, also across reloads.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Target {
    /// Its address.
    pub address: ServerAddress,
    /// The version of HTTP.
    pub protocol: Protocol,
    /// TLS; `None` in clear.
    pub tls: Option<TargetTls>,
    /// Send the PROXY protocol's header with the client's address. Connections are then not reused.
    pub send_proxy: Option<ProxyVersion>,
}

/// As in the configuration: `http://host:port`, `https://host:port` or `unix:/path`.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.address, &self.tls) {
            (ServerAddress::Unix(_), _) => write!(f, "{}", self.address),
            (address, None) => write!(f, "http://{address}"),
            (address, Some(_)) => write!(f, "https://{address}"),
        }
    }
}

/// The version of HTTP that a server is spoken to.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2; in clear with prior knowledge.
    Http2,
    /// What the server prefers in the TLS handshake; in clear HTTP/1.1.
    Auto,
}

/// A version of the PROXY protocol.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ProxyVersion {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// The addresses that the PROXY protocol tells a server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ProxiedClient {
    /// The client's.
    pub source: SocketAddr,
    /// The one that the client connected to.
    pub destination: SocketAddr,
}

impl ProxiedClient {
    /// The header.
    fn header(self, version: ProxyVersion) -> io::Result<Vec<u8>> {
        let Self { source, mut destination } = self;
        if source.is_ipv4() != destination.is_ipv4() {
            // The header has one family for both.
            let unspecified: IpAddr = match source {
                SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            destination.set_ip(unspecified);
        }
        let addresses = ProxiedAddress::stream(source, destination);
        let mut header = Vec::new();
        let proxy_header = ProxyHeader::with_address(addresses);
        let encoded = match version {
            ProxyVersion::V1 => proxy_header.encode_v1(&mut header),
            ProxyVersion::V2 => proxy_header.encode_v2(&mut header),
        };
        encoded.map_err(|_| io::ErrorKind::InvalidInput)?;
        Ok(header)
    }
}

/// TLS to a server.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct TargetTls {
    /// The rules of the handshake.
    pub rules: ClientTls,
    /// The name that the server's certificate must have.
    pub name: ServerName<'static>,
}

/// The address of one server.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum ServerAddress {
    /// A host and a port.
    Tcp {
        /// The name or IP address, without brackets.
        host: Box<str>,
        /// The port.
        port: u16,
    },
    /// The path of a Unix domain socket.
    Unix(Box<Path>),
}

impl ServerAddress {
    /// `host:port` as in a `Host` header; an IPv6 address in brackets. `localhost` for a Unix socket.
    pub fn authority(&self) -> String {
        match self {
            Self::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            Self::Tcp { host, port } => format!("{host}:{port}"),
            Self::Unix(_) => "localhost".to_owned(),
        }
    }
}

/// `host:port`, or `unix:/path`.
impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { .. } => f.write_str(&self.authority()),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
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
