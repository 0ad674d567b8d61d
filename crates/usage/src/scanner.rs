//! [`BodyScanner`]: the scanner for a body's media type.

use std::sync::Arc;

use super::{
    events::EventScanner,
    json::{Grammar, JsonScanner},
    lines::LineScanner,
    number::Quantity,
    path::PathSet,
};

/// How the JSON of a body is arranged.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BodyFormat {
    /// The body is a JSON text.
    Json,
    /// Server-sent events, whose data are JSON texts.
    Events,
    /// Each line is a JSON text.
    Lines,
}

/// Finds numbers in a body that arrives in pieces. The scanners are boxed: they are large, and
/// moved several times.
#[derive(Clone, Debug)]
pub enum BodyScanner {
    /// In a JSON text.
    Json(Box<JsonScanner>),
    /// In server-sent events.
    Events(Box<EventScanner>),
    /// In lines.
    Lines(Box<LineScanner>),
}

impl BodyFormat {
    /// The format of a body with this `Content-Type`. Types that are not known are read as JSON,
    /// which ends at the first byte that is not.
    pub fn of(content_type: Option<&[u8]>) -> Self {
        let value = content_type.unwrap_or_default();
        let end = memchr::memchr(b';', value).unwrap_or(value.len());
        let media_type = value[..end].trim_ascii();
        let is = |name: &str| media_type.eq_ignore_ascii_case(name.as_bytes());
        let lines = [
            "application/x-ndjson",
            "application/ndjson",
            "application/jsonl",
            "application/x-jsonlines",
            "application/jsonlines",
            "application/stream+json",
        ];
        if is("text/event-stream") {
            Self::Events
        } else if lines.iter().any(|name| is(name)) {
            Self::Lines
        } else {
            Self::Json
        }
    }
}

impl BodyScanner {
    /// A scanner for the members at `paths` of a body in `format`.
    pub fn new(format: BodyFormat, paths: Arc<PathSet>) -> Self {
        let json = JsonScanner::new(paths, Grammar::Lenient);
        match format {
            BodyFormat::Json => Self::Json(Box::new(json)),
            BodyFormat::Events => Self::Events(Box::new(EventScanner::new(json))),
            BodyFormat::Lines => Self::Lines(Box::new(LineScanner::new(json))),
        }
    }

    /// Looks at the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        match self {
            Self::Json(json) => json.push(bytes),
            Self::Events(events) => events.push(bytes),
            Self::Lines(lines) => lines.push(bytes),
        }
    }

    /// The number at the path with this index.
    pub fn quantity(&self, path: usize) -> Option<Quantity> {
        let json = match self {
            Self::Json(json) => json,
            Self::Events(events) => events.json(),
            Self::Lines(lines) => lines.json(),
        };
        json.quantity(path)
    }
}
