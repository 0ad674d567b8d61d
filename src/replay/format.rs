//! The formats of access logs: detects the format of a line, and passes lines to the parser of
//! their format.

use super::line::{LineError, LogLine, MAX_LINE};
use super::{combined, json};

/// Format of a log.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Format {
    /// Tidegate's own: one JSON object per line.
    Json,
    /// `combined` of nginx and Apache, or `common`, which has only its first fields.
    Combined,
}

impl Format {
    /// The format of `line`, if it has a known one.
    pub fn detect(line: &[u8]) -> Option<Self> {
        match line.trim_ascii_start().first()? {
            b'{' => Some(Self::Json),
            _ => combined::parse(line).is_ok().then_some(Self::Combined),
        }
    }

    /// Parses one line without its line break.
    ///
    /// # Errors
    ///
    /// The line is malformed or longer than [`MAX_LINE`].
    pub fn parse(self, line: &[u8]) -> Result<LogLine<'_>, LineError> {
        match self {
            _ if line.len() > MAX_LINE => Err(LineError::TooLong),
            Self::Json => json::parse(line),
            Self::Combined => combined::parse(line),
        }
    }

    /// The name of the format in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Combined => "combined",
        }
    }
}
