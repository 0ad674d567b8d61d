//! The throttle's metrics in `GET /metrics`.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;

use super::{
    encode::{start_counters, write_counter, write_gauge, write_ratio},
    throttle::DECISIONS,
};
use crate::{
    gateway::Shared,
    redis::RedisFailure,
    throttle::{
        payload::PayloadError,
        sync::SyncStats,
        waiting_room::{WaitingRoom, ticket::TicketFault},
    },
};

pub(super) fn encode(shared: &Shared, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let Some(throttle) = &shared.throttle else { return Ok(()) };
    let (status, settings) = (throttle.status(), throttle.settings());
    let help = "1 while unknown tokens are denied";
    write_gauge(encoder, "throttle_throttling", help, u64::from(throttle.is_throttling()))?;
    let help = "Estimated number of active users: distinct tokens within memory";
    write_gauge(encoder, "throttle_active", help, status.estimate.tokens)?;
    let help = "Half the width of the estimate's 95 % confidence interval";
    write_gauge(encoder, "throttle_active_error", help, status.estimate.error)?;
    let help = "1 while the filters are too full for an estimate";
    write_gauge(encoder, "throttle_saturated", help, u64::from(status.estimate.saturated))?;
    let help = "Configured number of active users above which throttling starts";
    write_gauge(encoder, "throttle_max_active", help, settings.watermarks.max_active)?;
    let help = "1 once the shared filters are loaded";
    write_gauge(encoder, "throttle_loaded", help, u64::from(status.loaded))?;
    let help =
        "1 while the filters hold all activity within memory; otherwise no request is denied";
    write_gauge(encoder, "throttle_complete", help, u64::from(status.complete))?;
    let help = "Memory of the filters in bytes";
    write_gauge(encoder, "throttle_memory_bytes", help, status.memory_bytes)?;
    let help = "Memory up to which the filters grow, in bytes";
    let max_memory = settings.geometry.grown(settings.max_growth()).bytes();
    write_gauge(encoder, "throttle_max_memory_bytes", help, max_memory)?;
    let help = "Share of unknown tokens that pass as active, measured from the fill of the filters";
    write_ratio(encoder, "throttle_false_positive_ratio", help, status.false_positive)?;
    let help = "Configured share of unknown tokens that may pass as active";
    let configured = settings.sizing.false_positive;
    write_ratio(encoder, "throttle_max_false_positive_ratio", help, configured)?;
    let help = "Requests on routes where the throttle applies, with and without an access token";
    let mut family = start_counters(encoder, "throttle_requests", help)?;
    for (token, count) in ["present", "absent"].iter().zip(shared.metrics.throttle_requests()) {
        write_counter(&mut family, &[("token", token)], count)?;
    }
    let [decisions @ .., recorded] = shared.metrics.throttle();
    let help =
        "Requests while throttling: admitted as known, or denied as unknown, missing or rejected";
    let mut family = start_counters(encoder, "throttle_decisions", help)?;
    for (decision, count) in DECISIONS.iter().zip(decisions) {
        write_counter(&mut family, &[("decision", decision)], count)?;
    }
    let help = "Tokens recorded as active, counted once per generation and worker";
    write_counter(&mut start_counters(encoder, "throttle_recorded", help)?, &[], recorded)?;
    if let Some(room) = &throttle.room {
        encode_room(room, shared, encoder)?;
    }
    if shared.store.status().uses_redis { encode_sync(&throttle.stats, encoder) } else { Ok(()) }
}

fn encode_room(
    room: &WaitingRoom,
    shared: &Shared,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let view = room.view();
    let help = "Tickets that wait in the waiting room, at all gateways";
    write_gauge(encoder, "waiting_room_waiting", help, view.waiting())?;
    let help = "Time for which the first in the waiting room has waited, in seconds";
    let first_waits = view.lag().as_whole_secs();
    write_gauge(encoder, "waiting_room_first_waits_seconds", help, first_waits)?;
    let help = "Expected wait of a user that arrives now, in seconds; 0 while no user waits";
    let expected = view.newcomers_wait().as_whole_secs();
    write_gauge(encoder, "waiting_room_expected_wait_seconds", help, expected)?;
    let help = "Users who have taken a place lately or are expected to, and may not be active yet";
    write_gauge(encoder, "waiting_room_entering", help, view.pending())?;
    let help = "1 while the operator has closed the waiting room of this gateway";
    write_gauge(encoder, "waiting_room_closed", help, u64::from(room.is_closed()))?;
    let [admitted, tickets, faults @ ..] = shared.metrics.waiting_room();
    let help = "Requests that the waiting room admitted";
    write_counter(&mut start_counters(encoder, "waiting_room_admitted", help)?, &[], admitted)?;
    let help = "Tickets that were given out";
    write_counter(&mut start_counters(encoder, "waiting_room_tickets", help)?, &[], tickets)?;
    let help = "Tickets that were not accepted and replaced by new ones, by reason";
    let mut family = start_counters(encoder, "waiting_room_refused_tickets", help)?;
    for (fault, count) in TicketFault::ALL.iter().zip(faults) {
        write_counter(&mut family, &[("reason", fault.label())], count)?;
    }
    if !shared.store.status().uses_redis {
        return Ok(());
    }
    let help = "Exchanges of the waiting room with Redis";
    let calls = room.stats.calls.get();
    write_counter(&mut start_counters(encoder, "waiting_room_sync_calls", help)?, &[], calls)?;
    let help = "Failed exchanges of the waiting room with Redis, by kind";
    let mut family = start_counters(encoder, "waiting_room_sync_failures", help)?;
    for failure in RedisFailure::ALL {
        write_counter(&mut family, &[("kind", failure.label())], room.stats.failures(failure))?;
    }
    Ok(())
}

fn encode_sync(stats: &SyncStats, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Commands sent to Redis by the throttle";
    write_counter(
        &mut start_counters(encoder, "throttle_sync_calls", help)?,
        &[],
        stats.calls.get(),
    )?;
    let help = "Bytes of filters and new tokens exchanged with Redis, by direction";
    let mut family = start_counters(encoder, "throttle_sync_bytes", help)?;
    write_counter(&mut family, &[("direction", "read")], stats.bytes_read.get())?;
    write_counter(&mut family, &[("direction", "written")], stats.bytes_written.get())?;
    let help = "Filter writes to Redis; conflict: another gateway wrote first, retried later";
    let mut family = start_counters(encoder, "throttle_sync_commits", help)?;
    write_counter(&mut family, &[("outcome", "done")], stats.commits.get())?;
    write_counter(&mut family, &[("outcome", "conflict")], stats.conflicts.get())?;
    let help = "Failed synchronizations with Redis, by kind";
    let mut family = start_counters(encoder, "throttle_sync_failures", help)?;
    for failure in RedisFailure::ALL {
        write_counter(&mut family, &[("kind", failure.label())], stats.failures(failure))?;
    }
    let help = "Filters in Redis that could not be used, by reason";
    let mut family = start_counters(encoder, "throttle_refused_payloads", help)?;
    for error in PayloadError::ALL {
        write_counter(&mut family, &[("reason", error.label())], stats.unusable(error))?;
    }
    let help =
        "Time of the last complete synchronization, by Redis' clock, in seconds since the epoch";
    write_gauge(
        encoder,
        "throttle_sync_last_seconds",
        help,
        stats.last_success().map_or(0, |at| at.as_unix_ms() / 1000),
    )
}
