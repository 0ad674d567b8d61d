//! Load while Redis fails: the effects on clients, the admissions beyond the quota, and the time
//! until every worker uses Redis again. Each storm prints its figures as a row of a table:
//! `cargo test --test storms -- --nocapture --test-threads 1`.
//!
//! Needs `redis-server` on `PATH`.
#![allow(missing_docs, reason = "a test's name says what it asserts")]
#![allow(clippy::disallowed_types, reason = "std's mutex serves a test's threads")]

/// Six nodes of a Redis Cluster.
mod cluster;
/// Continuous load.
mod load;
/// The cost of an outage: connection attempts and memory.
mod outage_cost;
/// The figures of a storm.
mod report;
/// A primary under Sentinel.
mod sentinel;
/// Two shards, each with a replica.
mod shards;
/// Every fault of a single Redis.
mod single;
/// Two gateways under load during a fault, and the measurements.
mod storm;
