//! What a caller is told who asks how things stand.

use std::fmt::Write;

use bytes::Bytes;
use http::StatusCode;

use super::{LimitReport, Reply, reset};
use crate::framing::Fields;

/// The state of these limits: the numbers that the caller's next answers begin with. Of several callers
/// that the request counts as under one limit, those of the one with the least left. `null` stands for one
/// of which nothing is known. Reports of one limit stand together.
pub fn status(limits: &[LimitReport<'_>]) -> Reply {
    let mut json = String::from("{\"resources\":{");
    let by_limit = limits.chunk_by(|one, other| one.limit.name == other.limit.name);
    for (place, reports) in by_limit.enumerate() {
        let comma = if place == 0 { "" } else { "," };
        let name = reports.first().map_or("", |report| &report.limit.name);
        // The names of limits are letters, digits and a few signs: nothing to escape. Writing to a string
        // does not fail.
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
                reset(decision)
            ),
            None => json.write_str("null"),
        };
    }
    json.push_str("}}\n");
    let mut fields = Fields::new();
    fields.push("content-type", "application/json");
    fields.push("cache-control", "no-store");
    Reply { status: StatusCode::OK, fields, body: Bytes::from(json) }
}
