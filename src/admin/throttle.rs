//! `GET /api/throttle` and `PUT /api/throttle`: who is let in when too many users are active.

use std::sync::Arc;

use axum::{
    Json,
    body::Bytes,
    extract::{State, rejection::BytesRejection},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value, json};

use super::{Control, problem};
use crate::throttle::{Throttle, mode::Mode};

/// How things stand.
pub(super) async fn show(State(control): State<Control>) -> Response {
    match &control.shared.throttle {
        Some(throttle) => Json(state(throttle)).into_response(),
        None => none(),
    }
}

/// Sets the mode of this gateway, until it ends or the configuration's changes.
pub(super) async fn set(
    State(control): State<Control>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let Some(throttle) = &control.shared.throttle else { return none() };
    let body = match body {
        Ok(body) => body,
        Err(rejected) => return problem(rejected.status(), &rejected.body_text(), &[]),
    };
    match mode(&body) {
        Ok(mode) => {
            throttle.set_mode(mode);
            Json(state(throttle)).into_response()
        }
        Err(what) => {
            let detail = format!("{what}; expected {{\"mode\": \"auto\"}}, \"on\" or \"off\"");
            problem(StatusCode::BAD_REQUEST, &detail, &[])
        }
    }
}

/// The mode that `body` asks for.
fn mode(body: &[u8]) -> Result<Mode, String> {
    let wanted: Map<String, Value> =
        serde_json::from_slice(body).map_err(|error| error.to_string())?;
    if let Some(key) = wanted.keys().find(|key| *key != "mode") {
        return Err(format!("unknown key `{key}`"));
    }
    let Some(mode) = wanted.get("mode") else { return Err("no `mode`".to_owned()) };
    mode.as_str().and_then(Mode::from_label).ok_or_else(|| format!("`mode` is {mode}"))
}

fn state(throttle: &Arc<Throttle>) -> Value {
    let (status, settings) = (throttle.status(), throttle.settings());
    json!({
        "mode": status.mode.label(),
        "throttling": status.refuses(),
        "active": status.estimate.tokens,
        "error": status.estimate.error,
        "saturated": status.estimate.saturated,
        "max_active": settings.marks.max_active,
        "resume_below": settings.marks.resume_below,
        "loaded": status.loaded,
        "complete": status.complete,
        "ticks": status.ticks,
        "memory_bytes": settings.geometry.bytes(),
    })
}

fn none() -> Response {
    problem(StatusCode::NOT_FOUND, "there is no `throttle` in the configuration", &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_one_of_three_and_nothing_else() {
        assert_eq!(mode(br#"{"mode": "on"}"#), Ok(Mode::On));
        assert_eq!(mode(br#"{"mode": "auto"}"#), Ok(Mode::Auto));
        for (body, told) in [
            (&br#"{"mode": "open"}"#[..], "`mode` is \"open\""),
            (br#"{"mode": true}"#, "`mode` is true"),
            (b"{}", "no `mode`"),
            (br#"{"mode": "on", "for": 5}"#, "unknown key `for`"),
            (b"on", "expected value"),
            (b"", "EOF"),
        ] {
            assert!(mode(body).unwrap_err().contains(told), "{told}");
        }
    }
}
