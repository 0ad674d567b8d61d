//! The HTTP/1.1 and HTTP/2 client: forwards requests to upstream servers.
//!
//! A request is retried only if that is safe. Headers that must not be forwarded are dropped, and a
//! client cannot remove a header by which limits count. Idle connections are pooled per worker and
//! endpoint. Load, health and the retry budget belong to the process: all workers see a failing
//! endpoint.
//!
//! A *target* is what the configuration lists; an *endpoint* is one address of a target.
//!
//! It does not know limits, routes or callers. What it forwards, and to which upstream, is decided
//! above it.
//!
//! | file | content |
//! |---|---|
//! | `forward` | [`LoadBalancer`]: a worker's attempts at the endpoints of an upstream, and their retries |
//! | `registry` | [`UpstreamRegistry`]: the state of all upstreams, shared by the workers and kept over reloads |
//! | `target_health` | the health of an upstream's endpoints: a pure state machine |
//! | `retry_budget`, `adaptive_concurrency` | bounds of retries, and of requests in flight: pure functions |
//! | `endpoint_set`, `endpoint`, `endpoint_address` | [`EndpointSet`]: the current endpoints; [`EndpointState`]: the load and health of one |
//! | `names` | resolves the names of targets, on the control thread |
//! | `probes` | health checks of the targets, on the control thread |
//! | `pending` | requests that wait for an endpoint with room |
//! | `upload`, `read_ahead` | [`BufferedUpload`]: a body that is read before its request takes a place; a response that is read ahead of its client |
//! | `paced_place`, `pace`, `client_holdings` | `PacedPlace`: a place that is held while the gateway waits for the client; the client's rate and share |
//! | `pool` | [`Pool`]: a worker's idle connections to one endpoint |
//! | `requested_name` | `RequestedName`: the TLS name of a server that follows the `Host` of a request |
//! | `connection_budget` | [`ConnectionBudget`]: bounds the connections of the process to all servers |
//! | `exchange` | the common part of HTTP/1 and HTTP/2 exchanges |
//! | `connection` | an HTTP/1.1 connection to a server, and one exchange on it |
//! | `http2` | the HTTP/2 connections to a server, and one exchange on one of them |
//! | `outgoing_head` | [`OutgoingHead`]: a request's head, which each attempt writes as HTTP/1 or HTTP/2 |
//! | `own_urls` | [`OwnUrlField`]: fields that name the server's resources by URLs of this gateway |
//! | `request` | [`OutgoingRequest`]: a request on its way, with its streamed body |
//! | `response`, `compressed` | [`ResponseBody`]: the response's streamed body; compression while it is read |
//! | `upgrade`, `tunnel` | a request's upgrade to another protocol; [`UpstreamTunnel`]: the upstream's end of the tunnel |
//! | `bound_login` | logins that belong to a connection, such as NTLM |
//! | `settings` | [`Servers`]: the rules for choosing, checking and bounding targets |
//! | `warnings` | [`warnings::Warnings`]: which failures of an upstream are logged |
//! | `headers` | the rules for forwarding, dropping and adding header fields |
//!
//! ```
//! use tidegate_base::time::CoarseTime;
//! use tidegate_upstream::retry_budget::RetryBudget;
//!
//! // Retries are a share of the requests: a burst of failures does not multiply the load.
//! let mut budget = RetryBudget::new(CoarseTime::ZERO);
//! let mut retries = 0;
//! while let Some(next) = budget.try_retry(CoarseTime::ZERO) {
//!     (budget, retries) = (next, retries + 1);
//! }
//! assert!(retries < 100);
//! ```

pub mod adaptive_concurrency;
mod bound_login;
mod client_holdings;
mod compressed;
mod connection;
mod connection_budget;
mod endpoint;
mod endpoint_address;
mod endpoint_set;
mod exchange;
pub mod forward;
pub mod headers;
mod http2;
pub mod names;
mod outgoing_head;
mod own_urls;
mod pace;
mod paced_place;
mod pending;
pub mod pool;
pub mod probes;
mod read_ahead;
pub mod registry;
mod request;
mod requested_name;
pub mod response;
pub mod retry_budget;
mod settings;
pub mod target_health;
pub mod tunnel;
mod upgrade;
mod upload;
pub mod warnings;

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    sync::Arc,
};
pub use tidegate_vocabulary::{Protocol, ProxyVersion};

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use proxy_header::{ProxiedAddress, ProxyHeader};
use rustls::pki_types::ServerName;

pub use bound_login::binds_connection;
pub use connection_budget::{ConnectionBudget, is_own_shortage};
pub use endpoint::{EndpointState, FAILURE_KINDS, InFlight, LastChange};
pub use endpoint_address::EndpointAddress;
pub use endpoint_set::{EndpointSet, Member};
pub use forward::{
    AttemptLog, ForwardError, ForwardInput, LoadBalancer, PassedTimeout, PlaceOwner, UpstreamError,
    retry_seconds,
};
pub use headers::{
    ProtectedHeaders, dashed_alias, is_digest, is_forwarded_as_sent, write_response_fields,
};
pub use http2::RequestLost;
pub use outgoing_head::{
    HostRule, OutgoingHead, OwnedHead, PeerAddress, RequestHeaderChanges, ViaField,
};
pub use own_urls::{OwnUrlField, PublicOrigin, UrlPiece};
pub use pool::{Pool, PoolTable};
pub use read_ahead::ReadAheadOutcome;
pub use registry::{UpstreamRegistry, UpstreamRuntime};
pub use request::OutgoingRequest;
pub use response::{BodyObserver, OwnBody, ResponseBody};
pub use settings::{Bounds, CheckSettings, Pacing, RetryConditions, Servers, WeightedTarget};
pub use tunnel::{UpstreamContent, UpstreamTunnel};
pub use upgrade::websocket_accept;
pub use upload::{BufferedUpload, UploadSettings};

use tidegate_tls::ClientTls;

/// One configured upstream.
#[derive(Debug)]
pub struct Upstream {
    /// The name in metrics and logs.
    pub name: Box<str>,
    /// The index in the snapshot's list.
    pub index: usize,
    /// The source of its responses.
    pub kind: UpstreamKind,
}

/// The source of an upstream's responses.
#[derive(Debug)]
pub enum UpstreamKind {
    /// Servers that requests are forwarded to.
    Servers(Arc<Servers>),
    /// The gateway itself, with a fixed response.
    Fixed(FixedResponse),
}

/// A server and its protocol settings: the key of its connection pool, which survives reloads.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Target {
    /// Its address.
    pub address: ServerAddress,
    /// The HTTP version.
    pub protocol: Protocol,
    /// TLS; `None` for plain connections.
    pub tls: Option<TargetTls>,
    /// Where the name of the certificate comes from.
    pub tls_name: TlsNameSource,
    /// The resolved address of the host name; `None` for an IP address, a Unix socket or an
    /// unresolved name.
    pub resolved: Option<SocketAddr>,
    /// Send a PROXY protocol header with the client's address. Connections are then not reused.
    pub send_proxy: Option<ProxyVersion>,
}

impl Target {
    /// The value of `Host` for requests to it, without the default port of its scheme.
    pub fn host(&self) -> String {
        let authority = self.address.authority();
        let default = if self.tls.is_some() { ":443" } else { ":80" };
        authority.strip_suffix(default).map(str::to_owned).unwrap_or(authority)
    }

    /// The scheme of requests to it.
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// True if its address is a name.
    pub fn needs_resolving(&self) -> bool {
        let is_unix = matches!(self.address, ServerAddress::Unix(_));
        !is_unix && self.socket_address().is_none()
    }
}

/// As in the configuration: `http://host:port`, `https://host:port`, `srv://name`, `srvs://name` or
/// `unix:/path`.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.address, &self.tls) {
            (ServerAddress::Unix(_), _) => write!(f, "{}", self.address),
            (ServerAddress::Service(name), None) => write!(f, "srv://{name}"),
            (ServerAddress::Service(name), Some(_)) => write!(f, "srvs://{name}"),
            (address, None) => write!(f, "http://{address}"),
            (address, Some(_)) => write!(f, "https://{address}"),
        }
    }
}

/// The addresses in a PROXY protocol header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ProxiedClient {
    /// The client's address.
    pub source: SocketAddr,
    /// The address that the client connected to.
    pub destination: SocketAddr,
}

impl ProxiedClient {
    /// The header.
    fn header(self, version: ProxyVersion) -> io::Result<Vec<u8>> {
        let Self { source, mut destination } = self;
        if source.is_ipv4() != destination.is_ipv4() {
            // Both addresses must have the same family.
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

/// Where the name that a server's certificate must have comes from.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum TlsNameSource {
    /// The host of the target.
    Target,
    /// The configuration.
    Configured,
    /// The `Host` of each request; for health checks, the host of the target.
    Request,
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
    /// The name of an SRV record.
    Service(Box<str>),
}

impl ServerAddress {
    /// `host:port` as in a `Host` header; an IPv6 address in brackets. `localhost` for a Unix
    /// socket.
    pub fn authority(&self) -> String {
        match self {
            Self::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            Self::Tcp { host, port } => format!("{host}:{port}"),
            Self::Unix(_) => "localhost".to_owned(),
            Self::Service(name) => name.to_string(),
        }
    }
}

/// `host:port`, the name of an SRV record, or `unix:/path`.
impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { .. } | Self::Service(_) => f.write_str(&self.authority()),
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
