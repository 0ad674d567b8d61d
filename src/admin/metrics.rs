//! `GET /metrics`: the counters of all workers, added up when they are asked for.

use std::{fmt, sync::Arc, sync::atomic::Ordering};

use axum::{
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text::encode},
    metrics::MetricType,
    registry::Registry,
};

use super::Control;
use crate::{
    gateway::Shared,
    limit::OnFailure,
    metrics::LATENCY_BOUNDS,
    store::{Failure, StoreStats},
    telemetry::{AccessLog, process_log_dropped},
};

const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
const DECISIONS: [&str; 4] = ["admitted", "refused", "unknown", "would_refuse"];
const UPSTREAM_FAILURES: [&str; 3] = ["connect", "timeout", "broken"];

pub(super) async fn text(State(control): State<Control>) -> Response {
    let mut registry = Registry::with_prefix("tidegate");
    registry.register_collector(Box::new(Reading(control.shared)));
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(fmt::Error) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// What is read at one scrape.
struct Reading(Arc<Shared>);

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reading")
    }
}

impl Collector for Reading {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.requests(&mut encoder)?;
        self.limits(&mut encoder)?;
        super::throttle_metrics::encode(&self.0, &mut encoder)?;
        self.store(&mut encoder)?;
        self.process(&mut encoder)
    }
}

impl Reading {
    fn requests(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let metrics = &self.0.metrics;
        let help = "Answers by route and status class; no route: the empty name";
        let mut family = counter(encoder, "requests", help)?;
        for (route, answers) in metrics.answers() {
            for (class, count) in CLASSES.iter().zip(answers) {
                add(&mut family, &[("route", &route), ("status", class)], count)?;
            }
        }
        let help = "From a request's head to its answer's last byte";
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
        let help = "Exchanges with upstreams that gave no answer, by kind";
        let mut family = counter(encoder, "upstream_failures", help)?;
        for (upstream, failures) in metrics.upstream_failures() {
            for (kind, count) in UPSTREAM_FAILURES.iter().zip(failures) {
                add(&mut family, &[("upstream", &upstream), ("kind", kind)], count)?;
            }
        }
        let help = "Attempts at upstream servers beyond a request's first";
        let mut family = counter(encoder, "upstream_retries", help)?;
        for (upstream, [count]) in metrics.upstream_retries() {
            add(&mut family, &[("upstream", &upstream)], count)?;
        }
        Ok(())
    }

    fn limits(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Charges by route, limit and decision; unknown: the store was lost";
        let mut family = counter(encoder, "limit_decisions", help)?;
        for ((route, limit), decisions) in self.0.metrics.decisions() {
            for (decision, count) in DECISIONS.iter().zip(decisions) {
                let labels = [("route", &*route), ("limit", &*limit), ("decision", decision)];
                add(&mut family, &labels, count)?;
            }
        }
        self.delays(encoder)
    }

    /// What leaky buckets held back. Limits that never did are left out.
    fn delays(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut delays = self.0.metrics.delays();
        delays.retain(|_, [delayed, _]| *delayed > 0);
        let help = "Requests that were held back, by route and the limit that held them longest";
        let mut family = counter(encoder, "limit_delayed", help)?;
        for ((route, limit), [delayed, _]) in &delays {
            add(&mut family, &[("route", route), ("limit", limit)], *delayed)?;
        }
        let help = "How long they were held back, in seconds";
        let mut family = counter(encoder, "limit_delay_seconds", help)?;
        for ((route, limit), [_, micros]) in &delays {
            let labels = [("route", &**route), ("limit", &**limit)];
            let seconds = *micros as f64 / 1e6;
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, f64, u64>(&seconds, None)?;
        }
        let help = "Requests that are held back now";
        gauge(encoder, "limit_waiting", help, self.0.metrics.waiting())
    }

    fn store(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (stats, status) = (self.0.stores.stats(), self.0.stores.status());
        let help = "Requests that brought their charges to the store";
        add(&mut counter(encoder, "store_calls", help)?, &[], stats.requests)?;
        let help = "Of them, those that the shared store gave no decision to, by kind";
        let mut family = counter(encoder, "store_failures", help)?;
        for failure in Failure::ALL {
            add(&mut family, &[("kind", failure.label())], stats.failures[failure.index()])?;
        }
        ahead(encoder, &stats)?;
        let help = "Decisions that a limit's on_failure took, by policy";
        let mut family = counter(encoder, "store_fallbacks", help)?;
        let policies =
            [("local", OnFailure::Local), ("open", OnFailure::Open), ("closed", OnFailure::Closed)];
        for (name, policy) in policies {
            add(&mut family, &[("policy", name)], stats.fallbacks(policy))?;
        }
        let help = "Records removed from memory before their time, because it was full";
        add(&mut counter(encoder, "store_evictions", help)?, &[], stats.evictions)?;
        gauge(encoder, "store_keys", "Records in memory", stats.keys as u64)?;
        gauge(
            encoder,
            "store_gateways",
            "Gateways alive on the same store",
            u64::from(stats.gateways),
        )?;
        let help = "Callers and limits whose local charges wait for the shared store";
        gauge(encoder, "store_unmerged", help, stats.unmerged as u64)?;
        let help = "Sums of local charges that were charged in the shared store";
        add(&mut counter(encoder, "store_merged", help)?, &[], stats.merged)?;
        let help = "Sums of local charges, and other corrections, that the shared store will not hear of, or may";
        add(&mut counter(encoder, "store_merge_drops", help)?, &[], stats.merge_drops)?;
        let help = "Workers that have lost the shared store";
        gauge(encoder, "store_workers_without", help, status.lost as u64)?;
        let help = "Whether a server of the shared store is there: 1, or 0";
        let mut family =
            encoder.encode_descriptor("store_shard_up", help, None, MetricType::Gauge)?;
        for shard in self.0.stores.shards() {
            let labels = [("shard", &*shard.name)];
            family.encode_family(&labels)?.encode_gauge(&i64::from(shard.is_up))?;
        }
        Ok(())
    }

    fn process(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let metrics = &self.0.metrics;
        let [open, accepted, refused, malformed] = metrics.connections();
        gauge(encoder, "connections", "Client connections that are open", open)?;
        let help = "Client connections that were accepted";
        add(&mut counter(encoder, "accepted_connections", help)?, &[], accepted)?;
        let help =
            "Client connections closed at once: their client has max_connections_per_client open";
        add(&mut counter(encoder, "connections_refused", help)?, &[], refused)?;
        let help = "Requests refused before they had a route: malformed or late";
        add(&mut counter(encoder, "malformed_requests", help)?, &[], malformed)?;
        let help = "Reloads of the configuration, by outcome";
        let mut family = counter(encoder, "reloads", help)?;
        let load = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        add(&mut family, &[("outcome", "applied")], load(&metrics.reloads))?;
        add(&mut family, &[("outcome", "faulty")], load(&metrics.reload_faults))?;
        let help = "Generation of the configuration, counted from 1";
        gauge(encoder, "configuration_generation", help, self.0.live.generation())?;
        self.logs(encoder)
    }

    fn logs(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let of = |count: fn(&AccessLog) -> u64| self.0.access_log.as_ref().map_or(0, count);
        let help = "Access lines lost: the log was slow, or a write failed";
        let dropped = of(AccessLog::dropped);
        add(&mut counter(encoder, "access_log_dropped", help)?, &[], dropped)?;
        let help = "Writes of the access log that failed";
        let write_errors = of(AccessLog::write_errors);
        add(&mut counter(encoder, "access_log_write_errors", help)?, &[], write_errors)?;
        let help = "Lines of the process's own log lost: stderr was slow, or a write failed";
        let dropped = process_log_dropped();
        add(&mut counter(encoder, "process_log_dropped", help)?, &[], dropped)
    }
}

/// What was decided without asking the shared store, and what it was asked for.
fn ahead(encoder: &mut DescriptorEncoder<'_>, stats: &StoreStats) -> fmt::Result {
    let help = "Calls to the shared store for decisions and for tokens";
    add(&mut counter(encoder, "store_asked", help)?, &[], stats.store_calls)?;
    let help = "Charges made from tokens taken ahead";
    add(&mut counter(encoder, "store_ahead", help)?, &[], stats.leased_charges)?;
    let help = "Refusals by what the shared store had said before";
    add(&mut counter(encoder, "store_refusals_remembered", help)?, &[], stats.denials.hits)?;
    let help = "Refusals that are remembered now";
    gauge(encoder, "store_refusals", help, stats.denials.entries as u64)?;
    let help = "Tokens taken ahead that are not spent yet";
    gauge(encoder, "store_tokens_outstanding", help, stats.tokens.outstanding)?;
    let help = "Tokens that the shared store granted";
    add(&mut counter(encoder, "store_tokens_granted", help)?, &[], stats.tokens.granted)?;
    let help = "Of them, those that were given back unspent";
    add(&mut counter(encoder, "store_tokens_given_back", help)?, &[], stats.tokens.given_back)?;
    let help = "Tokens of which it is not known whether the shared store counts them, at the most";
    add(&mut counter(encoder, "store_tokens_lost", help)?, &[], stats.tokens.lost)
}

pub(super) fn counter<'e>(
    encoder: &'e mut DescriptorEncoder<'_>,
    name: &'e str,
    help: &str,
) -> Result<MetricEncoder<'e>, fmt::Error> {
    encoder.encode_descriptor(name, help, None, MetricType::Counter)
}

pub(super) fn add(
    family: &mut MetricEncoder<'_>,
    labels: &[(&str, &str)],
    value: u64,
) -> fmt::Result {
    if labels.is_empty() {
        return family.encode_counter::<NoLabelSet, u64, u64>(&value, None);
    }
    family.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, u64>(&value, None)
}

pub(super) fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: u64,
) -> fmt::Result {
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
}
