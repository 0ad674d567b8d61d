//! `GET /api/acme` lists the certificates that are ordered from authorities, `POST /api/acme/renew`
//! orders new ones now; and their metrics.

use std::{collections::BTreeMap, fmt};

use axum::{
    Json,
    extract::{RawQuery, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use prometheus_client::{encoding::DescriptorEncoder, metrics::MetricType};
use serde::Serialize;

use super::{
    AdminContext,
    encode::{start_counters, write_counter, write_gauge},
    parameters::parse_distinct,
    problem::problem,
};
use crate::{
    acme::{AcmeReport, OrderOutcome},
    gateway::Shared,
    sensitive::mask_url,
    time::UnixSeconds,
};

/// The certificates that are ordered, in the configuration's order.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct OrderedCertificates {
    certificates: Vec<OrderedCertificate>,
    /// The time of this answer, in seconds since the epoch.
    now: u64,
}

/// A certificate that is ordered. Times are in seconds since the epoch.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct OrderedCertificate {
    domains: Vec<Box<str>>,
    /// The URL of the authority's directory.
    directory: Box<str>,
    #[cfg_attr(test, schemars(extend("enum" = ["tls-alpn-01", "http-01"])))]
    challenge: String,
    /// Where the account and the certificate are kept.
    #[cfg_attr(test, schemars(extend("enum" = ["folder", "redis"])))]
    storage: &'static str,
    /// When the current certificate expires; null without one.
    expires_at: Option<u64>,
    /// When it will be renewed; null without one.
    renewal_at: Option<u64>,
    /// When the order is repeated, after a failed one; null if the last one succeeded.
    retry_at: Option<u64>,
    /// The number of failed orders since the last successful one.
    failures: u32,
    /// Why the last order failed; null if it succeeded.
    last_error: Option<String>,
    /// True while this gateway orders it.
    is_ordering: bool,
    /// True while another gateway with the same storage orders it.
    is_ordered_elsewhere: bool,
}

/// New certificates that an operator wants.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct ForcedRenewals {
    /// The number of certificates that are ordered now.
    renewed: usize,
}

/// Lists the certificates.
pub(super) async fn list(State(context): State<AdminContext>) -> Response {
    let shared = &context.shared;
    let certificates = shared.acme.reports().into_iter().map(describe).collect();
    let now = UnixSeconds::of(shared.clock.store_time()).as_secs();
    let list = OrderedCertificates { certificates, now };
    ([(header::CACHE_CONTROL, "no-store")], Json(list)).into_response()
}

fn describe(report: AcmeReport) -> OrderedCertificate {
    OrderedCertificate {
        domains: report.settings.domains.to_vec(),
        directory: mask_url(&report.settings.directory).into(),
        challenge: report.settings.challenge.to_string(),
        storage: if report.settings.storage.is_shared() { "redis" } else { "folder" },
        expires_at: report.not_after.map(UnixSeconds::as_secs),
        renewal_at: report.renewal_at.map(UnixSeconds::as_secs),
        retry_at: report.retry_at.map(UnixSeconds::as_secs),
        failures: report.failures,
        last_error: report.last_error,
        is_ordering: report.is_ordering,
        is_ordered_elsewhere: report.is_ordered_elsewhere,
    }
}

/// Orders new certificates, all or the ones with a domain. Returns before they are issued.
pub(super) async fn renew(
    State(context): State<AdminContext>,
    RawQuery(query): RawQuery,
) -> Response {
    let domain = match parse_domain(query.as_deref().unwrap_or_default()) {
        Ok(domain) => domain,
        Err(detail) => return problem(StatusCode::BAD_REQUEST, &detail, &[]),
    };
    let renewed = context.shared.acme.renew(domain.as_deref());
    if renewed == 0 {
        let detail = "no certificate with this domain is ordered; expected a domain of `acme`";
        return problem(StatusCode::NOT_FOUND, detail, &[]);
    }
    tracing::info!(by = "admin", renewed, "certificates are renewed");
    (StatusCode::ACCEPTED, Json(ForcedRenewals { renewed })).into_response()
}

fn parse_domain(query: &str) -> Result<Option<String>, String> {
    let mut domain = None;
    for (name, value) in parse_distinct(query)? {
        if name != "domain" {
            return Err("unknown parameter; expected `domain`".to_owned());
        }
        domain = Some(value.to_ascii_lowercase());
    }
    Ok(domain)
}

/// Writes the metrics of orders.
pub(super) fn encode(shared: &Shared, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "Orders of certificates, by outcome";
    let mut family = start_counters(encoder, "acme_orders", help)?;
    for (label, outcome) in [("issued", OrderOutcome::Issued), ("failed", OrderOutcome::Failed)] {
        write_counter(&mut family, &[("outcome", label)], shared.acme.orders(outcome))?;
    }
    if let Some(storage) = shared.acme.shared_storage() {
        let help = "Calls to Redis for certificates that are ordered by ACME which failed";
        let mut family = start_counters(encoder, "acme_storage_failures", help)?;
        write_counter(&mut family, &[], storage.failed_calls)?;
        let help =
            "Certificates of which the record or the account in Redis was sealed with another key";
        write_gauge(encoder, "acme_storage_conflicts", help, storage.conflicts.len() as u64)?;
    }
    let reports = shared.acme.reports();
    let help = "When an ordered certificate expires, in seconds since the epoch";
    let times = reports.iter().map(|own| (own, own.not_after));
    write_times(encoder, "acme_certificate_expiry_seconds", help, times)?;
    let help = "When an ordered certificate will be renewed, in seconds since the epoch";
    let times = reports.iter().map(|own| (own, own.renewal_at));
    write_times(encoder, "acme_renewal_seconds", help, times)
}

/// Writes the known times of certificates. Two certificates may have the same first domain: then
/// the earlier time.
fn write_times<'r>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    times: impl Iterator<Item = (&'r AcmeReport, Option<UnixSeconds>)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    let mut earliest = BTreeMap::new();
    for (report, time) in times {
        let Some(time) = time else { continue };
        let domain = report.settings.domains.first().map_or("", |domain| &**domain);
        let known =
            earliest.entry((domain, &*report.settings.directory)).or_insert(UnixSeconds::MAX);
        *known = time.min(*known);
    }
    for ((name, directory), time) in earliest {
        let labels = [("name", name), ("directory", directory)];
        family.encode_family(&labels)?.encode_gauge(&time.as_secs().cast_signed())?;
    }
    Ok(())
}
