//! The gateway from outside: real sockets, real upstreams, real Redis servers.
#![allow(missing_docs, reason = "a test's name says what it asserts")]
#![allow(clippy::disallowed_types, reason = "std's mutex is enough for threads of a test")]

use std::{path::Path, process::Command};

// HTTP itself: `scripts/test --fast` runs these with `--skip` of the rest.

/// `allow` and `deny` of routes.
mod access;
/// Certificates that are ordered from an authority.
mod acme;
/// The gateway, `explain` and `replay` decide alike.
mod agreement;
/// API keys, certificates, consumers and plans.
mod auth;
/// Blocks of callers, and limits that charge only some responses.
mod blocks;
/// Costs that are known when a response ends.
mod budgets;
/// Places at a target that clients hold at their own pace.
mod client_paced;
/// Compressed responses.
mod client_requests;
mod compress;
/// Cross-origin resource sharing.
mod cors;
/// Responses before the end of the request body.
mod early_response;
/// A route's own bodies of errors.
mod error_bodies;
/// The pages that browsers get for errors of the gateway.
mod error_pages;
/// Forwarded requests and responses.
mod forwarding;
/// The same messages in fragments, with the same results.
mod fragmentation;
/// Invalid and ambiguous requests, of which nothing reaches an upstream.
mod framing;
/// HTTP/2 towards clients behaves like HTTP/1.
mod http2;
/// Requests that HTTP/2 cannot carry, or that an HTTP/2 server refuses.
mod http2_resend;
/// HTTP/2 requests that HTTP/1 would read differently.
mod http2_smuggling;
/// HTTP/2 towards upstreams.
mod http2_upstream;
/// The keys of callers.
mod identity;
/// Invariants of every response, listener and log.
mod invariants;
/// Equivalent spellings of a caller's key.
mod key_normalization;
/// Copies of requests for another upstream.
mod mirror;
/// Random pipelines compared with a model.
mod model;
/// Secrets of operators, which no output shows.
mod operator_secrets;
/// Connections to upstreams: pooling, retries, back-pressure.
mod pooling;
/// The promises of the rate-limit headers.
mod rate_limit_headers;
/// Envoy's rate limit service.
mod rate_limit_service;
/// Actions of routes besides forwarding: redirects, header rules, rewrites.
mod route_actions;
/// Other spellings of a path or a header.
mod route_spellings;
/// Hosts, paths, methods and headers.
mod routing;
/// Many small HTTP/2 DATA frames that are not read.
mod small_frames;
/// Upgrades to other protocols.
mod upgrade;
/// Promises that hold for any behavior of a target.
mod upstream_faults;
/// Valid and invalid upstream responses.
mod upstream_responses;

// Connections and processes.

/// The admin listener: hosts, origins, bounds.
mod admin_api;
mod admin_port;
mod admin_transport;
/// The policies that choose a target.
mod balance;
/// The binary: default configuration, exit codes, signals.
mod binary;
/// Bounds on requests and connections at a target.
mod bounds;
/// Windows of a calendar.
mod calendar;
/// Memory of idle callers.
mod caller_memory;
/// The life of a client connection and its bounds.
mod connection;
/// Memory of connections under hostile clients.
mod connection_memory;
/// Timeouts.
mod deadlines;
/// The drain.
mod descriptors;
mod drain;
/// gRPC: grpcio's client and server, and the gateway's own responses.
mod grpc;
/// Upgrades of the program, and socket activation.
mod handover;
/// The drain while a connection is being opened.
mod handshake_drain;
/// `tidegate health`.
mod health;
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
/// Targets with names: DNS.
mod names;
/// Quotas that operators set at run time.
mod overrides;
/// Health checks of targets.
mod probes;
/// The PROXY protocol, from load balancers and to upstreams.
mod proxy_protocol;
/// Reloads under load, and their triggers.
mod reload;
/// Configurations that are not regular files.
mod reload_files;
/// TLS towards clients and upstreams.
mod tls;
/// Ejection of failing targets, and retries on others.
mod upstream_health;

// Limits.

/// Concurrency limits.
mod concurrency;
/// Decisions for other proxies.
mod decide;
/// Leaky buckets that delay requests.
mod delay;
/// Concurrent requests admit exactly the quota.
mod exactness;
/// Costs, refunds, tiers and shadow limits.
mod policies;
/// Priorities of plans and routes while an upstream is full.
mod priority;
/// One window advertises one reset.
mod reset_stability;
mod response_memory;
/// The status route, and the admin API of limits.
mod status;
/// Active-user admission control.
mod throttle;

// Redis.

/// Disconnecting clients and Redis faults for an hour of virtual time.
mod chaos;
/// The binary with a Redis that hangs or refuses.
mod redis_errors;
/// Outages of Redis and recovery.
mod redis_outage;
/// Leases and the deny cache.
mod unit_lease;

// Observability and commands.

/// `tidegate explain`.
mod explain;
/// The formats of both logs, in files and on terminals, and decisions at `debug`.
mod log_formats;
/// Log destinations: unread pipes, rotated files, full disks.
mod log_sinks;
/// Health, metrics, the access log, request ids.
mod observability;
mod openapi;
/// `tidegate replay` on the gateway's own log.
mod replay;
/// `tidegate replay` on foreign, compressed, damaged and hostile logs.
mod replay_input;
/// `tidegate replay` for every kind of rule.
mod replay_rules;
/// Replay of a rush, with a waiting room.
mod replay_waiting;
/// `tidegate proxy` and `init`, and environment variables in a configuration.
mod start;
/// Spans for a trace collector.
mod traces;

/// Features that a route does not use cost it nothing.
mod unused_steps;

/// A command line of the gateway's binary, to be run in `directory`.
pub(crate) fn tidegate_command(directory: &Path, arguments: &[&str]) -> Command {
    testkit::process::gateway_command(env!("CARGO_BIN_EXE_tidegate"), directory, arguments)
}
