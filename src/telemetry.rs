//! The process's own log, and the access log: one JSON line a request.
//!
//! No token, no key and no query ever reach either; of a token, a keyed hash does.

use std::{io::Write, net::IpAddr, path::Path, time::Duration};

use serde_json::json;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{
    EnvFilter,
    filter::{LevelFilter, ParseError},
};

/// Lines that may wait for a slow log before further ones are dropped, and counted.
const WAITING_LINES: usize = 65_536;

/// Reads a filter of the process's own log, such as `info` or `tidegate=debug`.
///
/// The watcher of the configuration's folder is kept quiet unless it is named: a log that is written
/// into that folder would otherwise tell of each of its own lines.
pub fn filter(text: &str) -> Result<EnvFilter, ParseError> {
    let filter = EnvFilter::try_new(text)?;
    let loud = filter.max_level_hint().is_none_or(|level| level > LevelFilter::INFO);
    if text.contains("notify") || !loud {
        return Ok(filter);
    }
    Ok(filter.add_directive("notify=info".parse()?))
}

/// Starts the process's own log on stderr, at `info` where `filter` makes no sense.
pub fn start(filter: &str) {
    let filter = self::filter(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    // A second start in one process, as tests do, keeps the first.
    let _ = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .try_init();
}

/// Where access lines go.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Destination<'a> {
    /// Standard error.
    Stderr,
    /// Standard output.
    Stdout,
    /// The end of a file.
    File(&'a Path),
}

/// Writes access lines, from a thread of its own.
#[derive(Clone, Debug)]
pub struct AccessLog {
    lines: NonBlocking,
    dropped: ErrorCounter,
}

/// Keeps the writing thread; what waits is written when it is dropped.
#[must_use = "the access log ends when this is dropped"]
pub struct AccessLogGuard(#[expect(dead_code, reason = "held for its drop")] WorkerGuard);

impl AccessLog {
    /// Opens the log.
    pub fn open(destination: &Destination<'_>) -> std::io::Result<(Self, AccessLogGuard)> {
        let writer: Box<dyn Write + Send> = match destination {
            Destination::Stderr => Box::new(std::io::stderr()),
            Destination::Stdout => Box::new(std::io::stdout()),
            Destination::File(path) => {
                Box::new(std::fs::OpenOptions::new().create(true).append(true).open(path)?)
            }
        };
        let (lines, guard) = NonBlockingBuilder::default()
            .buffered_lines_limit(WAITING_LINES)
            .lossy(true)
            .thread_name("access-log")
            .finish(writer);
        let dropped = lines.error_counter();
        Ok((Self { lines, dropped }, AccessLogGuard(guard)))
    }

    /// Writes one line; drops it where too many wait.
    pub fn write(&self, line: &AccessLine<'_>) {
        let mut text = line.json();
        text.push('\n');
        // The writer never refuses: what it cannot take it drops and counts.
        let _ = self.lines.clone().write_all(text.as_bytes());
    }

    /// How many lines were dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped.dropped_lines() as u64
    }
}

/// One request, as its access line tells it.
#[derive(Debug)]
pub struct AccessLine<'a> {
    /// When it began, in ms since the epoch.
    pub time: u64,
    /// The client's address, behind trusted proxies.
    pub client: IpAddr,
    /// A keyed hash of the access token, where there is one: it tells callers apart, and nothing else.
    pub token: Option<u64>,
    /// The method.
    pub method: &'a str,
    /// The requested host.
    pub host: &'a str,
    /// The path in normal form, without query.
    pub path: &'a str,
    /// The route's name; empty: none.
    pub route: &'a str,
    /// The answer's status; 499 where the client was gone before it.
    pub status: u16,
    /// Bytes of the answer's body.
    pub bytes: u64,
    /// From the request's head to the answer's last byte.
    pub took: Duration,
    /// How long it was held back for a leaky bucket; a part of `took`.
    pub delay: Duration,
    /// `admitted`, `refused` or `unknown` by its limits; `none` where nothing limits the route, or there
    /// is no route; `throttled` before its limits were asked; `unasked` where it ended before they were
    /// for any other reason.
    pub limit: &'static str,
    /// Whether the answer was written to its end.
    pub complete: bool,
    /// The request's id.
    pub request_id: &'a str,
}

impl AccessLine<'_> {
    /// The line, without an end.
    pub fn json(&self) -> String {
        let time = std::time::UNIX_EPOCH + Duration::from_millis(self.time);
        json!({
            "time": humantime::format_rfc3339_millis(time).to_string(),
            "client": self.client.to_string(),
            "token": self.token.map_or_else(String::new, |hash| format!("{hash:016x}")),
            "method": self.method,
            "host": self.host,
            "path": self.path,
            "route": self.route,
            "status": self.status,
            "bytes": self.bytes,
            "duration_ms": self.took.as_micros() as f64 / 1000.0,
            "delay_ms": self.delay.as_micros() as f64 / 1000.0,
            "limit": self.limit,
            "complete": self.complete,
            "request_id": self.request_id,
        })
        .to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watcher_does_not_tell_of_the_log_itself() {
        for (text, shown) in [
            ("trace", "notify=info,trace"),
            ("notify=trace", "notify=trace"),
            ("info", "info"),
            ("off", "off"),
        ] {
            assert_eq!(filter(text).unwrap().to_string(), shown);
        }
        assert!(filter("tidegate=loud").is_err());
    }

    #[test]
    fn a_line_is_json_and_written_before_the_guard_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.log");
        let (log, guard) = AccessLog::open(&Destination::File(&path)).unwrap();
        log.write(&AccessLine {
            time: 1_700_000_000_123,
            client: "192.0.2.1".parse().unwrap(),
            token: Some(0xabc),
            method: "GET",
            host: "a",
            path: "/\"quoted\"\u{1}",
            route: "items",
            status: 200,
            bytes: 5,
            took: Duration::from_micros(1500),
            delay: Duration::from_micros(500),
            limit: "admitted",
            complete: true,
            request_id: "id",
        });
        drop(guard);
        let text = std::fs::read_to_string(path).unwrap();
        let line: serde_json::Value = serde_json::from_str(text.trim_end()).unwrap();
        assert_eq!(line["time"], "2023-11-14T22:13:20.123Z");
        assert_eq!(line["path"], "/\"quoted\"\u{1}");
        assert_eq!(
            (&line["duration_ms"], &line["token"]),
            (&1.5.into(), &"0000000000000abc".into())
        );
        assert_eq!(line["delay_ms"], 0.5);
        assert_eq!(log.dropped(), 0);
    }
}
