//! Parses Tidegate's own access log, which has one JSON object per line (see `telemetry`).

use std::{borrow::Cow, time::UNIX_EPOCH};

use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Map, Value, error::Category};

use super::{
    line::{LineError, LogLine, excerpt},
    logged_costs::LoggedCosts,
};
use crate::{clock::StoreTime, escape::escape, plan::Admission};

/// The fields of a line that are used; others are ignored.
#[derive(Deserialize)]
struct JsonLine<'l> {
    #[serde(borrow)]
    time: Cow<'l, str>,
    #[serde(borrow)]
    client: Cow<'l, str>,
    #[serde(borrow, default)]
    token: Cow<'l, str>,
    #[serde(borrow, default)]
    consumer: Cow<'l, str>,
    #[serde(borrow)]
    method: Cow<'l, str>,
    #[serde(borrow, default)]
    host: Cow<'l, str>,
    #[serde(borrow)]
    path: Cow<'l, str>,
    #[serde(borrow, default)]
    route: Cow<'l, str>,
    #[serde(default)]
    status: u16,
    #[serde(borrow, default)]
    limit: Cow<'l, str>,
    #[serde(borrow, default)]
    cost: LoggedCosts<'l>,
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
    let line: JsonLine<'_> = serde_json::from_str(text)
        .map_err(|error| wrong_field(text).unwrap_or_else(|| LineError::Json(reason(&error))))?;
    let client = line.client.parse();
    Ok(LogLine {
        time: parse_time(&line.time)?,
        client: client.map_err(|_| LineError::Client(excerpt(line.client.as_bytes())))?,
        token: line.token,
        consumer: line.consumer,
        method: line.method,
        host: line.host,
        target: match line.path {
            Cow::Borrowed(path) => Cow::Borrowed(path.as_bytes()),
            Cow::Owned(path) => Cow::Owned(path.into_bytes()),
        },
        route: line.route,
        status: line.status,
        costs: line.cost,
        not_checked: line.limit == Admission::NotChecked.label(),
    })
}

/// Why a line is not a JSON object with distinct fields.
fn reason(error: &serde_json::Error) -> String {
    match error.classify() {
        Category::Eof => "the line ends early".to_owned(),
        Category::Syntax | Category::Io => format!("a mistake in column {}", error.column()),
        Category::Data => {
            let text = error.to_string();
            let what = text.split(" at line ").next().unwrap_or_default();
            escape(&what.replacen("duplicate field", "duplicate key", 1)).into_owned()
        }
    }
}

/// The first field of a JSON object that has another type, or is missing. The parser does not name
/// it.
fn wrong_field(text: &str) -> Option<LineError> {
    const TEXT: &str = "text in quotes";
    let object: Map<String, Value> = serde_json::from_str(text).ok()?;
    for name in ["time", "client", "token", "consumer", "method", "host", "path", "route", "limit"]
    {
        match object.get(name) {
            Some(Value::String(_)) => {}
            None if matches!(name, "token" | "consumer" | "host" | "route" | "limit") => {}
            None => return Some(LineError::Json(format!("no `{name}`"))),
            Some(value) => return Some(field(name, value, TEXT)),
        }
    }
    let is_status =
        |status: &Value| status.as_u64().is_some_and(|status| u16::try_from(status).is_ok());
    if let Some(status) = object.get("status").filter(|status| !is_status(status)) {
        return Some(field("status", status, "a number from 0 to 65535, without quotes"));
    }
    let cost = object.get("cost").filter(|cost| !LoggedCosts::is_valid(cost))?;
    Some(field("cost", cost, "an object of whole numbers from 0 to 9007199254740991"))
}

fn field(name: &'static str, value: &Value, expected: &'static str) -> LineError {
    LineError::Field { name, value: excerpt(value.to_string().as_bytes()), expected }
}

/// Parses a time (RFC 3339, UTC) into ms since the epoch.
fn parse_time(text: &str) -> Result<StoreTime, LineError> {
    let time = humantime::parse_rfc3339(text).ok();
    let since = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since
        .and_then(|since| u64::try_from(since.as_millis()).ok().map(StoreTime::from_unix_ms))
        .ok_or_else(|| LineError::Time(excerpt(text.as_bytes()), "2026-01-02T03:04:05.678Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_line_names_its_field() {
        let line =
            r#"{"time":"2026-11-26T14:11:04.000Z","client":"10.1.0.1","method":"GET","path":"/"}"#;
        assert!(parse(line.as_bytes()).is_ok());
        let object = "expected a JSON object with time, client, method and path";
        for (from, to, expected) in [
            (
                "\"path\"",
                "\"status\":\"200\",\"path\"",
                "`status` is `\"200\"`, expected a number from 0 to 65535, without quotes"
                    .to_owned(),
            ),
            (
                "\"path\"",
                "\"status\":65536,\"path\"",
                "`status` is `65536`, expected a number from 0 to 65535, without quotes".to_owned(),
            ),
            (
                "\"2026-11-26T14:11:04.000Z\"",
                "5",
                "`time` is `5`, expected text in quotes".to_owned(),
            ),
            (
                "\"path\"",
                "\"cost\":{\"a\":9007199254740992},\"path\"",
                "`cost` is `{\"a\":9007199254740992}`, expected an object of whole numbers \
                 from 0 to 9007199254740991"
                    .to_owned(),
            ),
            ("\"GET\"", "null", "`method` is `null`, expected text in quotes".to_owned()),
            (",\"path\":\"/\"", "", format!("no `path`, {object}")),
            (",\"path\":\"/\"}", "", format!("the line ends early, {object}")),
        ] {
            let found = parse(line.replace(from, to).as_bytes()).unwrap_err().to_string();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn costs_are_whole_numbers_by_limit() {
        let line = |cost: &str| {
            format!(
                "{{\"time\":\"2026-11-26T14:11:04.000Z\",\"client\":\"10.1.0.1\",\"method\":\"GET\",\
                 \"cost\":{cost},\"path\":\"/\"}}"
            )
        };
        let text = line(r#"{"a":0,"b\u002dc":9007199254740991,"a":7}"#);
        let read = parse(text.as_bytes()).unwrap();
        let costs = ["a", "b-c", "d"].map(|limit| read.costs.get(limit));
        assert_eq!(costs, [Some(7), Some(9_007_199_254_740_991), None]);
        assert_eq!(parse(line("{}").as_bytes()).unwrap().costs, LoggedCosts::default());
        for malformed in [
            "5",
            "null",
            "[]",
            "\"a\"",
            r#"{"a":-1}"#,
            r#"{"a":"5"}"#,
            r#"{"a":1.5}"#,
            r#"{"a":null}"#,
            r#"{"a":{}}"#,
            r#"{"a":1e3}"#,
            r#"{"a":9007199254740992}"#,
            r#"{"a":1,"b":99999999999999999999}"#,
        ] {
            let text = line(malformed);
            let found = parse(text.as_bytes());
            let is_field =
                |error: &LineError| matches!(error, LineError::Field { name: "cost", .. });
            assert!(found.as_ref().is_err_and(is_field), "{malformed}: {found:?}");
        }
    }
}
