//! The scenarios: what the contestants do in a measurement.

use std::fmt;

/// What the contestants do in a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scenario {
    pub(crate) limit: Limit,
    /// Whether there is an access log.
    pub(crate) log: bool,
    /// Number of workers; more than one only for Tidegate.
    pub(crate) workers: u16,
    /// Whether the contestant may use both CPUs, one of them shared with the load generator.
    pub(crate) both_cpus: bool,
    /// Number of routes; more than one only for Tidegate.
    pub(crate) routes: u16,
    pub(crate) protocol: ClientProtocol,
    pub(crate) work: Work,
}

/// The path of the response of 16 KiB.
pub(crate) const PAGE_PATH: &str = "/items/page";

/// What is measured once, of many times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// A GET with a response of 100 bytes.
    Get,
    /// A GET with a response of 100 bytes, on a route that changes header fields: it sets two with
    /// variables and removes one of the request, and sets two and removes one of the response.
    HeaderRules,
    /// A GET with a response of 16 KiB of JSON, which is sent as it is.
    Page,
    /// The same, compressed as gzip at level 5.
    Gzip,
    /// The same, compressed as zstd at level 3.
    Zstd,
    /// A GET with a response of 1 MiB.
    Download,
    /// A POST of 1 MiB with a response of 100 bytes.
    Upload,
    /// A GET with a response of 100 bytes, from an upstream of HTTP/2 in clear.
    Http2Upstream,
    /// A unary call of gRPC, 100 bytes each way, to an upstream of HTTP/2 in clear.
    Grpc,
    /// A message of this many bytes and its echo through a tunnel.
    Message(usize),
    /// A connection without a request; a full handshake.
    FullHandshake,
    /// A connection without a request; its session is resumed by a ticket.
    ResumedHandshake,
}

impl Work {
    /// Whether the upstream gets HTTP/2; otherwise HTTP/1.1. In clear.
    pub(crate) fn needs_http2_upstream(self) -> bool {
        matches!(self, Self::Http2Upstream | Self::Grpc)
    }

    /// The path of the request. That of gRPC is a service and its method.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Grpc => "/items.Items/Get",
            Self::Page | Self::Gzip | Self::Zstd => PAGE_PATH,
            _ => "/items/4711",
        }
    }

    /// The content coding that the client accepts and expects.
    pub(crate) fn encoding(self) -> Option<&'static str> {
        match self {
            Self::Gzip => Some("gzip"),
            Self::Zstd => Some("zstd"),
            _ => None,
        }
    }

    /// Bytes of the body, in one direction or, of a message, in both.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Download | Self::Upload => 1 << 20,
            Self::Message(bytes) => 2 * bytes,
            _ => 0,
        }
    }
}

/// What clients speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientProtocol {
    /// HTTP/1.1 in clear.
    Http1,
    /// HTTP/1.1 over TLS.
    Http1Tls,
    /// HTTP/2 in clear, with prior knowledge.
    Http2,
    /// HTTP/2 over TLS.
    Http2Tls,
}

impl ClientProtocol {
    pub(crate) fn is_tls(self) -> bool {
        matches!(self, Self::Http1Tls | Self::Http2Tls)
    }

    pub(crate) fn is_http2(self) -> bool {
        matches!(self, Self::Http2 | Self::Http2Tls)
    }
}

/// A limit by client address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// No limit.
    Off,
    /// A limit that never refuses.
    On,
    /// A limit that refuses with a 429.
    Refusing,
}

impl Scenario {
    /// Limit, metrics and access log, as Tidegate is configured by default.
    pub(crate) const DEFAULT: Self = Self {
        limit: Limit::On,
        log: true,
        workers: 1,
        both_cpus: false,
        routes: 1,
        protocol: ClientProtocol::Http1,
        work: Work::Get,
    };
    pub(crate) const UNLOGGED: Self = Self { log: false, ..Self::DEFAULT };
    pub(crate) const UNLIMITED: Self = Self { limit: Limit::Off, ..Self::DEFAULT };
    pub(crate) const UNLIMITED_UNLOGGED: Self = Self { limit: Limit::Off, ..Self::UNLOGGED };
    pub(crate) const REFUSED: Self = Self { limit: Limit::Refusing, ..Self::DEFAULT };
    pub(crate) const REFUSED_UNLOGGED: Self = Self { log: false, ..Self::REFUSED };
    /// The scenarios of every contestant, in the order of the table.
    pub(crate) const ALL: [Self; 6] = [
        Self::DEFAULT,
        Self::UNLOGGED,
        Self::UNLIMITED,
        Self::UNLIMITED_UNLOGGED,
        Self::REFUSED,
        Self::REFUSED_UNLOGGED,
    ];

    /// The default with this number of workers on both CPUs.
    pub(crate) const fn on_workers(workers: u16) -> Self {
        Self { workers, both_cpus: true, ..Self::DEFAULT }
    }

    /// Limit, no log, and this number of routes.
    pub(crate) const fn with_routes(routes: u16) -> Self {
        Self { routes, ..Self::UNLOGGED }
    }

    /// The default over another protocol.
    pub(crate) const fn over(protocol: ClientProtocol) -> Self {
        Self { protocol, ..Self::DEFAULT }
    }

    /// The default with other work over another protocol.
    pub(crate) const fn working(work: Work, protocol: ClientProtocol) -> Self {
        Self { protocol, work, ..Self::DEFAULT }
    }

    /// [`Self::working`] without a log.
    pub(crate) const fn working_unlogged(work: Work, protocol: ClientProtocol) -> Self {
        Self { protocol, work, ..Self::UNLOGGED }
    }

    /// The status of all responses, except a few with [`Limit::Refusing`].
    pub(crate) fn status(self) -> u16 {
        if self.limit == Limit::Refusing { 429 } else { 200 }
    }
}

impl fmt::Display for ClientProtocol {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Http1 => "HTTP/1.1 in clear",
            Self::Http1Tls => "HTTP/1.1 over TLS",
            Self::Http2 => "HTTP/2 in clear",
            Self::Http2Tls => "HTTP/2 over TLS",
        })
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.work {
            Work::FullHandshake => return to.write_str("full handshake"),
            Work::ResumedHandshake => return to.write_str("resumed handshake"),
            _ => {}
        }
        to.write_str(match (self.limit, self.log) {
            (Limit::Off, false) => "proxied, neither limit nor log",
            (Limit::Off, true) => "proxied, log",
            (Limit::On, false) => "proxied, limit",
            (Limit::On, true) => "proxied, limit and log",
            (Limit::Refusing, false) => "429, no log",
            (Limit::Refusing, true) => "429, log",
        })?;
        if self.both_cpus {
            write!(to, ", {} workers on both CPUs", self.workers)?;
        }
        if self.routes != 1 {
            write!(to, ", {} routes", self.routes)?;
        }
        if self.protocol != ClientProtocol::Http1 {
            write!(to, ", {}", self.protocol)?;
        }
        match self.work {
            Work::Get | Work::FullHandshake | Work::ResumedHandshake => Ok(()),
            Work::HeaderRules => to.write_str(", six header rules"),
            Work::Page => to.write_str(", 16 KiB of JSON"),
            Work::Gzip => to.write_str(", 16 KiB of JSON as gzip, level 5"),
            Work::Zstd => to.write_str(", 16 KiB of JSON as zstd, level 3"),
            Work::Download => to.write_str(", 1 MiB down"),
            Work::Upload => to.write_str(", 1 MiB up"),
            Work::Http2Upstream => to.write_str(", upstream of HTTP/2"),
            Work::Grpc => to.write_str(", a unary call of gRPC"),
            Work::Message(bytes) if bytes >= 1024 => {
                write!(to, ", tunnel, a message of {} KiB and its echo", bytes / 1024)
            }
            Work::Message(bytes) => {
                write!(to, ", tunnel, a message of {bytes} bytes and its echo")
            }
        }
    }
}
