//! From outside. HTTP between clients and the gateway: messages, versions, routes, and what is
//! written to clients.
//!
//! Real sockets, real upstreams, real Redis servers.
#![allow(missing_docs, reason = "a test's name says what it asserts")]
#![allow(clippy::disallowed_types, reason = "std's mutex is enough for threads of a test")]

use std::{path::Path, process::Command};

/// Connections that close after a response.
mod announced_close;
/// Errors for clients of model APIs and of MCP.
mod api_errors;
/// Compressed responses.
mod compress;
/// Cross-origin resource sharing.
mod cors;
/// Responses before the end of the request body.
mod early_response;
/// A route's own bodies of errors.
mod error_bodies;
/// The pages that browsers get for errors of the gateway.
mod error_pages;
/// `Expect: 100-continue`.
mod expect_continue;
/// Forwarded requests and responses.
mod forwarding;
/// The same messages in fragments, with the same results.
mod fragmentation;
/// Invalid and ambiguous requests, of which nothing reaches an upstream.
mod framing;
/// gRPC: grpcio's client and server, and the gateway's own responses.
mod grpc;
/// HTTP/2 towards clients behaves like HTTP/1.
mod http2;
/// HTTP/2 under hostile clients.
mod http2_abuse;
/// Reading ahead over HTTP/2, and bounds on heads and requests.
mod http2_bounds;
/// HTTP/2 streams that end early.
mod http2_cancel;
/// HTTP/2 timeouts: connections and streams.
mod http2_deadlines;
/// Draining HTTP/2 connections.
mod http2_drain;
/// Floods of frames without content.
mod http2_flood;
/// HTTP/2 requests that HTTP/1 would read differently.
mod http2_smuggling;
/// HTTP/2 uploads that go on after an error response.
mod http2_unread;
/// Invariants of every response, listener and log.
mod invariants;
/// Random pipelines compared with a model.
mod model;
/// Actions of routes besides forwarding: redirects, header rules, rewrites.
mod route_actions;
/// Other spellings of a path or a header.
mod route_spellings;
/// Hosts, paths, methods and headers.
mod routing;
/// Paths that are forwarded as they were sent, or refused.
mod sent_paths;
/// Many small HTTP/2 DATA frames that are not read.
mod small_frames;
/// Upgrades to other protocols.
mod upgrade;

/// A command line of the gateway's binary, to be run in `directory`.
pub(crate) fn tidegate_command(directory: &Path, arguments: &[&str]) -> Command {
    testkit::process::gateway_command(env!("CARGO_BIN_EXE_tidegate"), directory, arguments)
}
