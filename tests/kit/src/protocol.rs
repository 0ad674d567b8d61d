//! The protocols of a gateway's clients, and a client for each, so that a test can check all of
//! them.

mod any_client;

use std::{
    fmt::Debug,
    net::SocketAddr,
    path::Path,
    sync::{Arc, LazyLock},
    thread,
};

use rustls::ClientConfig;

pub use self::any_client::AnyClient;

use crate::{
    client::{Client, Response, Stream},
    gateway::Gateway,
    tls::{Authority, Identity, TlsClient, connect, trusting_client},
};

/// A version of HTTP, with or without TLS.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Protocol {
    /// HTTP/1.1 in clear.
    Http1,
    /// HTTP/1.1 over TLS.
    Http1Tls,
    /// HTTP/2 in clear, with prior knowledge.
    Http2,
    /// HTTP/2 over TLS.
    Http2Tls,
}

/// Every protocol.
pub const PROTOCOLS: [Protocol; 4] =
    [Protocol::Http1, Protocol::Http1Tls, Protocol::Http2, Protocol::Http2Tls];

/// HTTP/1.1, in clear and over TLS.
pub const HTTP1: [Protocol; 2] = [Protocol::Http1, Protocol::Http1Tls];

/// HTTP/2, in clear and over TLS.
pub const HTTP2: [Protocol; 2] = [Protocol::Http2, Protocol::Http2Tls];

/// The names that the certificate covers: a request to another host over TLS gets a 421. The tests
/// of routing need the names after the first.
const NAMES: [&str; 12] = [
    "gateway.test",
    "a.test",
    "b.test",
    "other.test",
    "example.com",
    "badexample.com",
    "*.example.com",
    "*.www.example.com",
    "*.b.example.com",
    "shop.test",
    "localhost",
    "127.0.0.1",
];

/// The certificate of every gateway.
static IDENTITY: LazyLock<Identity> = LazyLock::new(|| Authority::new("testkit").issue(&NAMES));

static HTTP1_OVER_TLS: LazyLock<Arc<ClientConfig>> =
    LazyLock::new(|| Arc::new(trusting_client(&["http/1.1"])));

/// The configuration's `listen` for all protocols: in clear, then with TLS. Writes the
/// certificate's files to `directory`.
pub(crate) fn listen(directory: &Path) -> String {
    let entry = IDENTITY.write(directory, "gateway").entry();
    format!(
        "listen: [{{address: \"127.0.0.1:0\", http2: true}}, \
         {{address: \"127.0.0.1:0\", tls: {{certificates: [{{{entry}}}]}}}}]\n"
    )
}

/// Connects with HTTP/1.1 over TLS to a gateway of [`Gateway::for_every_protocol`].
pub fn connect_tls(gateway: &Gateway) -> TlsClient {
    let address = Protocol::Http1Tls.address(gateway);
    connect(address, "gateway.test", &HTTP1_OVER_TLS).expect("a handshake")
}

/// Runs a test body for each protocol. A failure names the protocol.
pub fn on_every_protocol(test: impl Fn(Protocol)) {
    on_protocols(&PROTOCOLS, test);
}

/// Runs a test body for each of these protocols. A failure names the protocol.
pub fn on_protocols(protocols: &[Protocol], test: impl Fn(Protocol)) {
    for &protocol in protocols {
        let _name = NameOnPanic(protocol);
        test(protocol);
    }
}

/// Names the run of a test body if it panics.
pub(crate) struct NameOnPanic<T: Debug>(pub(crate) T);

impl<T: Debug> Drop for NameOnPanic<T> {
    #[expect(clippy::print_stderr, reason = "the test harness shows it with the failure")]
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("this happened over {:?}", self.0);
        }
    }
}

impl Protocol {
    /// True for HTTP/2.
    pub fn is_http2(self) -> bool {
        matches!(self, Self::Http2 | Self::Http2Tls)
    }

    /// True for HTTP over TLS.
    pub fn is_tls(self) -> bool {
        matches!(self, Self::Http1Tls | Self::Http2Tls)
    }

    /// Its version of HTTP, as the access log and the metrics name it.
    pub fn version(self) -> &'static str {
        if self.is_http2() { "HTTP/2" } else { "HTTP/1.1" }
    }

    /// Its scheme.
    pub fn scheme(self) -> &'static str {
        if self.is_tls() { "https" } else { "http" }
    }

    /// The address of its listener at a gateway of [`Gateway::for_every_protocol`].
    pub fn address(self, gateway: &Gateway) -> SocketAddr {
        gateway.server.addresses[usize::from(self.is_tls())]
    }

    /// Connects with HTTP/1, in clear or over TLS.
    pub fn connect_http1(self, gateway: &Gateway) -> Client<Box<dyn Stream>> {
        self.try_connect_http1(gateway).expect("a connection")
    }

    fn try_connect_http1(self, gateway: &Gateway) -> Option<Client<Box<dyn Stream>>> {
        let address = self.address(gateway);
        if self.is_tls() {
            Some(connect(address, "gateway.test", &HTTP1_OVER_TLS).ok()?.boxed())
        } else {
            Some(Client::try_connect(address).ok()?.boxed())
        }
    }

    /// Connects to a gateway of [`Gateway::for_every_protocol`].
    pub fn connect(self, gateway: &Gateway) -> AnyClient {
        AnyClient::connect(self, gateway)
    }

    /// Sends one GET on a connection of its own, see [`AnyClient::get`].
    pub fn get(self, gateway: &Gateway, path: &str, headers: impl AsRef<[u8]>) -> Response {
        self.connect(gateway).get(path, headers)
    }
}
