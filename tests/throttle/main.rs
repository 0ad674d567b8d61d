//! The throttle's exchange below the gateway: simulated, and through a real Redis.
//!
//! Needs `redis-server` on the path.

#[path = "../support/redis.rs"]
mod redis_server;

/// Redis killed, emptied, hung, forgetful, full or unwilling.
mod failure;
/// What nobody should have written to Redis.
mod poison;
/// Gateways that share through a real Redis, and what that costs.
mod shared;
/// Twenty gateways in virtual time: no token is lost, whatever fails.
mod simulation;
/// Filters, tokens and gateways that the tests share.
mod support;
