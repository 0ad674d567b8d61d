//! The stores against each other and against a real Redis.
//!
//! Needs `redis-server` on the path.
#![allow(clippy::disallowed_types, reason = "std's mutex serves a test's threads")]

#[path = "../support/redis.rs"]
mod redis_server;
#[path = "../support/redis_topology.rs"]
mod redis_topology;
#[path = "../support/refuser.rs"]
mod refuser;
#[path = "../support/scripts.rs"]
mod scripts;

/// Redis is not asked: refusals that are known, tokens taken ahead.
mod ahead;
/// What one call may cost Redis at the worst.
mod burden;

/// What is promised of every algorithm, in memory and in Redis.
mod conformance;
/// What a new connection loads, and how one that died is found.
mod connect;
/// Corrections that no request waits for, and charges whose answer comes late.
mod corrections;
/// Rust and Lua give the same answers to the same random sequences.
mod differential;
/// Concurrent charges admit the quota exactly; every key has an end.
mod exactness;
/// What happens when Redis is absent, killed, hung, emptied or unwilling.
mod failure;
/// Whatever Redis may answer, and a record that it has evicted.
mod faults;
/// What was charged while Redis was lost counts there when it is back.
mod merge;
/// Rust and Lua grant the same tokens ahead.
mod orders;
/// Scripts and records that no script has written.
mod records;
/// A reset by the operator, and the other gateways.
mod reset;
/// Limits, charges, stores and waits that the tests share.
mod support;
/// Several servers: shards, Cluster, Sentinel; TLS and passwords; how often a lost one is tried.
mod topology;
#[path = "../support/verdict.rs"]
mod verdict;
