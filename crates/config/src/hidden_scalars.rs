//! The keys and values of a text that no fault may quote, found by their places in the document.
//!
//! The parser's events give the place of each scalar, whatever its style. A text that is not YAML
//! ends where the parser stopped: [`line_values`](super::line_values) reads the line there.
//! [`ScalarIndex`] is made once for all faults of a text, and tells for each of them how the hidden
//! scalars are related to it.

use std::collections::BTreeMap;
use std::ops::Range;

use saphyr_parser::{Event, Parser, Span};
use tidegate_base::sensitive::{Role, Step, shows_scalar, step_to};

use super::location::Location;

/// The scalars of a text that are hidden.
#[derive(Clone, Debug, Default)]
pub(super) struct ScalarIndex {
    scalars: Vec<HiddenScalar>,
    /// The hidden scalars, and all keys and collections. Each stands after the place around it.
    places: Vec<TextPlace>,
    /// The keys around the place where the parser stopped; `None` if the text is YAML.
    pub(super) stopped_in: Option<Vec<OwnedStep>>,
}

/// A scalar that is hidden.
#[derive(Clone, Debug)]
pub(super) struct HiddenScalar {
    pub(super) text: String,
    extent: Extent,
    /// The index of its place; `None` for a text at an anchor that another scalar hides.
    place: Option<usize>,
}

/// A hidden scalar, and its relation to the value that a fault is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct RelatedScalar<'i> {
    pub(super) scalar: &'i HiddenScalar,
    pub(super) relation: Relation,
}

/// How a scalar is related to the value that a fault is about.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Relation {
    /// It stands elsewhere.
    Elsewhere,
    /// It is a part of the value.
    Inside,
    /// It is the value itself.
    Same,
}

/// A place that a fault may be about.
#[derive(Clone, Copy, Debug)]
struct TextPlace {
    kind: PlaceKind,
    extent: Extent,
    /// The index of the key or the collection that it stands in.
    around: Option<usize>,
}

/// What stands at a place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum PlaceKind {
    /// A key or a value. A fault of a key is a fault of its value.
    Scalar,
    /// The beginning of a list or a mapping.
    Collection,
}

/// From where to where a text stands.
#[derive(Clone, Copy, Debug)]
struct Extent {
    start: Point,
    end: Point,
}

/// A place in the text: a line from 1, and a column in characters from 0.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Point {
    line: usize,
    column: usize,
}

/// A [`Step`] that owns its key.
#[derive(Clone, Debug)]
pub(super) enum OwnedStep {
    Member(String),
    Item,
}

impl OwnedStep {
    pub(super) fn borrow(&self) -> Step<'_> {
        match self {
            Self::Member(name) => Step::Member(name),
            Self::Item => Step::Item,
        }
    }
}

impl From<Step<'_>> for OwnedStep {
    fn from(step: Step<'_>) -> Self {
        match step {
            Step::Member(name) => Self::Member(name.to_owned()),
            Step::Item => Self::Item,
        }
    }
}

impl HiddenScalar {
    /// The columns of the scalar in line `line`; `None` if it is in other lines.
    pub(super) fn columns_in(&self, line: usize) -> Option<Range<usize>> {
        let Extent { start, end } = self.extent;
        if !(start.line..=end.line).contains(&line) {
            return None;
        }
        let first = if line == start.line { start.column } else { 0 };
        let last = if line == end.line { end.column } else { usize::MAX };
        (first < last).then_some(first..last)
    }
}

impl Extent {
    /// True if a fault at `fault` is about what begins here.
    fn is_meant_by(&self, fault: Location) -> bool {
        let start = fault.column.saturating_sub(1);
        let end = start.saturating_add(fault.width.max(1));
        self.start.line == fault.line
            && self.start.column < end
            && (self.end.line > self.start.line || self.end.column >= start)
    }
}

impl ScalarIndex {
    /// Finds the hidden scalars of `text`, which follows `lines_before` lines of its file.
    pub(super) fn of(text: &str, lines_before: usize) -> Self {
        let mut walk = Walk { lines_before, ..Walk::default() };
        for event in Parser::new_from_str(text) {
            let Ok((event, span)) = event else {
                let path = walk.path(Role::Value).into_iter();
                walk.index.stopped_in = Some(path.map(OwnedStep::from).collect());
                break;
            };
            walk.handle(&event, span);
        }
        walk.index
    }

    /// The hidden scalars, each with its relation to what a fault at `fault` is about.
    pub(super) fn related_to(&self, fault: Location) -> impl Iterator<Item = RelatedScalar<'_>> {
        let mut relations: Vec<Relation> = Vec::with_capacity(self.places.len());
        for place in &self.places {
            let around = place.around.map(|around| (self.places[around].kind, relations[around]));
            relations.push(match around {
                _ if place.extent.is_meant_by(fault) => Relation::Same,
                None => Relation::Elsewhere,
                Some((PlaceKind::Collection, Relation::Same)) => Relation::Inside,
                Some((_, relation)) => relation,
            });
        }
        self.scalars.iter().map(move |scalar| {
            let relation = scalar.place.map_or(Relation::Elsewhere, |place| relations[place]);
            RelatedScalar { scalar, relation }
        })
    }
}

/// The state of reading the events.
#[derive(Default)]
struct Walk {
    lines_before: usize,
    open: Vec<Open>,
    /// The scalars with an anchor.
    anchors: BTreeMap<usize, String>,
    /// Where they stand, by their texts, as long as they are not hidden.
    shown_anchors: BTreeMap<String, Vec<Extent>>,
    index: ScalarIndex,
}

/// A list or a mapping that has not ended.
struct Open {
    is_list: bool,
    /// The key whose value follows.
    key: Option<String>,
    /// What the member `key`, `name`, `header` or `part` says, for the meaning of the `value` or
    /// `values` beside it.
    named: Option<String>,
    /// The index of its place.
    place: usize,
    /// The index of the place of its last key that is a scalar.
    key_place: Option<usize>,
}

impl Walk {
    fn handle(&mut self, event: &Event<'_>, span: Span) {
        match event {
            Event::Scalar(text, _, anchor, _) => {
                if *anchor != 0 {
                    let extent = self.extent(span);
                    self.anchors.insert(*anchor, text.to_string());
                    self.shown_anchors.entry(text.to_string()).or_default().push(extent);
                }
                self.scalar(text, span);
            }
            Event::Alias(anchor) => match self.anchors.get(anchor).cloned() {
                Some(text) => self.scalar(&text, span),
                None => self.end_value(),
            },
            Event::SequenceStart(..) | Event::MappingStart(..) => {
                let open = Open {
                    is_list: matches!(event, Event::SequenceStart(..)),
                    key: None,
                    named: None,
                    place: self.add_place(PlaceKind::Collection, span),
                    key_place: None,
                };
                self.open.push(open);
            }
            Event::SequenceEnd | Event::MappingEnd => {
                self.open.pop();
                self.end_value();
            }
            _ => {}
        }
    }

    fn scalar(&mut self, text: &str, span: Span) {
        let is_key = self.open.last().is_some_and(|open| !open.is_list && open.key.is_none());
        let role = if is_key { Role::Key } else { Role::Value };
        let has_word = text.contains(char::is_alphanumeric);
        let is_hidden = has_word && !shows_scalar(&self.path(role), role, text);
        let place = (is_key || is_hidden).then(|| self.add_place(PlaceKind::Scalar, span));
        if is_hidden {
            let extent = self.extent(span);
            self.index.scalars.push(HiddenScalar { text: text.to_owned(), extent, place });
            self.hide_anchored(text);
        }
        match self.open.last_mut() {
            Some(open) if is_key => (open.key, open.key_place) = (Some(text.to_owned()), place),
            Some(open) => {
                if matches!(open.key.as_deref(), Some("key" | "name" | "header" | "part")) {
                    open.named = Some(text.to_owned());
                }
                self.end_value();
            }
            None => {}
        }
    }

    /// An alias in a hidden place hides the text at its anchor as well.
    fn hide_anchored(&mut self, text: &str) {
        for extent in self.shown_anchors.remove(text).unwrap_or_default() {
            self.index.scalars.push(HiddenScalar { text: text.to_owned(), extent, place: None });
        }
    }

    /// The value of the innermost key has ended; a collection may also have been the key.
    fn end_value(&mut self) {
        if let Some(open) = self.open.last_mut().filter(|open| !open.is_list) {
            open.key = if open.key.is_none() { Some(String::new()) } else { None };
        }
    }

    fn path(&self, role: Role) -> Vec<Step<'_>> {
        let steps = self.open.iter().filter_map(|open| {
            if open.is_list {
                return Some(Step::Item);
            }
            Some(step_to(open.key.as_deref()?, open.named.as_deref()))
        });
        let mut steps: Vec<Step<'_>> = steps.collect();
        if role == Role::Key && self.open.last().is_some_and(|open| open.key.is_some()) {
            steps.pop();
        }
        steps
    }

    /// Adds the place of what stands at `span`; returns its index.
    fn add_place(&mut self, kind: PlaceKind, span: Span) -> usize {
        let around = self.open.last().map(|open| match &open.key {
            Some(_) => open.key_place.unwrap_or(open.place),
            None => open.place,
        });
        let extent = self.extent(span);
        self.index.places.push(TextPlace { kind, extent, around });
        self.index.places.len() - 1
    }

    /// Where `span` is in the file.
    fn extent(&self, span: Span) -> Extent {
        let point = |line: usize, column| Point { line: line + self.lines_before, column };
        Extent {
            start: point(span.start.line(), span.start.col()),
            end: point(span.end.line(), span.end.col()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hidden(text: &str) -> Vec<String> {
        ScalarIndex::of(text, 0).scalars.into_iter().map(|scalar| scalar.text).collect()
    }

    #[test]
    fn every_style_of_a_scalar_has_its_place() {
        for text in [
            "set: {x: hush}",
            "set:\n  x: |-\n    hush",
            "set:\n  x: >-\n    hush",
            "set:\n  ? x\n  : 'hush'",
            "set: {x: \"hu\\x73h\"}",
            "set: [{name: x, value: hush}]",
            "keys:\n- {id: a, other: hush}",
            "keys: [{hush: 1}]",
            "password:\n  hush",
            "a: &a hush\npassword: *a",
        ] {
            assert!(hidden(text).contains(&"hush".to_owned()), "{text}: {:?}", hidden(text));
        }
        assert_eq!(hidden("a: [hush]\nb: {c: hush}"), Vec::<String>::new());
    }

    #[test]
    fn one_index_relates_its_scalars_to_every_fault() {
        let index = ScalarIndex::of("set:\n  x: hush\n  y: more\npassword: last", 0);
        let (same, inside, elsewhere) = (Relation::Same, Relation::Inside, Relation::Elsewhere);
        for (what, line, column, width, expected) in [
            ("beginning of the document", 1, 1, 3, [inside, inside, inside]),
            ("key of the first, where the mapping begins", 2, 3, 1, [same, inside, elsewhere]),
            ("first value", 2, 6, 4, [same, elsewhere, elsewhere]),
            ("key of the second", 3, 3, 1, [elsewhere, same, elsewhere]),
            ("key of the last", 4, 1, 8, [elsewhere, elsewhere, same]),
            ("end of the last value", 4, 15, 1, [elsewhere, elsewhere, same]),
            ("below the text", 9, 1, 1, [elsewhere, elsewhere, elsewhere]),
        ] {
            let related = index.related_to(Location { line, column, width });
            let relations: Vec<Relation> = related.map(|related| related.relation).collect();
            assert_eq!(relations, expected, "{what}");
        }
    }

    #[test]
    fn a_text_at_many_anchors_is_listed_once_for_each() {
        let anchors: Vec<String> = (0..1_000).map(|number| format!("- &a{number} hush")).collect();
        let text = format!("list:\n{}\npassword: *a1\ntoken: *a2\n", anchors.join("\n"));
        assert_eq!(hidden(&text).len(), 1_002);
    }
}
