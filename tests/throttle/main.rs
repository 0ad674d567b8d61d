//! The throttle's exchange, simulated and through a real Redis.
//!
//! Needs `redis-server` on the path.

/// Corrupt payloads in Redis.
mod corrupt_payload;
/// Redis killed, flushed, hung, without scripts, full or read-only.
mod failure;
/// Gateways that share through a real Redis, and the cost.
mod sharing;
/// Twenty gateways in virtual time: no token is lost, whatever fails.
mod simulation;
/// Filters, tokens and gateways that the tests share.
mod support;
