//! Load through what can happen to Redis: what clients feel of it, what is let in too much, and how
//! long it takes until limits are shared again. Each storm prints its figures, a row of a table:
//! `cargo test --test storms -- --nocapture --test-threads 1`.
//!
//! Needs `redis-server` on the path.
#![allow(missing_docs, reason = "a test says in its name what it shows")]
#![allow(clippy::disallowed_types, reason = "std's mutex serves a test's threads")]

#[path = "../support/client.rs"]
mod client;
#[path = "../support/cutter.rs"]
mod cutter;
#[path = "../support/gateway.rs"]
mod gateway;
#[path = "../support/redis.rs"]
mod redis_server;
#[path = "../support/redis_topology.rs"]
mod redis_topology;
#[path = "../support/wait.rs"]
mod wait;

/// What a lost Redis costs besides: attempts to connect, and memory.
mod burden;
/// Six nodes of a Redis Cluster.
mod cluster;
/// What came of a storm.
mod figures;
/// Clients that ask all the time.
mod load;
/// A primary that Sentinel watches.
mod sentinel;
/// Two shards, each with a replica.
mod shards;
/// One Redis, and all that it can do.
mod single;
/// Two gateways under load, and what is measured.
mod storm;
