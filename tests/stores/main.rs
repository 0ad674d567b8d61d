//! The memory store compared with Redis, and the store of a gateway with real Redis servers.
//!
//! Needs `redis-server` on the path.
#![allow(clippy::disallowed_types, reason = "std's mutex serves a test's threads")]

/// The worst-case cost of one call in Redis.
mod redis_cost;
/// Leases and the deny cache.
mod unit_lease;

/// Adjustments in the background, and late replies to charges.
mod adjustments;
/// Blocks of callers, in memory and in Redis.
mod blocks;
/// Windows of a calendar with clocks that differ.
mod calendar_bounds;
/// The promises of every algorithm, in memory and in Redis.
mod conformance;
/// Script loading on a new connection, and replacement of a dead one.
mod connect;
/// Scripts on corrupt records.
mod corrupt_records;
/// Rust and Lua decide alike on random sequences.
mod differential;
/// Concurrent charges admit exactly the quota; every key expires.
mod exactness;
/// Rust and Lua grant the same leases.
mod lease_differential;
/// Malformed replies of Redis, and evicted records.
mod malformed_replies;
/// Redis not running, killed, hung, flushed, full or read-only.
mod outage;
/// The bound of admissions beyond the quota through outages of Redis.
mod outage_bound;
/// `Retry-After` and the reset hold through an outage.
mod outage_retry;
/// Resets by the operator on several gateways.
mod reset;
/// Costs that are known at the end: nothing stays reserved, and the bounds hold, in virtual time.
mod settled_hour;
/// Limits, charges and stores that the tests share.
mod support;
/// Shards, Cluster, Sentinel; TLS and authentication; probes of lost servers.
mod topology;
