//! The decisions on each request in the process log, at `debug`.

use tidegate_charge::{DecisionSource, Outcome};
use tidegate_rules::plan;
use tracing::Level;

use super::{
    charged_limit::ChargedLimit,
    ledger::{Ledger, RequestEndFacts},
};

/// Logs the decision of each limit, and the outcome of the request. If `debug` is off, this costs
/// one load.
#[inline]
pub(super) fn log_decisions(ledger: &Ledger, facts: &RequestEndFacts<'_>, limits: &[ChargedLimit]) {
    if tracing::enabled!(Level::DEBUG) {
        log_all(ledger, facts, limits);
    }
}

#[cold]
fn log_all(ledger: &Ledger, facts: &RequestEndFacts<'_>, limits: &[ChargedLimit]) {
    let request_id = String::from_utf8_lossy(ledger.request_id.as_bytes());
    for charged in limits {
        log_limit(&request_id, charged);
    }
    let head = facts.head;
    tracing::debug!(
        request_id = &*request_id,
        client = %ledger.client_ip,
        method = head.map_or("", |head| head.method.as_str()),
        host = &*head.map(|head| plan::host(&head.fields)).unwrap_or_default(),
        path = &*String::from_utf8_lossy(facts.path),
        route = ledger.route_name(),
        limits = ledger.admission.label(),
        delay_ms = ledger.delay.get().as_millis() as u64,
        upstream = ledger.server(),
        attempts = ledger.attempts.count,
        status = ledger.status(),
        "request decided"
    );
}

fn log_limit(request_id: &str, charged: &ChargedLimit) {
    let limit = charged.limit();
    let decision = match (&charged.outcome, charged.outcome.refused()) {
        (Outcome::Unknown, _) => "unknown",
        (Outcome::NotCharged, _) => "not_charged",
        (Outcome::Decided(_), None) => "admitted",
        (_, Some(_)) if limit.enforce => "refused",
        (_, Some(_)) => "would_refuse",
    };
    let decided = charged.outcome.decided();
    let source = decided.map(|decided| match decided.source {
        DecisionSource::Store => "store",
        DecisionSource::Fallback => "fallback",
    });
    tracing::debug!(
        request_id,
        limit = limit.name(),
        // The keyed hash, as in the admin API and in Redis; never the value that the caller sent.
        hash = format_args!("{:032x}", charged.key().0),
        cost = charged.cost(),
        decision,
        quota = decided.map(|decided| decided.decision.limit),
        remaining = decided.map(|decided| decided.decision.remaining),
        reset_ms = decided.map(|decided| decided.decision.reset_at.since(decided.at).as_ms()),
        wait_ms = decided.map(|decided| decided.decision.wait.as_ms()),
        source,
        "limit decided"
    );
}
