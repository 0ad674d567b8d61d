//! `GET /api/log_level` shows the filter of the process log; `PUT /api/log_level` sets it.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::{Map, Value};

use super::problem::{WholeBody, problem};
use crate::config::json_error;
use crate::telemetry::{process_log_filter, set_process_log_filter};

/// The filter of the process log.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct LogLevel {
    /// A level (`off`, `error`, `warn`, `info`, `debug`, `trace`), or a filter as for `--log`, such
    /// as `info,tidegate=debug`.
    level: String,
}

/// Shows the filter.
pub(super) async fn show() -> Response {
    match process_log_filter() {
        Some(level) => Json(LogLevel { level }).into_response(),
        None => no_log(),
    }
}

/// Sets the filter, until the process ends.
pub(super) async fn set(WholeBody(body): WholeBody) -> Response {
    let level = match parse_level(&body) {
        Ok(level) => level,
        Err(what) => {
            let detail = format!(
                "{what}; expected {{\"level\": \"debug\"}}, or a filter such as \
                 {{\"level\": \"info,tidegate=debug\"}}"
            );
            return problem(StatusCode::BAD_REQUEST, &detail, &[]);
        }
    };
    if set_process_log_filter(&level) { Json(LogLevel { level }).into_response() } else { no_log() }
}

fn no_log() -> Response {
    let detail = "this process has no log of its own; expected one that `tidegate serve` started";
    problem(StatusCode::CONFLICT, detail, &[])
}

/// Parses a body such as `{"level": "debug"}`.
fn parse_level(body: &[u8]) -> Result<String, String> {
    let object: Map<String, Value> =
        serde_json::from_slice(body).map_err(|error| json_error(&error))?;
    if let Some(key) = object.keys().find(|key| *key != "level") {
        return Err(format!("unknown key `{key}`"));
    }
    let Some(level) = object.get("level") else { return Err("no `level`".to_owned()) };
    let text = level.as_str().ok_or_else(|| format!("`level` is {level}"))?;
    crate::telemetry::parse_filter(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_levels_are_parsed() {
        for good in ["debug", "WARN", "info,tidegate_gateway=trace", "off"] {
            let body = format!("{{\"level\": \"{good}\"}}");
            assert_eq!(parse_level(body.as_bytes()).as_deref(), Ok(good));
        }
        for (body, expected) in [
            (r#"{"level": "verbose"}"#, "`verbose` is not a level"),
            (r#"{"level": "info,tidegate"}"#, "`tidegate` is not a level"),
            (r#"{"level": "tidegate=loud"}"#, "`tidegate=loud` is not a level"),
            (r#"{"level": ""}"#, "`` is not a level"),
            (r#"{"level": 3}"#, "`level` is 3"),
            ("{}", "no `level`"),
            (r#"{"level": "info", "for": 5}"#, "unknown key `for`"),
            ("info", "the text is not JSON: a mistake in line 1, column 1"),
        ] {
            let error = parse_level(body.as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{body}: {error}");
        }
    }
}
