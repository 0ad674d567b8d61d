//! Tidegate: an HTTP reverse proxy and API gateway with throttling built in.
//!
//! The map; `ARCHITECTURE.md` tells who may import whom and why.
//!
//! - [`admin`]: the operator's port: health, metrics and the control API.
//! - [`cli`]: one file a command: what a person types and what the process answers.
//! - [`clock`]: the only place that reads a clock.
//! - [`config`]: what a user writes: the configuration's types, its reading and its faults.
//! - [`connection`]: a client connection, from its first byte to its last.
//! - [`counter`]: a number that one thread writes and any thread reads.
//! - [`error`]: every way a request ends early.
//! - [`framing`]: strict HTTP/1 framing: what is refused before it is believed.
//! - [`gateway`]: the request's path, read top to bottom.
//! - [`identity`]: who is asking: client address, token, and the keys that limits count by.
//! - [`limit`]: the limit algorithms: pure functions of state, time and cost.
//! - [`live`]: the rules that requests run on now.
//! - [`metrics`]: counters of what happened, one shard a worker.
//! - [`mix`]: names of entries in this process's tables, by a secret of its own.
//! - [`plan`]: what a request asks for: its route, the keys of its limits, the target to forward.
//! - [`reload`]: replaces the running rules with new ones, whole or not at all.
//! - [`replay`]: a recorded access log through the same decisions, on a virtual clock.
//! - [`respond`]: from outcomes to responses: rate-limit headers and problem documents.
//! - [`route`]: which rule a request falls under: hosts, paths and methods.
//! - [`secret`]: the secret that the gateways of one store share.
//! - [`server`]: the whole gateway in one process: workers, control thread, admin.
//! - [`snapshot`]: a configuration compiled into the immutable rules that requests run on.
//! - [`store`]: where limits keep their counters: this process, or Redis.
//! - [`telemetry`]: the process's own log and the access log.
//! - [`throttle`]: admission by who is active: filters, when to throttle, and their exchange through Redis.
//! - [`upstream`]: the servers behind the gateway: connections, forwarding, header rules.
//! - [`worker`]: one core's world: accept, serve, drain.

pub mod admin;
pub mod cli;
pub mod clock;
pub mod config;
pub mod connection;
pub mod counter;
pub mod error;
pub mod framing;
pub mod gateway;
pub mod identity;
pub mod limit;
pub mod live;
pub mod metrics;
pub mod mix;
pub mod plan;
pub mod reload;
pub mod replay;
pub mod respond;
pub mod route;
pub mod secret;
pub mod server;
pub mod snapshot;
pub mod store;
pub mod telemetry;
pub mod throttle;
pub mod upstream;
pub mod worker;
