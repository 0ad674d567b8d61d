//! [`AccessLayout`]: the format and the fields of a log's lines, compiled once; [`LineFormatter`]
//! writes lines by it.

use std::sync::Arc;

use super::{
    AccessField, AccessLine, combined,
    json::{self, JsonField},
    text::{self, TextField},
    time::TimeCache,
};
use crate::telemetry::style::Colours;

/// The format of access lines.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AccessFormat {
    /// A JSON object.
    Json,
    /// The format `combined` of nginx and Apache.
    Combined,
    /// A readable line.
    Text {
        /// A terminal's escape sequences.
        colours: Colours,
    },
}

/// The format and the fields of a log's lines.
#[derive(Debug)]
pub struct AccessLayout {
    lines: Lines,
    needs_token: bool,
    needs_headers: bool,
    needs_cost: bool,
}

#[derive(Debug)]
enum Lines {
    /// The default fields.
    DefaultJson,
    Json(Box<[JsonField]>),
    Combined,
    Text {
        fields: Box<[TextField]>,
        colours: Colours,
    },
}

impl AccessLayout {
    /// Lines of this format with `fields` in their order, or with the format's default fields.
    /// `Combined` ignores `fields`.
    pub fn new(format: AccessFormat, fields: Option<&[AccessField]>) -> Self {
        let lines = match format {
            AccessFormat::Json => fields.map_or(Lines::DefaultJson, |fields| {
                Lines::Json(fields.iter().copied().map(JsonField::new).collect())
            }),
            AccessFormat::Combined => Lines::Combined,
            AccessFormat::Text { colours } => {
                let fields = fields.unwrap_or(&AccessField::TEXT).iter().copied();
                let fields = fields.map(|field| TextField::new(field, colours));
                Lines::Text { fields: fields.collect(), colours }
            }
        };
        let shown = match format {
            AccessFormat::Json => fields.unwrap_or(&AccessField::JSON),
            AccessFormat::Combined => &combined::FIELDS,
            AccessFormat::Text { .. } => fields.unwrap_or(&AccessField::TEXT),
        };
        let headers = [AccessField::Referer, AccessField::UserAgent];
        Self {
            lines,
            needs_cost: shown.contains(&AccessField::Cost),
            needs_token: shown.contains(&AccessField::Token),
            needs_headers: headers.iter().any(|header| shown.contains(header)),
        }
    }

    /// True if lines have the token's hash.
    pub fn needs_token(&self) -> bool {
        self.needs_token
    }

    /// True if lines have the costs of requests.
    pub fn needs_cost(&self) -> bool {
        self.needs_cost
    }

    /// True if lines have fields of the request's header.
    pub fn needs_headers(&self) -> bool {
        self.needs_headers
    }
}

impl Default for AccessLayout {
    fn default() -> Self {
        Self::new(AccessFormat::Json, None)
    }
}

/// Formats the lines of one writer.
#[derive(Debug, Default)]
pub(in crate::telemetry) struct LineFormatter {
    layout: Arc<AccessLayout>,
    times: TimeCache,
}

impl LineFormatter {
    pub(in crate::telemetry) fn new(layout: Arc<AccessLayout>) -> Self {
        Self { layout, times: TimeCache::default() }
    }

    /// Appends `line` and a line feed to `out`.
    pub(in crate::telemetry) fn append(&mut self, line: &AccessLine<'_>, out: &mut Vec<u8>) {
        let times = &mut self.times;
        match &self.layout.lines {
            Lines::DefaultJson => json::append(line, times, out),
            Lines::Json(fields) => json::append_fields(fields, line, times, out),
            Lines::Combined => combined::append(line, times, out),
            Lines::Text { fields, colours } => {
                text::append(fields, *colours, line, times, out);
            }
        }
    }
}
