//! [`Builder`]: builds the tree from the events of the YAML parser, with its bounds on nesting and
//! aliases.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use saphyr_parser::{Event, ScalarStyle, Span};
use tidegate_base::sensitive::{MASK, Role, Step, shows_scalar, step_to};

use super::super::environment;
use super::super::fault::Mismatch;
use super::super::location::Location;
use super::super::secret::EnvLookup;
use super::super::{MAX_FAULTS, MAX_FILE_SIZE};
use super::{
    LocatedEntry, LocatedMismatch, LocatedNode, LocatedTree, MAX_DEPTH, NodeKind, ScalarForm,
    quote_value, span_location, too_deep_mismatch,
};

/// Maximum number of values that aliases may add to a document.
const MAX_ALIASED: usize = 10_000;
/// Number of members of a tier's `match` among which its part is looked for.
const MAX_BEFORE: usize = 8;
/// Length of the shortest secret, in bytes, that is hidden wherever a message quotes it.
const MIN_SECRET: usize = 6;

/// Builds the tree from the parser's events.
pub(super) struct Builder<'a> {
    /// The lines of the file.
    lines: Vec<&'a str>,
    env: Option<EnvLookup<'a>>,
    /// See [`LocatedTree`].
    unresolved: BTreeSet<usize>,
    references: Vec<(String, String)>,
    /// Total length of the texts whose references were replaced, in bytes.
    resolved_bytes: usize,
    /// The lists and mappings that are not complete yet, the innermost last.
    open: Vec<OpenCollection>,
    /// The complete values with an anchor, by its id; the parser's id 0 means no anchor.
    anchors: BTreeMap<usize, Arc<LocatedNode>>,
    document_count: usize,
    node_count: usize,
    /// Number of values that aliases have added so far.
    aliased_count: usize,
    root: Option<Arc<LocatedNode>>,
    /// The faults so far.
    pub(super) faults: Vec<LocatedMismatch>,
}

/// A list or mapping whose end has not been parsed yet.
struct OpenCollection {
    location: Location,
    anchor: usize,
    content: CollectionContent,
}

enum CollectionContent {
    List(Vec<Arc<LocatedNode>>),
    Map {
        entries: Vec<LocatedEntry>,
        /// The line of each key, to find duplicates.
        key_lines: BTreeMap<String, usize>,
        /// The key whose value follows.
        key: Option<Arc<LocatedNode>>,
    },
}

impl<'a> Builder<'a> {
    pub(super) fn new(text: &'a str, env: Option<EnvLookup<'a>>) -> Self {
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

    /// The document; an empty text is an absent value.
    pub(super) fn finish(mut self) -> LocatedTree {
        let start = Location { line: 1, column: 1, width: 1 };
        let root = self.root.take().unwrap_or_else(|| {
            self.new_node(start, NodeKind::scalar(String::new(), ScalarForm::Plain))
        });
        let Self { faults, unresolved, references, .. } = self;
        LocatedTree { root, faults, unresolved, references }
    }

    /// A scalar with its references replaced, unless it is a key.
    fn scalar(&mut self, location: Location, text: String, form: ScalarForm) -> Arc<LocatedNode> {
        let map = self.open.last().map(|open| &open.content);
        let is_key = matches!(map, Some(CollectionContent::Map { key: None, .. }));
        let rest = MAX_FILE_SIZE.saturating_sub(self.resolved_bytes);
        if !is_key && self.is_secret(&text) {
            self.references.push((MASK.to_owned(), text.clone()));
        }
        let env = self.env.filter(|_| !is_key);
        let resolved = env.map_or(Ok(None), |env| environment::resolve(&text, rest, env));
        match resolved {
            Ok(None) => self.new_node(location, NodeKind::scalar(text, form)),
            Ok(Some(resolved)) if resolved.references.is_empty() => {
                self.new_node(location, NodeKind::scalar(resolved.text, form))
            }
            Ok(Some(resolved)) => {
                self.resolved_bytes = self.resolved_bytes.saturating_add(resolved.text.len());
                let kind = NodeKind::Scalar {
                    text: resolved.text.clone(),
                    form: ScalarForm::Plain,
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
                let kind = NodeKind::Scalar { text: String::new(), form, written: Some(text) };
                let node = self.new_node(location, kind);
                self.unresolvable(&node, at, fault.mismatch);
                node
            }
        }
    }

    /// True if the next scalar, `text`, is hidden by its place, and too long to be a part of other
    /// words.
    fn is_secret(&self, text: &str) -> bool {
        // Tiers match callers by words that other messages need, such as the names of plans.
        let is_word = text.bytes().all(|byte| byte.is_ascii_lowercase());
        text.len() >= MIN_SECRET && !is_word && !shows_scalar(&self.path(), Role::Value, text)
    }

    /// The path of the next value.
    fn path(&self) -> Vec<Step<'_>> {
        let steps = self.open.iter().filter_map(|open| match &open.content {
            CollectionContent::List(_) => Some(Step::Item),
            CollectionContent::Map { key, entries, .. } => {
                let name = key.as_deref()?.text()?;
                // A mapping may have many members.
                let is_part = |entry: &&LocatedEntry| name == "values" && entry.name() == "part";
                let part = entries.iter().take(MAX_BEFORE).find(is_part);
                Some(step_to(name, part.and_then(|part| part.value.text())))
            }
        });
        steps.collect()
    }

    fn unresolvable(&mut self, node: &LocatedNode, at: Location, mismatch: Mismatch) {
        self.unresolved.insert(node.id);
        if self.faults.len() < MAX_FAULTS {
            self.faults.push((at, mismatch));
        }
    }

    /// The location of `reference` in the scalar at `location`; the scalar's location if the
    /// reference is on a later line.
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

    pub(super) fn handle_event(
        &mut self,
        event: Event<'_>,
        span: Span,
    ) -> Result<(), LocatedMismatch> {
        let location = span_location(span);
        match event {
            Event::DocumentStart(_) => self.start_document(location),
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse_tag(location, tag.as_ref());
                let form = match style {
                    ScalarStyle::Plain => ScalarForm::Plain,
                    _ => ScalarForm::Quoted,
                };
                // The parser reports an absent value as `~`.
                let is_absent = form == ScalarForm::Plain && span.start.index() == span.end.index();
                let text = if is_absent { String::new() } else { text.into_owned() };
                let node = self.scalar(location, text, form);
                self.add_value(node, anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                self.refuse_tag(location, tag.as_ref());
                self.open(location, anchor, CollectionContent::List(Vec::new()))
            }
            Event::MappingStart(anchor, tag) => {
                self.refuse_tag(location, tag.as_ref());
                let (entries, key_lines) = (Vec::new(), BTreeMap::new());
                self.open(
                    location,
                    anchor,
                    CollectionContent::Map { entries, key_lines, key: None },
                )
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

    fn refuse_tag<T>(&mut self, location: Location, tag: Option<&T>) {
        if tag.is_some() {
            self.faults.push((location, Mismatch::new("a tag (`!`)", "a value without one")));
        }
    }

    fn new_node(&mut self, location: Location, kind: NodeKind) -> Arc<LocatedNode> {
        self.node_count += 1;
        let (mut size, mut height) = (1, 0);
        let mut count = |child: &LocatedNode| {
            size += child.size;
            height = height.max(child.height);
        };
        match &kind {
            NodeKind::Scalar { .. } => {}
            NodeKind::List(items) => items.iter().for_each(|item| count(item)),
            NodeKind::Map(entries) => entries.iter().for_each(|entry| count(&entry.value)),
        }
        Arc::new(LocatedNode { id: self.node_count, location, kind, size, height: height + 1 })
    }

    fn open(
        &mut self,
        location: Location,
        anchor: usize,
        content: CollectionContent,
    ) -> Result<(), LocatedMismatch> {
        self.check_depth(location, 1)?;
        if matches!(
            self.open.last(),
            Some(OpenCollection { content: CollectionContent::Map { key: None, .. }, .. })
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
            CollectionContent::List(items) => NodeKind::List(items),
            CollectionContent::Map { entries, .. } => NodeKind::Map(entries),
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
    fn add_value(&mut self, node: Arc<LocatedNode>, anchor: usize) -> Result<(), LocatedMismatch> {
        if anchor != 0 {
            self.anchors.insert(anchor, Arc::clone(&node));
        }
        match self.open.last_mut().map(|open| &mut open.content) {
            None => self.root = Some(node),
            Some(CollectionContent::List(items)) => items.push(node),
            Some(CollectionContent::Map { entries, key_lines, key }) => match key.take() {
                None if node.text().is_none() || node.written().is_some() => {
                    return Err((node.location, Mismatch::new("no key", "a plain key")));
                }
                None => *key = Some(node),
                Some(key) => {
                    let entry = LocatedEntry { key, value: node };
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
