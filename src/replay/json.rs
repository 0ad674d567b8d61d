//! Tidegate's own access log: a JSON object a line, as `telemetry` writes it.

use std::{borrow::Cow, time::UNIX_EPOCH};

use serde::Deserialize;

use super::line::{Line, LineFault, shown};
use crate::limit::{Admission, Millis};

/// What of a line is read; what else stands in it is passed over.
#[derive(Deserialize)]
struct Written<'l> {
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

/// Reads one line.
pub(super) fn parse(line: &[u8]) -> Result<Line<'_>, LineFault> {
    // Once for the line, not once for each of its texts.
    let text = std::str::from_utf8(line);
    let text = text.map_err(|_| LineFault::Json(format!("`{}` is not UTF-8", shown(line))))?;
    let written: Written<'_> = serde_json::from_str(text).map_err(|error| {
        // There is only one line: its number says nothing.
        let text = error.to_string();
        LineFault::Json(shown(text.split(" at line ").next().unwrap_or_default().as_bytes()))
    })?;
    let client = written.client.parse();
    Ok(Line {
        time: millis(&written.time)?,
        client: client.map_err(|_| LineFault::Client(shown(written.client.as_bytes())))?,
        token: written.token,
        method: written.method,
        host: written.host,
        target: match written.path {
            Cow::Borrowed(path) => Cow::Borrowed(path.as_bytes()),
            Cow::Owned(path) => Cow::Owned(path.into_bytes()),
        },
        status: written.status,
        unasked: written.limit == Admission::Unasked.label(),
    })
}

/// RFC 3339 in UTC.
fn millis(text: &str) -> Result<Millis, LineFault> {
    let time = humantime::parse_rfc3339(text).ok();
    let since = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since
        .and_then(|since| Millis::try_from(since.as_millis()).ok())
        .ok_or_else(|| LineFault::Time(shown(text.as_bytes()), "2026-01-02T03:04:05.678Z"))
}
