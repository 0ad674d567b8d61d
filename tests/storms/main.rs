//! Load through what can happen to Redis: what clients feel of it, what is let in too much, and how
//! long it takes until limits are shared again. Each test prints its figures (`-- --nocapture`).
//!
//! Needs `redis-server` on the path.
#![allow(missing_docs, reason = "a test says in its name what it shows")]

#[path = "../support/client.rs"]
mod client;
#[path = "../support/cutter.rs"]
mod cutter;
#[path = "../support/gateway.rs"]
mod gateway;
#[path = "../support/redis.rs"]
mod redis_server;
#[path = "../support/wait.rs"]
mod wait;

/// One Redis, and all that it can do.
mod single;
/// Two gateways under load, and what is measured.
mod storm;
