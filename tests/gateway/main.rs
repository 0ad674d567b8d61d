//! The gateway from outside: real sockets, real upstreams, a real Redis.
#![allow(missing_docs, reason = "a test says in its name what it shows")]
#![allow(clippy::disallowed_types, reason = "std's mutex serves a test's threads")]

#[path = "../support/client.rs"]
mod client;
#[path = "../support/gateway.rs"]
mod gateway;
#[path = "../support/process.rs"]
mod process;
#[path = "../support/redis.rs"]
mod redis_server;
#[path = "../support/redis_topology.rs"]
mod redis_topology;
#[path = "../support/stage.rs"]
mod stage;
#[path = "../support/upstream.rs"]
mod upstream;
#[path = "../support/wait.rs"]
mod wait;

// What goes through, and comes back, unchanged or changed by rule.
mod forwarding;
// What is refused before it is believed, and that nothing of it reaches an upstream.
mod framing;
// The same messages in pieces: every cut gives the same answer.
mod framing_cuts;
// Random requests, cuts and answers against a written model.
mod model;
// What upstreams may answer, and what becomes of answers that are wrong.
mod answers;
// Answers that come before the request's body was read, and the connection after them.
mod early;
// Which route, which path, which headers.
mod routing;
// What holds for every answer, listener and log.
mod everywhere;
// Who is counted, and by what.
mod identity;
// One caller, however it is spelt.
mod spellings;
// The operator's port: who may ask, how long, and how many at once.
mod admin_port;
// The life of a connection, bound by bound.
mod connection;
// How long anything may take.
mod deadlines;
// Connections to upstreams: reused, replaced, never mixed up; and back-pressure.
mod pooling;
// The stop, under load.
mod drain;
// Health, metrics, the access log, request ids.
mod seen;
// The binary itself: its default configuration, exit codes, signals.
mod binary;
// As many as the quota pass, however many come at once.
mod exactness;
// Clients leave, Redis comes and goes, and nothing stays held.
mod chaos;
// Memory is given back when callers go silent.
mod memory;
// No connection makes the process grow, whatever its client sends or leaves unread.
mod connection_memory;
// What a client reads is true: the contract's promises.
mod promises;
// Redis left alone: refusals that are known, tokens taken ahead.
mod ahead;
// Redis lost, and found again.
mod redis_lost;
// The binary beside a Redis that hangs, or refuses.
mod redis_faults;
// New rules under load, and the ways to bring them.
mod reload;
// One reset value, whoever answers and whenever.
mod wobble;
// Costs, refunds, tiers, and limits that only watch.
mod policies;
// Requests in flight hold slots.
mod concurrency;
// Leaky buckets hold back what comes too fast.
mod shaping;
// Those already in stay in.
mod throttle;
// What would become of a request, told without sending it.
mod explain;
// A recorded log decided again.
mod replay;
mod replay_rules;
// Logs as they are found: foreign, compressed, damaged, hostile.
mod logs;
// Where logs go: pipes that are not read, files that are rotated, disks that are full.
mod log_sinks;
// Callers ask how they stand, and the operator asks and resets.
mod status;
