//! The servers behind the gateway: connections, forwarding, header rules.

pub mod answer;

pub mod forward;
pub mod headers;
mod link;
pub mod pool;
mod request;

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

pub use answer::{AnswerStream, write_fields};

pub use forward::{Attempts, Balance, ForwardError, UpstreamError};
pub use headers::{Forwarding, Hop, Protected};
pub use pool::Pool;
pub use request::Outgoing;

/// One configured upstream.
#[derive(Debug)]
pub struct Upstream {
    /// Its name; shown in metrics and logs.
    pub name: Box<str>,
    /// Its place in the snapshot's list.
    pub index: usize,
    /// What answers.
    pub kind: Kind,
}

/// What answers for an upstream.
#[derive(Debug)]
pub enum Kind {
    /// Servers that requests are forwarded to.
    Servers(Servers),
    /// The gateway itself, always the same.
    Respond(Respond),
}

/// Servers that requests are forwarded to.
#[derive(Debug)]
pub struct Servers {
    /// Where they listen; at least one.
    pub targets: Vec<Target>,
    /// For one connection to be made.
    pub connect_timeout: Duration,
    /// From the request's last byte to the answer's head.
    pub response_timeout: Duration,
    /// How long an unused connection is kept.
    pub idle_timeout: Duration,
    /// How often a request is sent again; only idempotent ones without a body.
    pub retries: u32,
}

/// One server.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Target {
    /// Its name or address, without brackets.
    pub host: Box<str>,
    /// Its port.
    pub port: u16,
}

impl Target {
    /// `host:port` as a `Host` header names it.
    pub fn authority(&self) -> String {
        let Self { host, port } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

/// An answer that the gateway gives by itself.
#[derive(Clone, Debug)]
pub struct Respond {
    /// The status.
    pub status: StatusCode,
    /// The whole body.
    pub body: Bytes,
    /// The body's media type.
    pub content_type: HeaderValue,
}
