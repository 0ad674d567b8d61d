//! What a caller is told who asks how things stand.

use std::{fmt::Write, sync::Arc};

use bytes::Bytes;
use http::StatusCode;

use super::{Reply, reset};
use crate::{framing::Fields, limit::Verdict, snapshot::Policy};

/// The state of these limits: the numbers that the caller's next answers begin with. `null` stands for one
/// of which nothing is known.
pub fn status(limits: &[Arc<Policy>], verdict: &Verdict) -> Reply {
    let mut json = String::from("{\"resources\":{");
    for (place, (policy, decision)) in limits.iter().zip(&verdict.decisions).enumerate() {
        let comma = if place == 0 { "" } else { "," };
        // The names of limits are letters, digits and a few signs: nothing to escape. Writing to a string
        // does not fail.
        let _ = write!(json, "{comma}\"{}\":", policy.limit.name);
        let _ = if decision.counted {
            let (limit, remaining, used) = (decision.limit, decision.remaining, decision.used);
            let reset = reset(decision);
            write!(
                json,
                "{{\"limit\":{limit},\"remaining\":{remaining},\"used\":{used},\"reset\":{reset}}}"
            )
        } else {
            json.write_str("null")
        };
    }
    json.push_str("}}\n");
    let mut fields = Fields::new();
    fields.push("content-type", "application/json");
    fields.push("cache-control", "no-store");
    Reply { status: StatusCode::OK, fields, body: Bytes::from(json) }
}
