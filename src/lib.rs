//! Tidegate: an HTTP reverse proxy and API gateway with throttling built in.
//!
//! The map, top down; `ARCHITECTURE.md` tells who may import whom and why.

/// The operator's door: health, metrics and the control API.
pub mod admin;
/// One file a command: what a person types and what the process answers.
pub mod cli;
/// The only place that reads a clock.
pub mod clock;
/// What a user writes: the configuration's types, its reading and its faults.
pub mod config;
/// A number that one thread writes and any thread reads.
pub mod counter;
/// Every way a request ends early.
pub mod error;
/// Strict HTTP/1 framing: what is refused before it is believed.
pub mod framing;
/// The request's path, read top to bottom.
pub mod gateway;
/// Who is asking: client address, token, and the keys that limits count by.
pub mod identity;
/// The limit algorithms: pure functions of state, time and cost.
pub mod limit;
/// Counters of what happened, one shard a worker.
pub mod metrics;
/// Replaces the running rules with new ones, whole or not at all.
pub mod reload;
/// From outcomes to responses: rate-limit headers and problem documents.
pub mod respond;
/// Which rule a request falls under: hosts, paths and methods.
pub mod route;
/// The whole gateway in one process: workers, control thread, admin.
pub mod server;
/// A configuration compiled into the immutable rules that requests run on.
pub mod snapshot;
/// Where limits keep their counters: this process, or Redis.
pub mod store;
/// The process's own log and the access log.
pub mod telemetry;
/// The servers behind the gateway: connections, forwarding, header rules.
pub mod upstream;
/// One core's world: accept, serve, drain.
pub mod worker;
