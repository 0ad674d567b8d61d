//! The metrics of upstreams and their targets. A removed target has none.

use std::{fmt, sync::Arc};

use prometheus_client::{
    encoding::{DescriptorEncoder, MetricEncoder},
    metrics::MetricType,
};

use super::encode::{start_counters, write_counter, write_gauge};
use crate::{
    gateway::Shared,
    priority::Priority,
    upstream::{
        ConnectionBudget, EndpointSet, EndpointState, FAILURE_KINDS, UpstreamRuntime,
        target_health::TargetStatus,
    },
};

/// An upstream and its endpoints at the time of the scrape.
struct Scraped {
    state: Arc<UpstreamRuntime>,
    set: Arc<EndpointSet>,
}

pub(super) fn encode(shared: &Shared, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let upstreams = shared.upstreams.all().into_iter();
    let upstreams: Vec<Scraped> =
        upstreams.map(|state| Scraped { set: state.endpoints(), state }).collect();
    encode_connections(&shared.upstreams.connection_budget, encoder)?;
    encode_upstreams(&upstreams, encoder)?;
    encode_counters(&upstreams, encoder)?;
    encode_gauges(&upstreams, encoder)
}

/// The connections of the process to all targets.
fn encode_connections(
    budget: &ConnectionBudget,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let help = "Open connections to upstreams, idle ones included";
    write_gauge(encoder, "upstream_connections", help, budget.open())?;
    let help = "Maximum number of open connections to upstreams, by the limit of open files";
    write_gauge(encoder, "upstream_connections_max", help, budget.max())?;
    let help = "Requests refused because the gateway lacked a descriptor, a port or memory for a connection";
    let mut family = start_counters(encoder, "upstream_shortages", help)?;
    write_counter(&mut family, &[], budget.shortages())
}

/// Requests that were not sent to a target, and retries that were not made.
fn encode_upstreams(upstreams: &[Scraped], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Retries that the retry budget did not allow";
    let mut family = start_counters(encoder, "upstream_retry_budget_exhausted", help)?;
    for Scraped { state, .. } in upstreams {
        let count = state.counts().budget_exhausted;
        write_counter(&mut family, &[("upstream", &state.name)], count)?;
    }
    let help = "Requests that no target took, by reason";
    let mut family = start_counters(encoder, "upstream_refused", help)?;
    for Scraped { state, .. } in upstreams {
        let counts = state.counts();
        for (reason, count) in [("down", counts.down), ("overloaded", counts.overloaded())] {
            let labels = [("upstream", &*state.name), ("reason", reason)];
            write_counter(&mut family, &labels, count)?;
        }
    }
    let help = "Requests refused because no target had room, by priority";
    let mut family = start_counters(encoder, "upstream_shed", help)?;
    for Scraped { state, .. } in upstreams {
        let shed = state.counts().shed;
        // The default one is always there, so that queries find the series before the first such
        // request.
        let is_shown =
            |(priority, count): &(Priority, u64)| *count > 0 || *priority == Priority::default();
        for (priority, count) in Priority::all().zip(shed).filter(is_shown) {
            let number = priority.to_string();
            let labels = [("upstream", &*state.name), ("priority", number.as_str())];
            write_counter(&mut family, &labels, count)?;
        }
    }
    let help = "Requests that wait for a target with room";
    let mut family = start_gauges(encoder, "upstream_pending", help)?;
    for Scraped { state, .. } in upstreams {
        let labels = [("upstream", &*state.name)];
        family.encode_family(&labels)?.encode_gauge(&i64::from(state.counts().pending))?;
    }
    Ok(())
}

fn encode_counters(upstreams: &[Scraped], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Attempts at a target";
    let mut family = start_counters(encoder, "target_requests", help)?;
    for_each_target(upstreams, |labels, endpoint| {
        write_counter(&mut family, &labels, endpoint.requests())
    })?;
    let help = "Failed attempts at a target, by kind";
    let mut family = start_counters(encoder, "target_failures", help)?;
    for_each_target(upstreams, |[upstream, target], endpoint| {
        for (kind, count) in FAILURE_KINDS.into_iter().zip(endpoint.failures()) {
            write_counter(&mut family, &[upstream, target, ("kind", kind)], count)?;
        }
        Ok(())
    })?;
    let help = "Ejections of a target because of its failures";
    let mut family = start_counters(encoder, "target_ejections", help)?;
    for_each_target(upstreams, |labels, endpoint| {
        write_counter(&mut family, &labels, endpoint.ejections())
    })?;
    let help = "Requests cut because their clients held a place of a target too slowly";
    let mut family = start_counters(encoder, "target_client_slow", help)?;
    for_each_target(upstreams, |labels, endpoint| {
        write_counter(&mut family, &labels, endpoint.lost_places())
    })
}

fn encode_gauges(upstreams: &[Scraped], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Requests in flight at a target";
    let mut family = start_gauges(encoder, "target_in_flight", help)?;
    for_each_target(upstreams, |labels, endpoint| {
        family.encode_family(&labels)?.encode_gauge(&i64::from(endpoint.in_flight()))
    })?;
    let help = "Requests in flight at a target that wait for their clients";
    let mut family = start_gauges(encoder, "target_client_paced", help)?;
    for_each_target(upstreams, |labels, endpoint| {
        family.encode_family(&labels)?.encode_gauge(&i64::from(endpoint.paced_places()))
    })?;
    let help = "Open connections to a target, idle ones included";
    let mut family = start_gauges(encoder, "target_connections", help)?;
    for_each_target(upstreams, |labels, endpoint| {
        family.encode_family(&labels)?.encode_gauge(&i64::from(endpoint.connections()))
    })?;
    let help = "Recent time to a response's head, as a peak EWMA, in seconds";
    let mut family = start_gauges(encoder, "target_latency_seconds", help)?;
    for Scraped { state, set } in upstreams {
        for member in &set.members {
            let labels = [("upstream", &*state.name), ("target", &*member.state.name)];
            if let Some(micros) = member.state.observed_latency() {
                family.encode_family(&labels)?.encode_gauge(&(micros as f64 / 1e6))?;
            }
        }
    }
    let help = "1 while a target is in service, otherwise 0";
    let mut family = start_gauges(encoder, "target_healthy", help)?;
    for Scraped { state, set } in upstreams {
        let (now, slow_start) = (state.now(), set.servers.health.slow_start);
        for member in &set.members {
            let status = member.state.view().status(now, slow_start);
            let is_healthy = matches!(status, TargetStatus::Up | TargetStatus::SlowStart);
            let labels = [("upstream", &*state.name), ("target", &*member.state.name)];
            family.encode_family(&labels)?.encode_gauge(&i64::from(is_healthy))?;
        }
    }
    Ok(())
}

fn start_gauges<'e>(
    encoder: &'e mut DescriptorEncoder<'_>,
    name: &'e str,
    help: &str,
) -> Result<MetricEncoder<'e>, fmt::Error> {
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)
}

/// Calls `write` with the labels of each target.
fn for_each_target<'u>(
    upstreams: &'u [Scraped],
    mut write: impl FnMut([(&'static str, &'u str); 2], &EndpointState) -> fmt::Result,
) -> fmt::Result {
    for Scraped { state, set } in upstreams {
        for member in &set.members {
            let labels = [("upstream", &*state.name), ("target", &*member.state.name)];
            write(labels, &member.state)?;
        }
    }
    Ok(())
}
