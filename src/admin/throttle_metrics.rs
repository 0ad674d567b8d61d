//! What `GET /metrics` tells of the throttle.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;

use super::metrics::{add, counter, gauge};
use crate::gateway::Shared;

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
    add(&mut counter(encoder, "throttle_remembered", help)?, &[], remembered)
}
