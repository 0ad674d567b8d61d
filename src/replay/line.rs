//! A parsed line of an access log, common to all formats.

use std::{borrow::Cow, net::IpAddr};

use super::logged_costs::LoggedCosts;
use crate::{clock::StoreTime, escape::escape};

/// Maximum length of a line, in bytes. A longer one is malformed.
pub const MAX_LINE: usize = 64 * 1024;

/// Maximum length of an excerpt in a fault, in characters.
const MAX_EXCERPT: usize = 40;

/// A request as logged.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogLine<'l> {
    /// Time of the request, in ms since the epoch.
    pub time: StoreTime,
    /// The client's address.
    pub client: IpAddr,
    /// The logged hash of the token, or the user name; empty without one.
    pub token: Cow<'l, str>,
    /// The name of the consumer; empty without one.
    pub consumer: Cow<'l, str>,
    /// The method; empty if the line has no request.
    pub method: Cow<'l, str>,
    /// The requested host; empty if the log has none.
    pub host: Cow<'l, str>,
    /// The request target: a path, and the query if the log has it.
    pub target: Cow<'l, [u8]>,
    /// The name of the route on which it was decided; empty if the log has none. Only `decide`
    /// routes are found by it.
    pub route: Cow<'l, str>,
    /// Status of the response; 0 if the log has none.
    pub status: u16,
    /// What limits have charged; empty if the log does not show it.
    pub costs: LoggedCosts<'l>,
    /// True if the logging gateway ended the request before any limit was charged. The log lacks
    /// the reason.
    pub not_checked: bool,
}

/// The reason why a line is malformed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum LineError {
    /// Longer than [`MAX_LINE`].
    #[error("a line of more than 64 KiB, expected a request")]
    TooLong,
    /// Neither format matches, and no earlier line determined the format.
    #[error("`{0}`, expected a JSON object, or a line in the format `combined`")]
    Unknown(String),
    /// Not a JSON object of an access log.
    #[error("{0}, expected a JSON object with time, client, method and path")]
    Json(String),
    /// A field of a JSON line has another type.
    #[error("`{name}` is `{value}`, expected {expected}")]
    Field {
        /// The field.
        name: &'static str,
        /// Its value, as an excerpt.
        value: String,
        /// What is accepted.
        expected: &'static str,
    },
    /// Not a time.
    #[error("`{0}`, expected a time such as {1}")]
    Time(String, &'static str),
    /// Not an IP address.
    #[error("`{0}`, expected an IP address")]
    Client(String),
    /// A field of a combined line is missing.
    #[error(
        "no {0}, expected a line such as 192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.1\" 200 5"
    )]
    Missing(&'static str),
}

/// An excerpt of the bytes, escaped for display.
pub(super) fn excerpt(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * MAX_EXCERPT)]);
    let start: String = text.chars().take(MAX_EXCERPT).collect();
    let mut excerpt = escape(&start).into_owned();
    if text.chars().count() > MAX_EXCERPT {
        excerpt.push('…');
    }
    excerpt
}
