//! Parses Tidegate's own access log, which has one JSON object per line (see `telemetry`).

use std::{borrow::Cow, time::UNIX_EPOCH};

use serde::{Deserialize, de::IgnoredAny};

use super::line::{LineError, LogLine, excerpt};
use crate::{clock::StoreTime, limit::Admission};

/// The fields of a line that are used; others are ignored.
#[derive(Deserialize)]
struct JsonLine<'l> {
    #[serde(borrow)]
    time: Cow<'l, str>,
    #[serde(borrow)]
    client: Cow<'l, str>,
    #[serde(borrow, default)]
    token: Cow<'l, str>,
    #[serde(borrow)]
    method: Cow<'l, str>,
    #[serde(borrow, default)]
    host: Cow<'l, str>,
    #[serde(borrow)]
    path: Cow<'l, str>,
    #[serde(default)]
    status: u16,
    #[serde(borrow, default)]
    limit: Cow<'l, str>,
}

/// The fields that every line of the process log has, and no line of the access log.
#[derive(Deserialize)]
struct ProcessLine {
    #[serde(rename = "timestamp")]
    _timestamp: IgnoredAny,
    #[serde(rename = "level")]
    _level: IgnoredAny,
}

/// True for a line of the process log, which by default shares standard error with the access log.
pub(super) fn is_process_log(line: &[u8]) -> bool {
    // Only an object: serde would also read an array of two values as the two fields.
    line.trim_ascii_start().starts_with(b"{") && serde_json::from_slice::<ProcessLine>(line).is_ok()
}

/// Parses one line.
///
/// # Errors
///
/// The line is not a JSON object with the required fields, or a field is malformed.
pub(super) fn parse(line: &[u8]) -> Result<LogLine<'_>, LineError> {
    // UTF-8 is validated once per line instead of once per string.
    let text = std::str::from_utf8(line);
    let text = text.map_err(|_| LineError::Json(format!("`{}` is not UTF-8", excerpt(line))))?;
    let line: JsonLine<'_> = serde_json::from_str(text).map_err(|error| {
        // Drops the parser's line number, which is always 1.
        let text = error.to_string();
        LineError::Json(excerpt(text.split(" at line ").next().unwrap_or_default().as_bytes()))
    })?;
    let client = line.client.parse();
    Ok(LogLine {
        time: parse_time(&line.time)?,
        client: client.map_err(|_| LineError::Client(excerpt(line.client.as_bytes())))?,
        token: line.token,
        method: line.method,
        host: line.host,
        target: match line.path {
            Cow::Borrowed(path) => Cow::Borrowed(path.as_bytes()),
            Cow::Owned(path) => Cow::Owned(path.into_bytes()),
        },
        status: line.status,
        not_checked: line.limit == Admission::NotChecked.label(),
    })
}

/// Parses a time (RFC 3339, UTC) into ms since the epoch.
fn parse_time(text: &str) -> Result<StoreTime, LineError> {
    let time = humantime::parse_rfc3339(text).ok();
    let since = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since
        .and_then(|since| u64::try_from(since.as_millis()).ok().map(StoreTime::from_unix_ms))
        .ok_or_else(|| LineError::Time(excerpt(text.as_bytes()), "2026-01-02T03:04:05.678Z"))
}
