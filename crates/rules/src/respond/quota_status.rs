//! The response of a route with the action `status`: the caller's quotas as JSON.

use std::fmt::Write;

use bytes::Bytes;
use http::StatusCode;
use tidegate_access::overrides::Override;
use tidegate_charge::{Limit, Outcome};
use tidegate_http1::Fields;

use super::{LimitReport, LocalReply, reset_unix_seconds};

/// One limit of a `status` route.
#[derive(Clone, Copy, Debug)]
pub struct StatusReport<'a> {
    /// The limit and its decision.
    pub limit: LimitReport<'a>,
    /// The override that gives its quota.
    pub applied: Option<&'a Override>,
}

/// The response with the caller's quotas before its next request.
///
/// Shape: `{"resources":{NAME:{"limit":_,"remaining":_,"used":_,"reset":_},...}}`, `reset` in
/// seconds since the epoch; `null` for a limit without a decision, or of an unknown counter. A
/// limit with an override also has `"override":{"until":_}`, in seconds, `null` without an end.
/// `limits` must be grouped by limit: a limit that counts the request under several keys has one
/// report for each key, and the lowest `remaining` is shown.
pub fn quota_status(limits: &[StatusReport<'_>]) -> LocalReply {
    let mut json = String::from("{\"resources\":{");
    let by_limit = limits.chunk_by(|one, other| one.name() == other.name());
    for (index, reports) in by_limit.enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let name = reports.first().map_or("", |report| report.name());
        // A limit's name has no characters that JSON escapes. Writing to a `String` cannot fail.
        let _ = write!(json, "{comma}\"{name}\":");
        let decided = reports.iter().filter_map(|report| {
            report.limit.outcome.decided().map(|decided| (&decided.decision, report.applied))
        });
        let Some((decision, applied)) = decided.min_by_key(|(decision, _)| decision.remaining)
        else {
            json.push_str("null");
            continue;
        };
        let _ = write!(
            json,
            "{{\"limit\":{},\"remaining\":{},\"used\":{},\"reset\":{}",
            decision.limit,
            decision.remaining,
            decision.used,
            reset_unix_seconds(decision)
        );
        let _ = match applied.map(|own| own.until) {
            None => Ok(()),
            Some(None) => json.write_str(",\"override\":{\"until\":null}"),
            Some(Some(until)) => {
                let seconds = until.as_unix_ms().div_ceil(1_000);
                write!(json, ",\"override\":{{\"until\":{seconds}}}")
            }
        };
        json.push('}');
    }
    json.push_str("}}\n");
    let mut fields = Fields::new();
    fields.push("content-type", "application/json");
    fields.push("cache-control", "no-store");
    LocalReply { status: StatusCode::OK, fields, body: Bytes::from(json) }
}

impl<'a> StatusReport<'a> {
    /// A limit of which the request does not say whose counter is meant.
    pub fn unknown(limit: &'a Limit) -> Self {
        let limit = LimitReport { limit, cost: limit.cost, outcome: &Outcome::NotCharged };
        Self { limit, applied: None }
    }
}

impl StatusReport<'_> {
    fn name(&self) -> &str {
        self.limit.limit.name()
    }
}
