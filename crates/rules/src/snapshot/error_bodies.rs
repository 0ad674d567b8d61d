//! [`ErrorBodies`]: a route's bodies for the gateway's own errors.

use std::path::Path;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use tidegate_config as config;
use tidegate_system::file::{FileError, READ_TIMEOUT, read_regular, read_within};

use super::section::Section;

/// Maximum size of a body's file, in bytes.
const MAX_LEN: u64 = 256 << 10;

/// The error statuses that the gateway sends once a request has a route.
const ROUTE_ERRORS: [u16; 11] = [400, 401, 403, 408, 413, 429, 500, 501, 502, 503, 504];

/// A route's bodies for the gateway's own errors.
#[derive(Debug)]
pub struct ErrorBodies {
    exact: Box<[(u16, ErrorBody)]>,
    /// Disjoint.
    ranges: Box<[(config::StatusRange, ErrorBody)]>,
    /// Bodies for all other 4xx and 5xx statuses.
    classes: [Option<ErrorBody>; 2],
}

/// The body of a response, and its type.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ErrorBody {
    /// `Content-Type`.
    pub content_type: HeaderValue,
    /// The body, without its variables.
    text: Bytes,
    /// The variables, each with the position in `text` before which its value is inserted.
    variables: Box<[(usize, BodyVariable)]>,
    /// True if values of variables are escaped for HTML and XML.
    is_markup: bool,
}

/// A variable of a body.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum BodyVariable {
    RetryAfter,
    Limit,
    Place,
    ExpectedWait,
}

const VARIABLES: [(&[u8], BodyVariable); 4] = [
    (b"{retry_after}", BodyVariable::RetryAfter),
    (b"{limit}", BodyVariable::Limit),
    (b"{place}", BodyVariable::Place),
    (b"{expected_wait}", BodyVariable::ExpectedWait),
];

/// The values of the variables of a body.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct BodyValues {
    /// The seconds of `Retry-After`; `None` if the response has none.
    pub retry_after: Option<u64>,
    /// The names of the limits that refused, or the throttle's name; empty if none did.
    pub limit: String,
    /// The place in the waiting room; empty for a caller that does not wait there.
    pub place: String,
    /// The expected wait in the waiting room, in words; empty as `place`.
    pub expected_wait: String,
}

impl ErrorBody {
    /// True if a body is rendered for each response. Otherwise all responses share it.
    pub fn has_variables(&self) -> bool {
        !self.variables.is_empty()
    }

    /// Parses a body with variables such as `{limit}`. All other braces are literal, as in a style
    /// sheet.
    fn new(content_type: HeaderValue, body: &[u8]) -> Self {
        let (mut text, mut variables) = (Vec::with_capacity(body.len()), Vec::new());
        let mut rest = body;
        while let Some((first, after)) = rest.split_first() {
            let found = VARIABLES.iter().find(|(written, _)| rest.starts_with(written));
            if let Some((written, variable)) = found {
                variables.push((text.len(), *variable));
                rest = &rest[written.len()..];
            } else {
                text.push(*first);
                rest = after;
            }
        }
        let media = content_type.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
        let media = media.trim_ascii().to_ascii_lowercase();
        let is_markup = media.ends_with(b"html") || media.ends_with(b"xml");
        Self { content_type, text: text.into(), variables: variables.into(), is_markup }
    }

    /// The body with its variables replaced; `values` is called only if it has any.
    pub fn body(&self, values: impl FnOnce() -> BodyValues) -> Bytes {
        if self.variables.is_empty() {
            return self.text.clone();
        }
        let BodyValues { retry_after, limit, place, expected_wait } = values();
        let retry_after = retry_after.map_or(String::new(), |seconds| seconds.to_string());
        // JSON needs no escaping: names of limits have no character that JSON escapes.
        let limit = if self.is_markup { escape_markup(&limit) } else { limit };
        let (mut body, mut from) = (Vec::with_capacity(self.text.len() + 32), 0);
        for (at, variable) in &self.variables {
            body.extend_from_slice(&self.text[from..*at]);
            from = *at;
            body.extend_from_slice(match variable {
                BodyVariable::RetryAfter => retry_after.as_bytes(),
                BodyVariable::Limit => limit.as_bytes(),
                BodyVariable::Place => place.as_bytes(),
                BodyVariable::ExpectedWait => expected_wait.as_bytes(),
            });
        }
        body.extend_from_slice(&self.text[from..]);
        body.into()
    }
}

/// `text` as the content of an element or a quoted attribute.
pub fn escape_markup(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            _ => escaped.push(character),
        }
    }
    escaped
}

/// The statuses that a key selects.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Statuses {
    Exact(u16),
    /// More than one status.
    Range(config::StatusRange),
    /// 4xx or 5xx: 0 or 1.
    Class(usize),
}

impl Statuses {
    fn parse(key: &str) -> Option<Self> {
        match key {
            "4xx" => Some(Self::Class(0)),
            "5xx" => Some(Self::Class(1)),
            _ if key.len() == 3 && key.bytes().all(|b| b.is_ascii_digit()) => {
                let status = key.parse().ok().filter(|status| (400..600).contains(status));
                status.map(Self::Exact)
            }
            _ => config::StatusRange::from_text(key)
                .filter(|range| 400 <= range.first && range.first < range.last)
                .map(Self::Range),
        }
    }
}

impl ErrorBodies {
    /// The body for `status`, or else for the range that has it, or else for its class.
    pub fn get(&self, status: StatusCode) -> Option<&ErrorBody> {
        let status = status.as_u16();
        let exact = self.exact.iter().find(|(of, _)| *of == status).map(|(_, body)| body);
        let in_range = |(of, _): &&(config::StatusRange, _)| of.contains(status);
        let of_range = || self.ranges.iter().find(in_range).map(|(_, body)| body);
        let class = usize::from(status / 100).checked_sub(4);
        exact.or_else(of_range).or_else(|| self.classes.get(class?)?.as_ref())
    }
}

/// Compiles the `error_bodies` of the route at `section`, and reads their files; `None` if it has
/// none.
pub(super) fn compile(section: &Section<'_>, route: &config::RouteConfig) -> Option<ErrorBodies> {
    if route.error_bodies.is_empty() {
        return None;
    }
    let (mut exact, mut ranges, mut classes) = (Vec::new(), Vec::new(), [None, None]);
    for (key, configured) in &route.error_bodies {
        let section = section.at("error_bodies").entry(key);
        let statuses = Statuses::parse(key);
        if statuses.is_none() {
            let expected = "a status from 400 to 599, a range such as 500-599, 4xx or 5xx";
            section.fault_at_key(format!("`{key}`"), expected);
        }
        let body = body(&section, configured);
        match (statuses, body) {
            (Some(Statuses::Exact(status)), Some(body)) => {
                note_unused(&section, status);
                exact.push((status, body));
            }
            (Some(Statuses::Range(range)), Some(body)) => {
                let other = ranges.iter().find(|(other, _): &&(config::StatusRange, _)| {
                    other.first <= range.last && range.first <= other.last
                });
                if let Some((other, _)) = other {
                    let what = format!("`{key}`, which overlaps `{other}`");
                    section.fault_at_key(what, "ranges without a common status");
                }
                ranges.push((range, body));
            }
            (Some(Statuses::Class(class)), body) => classes[class] = body,
            _ => {}
        }
    }
    Some(ErrorBodies { exact: exact.into(), ranges: ranges.into(), classes })
}

/// Notes a status that the gateway never sends for a route.
fn note_unused(section: &Section<'_>, status: u16) {
    if !ROUTE_ERRORS.contains(&status) {
        let statuses = ROUTE_ERRORS.map(|status| status.to_string()).join(", ");
        let what = format!(
            "the gateway makes no {status} of its own on a route; an upstream's {status} keeps its body"
        );
        section.note(what, &format!("one of {statuses}"));
    }
}

fn body(section: &Section<'_>, configured: &config::ErrorBodyConfig) -> Option<ErrorBody> {
    let text = Some(configured.content_type.as_str()).filter(|text| text.is_ascii());
    let content_type = text.and_then(|text| HeaderValue::from_str(text).ok());
    let content_type = content_type.filter(|value| !value.is_empty());
    let what = format!("`{}`", configured.content_type);
    let expected = "a media type such as text/html";
    section.at("content_type").ensure(content_type.is_some(), &what, expected);
    let body = match (&configured.file, &configured.body) {
        (Some(file), None) => Some(read_file(&section.at("file"), file)?),
        (None, Some(body)) => Some(Bytes::copy_from_slice(body.as_bytes())),
        (Some(_), Some(_)) => {
            section.at("body").fault_at_key("both `file` and `body`", "one of them");
            None
        }
        (None, None) => {
            if section.can_read(&["file", "body"]) {
                section.fault("neither `file` nor `body`", "one of them");
            }
            None
        }
    };
    Some(ErrorBody::new(content_type?, &body?))
}

/// The content of a body's file; reports a file that cannot be read.
fn read_file(section: &Section<'_>, file: &Path) -> Option<Bytes> {
    let owned = file.to_owned();
    let read = read_within(READ_TIMEOUT, move || read_regular(&owned, MAX_LEN + 1));
    let read = read.and_then(|bytes| {
        let fits = bytes.len() as u64 <= MAX_LEN;
        if fits { Ok(bytes) } else { Err(FileError::TooLong(MAX_LEN)) }
    });
    let reported = |error: FileError| {
        let what = format!("{}: {error}", file.display());
        section.fault(what, error.expected());
    };
    Some(Bytes::from(read.map_err(reported).ok()?))
}

/// Compiles the page of a waiting room, in the file `path`; reports a file that cannot be read.
pub(super) fn waiting_page(section: &Section<'_>, path: &Path) -> Option<ErrorBody> {
    let html = HeaderValue::from_static("text/html; charset=utf-8");
    let page = read_file(section, path)?;
    let is_text = std::str::from_utf8(&page).is_ok_and(|text| !text.trim().is_empty());
    section.ensure(is_text, &path.display().to_string(), "a page that is not empty, in UTF-8");
    Some(ErrorBody::new(html, &page))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn body(text: &'static str) -> ErrorBody {
        ErrorBody::new(HeaderValue::from_static("text/html"), text.as_bytes())
    }

    #[test]
    fn an_exact_status_wins_over_its_class() {
        let bodies = ErrorBodies {
            exact: [(503, body("exact"))].into(),
            ranges: [(config::StatusRange { first: 502, last: 504 }, body("range"))].into(),
            classes: [None, Some(body("class"))],
        };
        for (status, expected) in [
            (503, Some("exact")),
            (504, Some("range")),
            (500, Some("class")),
            (599, Some("class")),
            (404, None),
        ] {
            let found = bodies.get(StatusCode::from_u16(status).unwrap());
            assert_eq!(found, expected.map(body).as_ref(), "{status}");
        }
        for status in [100, 200, 304, 600, 999] {
            assert!(bodies.get(StatusCode::from_u16(status).unwrap()).is_none(), "{status}");
        }
    }

    #[test]
    fn variables_have_their_values() {
        let values = || BodyValues {
            retry_after: Some(7),
            limit: "<few>, many".to_owned(),
            place: "12".to_owned(),
            expected_wait: "3 minutes".to_owned(),
        };
        let rendered = |content_type, text: &str| {
            let body = ErrorBody::new(HeaderValue::from_static(content_type), text.as_bytes());
            String::from_utf8(body.body(values).to_vec()).unwrap()
        };
        let html = "<style>p {color: red}</style>{limit}: {retry_after} s{retry_after}{{limit}";
        assert_eq!(
            rendered("Text/HTML ; charset=utf-8", html),
            "<style>p {color: red}</style>&lt;few&gt;, many: 7 s7{&lt;few&gt;, many"
        );
        assert_eq!(rendered("text/plain", "{limit}{x}{}"), "<few>, many{x}{}");
        assert_eq!(rendered("text/html", "{place} in {expected_wait}"), "12 in 3 minutes");
        let body = ErrorBody::new(HeaderValue::from_static("a/b"), b"{retry_after}|{limit}");
        assert_eq!(body.body(BodyValues::default), "|");
        let plain = ErrorBody::new(HeaderValue::from_static("a/b"), b"no {variable}");
        assert_eq!(plain.body(|| panic!("no variable")), "no {variable}");
    }

    proptest! {
        /// Every body without a variable is sent as it is.
        #[test]
        fn other_bytes_stand_for_themselves(text in prop::collection::vec(any::<u8>(), 0..40)) {
            let body = ErrorBody::new(HeaderValue::from_static("a/b"), &text);
            prop_assert_eq!(body.body(BodyValues::default), text);
        }

        #[test]
        fn only_statuses_of_errors_are_keys(key in "[0-9x+-]{0,4}") {
            let expected = match &*key {
                "4xx" => Some(Statuses::Class(0)),
                "5xx" => Some(Statuses::Class(1)),
                _ => (400..600).find(|status: &u16| status.to_string() == key).map(Statuses::Exact),
            };
            prop_assert_eq!(Statuses::parse(&key), expected);
        }
    }
}
