//! The gateway from outside: real sockets, real upstreams, a real Redis.
#![allow(missing_docs, reason = "a test says in its name what it shows")]
#![allow(clippy::disallowed_types, reason = "std's mutex serves a test's threads")]

#[path = "../support/client.rs"]
mod client;
#[path = "../support/gateway.rs"]
mod gateway;
#[path = "../support/redis.rs"]
mod redis;
#[path = "../support/upstream.rs"]
mod upstream;

// What goes through, and comes back, unchanged or changed by rule.
mod forwarding;
// What is refused before it is believed, and that nothing of it reaches an upstream.
mod framing;
// What upstreams may answer, and what becomes of answers that are wrong.
mod answers;
// Answers that come before the request's body was read, and the connection after them.
mod early;
// Which route, which path, which headers.
mod routing;
// Who is counted, and by what.
mod identity;
// How long anything may take.
mod deadlines;
// Connections to upstreams: reused, replaced, never mixed up; and back-pressure.
mod pooling;
// The stop, under load.
mod drain;
// Health, metrics, the access log, request ids.
mod seen;
