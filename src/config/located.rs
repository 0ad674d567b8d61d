//! The YAML text as a tree in which every key and value has its location.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span};

use super::environment;
use super::fault::{Location, Mismatch, redact_url_credentials};
use super::secret::EnvLookup;
use super::{MAX_FAULTS, MAX_FILE_SIZE};
use crate::sensitive::is_sensitive_name;

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
    Scalar {
        text: String,
        /// False for quoted and block text, which is never a number, a boolean or null.
        plain: bool,
        /// The text as written, if it has references to environment variables: `text` may be a number or a
        /// boolean then, and is in no message.
        written: Option<String>,
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
        matches!(&self.kind, NodeKind::Scalar { text, plain: true, written: None }
            if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// True if there is no value at all, as in a section whose lines are all commented out.
    pub(super) fn is_empty(&self) -> bool {
        matches!(&self.kind, NodeKind::Scalar { text, plain: true, written: None } if text.is_empty())
    }

    /// The text as written, if it has references to environment variables.
    pub(super) fn written(&self) -> Option<&str> {
        match &self.kind {
            NodeKind::Scalar { written, .. } => written.as_deref(),
            _ => None,
        }
    }

    /// The same place in the file with the scalar `text`.
    pub(super) fn with_text(&self, text: &str) -> Self {
        let written = self.written().map(str::to_owned);
        let kind = NodeKind::Scalar { text: text.to_owned(), plain: true, written };
        let Self { id, location, size, height, .. } = *self;
        Self { id, location, kind, size, height }
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

/// A document.
pub(super) struct Tree {
    pub(super) root: Arc<Node>,
    /// The faults that did not prevent parsing.
    pub(super) faults: Vec<LocatedMismatch>,
    /// The ids of the values with references that cannot be replaced.
    pub(super) unresolved: BTreeSet<usize>,
    /// References to environment variables as written, and their values.
    pub(super) references: Vec<(String, String)>,
}

/// Parses one document, with environment variables from `env`. `Err` holds the faults, of which the last one
/// stopped the parser.
pub(super) fn read(text: &str, env: EnvLookup<'_>) -> Result<Tree, Vec<LocatedMismatch>> {
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
    let start = Location { line: 1, column: 1, width: 1 };
    let root = builder
        .root
        .take()
        .unwrap_or_else(|| builder.new_node(start, NodeKind::scalar(String::new(), true)));
    let Builder { faults, unresolved, references, .. } = builder;
    Ok(Tree { root, faults, unresolved, references })
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
    if let Some(missing) = missing_colon(text, location.line, error.info()) {
        return missing;
    }
    let line = text.lines().nth(location.line - 1).unwrap_or_default();
    let has_braces = line.contains("{*") || line.contains("/{");
    let expected = if line.contains("${") {
        "a YAML document: within braces and brackets, a variable needs quotes, such as {address: \"127.0.0.1:${PORT}\"}"
    } else if has_braces {
        "a YAML document: a path with braces needs quotes, such as \"/{*rest}\""
    } else {
        "a YAML document"
    };
    (location, Mismatch::new(format!("not YAML ({})", error.info()), expected))
}

/// The key without a colon before line `at`, where the parser notices it.
fn missing_colon(text: &str, at: usize, info: &str) -> Option<LocatedMismatch> {
    let is_about_keys = ["simple key", "mapping values are not allowed", "expected key"];
    if !is_about_keys.iter().any(|words| info.contains(words)) {
        return None;
    }
    let is_code = |line: &str| !matches!(line.trim_start().chars().next(), None | Some('#'));
    let (mut above, mut last) = ("", None);
    for (index, line) in text.lines().enumerate().take(at.saturating_sub(1)) {
        if is_code(line) {
            above = last.map_or("", |(_, line)| line);
            last = Some((index, line));
        }
    }
    let (index, line) = last?;
    let code = line.split(" #").next().unwrap_or_default().trim();
    let (code, is_item) =
        code.strip_prefix("- ").map_or((code, false), |item| (item.trim_start(), true));
    let (key, value) = code.split_once(' ').map_or((code, ""), |(key, value)| (key, value.trim()));
    let is_key = key.starts_with(|c: char| c.is_ascii_alphabetic())
        && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
    // An item of one word is a value.
    let is_other = code.contains(": ") || code.ends_with(':') || is_item && value.is_empty();
    // The line is quoted, and it may be the value of the key above it.
    let above =
        above.split(':').next().unwrap_or_default().trim_start_matches([' ', '-', '"', '\'']);
    if !is_key || is_other || is_sensitive_name(key) || is_sensitive_name(above) {
        return None;
    }
    let start = line.find(key).unwrap_or_default();
    let column = line[..start].chars().count() + 1;
    let location = Location { line: index + 1, column, width: key.chars().count() };
    let expected = format!("`{key}:`, with a space or a new line behind the colon");
    Some((location, Mismatch::new(format!("`{key}` without a colon"), expected)))
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

struct Builder<'a> {
    /// The lines of the file.
    lines: Vec<&'a str>,
    env: EnvLookup<'a>,
    /// See [`Tree`].
    unresolved: BTreeSet<usize>,
    references: Vec<(String, String)>,
    /// Total length of the texts whose references were replaced, in bytes.
    resolved_bytes: usize,
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

impl NodeKind {
    fn scalar(text: String, plain: bool) -> Self {
        Self::Scalar { text, plain, written: None }
    }
}

impl<'a> Builder<'a> {
    fn new(text: &'a str, env: EnvLookup<'a>) -> Self {
        Self {
            lines: text.lines().collect(),
            env,
            unresolved: BTreeSet::new(),
            references: Vec::new(),
            resolved_bytes: 0,
            open: Vec::new(),
            anchors: BTreeMap::new(),
            document_count: 0,
            node_count: 0,
            aliased_count: 0,
            root: None,
            faults: Vec::new(),
        }
    }

    /// A scalar with its references replaced, unless it is a key.
    fn scalar(&mut self, location: Location, text: String, plain: bool) -> Arc<Node> {
        let map = self.open.last().map(|open| &open.content);
        let is_key = matches!(map, Some(Content::Map { key: None, .. }));
        let rest = MAX_FILE_SIZE.saturating_sub(self.resolved_bytes);
        let resolved = if is_key { Ok(None) } else { environment::resolve(&text, rest, self.env) };
        match resolved {
            Ok(None) => self.new_node(location, NodeKind::scalar(text, plain)),
            Ok(Some(resolved)) if resolved.references.is_empty() => {
                self.new_node(location, NodeKind::scalar(resolved.text, plain))
            }
            Ok(Some(resolved)) => {
                self.resolved_bytes = self.resolved_bytes.saturating_add(resolved.text.len());
                let kind = NodeKind::Scalar {
                    text: resolved.text.clone(),
                    plain: true,
                    written: Some(text.clone()),
                };
                let node = self.new_node(location, kind);
                let shown = |(written, value): (String, _)| {
                    (environment::without_defaults(&written), value)
                };
                self.references.push(shown((text, resolved.text)));
                self.references.extend(resolved.references.into_iter().map(shown));
                node
            }
            Err(fault) => {
                let at = self.find(location, &fault.reference);
                let kind = NodeKind::Scalar { text: String::new(), plain, written: Some(text) };
                let node = self.new_node(location, kind);
                self.unresolvable(&node, at, fault.mismatch);
                node
            }
        }
    }

    fn unresolvable(&mut self, node: &Node, at: Location, mismatch: Mismatch) {
        self.unresolved.insert(node.id);
        if self.faults.len() < MAX_FAULTS {
            self.faults.push((at, mismatch));
        }
    }

    /// The place of `reference` in the scalar at `location`; the scalar's own if it is on a further line.
    fn find(&self, location: Location, reference: &str) -> Location {
        let line = self.lines.get(location.line - 1).copied().unwrap_or_default();
        let start = line.char_indices().nth(location.column - 1).map_or(line.len(), |(at, _)| at);
        match line[start..].find(reference) {
            None => location,
            Some(at) => {
                let before = line[start..start + at].chars().count();
                let (column, width) = (location.column + before, reference.chars().count());
                Location { line: location.line, column, width }
            }
        }
    }

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
                let node = self.scalar(location, text, plain);
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
                None if node.text().is_none() || node.written().is_some() => {
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
