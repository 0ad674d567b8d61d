//! `listen` and `http`: the client listeners and the bounds of a client connection.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::acme::AcmeConfig;
use super::listen_address::ListenAddress;
use super::redirect::RedirectHttps;
use super::units::{Cidr, Maximum, Size, TimeoutConfig};

/// A listener for client connections.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Listener {
    /// IP address and port to listen on. `localhost:8080` is 127.0.0.1:8080, and `:8080` is port
    /// 8080 on all IPv4 and IPv6 addresses. Port 0 picks a free port; the startup log names it.
    pub address: ListenAddress,
    /// TLS on this listener. Default: none; connections are unencrypted.
    pub tls: Option<ListenerTls>,
    /// Accept HTTP/2. With TLS, the handshake negotiates it (ALPN); without TLS, clients start with
    /// HTTP/2 at once (prior knowledge). Default: `true` with TLS, `false` without.
    pub http2: Option<bool>,
    /// Peers that send a PROXY protocol header, version 1 or 2, at the start of each connection.
    /// Default: none.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Answer every request with a redirect to `https://`: with `true`, to the port of the first
    /// listener with `tls`; with a number, to that port, for example `443` if clients reach the
    /// gateway through a port mapping.
    #[serde(default)]
    pub redirect_https: RedirectHttps,
}

/// TLS of a listener for clients: `certificates` or `acme`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListenerTls {
    /// The certificates. A client gets the certificate whose subject alternative names match the
    /// name that it asks for (SNI). If none matches, or it asks for no name, it gets the first. The
    /// files are read again at each reload. Default: none, with `acme`.
    #[serde(default)]
    pub certificates: Vec<CertificateFiles>,
    /// A certificate that the gateway orders and renews itself, instead of `certificates`. Default:
    /// none.
    pub acme: Option<AcmeConfig>,
    /// Answer a request with 421 if the connection's certificate is not valid for its host. A host
    /// whose certificate has `client_ca` gets a 421 on connections for other certificates in any
    /// case. Default: `true` if a certificate of the listener has `client_ca`, or else `false`.
    pub strict_host: Option<bool>,
}

/// TLS of another listener.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The certificates. A client gets the certificate whose subject alternative names match the
    /// name that it asks for (SNI). If none matches, or it asks for no name, it gets the first. The
    /// files are read again at each reload.
    pub certificates: Vec<CertificateFiles>,
}

/// The files of a certificate.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CertificateFiles {
    /// Path of the certificate chain, in PEM, with the server's certificate first.
    pub cert: PathBuf,
    /// Path of the private key, in PEM, without a passphrase.
    pub key: PathBuf,
    /// Path of a PEM file with the CAs that must have issued the client's certificate (mTLS).
    /// Default: clients need no certificate.
    pub client_ca: Option<PathBuf>,
}

/// The peers that send a PROXY protocol header.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ProxyProtocol {
    /// Networks of the load balancers. Each of their connections must begin with a header, whose
    /// address is the client's. A header from any other peer is answered with 400.
    pub from: Vec<Cidr>,
}

impl Listener {
    /// The listeners of a configuration without `listen`.
    pub(super) fn default_listeners() -> Vec<Self> {
        let address = ListenAddress(([127, 0, 0, 1], 8080).into());
        let (tls, http2, proxy_protocol) = (None, None, None);
        let redirect_https = RedirectHttps::Off;
        vec![Self { address, tls, http2, proxy_protocol, redirect_https }]
    }
}

/// Bounds of client connections and of the requests on them.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// Maximum time to receive a request's head, counted from the accept or, on a kept-alive
    /// connection, from the request's first byte. Beyond it, 408; if nothing was received, the
    /// connection is closed.
    pub head_timeout: TimeoutConfig,
    /// Maximum time that a connection stays open between two requests.
    pub idle_timeout: TimeoutConfig,
    /// Maximum time without progress while a request's body is received or a response is sent.
    /// Beyond it, the request is answered with 408, or the response is cut off.
    pub body_timeout: TimeoutConfig,
    /// Maximum size of a request line and its headers together, 8KiB to 1MiB; beyond it, 431.
    #[cfg_attr(test, schemars(extend("x-minimum" = "8KiB", "x-maximum" = "1MiB")))]
    pub max_head: Size,
    /// Maximum number of header fields in a request, 1 to 1024; beyond it, 431.
    #[cfg_attr(test, schemars(range(min = 1, max = 1024)))]
    pub max_headers: u32,
    /// Maximum number of client connections open at once, over all workers. Further ones wait to be
    /// accepted; meanwhile connections that wait for their next request are closed after 5 s.
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub max_connections: u32,
    /// Maximum number of connections open at once from one client address (IPv6: from one network
    /// of `client.ipv6_prefix` bits). Further ones are closed at once. Trusted proxies are exempt.
    pub max_connections_per_client: Maximum,
    /// Maximum number of requests in flight at once from one client address, over all its
    /// connections and HTTP/2 streams. Further ones are answered with 503 `overloaded`. Requests
    /// from trusted proxies count for the address that the proxy reports; the proxies themselves
    /// are exempt. The open-file limit may set a lower maximum.
    pub max_requests_per_client: Maximum,
    /// Maximum number of requests on one connection; it is closed after the last.
    pub max_requests_per_connection: Maximum,
    /// Treat `//` in a path as `/`, for routing and for keys.
    pub merge_slashes: bool,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            head_timeout: TimeoutConfig::from_secs(10),
            idle_timeout: TimeoutConfig::from_secs(75),
            body_timeout: TimeoutConfig::from_secs(30),
            max_head: Size(32 << 10),
            max_headers: 100,
            max_connections: 10_000,
            max_connections_per_client: Maximum(Some(256)),
            max_requests_per_client: Maximum(Some(1024)),
            max_requests_per_connection: Maximum(None),
            merge_slashes: true,
        }
    }
}
