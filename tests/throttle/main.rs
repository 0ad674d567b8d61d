//! The exchange of filters between gateways, simulated and through a real Redis.
//!
//! Needs `redis-server` on `PATH`.

/// Corrupt payloads in Redis.
mod corrupt_payload;
/// Redis killed, flushed, hung, without scripts, full or read-only.
mod failure;
/// Up to a thousand gateways in virtual time: delays, and the load of Redis.
mod fleet;
/// The logs of new tokens, through a real Redis.
mod new_tokens;
/// Whole throttles on a real Redis.
mod running_throttle;
/// Gateways that share filters through a real Redis, and the cost of it.
mod sharing;
/// Up to twenty gateways in virtual time: no token is lost, whatever fails.
mod simulation;
/// Filters, tokens and gateways for all tests.
mod support;
/// The waiting room in Redis is the one of `RoomState`, and costs one call a second.
mod waiting_room;
/// Twenty gateways and 100,000 waiting clients in virtual time.
mod waiting_room_simulation;
