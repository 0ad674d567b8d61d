//! From outside. Callers and limits: keys, authentication, quotas, the throttle, decisions for
//! other proxies, Redis and its outages.
//!
//! Real sockets, real upstreams, real Redis servers.
#![allow(missing_docs, reason = "a test's name says what it asserts")]
#![allow(clippy::disallowed_types, reason = "std's mutex is enough for threads of a test")]

use std::{path::Path, process::Command};

/// `allow` and `deny` of routes.
mod access;
/// The gateway, `explain` and `replay` decide alike.
mod agreement;
/// API keys, certificates, consumers and plans.
mod auth;
/// Blocks of callers, and limits that charge only some responses.
mod blocks;
/// Costs that are known when a response ends.
mod budgets;
/// Windows of a calendar.
mod calendar;
/// Memory of idle callers.
mod caller_memory;
/// Disconnecting clients and Redis faults for an hour of virtual time.
mod chaos;
/// Concurrency limits.
mod concurrency;
/// Decisions for other proxies.
mod decide;
/// Leaky buckets that delay requests.
mod delay;
/// Concurrent requests admit exactly the quota.
mod exactness;
/// The keys of callers.
mod identity;
/// Equivalent spellings of a caller's key.
mod key_normalization;
/// Quotas that operators set at run time.
mod overrides;
/// Costs, refunds, tiers and shadow limits.
mod policies;
/// The promises of the rate-limit headers.
mod rate_limit_headers;
/// Envoy's rate limit service.
mod rate_limit_service;
/// The binary with a Redis that hangs or refuses.
mod redis_errors;
/// Outages of Redis and recovery.
mod redis_outage;
/// Replay of a rush, with a waiting room.
mod replay_waiting;
/// One window advertises one reset.
mod reset_stability;
/// The status route, and the admin API of limits.
mod status;
/// Active-user admission control.
mod throttle;
/// Leases and the deny cache.
mod unit_lease;

/// A command line of the gateway's binary, to be run in `directory`.
pub(crate) fn tidegate_command(directory: &Path, arguments: &[&str]) -> Command {
    testkit::process::gateway_command(env!("CARGO_BIN_EXE_tidegate"), directory, arguments)
}
