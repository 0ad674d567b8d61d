//! One line of an access log, whichever format it was written in.

use std::{borrow::Cow, net::IpAddr};

use super::{combined, json};
use crate::limit::Millis;

/// The longest line that is read, in bytes; a longer one is malformed.
pub const MAX_LINE: usize = 64 * 1024;

/// How many characters of what is wrong are shown.
const SHOWN: usize = 40;

/// How a log is written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Format {
    /// Tidegate's own: a JSON object a line.
    Json,
    /// `combined` of nginx and Apache, or its beginning, `common`.
    Combined,
}

/// One request, as its line tells it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Line<'l> {
    /// When it was made, in ms since the epoch.
    pub time: Millis,
    /// The client's address.
    pub client: IpAddr,
    /// What stands for its access token: the logged hash, or the name of a user; empty: none.
    pub token: Cow<'l, str>,
    /// The method; empty where no request could be read.
    pub method: Cow<'l, str>,
    /// The requested host; empty where the log has none.
    pub host: Cow<'l, str>,
    /// The target: a path, and a query where the log has it.
    pub target: Cow<'l, [u8]>,
    /// The status that it was answered with; 0 where the log has none.
    pub status: u16,
    /// Whether the gateway that wrote it ended the request before any limit was asked, for a reason
    /// that the line does not have.
    pub unasked: bool,
}

/// Why a line cannot be read.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum LineFault {
    /// Longer than [`MAX_LINE`].
    #[error("a line of more than 64 KiB, expected a request")]
    TooLong,
    /// Neither format, where none is known yet.
    #[error("`{0}`, expected a JSON object, or a line in the format `combined`")]
    Unknown(String),
    /// No JSON, or not that of an access log.
    #[error("{0}, expected a JSON object with time, client, method and path")]
    Json(String),
    /// No time.
    #[error("`{0}`, expected a time such as {1}")]
    Time(String, &'static str),
    /// No address.
    #[error("`{0}`, expected an IP address")]
    Client(String),
    /// A part of a combined line is missing.
    #[error(
        "no {0}, expected such as 192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.1\" 200 5"
    )]
    Missing(&'static str),
}

/// A short piece of what was read, for a person.
pub(super) fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * SHOWN)]);
    let mut short: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().count() > SHOWN {
        short.push('…');
    }
    short
}

impl Format {
    /// The format that `line` is written in, if it is one.
    pub fn of(line: &[u8]) -> Option<Self> {
        match line.trim_ascii_start().first()? {
            b'{' => Some(Self::Json),
            _ => combined::parse(line).is_ok().then_some(Self::Combined),
        }
    }

    /// Reads one line, without its end.
    pub fn parse(self, line: &[u8]) -> Result<Line<'_>, LineFault> {
        match self {
            _ if line.len() > MAX_LINE => Err(LineFault::TooLong),
            Self::Json => json::parse(line),
            Self::Combined => combined::parse(line),
        }
    }

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Combined => "combined",
        }
    }
}
