//! The metrics of traces in `GET /metrics`.

use std::{fmt, sync::atomic::Ordering::Relaxed};

use prometheus_client::encoding::DescriptorEncoder;

use super::encode::{start_counters, write_counter, write_gauge};
use crate::gateway::Shared;

pub(super) fn encode(shared: &Shared, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let counts = &shared.traces.counts;
    let outcomes =
        [("sent", &counts.sent), ("dropped", &counts.dropped), ("rejected", &counts.rejected)];
    let help = "Spans by outcome: sent, dropped (the queue was full) or rejected by the collector";
    let mut family = start_counters(encoder, "trace_spans", help)?;
    for (outcome, count) in outcomes {
        write_counter(&mut family, &[("outcome", outcome)], count.load(Relaxed))?;
    }
    let help = "Finished requests whose spans wait to be sent";
    write_gauge(encoder, "trace_queue", help, shared.traces.waiting() as u64)
}
