//! `GET /metrics`: all metrics, summed over the workers at each scrape.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, atomic::Ordering},
};

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use prometheus_client::{
    collector::Collector,
    encoding::{
        DescriptorEncoder, MetricEncoder, NoLabelSet,
        text::{encode_eof, encode_registry},
    },
    metrics::MetricType,
    registry::Registry,
};

use super::{
    AdminContext,
    encode::{start_counters, write_counter, write_gauge},
    exemplars,
    exposition::Exposition,
    process_metrics::ProcessCollector,
};
use crate::{
    charge::OnFailure,
    consumer_store::LookupOutcome,
    gateway::Shared,
    metrics::{AuthRejection, LATENCY_BOUNDS, Metrics, MirrorOutcome},
    redis::RedisFailure,
    store::StoreStats,
    telemetry::{AccessLog, process_log_dropped},
    time::UnixSeconds,
};

pub(super) const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
const PROTOCOLS: [&str; 3] = ["HTTP/1.0", "HTTP/1.1", "HTTP/2"];
const DECISIONS: [&str; 4] = ["admitted", "refused", "unknown", "would_refuse"];
const UPSTREAM_FAILURES: [&str; 3] = ["connect", "timeout", "broken"];

pub(super) async fn scrape(State(context): State<AdminContext>, headers: HeaderMap) -> Response {
    let format = Exposition::negotiate(&headers);
    let exemplars = context.shared.metrics.exemplars();
    match encode_all(context.shared) {
        Ok(mut metrics) => {
            if !exemplars.is_empty() && format == Exposition::OpenMetrics {
                metrics = exemplars::add(&metrics, &exemplars);
            }
            let kind = (header::CONTENT_TYPE, format.content_type());
            ([kind, (header::VARY, "Accept")], format.write(metrics)).into_response()
        }
        Err(fmt::Error) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// All metrics, in `OpenMetrics` format.
fn encode_all(shared: Arc<Shared>) -> Result<String, fmt::Error> {
    let mut gateway = Registry::with_prefix("tidegate");
    gateway.register_collector(Box::new(MetricsCollector(shared)));
    let mut process = Registry::with_prefix("process");
    process.register_collector(Box::new(ProcessCollector));
    let mut text = String::new();
    encode_registry(&mut text, &gateway)?;
    encode_registry(&mut text, &process)?;
    encode_eof(&mut text)?;
    Ok(text)
}

/// Encodes the gateway's metrics for one scrape.
struct MetricsCollector(Arc<Shared>);

impl fmt::Debug for MetricsCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MetricsCollector")
    }
}

impl Collector for MetricsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_requests(&mut encoder)?;
        super::upstream_metrics::encode(&self.0, &mut encoder)?;
        self.encode_limits(&mut encoder)?;
        super::throttle_metrics::encode(&self.0, &mut encoder)?;
        super::trace_metrics::encode(&self.0, &mut encoder)?;
        super::jwt_metrics::encode(&self.0, &mut encoder)?;
        super::acme::encode(&self.0, &mut encoder)?;
        self.encode_store(&mut encoder)?;
        self.encode_process(&mut encoder)
    }
}

impl MetricsCollector {
    fn encode_requests(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let metrics = &self.0.metrics;
        let help = "Responses by route (empty: no route) and status class";
        let mut family = start_counters(encoder, "requests", help)?;
        for (route, responses) in metrics.responses() {
            for (class, count) in CLASSES.iter().zip(responses) {
                write_counter(&mut family, &[("route", &route), ("status", class)], count)?;
            }
        }
        let mut denied = metrics.denied();
        denied.retain(|_, [count]| *count > 0);
        let help = "Requests refused by allow or deny, by route";
        let mut family = start_counters(encoder, "access_denied", help)?;
        for (route, [count]) in &denied {
            write_counter(&mut family, &[("route", route)], *count)?;
        }
        encode_auth(metrics, encoder)?;
        let mut plans = metrics.plans();
        plans.retain(|_, [requests, _]| *requests > 0);
        let help = "Requests of the consumers of a plan";
        let mut family = start_counters(encoder, "plan_requests", help)?;
        for (plan, [requests, _]) in &plans {
            write_counter(&mut family, &[("plan", plan)], *requests)?;
        }
        let help = "Requests of the consumers of a plan that limits refused";
        let mut family = start_counters(encoder, "plan_refused", help)?;
        for (plan, [_, refused]) in &plans {
            write_counter(&mut family, &[("plan", plan)], *refused)?;
        }
        let mut mirrored = metrics.mirrored();
        mirrored.retain(|_, outcomes| outcomes.iter().any(|count| *count > 0));
        let help = "Requests chosen for a route's mirror, by outcome";
        let mut family = start_counters(encoder, "mirrored_requests", help)?;
        for (route, outcomes) in &mirrored {
            for (outcome, count) in MirrorOutcome::ALL.iter().zip(outcomes) {
                let labels = [("route", &**route), ("outcome", outcome.label())];
                write_counter(&mut family, &labels, *count)?;
            }
        }
        let help = "Requests whose head was read, by protocol";
        let mut family = start_counters(encoder, "requests_by_protocol", help)?;
        for (protocol, count) in PROTOCOLS.iter().zip(metrics.requests_by_version()) {
            write_counter(&mut family, &[("protocol", protocol)], count)?;
        }
        let help = "Time from a request's head to its response's last byte, in seconds";
        let mut family = encoder.encode_descriptor(
            "request_duration_seconds",
            help,
            None,
            MetricType::Histogram,
        )?;
        for (route, latency) in metrics.latencies() {
            let (counts, micros) = latency.split_at(LATENCY_BOUNDS.len() + 1);
            let bounds = LATENCY_BOUNDS.iter().copied().chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(counts.iter().copied()).collect();
            family.encode_family(&[("route", &*route)])?.encode_histogram::<NoLabelSet>(
                micros[0] as f64 / 1e6,
                counts.iter().sum(),
                &buckets,
                None,
            )?;
        }
        let help = "Failed attempts at upstream servers, by kind";
        let mut family = start_counters(encoder, "upstream_failures", help)?;
        for (upstream, failures) in metrics.upstream_failures() {
            for (kind, count) in UPSTREAM_FAILURES.iter().zip(failures) {
                write_counter(&mut family, &[("upstream", &upstream), ("kind", kind)], count)?;
            }
        }
        let help = "Retries at upstream servers";
        let mut family = start_counters(encoder, "upstream_retries", help)?;
        for (upstream, [count]) in metrics.upstream_retries() {
            write_counter(&mut family, &[("upstream", &upstream)], count)?;
        }
        Ok(())
    }

    fn encode_limits(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Charges by route, limit and decision; unknown: no reply from the store";
        let mut family = start_counters(encoder, "limit_decisions", help)?;
        for ((route, limit), decisions) in self.0.metrics.decisions() {
            for (decision, count) in DECISIONS.iter().zip(decisions) {
                let labels = [("route", &*route), ("limit", &*limit), ("decision", decision)];
                write_counter(&mut family, &labels, count)?;
            }
        }
        self.encode_blocks(encoder)?;
        self.encode_delays(encoder)?;
        self.encode_settlements(encoder)
    }

    /// Costs that are settled when responses end, without limits that have no such cost.
    fn encode_settlements(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut settlements = self.0.metrics.settlements();
        settlements.retain(|_, sums| sums.iter().any(|sum| *sum > 0));
        let write = |family: &mut MetricEncoder<'_>, index: usize| {
            settlements.iter().try_for_each(|((route, limit), sums)| {
                write_counter(family, &[("route", route), ("limit", limit)], sums[index])
            })
        };
        let help = "Estimates charged before requests, in units of the quota";
        write(&mut start_counters(encoder, "limit_reserved_units", help)?, 0)?;
        let help = "Final costs of responses, in units of the quota";
        write(&mut start_counters(encoder, "limit_settled_units", help)?, 1)?;
        let help = "Units by which final costs exceeded their estimates";
        write(&mut start_counters(encoder, "limit_overspent_units", help)?, 2)?;
        let help = "Responses whose content coding could not be decoded to read their cost";
        write(&mut start_counters(encoder, "limit_unreadable_costs", help)?, 3)
    }

    /// The blocks of limits, without limits that never blocked a caller.
    fn encode_blocks(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Blocks of callers that began with a request of this gateway, by limit";
        let mut family = start_counters(encoder, "limit_blocks", help)?;
        for (limit, count) in self.0.store.blocks_begun() {
            write_counter(&mut family, &[("limit", &*limit)], count)?;
        }
        let help = "Charges refused by a block, by route and limit; also in limit_decisions";
        let mut family = start_counters(encoder, "limit_blocked", help)?;
        for ((route, limit), [blocked]) in self.0.metrics.blocked() {
            if blocked > 0 {
                write_counter(&mut family, &[("route", &*route), ("limit", &*limit)], blocked)?;
            }
        }
        Ok(())
    }

    /// Delays by leaky buckets, without limits that never delayed a request.
    fn encode_delays(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut delays = self.0.metrics.delays();
        delays.retain(|_, [delayed, _]| *delayed > 0);
        let help = "Delayed requests, by route and the limit with the longest delay";
        let mut family = start_counters(encoder, "limit_delayed", help)?;
        for ((route, limit), [delayed, _]) in &delays {
            write_counter(&mut family, &[("route", route), ("limit", limit)], *delayed)?;
        }
        let help = "Sum of the delays of delayed requests, in seconds";
        let mut family = start_counters(encoder, "limit_delay_seconds", help)?;
        for ((route, limit), [_, micros]) in &delays {
            let labels = [("route", &**route), ("limit", &**limit)];
            let seconds = *micros as f64 / 1e6;
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, f64, u64>(&seconds, None)?;
        }
        let help = "Requests that are being delayed";
        write_gauge(encoder, "limit_waiting", help, self.0.metrics.waiting())
    }

    fn encode_store(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (stats, status) = (self.0.store.stats(), self.0.store.status());
        let help = "Requests that the store decided, refused ones included";
        write_counter(&mut start_counters(encoder, "store_requests", help)?, &[], stats.requests)?;
        let help = "Requests that were charged to a limit";
        let mut family = start_counters(encoder, "store_charged_requests", help)?;
        write_counter(&mut family, &[], stats.charged_requests)?;
        let help = "Requests that got no decision from the shared store, by kind of failure";
        let mut family = start_counters(encoder, "store_failures", help)?;
        for failure in RedisFailure::ALL {
            write_counter(
                &mut family,
                &[("kind", failure.label())],
                stats.failures[failure.index()],
            )?;
        }
        encode_leases_and_denials(encoder, &stats)?;
        let help = "Decisions by a limit's on_failure policy, by policy";
        let mut family = start_counters(encoder, "store_fallbacks", help)?;
        let policies =
            [("local", OnFailure::Local), ("open", OnFailure::Open), ("closed", OnFailure::Closed)];
        for (name, policy) in policies {
            write_counter(&mut family, &[("policy", name)], stats.fallbacks(policy))?;
        }
        let help = "Records evicted from memory before their expiry, because it was full";
        write_counter(
            &mut start_counters(encoder, "store_evictions", help)?,
            &[],
            stats.evictions,
        )?;
        write_gauge(encoder, "store_keys", "Records in memory", stats.keys as u64)?;
        write_gauge(
            encoder,
            "store_gateways",
            "Gateways alive on the same store",
            u64::from(stats.gateways),
        )?;
        let help = "Corrections of charges that were dropped: the queue was full, or no reply";
        write_counter(
            &mut start_counters(encoder, "store_corrections_dropped", help)?,
            &[],
            stats.dropped_corrections,
        )?;
        let help = "Workers that have lost the shared store";
        write_gauge(encoder, "store_workers_without_redis", help, status.lost_workers as u64)?;
        let help = "1 while this server of the shared store is up, otherwise 0";
        let mut family =
            encoder.encode_descriptor("store_shard_up", help, None, MetricType::Gauge)?;
        for shard in self.0.store.shards() {
            let labels = [("shard", &*shard.name)];
            family.encode_family(&labels)?.encode_gauge(&i64::from(shard.is_up))?;
        }
        let help = "Script calls that were sent to this server of the shared store";
        let mut family = start_counters(encoder, "store_shard_calls", help)?;
        for shard in self.0.store.shards() {
            write_counter(&mut family, &[("shard", &*shard.name)], shard.calls)?;
        }
        self.encode_overrides(encoder)?;
        self.encode_consumer_lookups(encoder)
    }

    fn encode_consumer_lookups(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(store) = &self.0.consumer_store else { return Ok(()) };
        let help = "Lookups of consumers that were not answered from memory, by outcome";
        let mut family = start_counters(encoder, "consumer_lookups", help)?;
        for outcome in LookupOutcome::ALL {
            let labels = [("outcome", outcome.label())];
            write_counter(&mut family, &labels, store.count(outcome))?;
        }
        let help = "Calls to Redis that read or changed consumers";
        write_counter(&mut start_counters(encoder, "consumer_calls", help)?, &[], store.calls())
    }

    fn encode_overrides(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (now, counts) = (self.0.clock.store_time(), self.0.override_store.counts());
        let in_force = self.0.overrides.set().count_in_force(now) as u64;
        let help = "Overrides of quotas that have not ended";
        write_gauge(encoder, "overrides", help, in_force)?;
        let help = "Reads of the overrides that failed: no reply from Redis, or a faulty file";
        let mut family = start_counters(encoder, "override_read_failures", help)?;
        write_counter(&mut family, &[], counts.failed_reads)?;
        let Some(read_at) = counts.read_at else { return Ok(()) };
        let help = "Seconds since the overrides were last found up to date";
        let age = now.since(read_at).as_whole_secs();
        write_gauge(encoder, "override_age_seconds", help, age)
    }

    fn encode_process(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let metrics = &self.0.metrics;
        let help = "1, labelled with the version";
        let mut family = encoder.encode_descriptor("build_info", help, None, MetricType::Gauge)?;
        let labels = [("version", env!("CARGO_PKG_VERSION"))];
        family.encode_family(&labels)?.encode_gauge(&1_i64)?;
        let [open, accepted, refused, malformed] = metrics.connections();
        write_gauge(encoder, "connections", "Open client connections", open)?;
        let help = "Open tunnels: requests whose connection was upgraded to another protocol";
        write_gauge(encoder, "tunnels", help, metrics.tunnels())?;
        let help = "Accepted client connections";
        write_counter(&mut start_counters(encoder, "accepted_connections", help)?, &[], accepted)?;
        let help =
            "Client connections refused because their client had max_connections_per_client open";
        write_counter(&mut start_counters(encoder, "connections_refused", help)?, &[], refused)?;
        let help = "HTTP/2 streams refused after GOAWAY, or because their heads had no room";
        let refused = metrics.streams_refused();
        write_counter(&mut start_counters(encoder, "http2_streams_refused", help)?, &[], refused)?;
        let help = "Requests refused because their client had max_requests_per_client in flight";
        let refused = metrics.requests_refused();
        write_counter(&mut start_counters(encoder, "requests_refused", help)?, &[], refused)?;
        let help = "Memory of the encoders that compress responses, in bytes";
        write_gauge(encoder, "compression_bytes", help, self.0.compression.used())?;
        let help = "Responses sent uncompressed because the memory for encoders was used up";
        let skipped = self.0.compression.skipped();
        write_counter(&mut start_counters(encoder, "compressions_skipped", help)?, &[], skipped)?;
        self.encode_openings(encoder)?;
        let help = "Requests refused before routing: malformed or too slow";
        write_counter(&mut start_counters(encoder, "malformed_requests", help)?, &[], malformed)?;
        let help = "Reloads of the configuration, by outcome";
        let mut family = start_counters(encoder, "reloads", help)?;
        let load = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        write_counter(&mut family, &[("outcome", "applied")], load(&metrics.reloads))?;
        write_counter(&mut family, &[("outcome", "faulty")], load(&metrics.reload_faults))?;
        let help = "Generation of the configuration, counted from 1";
        write_gauge(encoder, "configuration_generation", help, self.0.live.generation())?;
        self.encode_logs(encoder)
    }

    /// Client connections by protocol, connections that failed before HTTP, and the certificates.
    fn encode_openings(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let metrics = &self.0.metrics;
        let help = "Client connections on which HTTP began, by protocol";
        let mut family = start_counters(encoder, "opened_connections", help)?;
        for (protocol, count) in metrics.opened() {
            let tls = if protocol.is_tls { "true" } else { "false" };
            let labels = [("protocol", protocol.label()), ("tls", tls)];
            write_counter(&mut family, &labels, count)?;
        }
        let help = "Client connections that ended before HTTP began, by reason";
        let mut family = start_counters(encoder, "connections_failed", help)?;
        for (failure, count) in metrics.openings_failed() {
            write_counter(&mut family, &[("reason", failure.label())], count)?;
        }
        let help = "When the certificate expires, in seconds since the epoch";
        let mut family = encoder.encode_descriptor(
            "certificate_expiry_seconds",
            help,
            None,
            MetricType::Gauge,
        )?;
        // Two certificates without DNS names may share an address.
        let mut expiries = BTreeMap::new();
        let snapshot = self.0.live.snapshot();
        for certificate in snapshot.certificates() {
            let listener = certificate.listener.unwrap_or_default().to_owned();
            let expiry = expiries.entry((listener, certificate.name)).or_insert(UnixSeconds::MAX);
            *expiry = certificate.validity.not_after.min(*expiry);
        }
        for ((listener, name), expiry) in &expiries {
            let labels = [("listener", &**listener), ("name", &**name)];
            family.encode_family(&labels)?.encode_gauge(&expiry.as_secs().cast_signed())?;
        }
        Ok(())
    }

    fn encode_logs(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let of = |count: fn(&AccessLog) -> u64| self.0.access_log.as_ref().map_or(0, count);
        let help = "Lines of the access log lost, because its sink was slow or a write failed";
        let dropped = of(AccessLog::dropped);
        write_counter(&mut start_counters(encoder, "access_log_dropped", help)?, &[], dropped)?;
        let help = "Failed writes of the access log";
        let write_errors = of(AccessLog::write_errors);
        write_counter(
            &mut start_counters(encoder, "access_log_write_errors", help)?,
            &[],
            write_errors,
        )?;
        let help = "Lines of the process log lost, because stderr was slow or a write failed";
        let dropped = process_log_dropped();
        write_counter(&mut start_counters(encoder, "process_log_dropped", help)?, &[], dropped)
    }
}

/// Requests that authentication refused, without reasons that did not occur.
fn encode_auth(metrics: &Metrics, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Requests refused for their credentials or their consumer, by route and reason";
    let mut family = start_counters(encoder, "auth_rejected", help)?;
    for (route, counts) in metrics.auth_rejected() {
        for (reason, count) in AuthRejection::ALL.iter().zip(counts).filter(|(_, count)| *count > 0)
        {
            let labels = [("route", &*route), ("reason", reason.label())];
            write_counter(&mut family, &labels, count)?;
        }
    }
    Ok(())
}

/// Decisions without a call to the shared store, from leased units and cached denials.
fn encode_leases_and_denials(
    encoder: &mut DescriptorEncoder<'_>,
    stats: &StoreStats,
) -> fmt::Result {
    let help = "Calls to the shared store for decisions and for leases";
    write_counter(
        &mut start_counters(encoder, "store_redis_calls", help)?,
        &[],
        stats.store_calls,
    )?;
    let help = "Charges made from leased units";
    write_counter(
        &mut start_counters(encoder, "store_leased_charges", help)?,
        &[],
        stats.leased_charges,
    )?;
    let help = "Refusals from cached denials";
    write_counter(
        &mut start_counters(encoder, "store_deny_cache_hits", help)?,
        &[],
        stats.denials.hits,
    )?;
    let help = "Cached denials";
    write_gauge(encoder, "store_deny_cache_entries", help, stats.denials.entries as u64)?;
    let help = "Leased units that are not spent yet";
    write_gauge(encoder, "store_tokens_outstanding", help, stats.leases.outstanding)?;
    let help = "Units leased from the shared store";
    write_counter(
        &mut start_counters(encoder, "store_tokens_granted", help)?,
        &[],
        stats.leases.granted,
    )?;
    let help = "Leased units returned unspent";
    write_counter(
        &mut start_counters(encoder, "store_tokens_returned", help)?,
        &[],
        stats.leases.returned,
    )?;
    let help =
        "Upper bound of leased units lost: their call got no reply, or they could not be returned";
    write_counter(&mut start_counters(encoder, "store_tokens_lost", help)?, &[], stats.leases.lost)
}
