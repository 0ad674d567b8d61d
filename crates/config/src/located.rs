//! The YAML text as a tree in which every key and value has its location.

mod builder;
mod syntax;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use saphyr_parser::{Marker, Parser, Span};
use serde_json::Value;

use self::builder::Builder;
pub(super) use self::syntax::{control_character, syntax_fault};
use tidegate_base::sensitive::mask_forms;

use super::fault::Mismatch;
use super::location::Location;
use super::redact::{MAX_QUOTED_VALUE, redact_url_credentials};
use super::secret::EnvLookup;

/// Maximum nesting of lists and mappings, aliases included.
const MAX_DEPTH: usize = 32;

/// The id of all values that no file contains.
const UNWRITTEN: usize = usize::MAX;

/// One YAML value.
#[derive(Debug)]
pub(super) struct LocatedNode {
    /// Unique per value; aliases of a value share its id.
    pub(super) id: usize,
    pub(super) location: Location,
    pub(super) kind: NodeKind,
    /// Number of values in the subtree, including this one and aliases.
    size: usize,
    /// Number of levels of the subtree, including this one and aliases.
    height: usize,
}

/// How a scalar is written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ScalarForm {
    /// Without quotes.
    Plain,
    /// Quoted, or as a block: never a number, a boolean or null.
    Quoted,
}

#[derive(Debug)]
pub(super) enum NodeKind {
    Scalar {
        text: String,
        form: ScalarForm,
        /// The text as written, if it has references to environment variables. `text` may then be a
        /// number or a boolean, and no message shows it.
        written: Option<String>,
    },
    List(Vec<Arc<LocatedNode>>),
    Map(Vec<LocatedEntry>),
}

#[derive(Debug)]
pub(super) struct LocatedEntry {
    pub(super) key: Arc<LocatedNode>,
    pub(super) value: Arc<LocatedNode>,
}

impl LocatedNode {
    /// A value that no file contains, such as the placeholder of one that is missing.
    pub(super) fn unwritten(value: &Value) -> Self {
        let plain = |text: String| NodeKind::scalar(text, ScalarForm::Plain);
        let kind = match value {
            Value::Null => plain("null".to_owned()),
            Value::Bool(flag) => plain(flag.to_string()),
            Value::Number(number) => plain(number.to_string()),
            Value::String(text) => NodeKind::scalar(text.clone(), ScalarForm::Quoted),
            Value::Array(items) => {
                NodeKind::List(items.iter().map(|item| Arc::new(Self::unwritten(item))).collect())
            }
            Value::Object(entries) => {
                let entry = |(key, value): (&String, &Value)| LocatedEntry {
                    key: Arc::new(Self::unwritten(&key.as_str().into())),
                    value: Arc::new(Self::unwritten(value)),
                };
                NodeKind::Map(entries.iter().map(entry).collect())
            }
        };
        let location = Location { line: 1, column: 1, width: 1 };
        Self { id: UNWRITTEN, location, kind, size: 1, height: 1 }
    }

    /// The text of a scalar that is not null.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.kind {
            NodeKind::Scalar { text, .. } if !self.is_null() => Some(text),
            _ => None,
        }
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(&self.kind, NodeKind::Scalar { text, form: ScalarForm::Plain, written: None }
            if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// True if there is no value at all, as in a section whose lines are all commented out.
    pub(super) fn is_empty(&self) -> bool {
        matches!(&self.kind, NodeKind::Scalar { text, form: ScalarForm::Plain, written: None } if text.is_empty())
    }

    /// The text as written, if it has references to environment variables.
    pub(super) fn written(&self) -> Option<&str> {
        match &self.kind {
            NodeKind::Scalar { written, .. } => written.as_deref(),
            _ => None,
        }
    }

    /// The node with its value replaced by the scalar `text`.
    pub(super) fn with_text(&self, text: &str) -> Self {
        let written = self.written().map(str::to_owned);
        let kind = NodeKind::Scalar { text: text.to_owned(), form: ScalarForm::Plain, written };
        let Self { id, location, size, height, .. } = *self;
        Self { id, location, kind, size, height }
    }
}

impl NodeKind {
    fn scalar(text: String, form: ScalarForm) -> Self {
        Self::Scalar { text, form, written: None }
    }
}

impl LocatedEntry {
    pub(super) fn name(&self) -> &str {
        self.key.text().unwrap_or_default()
    }

    /// Where a fault of the value is displayed: at a one-line scalar, else at the key.
    pub(super) fn location(&self) -> Location {
        match self.value.text() {
            Some(text) if !text.contains('\n') => self.value.location,
            _ => self.key.location,
        }
    }
}

pub(super) type LocatedMismatch = (Location, Mismatch);

/// A document.
pub(super) struct LocatedTree {
    pub(super) root: Arc<LocatedNode>,
    /// The faults that did not prevent parsing.
    pub(super) faults: Vec<LocatedMismatch>,
    /// The ids of the values with references that cannot be replaced.
    pub(super) unresolved: BTreeSet<usize>,
    /// References to environment variables as written, and their values; and the mask of secrets,
    /// with each of them.
    pub(super) references: Vec<(String, String)>,
}

/// Parses one document, with environment variables from `env`; without it, references to them stay
/// text. `Err` holds the faults, of which the last one stopped the parser.
pub(super) fn read(
    text: &str,
    env: Option<EnvLookup<'_>>,
) -> Result<LocatedTree, Vec<LocatedMismatch>> {
    if let Some(fault) = control_character(text) {
        return Err(vec![fault]);
    }
    let mut builder = Builder::new(text, env);
    for event in Parser::new_from_str(text) {
        let step = match event {
            Ok((event, span)) => builder.handle_event(event, span),
            Err(error) => Err(syntax_fault(text, &error)),
        };
        if let Err(stop) = step {
            builder.faults.push(stop);
            return Err(builder.faults);
        }
    }
    Ok(builder.finish())
}

fn too_deep_mismatch() -> Mismatch {
    let expected = format!("at most {MAX_DEPTH} levels of lists and mappings");
    Mismatch::new("nested too deep", expected)
}

fn location(marker: Marker, width: usize) -> Location {
    Location { line: marker.line().max(1), column: marker.col() + 1, width: width.max(1) }
}

pub(super) fn span_location(span: Span) -> Location {
    let one_line = span.end.line() == span.start.line();
    let width = if one_line { span.end.col().saturating_sub(span.start.col()) } else { usize::MAX };
    location(span.start, width)
}

/// The text as a fault quotes it: without credentials, truncated to 60 characters.
pub(super) fn quote_value(text: &str) -> Cow<'_, str> {
    let text = redact_url_credentials(text);
    // Before it is truncated: the beginning of a credential may not be recognised.
    let text = match mask_forms(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(masked) => Cow::Owned(masked),
    };
    match text.char_indices().nth(MAX_QUOTED_VALUE) {
        Some((end, _)) => Cow::Owned(format!("{}...", &text[..end])),
        None => text,
    }
}
