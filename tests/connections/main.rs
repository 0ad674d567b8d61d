//! From outside. Connections: of clients, over TLS, and to upstreams with their pools, health and
//! bounds.
//!
//! Real sockets, real upstreams, real Redis servers.
#![allow(missing_docs, reason = "a test's name says what it asserts")]
#![allow(clippy::disallowed_types, reason = "std's mutex is enough for threads of a test")]

use std::{path::Path, process::Command};

/// Certificates that are ordered from an authority.
mod acme;
/// The policies that choose a target.
mod balance;
/// Logins that belong to a connection.
mod bound_login;
/// Bounds on requests and connections at a target.
mod bounds;
/// Places at a target that clients hold at their own pace.
mod client_paced;
/// Requests in flight of one client address.
mod client_requests;
/// The life of a client connection and its bounds.
mod connection;
/// Memory of connections under hostile clients.
mod connection_memory;
/// Timeouts.
mod deadlines;
/// File descriptors that one client address takes.
mod descriptors;
/// The drain.
mod drain;
/// The drain while a connection is being opened.
mod handshake_drain;
/// Requests that HTTP/2 cannot carry, or that an HTTP/2 server refuses.
mod http2_resend;
/// HTTP/2 towards upstreams.
mod http2_upstream;
/// Copies of requests for another upstream.
mod mirror;
/// Targets with names: DNS.
mod names;
/// URLs in fields of requests and responses.
mod own_urls;
/// Connections to upstreams: pooling, retries, back-pressure.
mod pooling;
/// Priorities of plans and routes while an upstream is full.
mod priority;
/// Health checks of targets.
mod probes;
/// The PROXY protocol, from load balancers and to upstreams.
mod proxy_protocol;
mod response_memory;
/// TLS towards clients and upstreams.
mod tls;
/// Promises that hold for any behavior of a target.
mod upstream_faults;
/// Ejection of failing targets, and retries on others.
mod upstream_health;
/// Valid and invalid upstream responses.
mod upstream_responses;

/// A command line of the gateway's binary, to be run in `directory`.
pub(crate) fn tidegate_command(directory: &Path, arguments: &[&str]) -> Command {
    testkit::process::gateway_command(env!("CARGO_BIN_EXE_tidegate"), directory, arguments)
}
