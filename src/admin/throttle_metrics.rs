//! What `GET /metrics` tells of the throttle.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;

use super::metrics::{add, counter, gauge};
use crate::{
    gateway::Shared,
    store::Failure,
    throttle::sync::{REFUSALS, Stats, label},
};

const DECISIONS: [&str; 4] = ["known", "unknown", "missing", "rejected"];

pub(super) fn encode(shared: &Shared, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let Some(throttle) = &shared.throttle else { return Ok(()) };
    let (status, settings) = (throttle.status(), throttle.settings());
    let help = "Whether newcomers are refused";
    gauge(encoder, "throttle_throttling", help, u64::from(status.refuses()))?;
    let help = "Distinct tokens over the whole memory, as estimated";
    gauge(encoder, "throttle_active", help, status.estimate.tokens)?;
    let help = "How far the estimate may be off, in 95 of 100 cases";
    gauge(encoder, "throttle_active_error", help, status.estimate.error)?;
    let help = "Whether the filters are too full to estimate";
    gauge(encoder, "throttle_saturated", help, u64::from(status.estimate.saturated))?;
    let help = "Active users above which newcomers are refused";
    gauge(encoder, "throttle_max_active", help, settings.marks.max_active)?;
    let help = "Whether the shared filters are loaded";
    gauge(encoder, "throttle_loaded", help, u64::from(status.loaded))?;
    let help = "Whether nothing of the memory is missing; else nobody is refused";
    gauge(encoder, "throttle_complete", help, u64::from(status.complete))?;
    let help = "Memory of the filters";
    gauge(encoder, "throttle_memory_bytes", help, settings.geometry.bytes())?;
    let [decided @ .., remembered] = shared.metrics.throttle();
    let help = "Requests while newcomers are refused, by what their token is";
    let mut family = counter(encoder, "throttle_decisions", help)?;
    for (decision, count) in DECISIONS.iter().zip(decided) {
        add(&mut family, &[("decision", decision)], count)?;
    }
    let help = "Tokens that became known, once a generation and worker";
    add(&mut counter(encoder, "throttle_remembered", help)?, &[], remembered)?;
    if shared.stores.status().shared { exchange(&throttle.stats, encoder) } else { Ok(()) }
}

fn exchange(stats: &Stats, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Commands that the throttle sent to Redis";
    add(&mut counter(encoder, "throttle_sync_calls", help)?, &[], stats.calls.get())?;
    let help = "Bytes of filters exchanged with Redis, by direction";
    let mut family = counter(encoder, "throttle_sync_bytes", help)?;
    add(&mut family, &[("direction", "read")], stats.bytes_read.get())?;
    add(&mut family, &[("direction", "written")], stats.bytes_written.get())?;
    let help = "Minutes written to Redis, or left for the next tick because another was first";
    let mut family = counter(encoder, "throttle_sync_commits", help)?;
    add(&mut family, &[("outcome", "done")], stats.commits.get())?;
    add(&mut family, &[("outcome", "conflict")], stats.conflicts.get())?;
    let help = "Exchanges that failed, by kind";
    let mut family = counter(encoder, "throttle_sync_failures", help)?;
    for failure in Failure::ALL {
        add(&mut family, &[("kind", failure.label())], stats.failures(failure))?;
    }
    let help = "Values found in Redis that were not used, by reason";
    let mut family = counter(encoder, "throttle_refused_payloads", help)?;
    for refusal in REFUSALS {
        add(&mut family, &[("reason", label(refusal))], stats.refused(refusal))?;
    }
    let help = "When an exchange last did all that it had to do, by Redis' clock";
    gauge(encoder, "throttle_sync_last_seconds", help, stats.last_success() / 1000)
}
