//! The YAML text as a tree in which every key and value has its location.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span};

use super::fault::{Location, Mismatch, redact_url_credentials};

/// Maximum nesting of lists and mappings, aliases included.
const MAX_DEPTH: usize = 32;
/// Maximum number of values that aliases may add to a document.
const MAX_ALIASED: usize = 10_000;

/// One YAML value.
#[derive(Debug)]
pub(super) struct Node {
    /// Unique per value; aliases of a value share its id.
    pub(super) id: usize,
    pub(super) location: Location,
    pub(super) kind: NodeKind,
    /// Number of values in the subtree, this one and aliases included.
    size: usize,
    /// Number of levels of the subtree, this one and aliases included.
    height: usize,
}

#[derive(Debug)]
pub(super) enum NodeKind {
    /// `plain` is false for quoted and block text, which is never a number, a boolean or null.
    Scalar {
        text: String,
        plain: bool,
    },
    List(Vec<Arc<Node>>),
    Map(Vec<Entry>),
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: Arc<Node>,
    pub(super) value: Arc<Node>,
}

impl Node {
    /// The text of a scalar that is not null.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.kind {
            NodeKind::Scalar { text, .. } if !self.is_null() => Some(text),
            _ => None,
        }
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(&self.kind, NodeKind::Scalar { text, plain: true }
            if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// True if there is no value at all, as in a section whose lines are all commented out.
    pub(super) fn is_empty(&self) -> bool {
        matches!(&self.kind, NodeKind::Scalar { text, plain: true } if text.is_empty())
    }
}

impl Entry {
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

type LocatedMismatch = (Location, Mismatch);

/// Parses one document. `Ok` holds the tree and the faults that did not prevent parsing; `Err` holds
/// the faults, of which the last one stopped the parser.
pub(super) fn read(text: &str) -> Result<(Arc<Node>, Vec<LocatedMismatch>), Vec<LocatedMismatch>> {
    if let Some(fault) = control_character(text) {
        return Err(vec![fault]);
    }
    let mut builder = Builder::default();
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
    let start = Location { line: 1, column: 1, width: 1 };
    let root = builder.root.take().unwrap_or_else(|| {
        builder.new_node(start, NodeKind::Scalar { text: String::new(), plain: true })
    });
    Ok((root, builder.faults))
}

/// The first character that YAML does not allow: parsers end the text there, or skip it.
fn control_character(text: &str) -> Option<LocatedMismatch> {
    let is_allowed = |c: char| !c.is_control() || matches!(c, '\t' | '\n' | '\r' | '\u{85}');
    let at = text.find(|c| !is_allowed(c))?;
    let (before, from) = text.split_at(at);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |start| start.chars().count()) + 1;
    let what = format!("the control character `{}`", from.chars().next()?);
    let expected = "text without control characters; in double quotes, write an escape such as \\e";
    Some((Location { line, column, width: 1 }, Mismatch::new(what, expected)))
}

fn syntax_fault(text: &str, error: &ScanError) -> LocatedMismatch {
    let location = location(*error.marker(), 1);
    if error.info().contains("recursion limit") {
        return (location, too_deep_mismatch());
    }
    let line = text.lines().nth(location.line - 1).unwrap_or_default();
    let has_braces = line.contains("{*") || line.contains("/{");
    let expected = if has_braces {
        "a YAML document: a path with braces needs quotes, such as \"/{*rest}\""
    } else {
        "a YAML document"
    };
    (location, Mismatch::new(format!("not YAML ({})", error.info()), expected))
}

fn too_deep_mismatch() -> Mismatch {
    let expected = format!("at most {MAX_DEPTH} levels of lists and mappings");
    Mismatch::new("nested too deep", expected)
}

fn location(marker: Marker, width: usize) -> Location {
    Location { line: marker.line().max(1), column: marker.col() + 1, width: width.max(1) }
}

fn span_location(span: Span) -> Location {
    let one_line = span.end.line() == span.start.line();
    let width = if one_line { span.end.col().saturating_sub(span.start.col()) } else { usize::MAX };
    location(span.start, width)
}

#[derive(Default)]
struct Builder {
    /// The lists and mappings that are not complete yet, the innermost last.
    open: Vec<OpenCollection>,
    /// The complete values with an anchor, by its id; the parser's id 0 means no anchor.
    anchors: BTreeMap<usize, Arc<Node>>,
    document_count: usize,
    node_count: usize,
    /// Number of values that aliases have added so far.
    aliased_count: usize,
    root: Option<Arc<Node>>,
    faults: Vec<LocatedMismatch>,
}

/// A list or mapping whose end has not been parsed yet.
struct OpenCollection {
    location: Location,
    anchor: usize,
    content: Content,
}

enum Content {
    List(Vec<Arc<Node>>),
    Map {
        entries: Vec<Entry>,
        /// The line of each key, to find duplicates.
        key_lines: BTreeMap<String, usize>,
        /// The key whose value follows.
        key: Option<Arc<Node>>,
    },
}

impl Builder {
    fn handle_event(&mut self, event: Event<'_>, span: Span) -> Result<(), LocatedMismatch> {
        let location = span_location(span);
        match event {
            Event::DocumentStart(_) => self.start_document(location),
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse_tag(location, tag.is_some());
                let plain = style == ScalarStyle::Plain;
                // The parser reports an absent value as `~`.
                let is_absent = plain && span.start.index() == span.end.index();
                let text = if is_absent { String::new() } else { text.into_owned() };
                let node = self.new_node(location, NodeKind::Scalar { text, plain });
                self.add_value(node, anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                self.refuse_tag(location, tag.is_some());
                self.open(location, anchor, Content::List(Vec::new()))
            }
            Event::MappingStart(anchor, tag) => {
                self.refuse_tag(location, tag.is_some());
                let (entries, key_lines) = (Vec::new(), BTreeMap::new());
                self.open(location, anchor, Content::Map { entries, key_lines, key: None })
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(anchor) => self.add_alias(location, anchor),
            _ => Ok(()),
        }
    }

    fn start_document(&mut self, location: Location) -> Result<(), LocatedMismatch> {
        self.document_count += 1;
        if self.document_count > 1 {
            return Err((location, Mismatch::new("a second document", "one document in a file")));
        }
        Ok(())
    }

    fn refuse_tag(&mut self, location: Location, is_tagged: bool) {
        if is_tagged {
            self.faults.push((location, Mismatch::new("a tag (`!`)", "a value without one")));
        }
    }

    fn new_node(&mut self, location: Location, kind: NodeKind) -> Arc<Node> {
        self.node_count += 1;
        let (mut size, mut height) = (1, 0);
        let mut count = |child: &Node| {
            size += child.size;
            height = height.max(child.height);
        };
        match &kind {
            NodeKind::Scalar { .. } => {}
            NodeKind::List(items) => items.iter().for_each(|item| count(item)),
            NodeKind::Map(entries) => entries.iter().for_each(|entry| count(&entry.value)),
        }
        Arc::new(Node { id: self.node_count, location, kind, size, height: height + 1 })
    }

    fn open(
        &mut self,
        location: Location,
        anchor: usize,
        content: Content,
    ) -> Result<(), LocatedMismatch> {
        self.check_depth(location, 1)?;
        if matches!(
            self.open.last(),
            Some(OpenCollection { content: Content::Map { key: None, .. }, .. })
        ) {
            return Err((location, Mismatch::new("a list or mapping as a key", "a plain key")));
        }
        self.open.push(OpenCollection { location, anchor, content });
        Ok(())
    }

    fn check_depth(&self, location: Location, added: usize) -> Result<(), LocatedMismatch> {
        if self.open.len() + added > MAX_DEPTH {
            return Err((location, too_deep_mismatch()));
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), LocatedMismatch> {
        let Some(OpenCollection { location, anchor, content }) = self.open.pop() else {
            return Ok(());
        };
        let kind = match content {
            Content::List(items) => NodeKind::List(items),
            Content::Map { entries, .. } => NodeKind::Map(entries),
        };
        let node = self.new_node(Location { width: 1, ..location }, kind);
        self.add_value(node, anchor)
    }

    fn add_alias(&mut self, location: Location, anchor: usize) -> Result<(), LocatedMismatch> {
        let Some(node) = self.anchors.get(&anchor).cloned() else {
            return Err((location, Mismatch::new("an alias inside its own anchor", "a value")));
        };
        self.aliased_count = self.aliased_count.saturating_add(node.size);
        if self.aliased_count > MAX_ALIASED {
            let expected = format!("aliases that add at most {MAX_ALIASED} values");
            return Err((location, Mismatch::new("too many aliased values", expected)));
        }
        self.check_depth(location, node.height)?;
        self.add_value(node, 0)
    }

    /// Adds a complete value to the innermost open list or mapping, or makes it the root.
    fn add_value(&mut self, node: Arc<Node>, anchor: usize) -> Result<(), LocatedMismatch> {
        if anchor != 0 {
            self.anchors.insert(anchor, Arc::clone(&node));
        }
        match self.open.last_mut().map(|open| &mut open.content) {
            None => self.root = Some(node),
            Some(Content::List(items)) => items.push(node),
            Some(Content::Map { entries, key_lines, key }) => match key.take() {
                None if node.text().is_none() => {
                    return Err((node.location, Mismatch::new("no key", "a plain key")));
                }
                None => *key = Some(node),
                Some(key) => {
                    let entry = Entry { key, value: node };
                    let location = entry.key.location;
                    match key_lines.insert(entry.name().to_owned(), location.line) {
                        None => entries.push(entry),
                        Some(line) => {
                            let what = format!("duplicate key `{}`", quote_value(entry.name()));
                            let expected = format!("it once (first defined on line {line})");
                            self.faults.push((location, Mismatch::new(what, expected)));
                        }
                    }
                }
            },
        }
        Ok(())
    }
}

/// The text without passwords, truncated to 60 characters, to be quoted in a fault.
pub(super) fn quote_value(text: &str) -> Cow<'_, str> {
    const MAX: usize = 60;
    let text = redact_url_credentials(text);
    match text.char_indices().nth(MAX) {
        Some((end, _)) => Cow::Owned(format!("{}...", &text[..end])),
        None => text,
    }
}
