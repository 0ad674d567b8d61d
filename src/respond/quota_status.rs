//! The response of a route with the action `status`: the caller's quotas as JSON.

use std::fmt::Write;

use bytes::Bytes;
use http::StatusCode;

use super::{LimitReport, LocalReply, reset_unix_seconds};
use crate::http1::Fields;

/// The response with the caller's quotas before its next request.
///
/// Shape: `{"resources":{NAME:{"limit":_,"remaining":_,"used":_,"reset":_},...}}`, `reset` in
/// seconds since the epoch; `null` for a limit without a decision. `limits` must be grouped by
/// limit: a limit that counts the request under several keys has one report for each key, and the
/// lowest `remaining` is shown.
pub fn quota_status(limits: &[LimitReport<'_>]) -> LocalReply {
    let mut json = String::from("{\"resources\":{");
    let by_limit = limits.chunk_by(|one, other| one.limit.name() == other.limit.name());
    for (index, reports) in by_limit.enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let name = reports.first().map_or("", |report| report.limit.name());
        // A limit's name has no characters that JSON escapes. Writing to a `String` cannot fail.
        let _ = write!(json, "{comma}\"{name}\":");
        let decided = reports.iter().filter_map(|report| report.outcome.decided());
        let least = decided.min_by_key(|decided| decided.decision.remaining);
        let _ = match least.map(|decided| &decided.decision) {
            Some(decision) => write!(
                json,
                "{{\"limit\":{},\"remaining\":{},\"used\":{},\"reset\":{}}}",
                decision.limit,
                decision.remaining,
                decision.used,
                reset_unix_seconds(decision)
            ),
            None => json.write_str("null"),
        };
    }
    json.push_str("}}\n");
    let mut fields = Fields::new();
    fields.push("content-type", "application/json");
    fields.push("cache-control", "no-store");
    LocalReply { status: StatusCode::OK, fields, body: Bytes::from(json) }
}
