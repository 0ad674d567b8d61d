//! `GET /api/throttle` shows the state of the throttle; `PUT /api/throttle` sets its mode.

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::{
    Serialize,
    de::{Deserializer as _, MapAccess, Visitor},
};
use serde_json::Value;

use super::{
    AdminContext,
    problem::{WholeBody, problem},
};
use crate::{
    config::json_error,
    metrics::Metrics,
    throttle::{CapacityState, Throttle, mode::ThrottleMode},
};

/// The decisions on requests while throttling, in the order of their counters.
pub(super) const DECISIONS: [&str; 4] = ["known", "unknown", "missing", "rejected"];

/// The state of the throttle.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[expect(clippy::struct_excessive_bools, reason = "each is a member of its own in the API's JSON")]
pub(super) struct ThrottleDescription {
    /// The mode in force, from the configuration or the operator.
    #[cfg_attr(test, schemars(extend("enum" = ["auto", "on", "off"])))]
    mode: &'static str,
    /// True if unknown tokens are refused now.
    throttling: bool,
    /// The estimated number of active users.
    active: u64,
    /// Half the width of the estimate's 95 % confidence interval.
    error: u64,
    /// True if the filters are too full for an estimate.
    saturated: bool,
    /// The number of active users above which throttling starts.
    max_active: u64,
    /// The number below which it stops.
    resume_below: u64,
    /// True if the shared filters were loaded.
    loaded: bool,
    /// True if the filters hold all activity within `throttle.memory`.
    complete: bool,
    /// The time of the last update, which is due once a second, in Unix ms.
    updated_at_ms: u64,
    /// The memory of the filters.
    memory_bytes: u64,
    /// The memory up to which the filters grow.
    max_memory_bytes: u64,
    /// The share of unknown tokens that pass as active, measured from the fill of the filters.
    false_positive: f64,
    /// The configured `throttle.false_positive`.
    max_false_positive: f64,
    /// True if the measured share is at least twice the configured one: more tokens a minute arrive
    /// than the filters can hold.
    over_capacity: bool,
    /// Requests with an access token on routes where the throttle applies.
    requests_with_token: u64,
    /// Requests without an access token on these routes: their users are not recognised.
    requests_without_token: u64,
    /// The waiting room; null without one.
    waiting_room: Option<RoomDescription>,
}

/// The state of the waiting room.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct RoomDescription {
    /// `open`; or `closed` by the operator: this gateway admits no one from the room.
    #[cfg_attr(test, schemars(extend("enum" = ["open", "closed"])))]
    state: &'static str,
    /// The number of waiting tickets, at all gateways.
    waiting: u64,
    /// How long the first in the queue has waited.
    first_waits_seconds: u64,
    /// Users who have taken a place lately, or are expected to take a free one, and may not be
    /// active yet.
    entering: u64,
}

/// What an operator changes.
#[derive(Debug, Default, Eq, PartialEq)]
struct ThrottleChange {
    mode: Option<ThrottleMode>,
    waiting_room: Option<RoomDoor>,
}

/// The door of the waiting room.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum RoomDoor {
    Open,
    Closed,
}

impl RoomDoor {
    fn from_label(label: &str) -> Option<Self> {
        match label {
            "open" => Some(Self::Open),
            "closed" => Some(Self::Closed),
            _ => None,
        }
    }
}

/// Shows the state of the throttle.
pub(super) async fn show(State(context): State<AdminContext>) -> Response {
    match &context.shared.throttle {
        Some(throttle) => Json(describe(throttle, &context.shared.metrics)).into_response(),
        None => no_throttle(),
    }
}

/// Sets the mode of this gateway, until it restarts or the configured mode changes; opens or closes
/// its waiting room, until it restarts.
pub(super) async fn set(
    State(context): State<AdminContext>,
    body: Result<WholeBody, Response>,
) -> Response {
    let Some(throttle) = &context.shared.throttle else { return no_throttle() };
    let WholeBody(body) = match body {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    match parse_change(&body) {
        Ok(ThrottleChange { waiting_room: Some(_), .. }) if throttle.room.is_none() => {
            problem(StatusCode::NOT_FOUND, "the configuration has no `throttle.waiting_room`", &[])
        }
        Ok(change) => {
            if let Some(mode) = change.mode {
                throttle.set_mode(mode);
            }
            if let (Some(door), Some(room)) = (change.waiting_room, &throttle.room) {
                match door {
                    RoomDoor::Open => room.open(),
                    RoomDoor::Closed => room.close(),
                }
                tracing::info!(is_closed = room.is_closed(), "waiting room set by the operator");
            }
            Json(describe(throttle, &context.shared.metrics)).into_response()
        }
        Err(what) => {
            let detail = format!(
                "{what}; expected {{\"mode\": \"auto\"}}, {{\"mode\": \"on\"}} or {{\"mode\": \"off\"}}, or with a \
                 waiting room {{\"waiting_room\": \"open\"}} or {{\"waiting_room\": \"closed\"}}"
            );
            problem(StatusCode::BAD_REQUEST, &detail, &[])
        }
    }
}

/// Reads the members of a JSON object in their order, duplicates included.
struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Vec<(String, Value)>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(members)
    }
}

/// Parses a body such as `{"mode": "on"}`.
fn parse_change(body: &[u8]) -> Result<ThrottleChange, String> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let members = json.deserialize_map(MembersVisitor).and_then(|members| {
        json.end()?;
        Ok(members)
    });
    let members = members.map_err(|error| json_error(&error))?;
    if members.is_empty() {
        return Err("no `mode`".to_owned());
    }
    let mut change = ThrottleChange::default();
    for (key, value) in &members {
        let faulty = || format!("`{key}` is {value}");
        let text = value.as_str();
        let is_repeated = match &**key {
            "mode" => {
                let mode = text.and_then(ThrottleMode::from_label).ok_or_else(faulty)?;
                change.mode.replace(mode).is_some()
            }
            "waiting_room" => {
                let door = text.and_then(RoomDoor::from_label).ok_or_else(faulty)?;
                change.waiting_room.replace(door).is_some()
            }
            _ => return Err(format!("unknown key `{key}`")),
        };
        if is_repeated {
            return Err(format!("duplicate key `{key}`"));
        }
    }
    Ok(change)
}

pub(super) fn describe(throttle: &Throttle, metrics: &Metrics) -> ThrottleDescription {
    let [requests_with_token, requests_without_token] = metrics.throttle_requests();
    let (status, settings) = (throttle.status(), throttle.settings());
    ThrottleDescription {
        mode: status.mode.label(),
        throttling: throttle.is_throttling(),
        active: status.estimate.tokens,
        error: status.estimate.error,
        saturated: status.estimate.saturated,
        max_active: settings.watermarks.max_active,
        resume_below: settings.watermarks.resume_below,
        loaded: status.loaded,
        complete: status.complete,
        updated_at_ms: status.updated_at.as_unix_ms(),
        memory_bytes: status.memory_bytes,
        max_memory_bytes: settings.geometry.grown(settings.max_growth()).bytes(),
        false_positive: rounded(status.false_positive),
        max_false_positive: settings.sizing.false_positive,
        over_capacity: status.capacity == CapacityState::Exceeded,
        requests_with_token,
        requests_without_token,
        waiting_room: throttle.room.as_ref().map(|room| {
            let view = room.view();
            RoomDescription {
                state: if room.is_closed() { "closed" } else { "open" },
                waiting: view.waiting(),
                first_waits_seconds: view.lag().as_whole_secs(),
                entering: view.pending(),
            }
        }),
    }
}

/// A rate with four significant digits, and 0 below the smallest that can be configured: the rest
/// would be noise.
pub(super) fn rounded(rate: f64) -> f64 {
    if rate < 1e-9 { 0.0 } else { format!("{rate:.3e}").parse().unwrap_or(rate) }
}

fn no_throttle() -> Response {
    problem(StatusCode::NOT_FOUND, "the configuration has no `throttle`", &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_changes_are_parsed() {
        let mode = |mode| Ok(ThrottleChange { mode: Some(mode), waiting_room: None });
        assert_eq!(parse_change(br#"{"mode": "on"}"#), mode(ThrottleMode::On));
        assert_eq!(parse_change(br#"{"mode": "auto"}"#), mode(ThrottleMode::Auto));
        let both =
            ThrottleChange { mode: Some(ThrottleMode::Off), waiting_room: Some(RoomDoor::Closed) };
        let body = br#"{"waiting_room": "closed", "mode": "off"}"#;
        assert_eq!(parse_change(body), Ok(both));
        for (body, expected) in [
            (&br#"{"mode": "open"}"#[..], "`mode` is \"open\""),
            (br#"{"mode": true}"#, "`mode` is true"),
            (b"{}", "no `mode`"),
            (br#"{"mode": "on", "for": 5}"#, "unknown key `for`"),
            (br#"{"mode": "on", "mode": "off"}"#, "duplicate key `mode`"),
            (br#"{"waiting_room": "on"}"#, "`waiting_room` is \"on\""),
            (b"[]", "expected an object"),
            (b"on", "the text is not JSON"),
            (b"", "it ends early"),
        ] {
            assert!(parse_change(body).unwrap_err().contains(expected), "{expected}");
        }
    }
}
