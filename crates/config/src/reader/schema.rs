//! Lookups in the JSON Schema for one value of the configuration: its keys, its range.

use serde_json::{Map, Value};

use crate::{schema::schema, units::amount};

/// True if `word` is one of the alternatives of a pattern, such as `header` in
/// `^(header|cookie):.+$`.
fn has_word(pattern: &str, word: &str) -> bool {
    pattern.match_indices(word).any(|(at, _)| {
        pattern[..at].ends_with(['^', '(', '|'])
            && pattern[at + word.len()..].starts_with([':', '|', ')'])
    })
}

/// The schema of one value.
#[derive(Clone, Copy)]
pub(super) struct ValueSchema {
    /// Where the value is used: it may narrow the definition's range.
    usage: &'static Value,
    /// The definition that `usage` refers to; without a reference, `usage` itself. The section, if
    /// the value may also be text.
    definition: &'static Value,
}

impl ValueSchema {
    /// The schema of the whole configuration.
    pub(super) fn root() -> Self {
        Self::new(schema())
    }

    fn new(usage: &'static Value) -> Self {
        // An optional value is either of a type or null.
        let choices = usage["anyOf"].as_array().into_iter().flatten();
        let present = choices.into_iter().find(|choice| choice["type"] != "null").unwrap_or(usage);
        let definition = referred(present);
        let choices = ["oneOf", "anyOf"].map(|keyword| definition[keyword].as_array());
        let mut choices = choices.into_iter().flatten().flatten().map(referred);
        match choices.find(|choice| choice["properties"].is_object()) {
            Some(section) => Self { usage: definition, definition: section },
            None => Self { usage, definition },
        }
    }

    /// The schema of the value of `key`.
    pub(super) fn property(self, key: &str) -> Self {
        Self::new(&self.definition["properties"][key])
    }

    /// The schema of a list's items.
    pub(super) fn items(self) -> Self {
        Self::new(&self.definition["items"])
    }

    /// The schema of the items, if this is a list.
    pub(super) fn list_items(self) -> Option<Self> {
        self.definition["items"].is_object().then(|| self.items())
    }

    /// The schema of the values, if this is a mapping of names.
    pub(super) fn named_values(self) -> Option<Self> {
        let values = &self.definition["additionalProperties"];
        values.is_object().then(|| Self::new(values))
    }

    /// True if the value is text that may begin with this word and a colon, such as `header:NAME`.
    pub(super) fn has_text_kind(self, word: &str) -> bool {
        let choices =
            ["oneOf", "anyOf"].into_iter().filter_map(|kind| self.definition[kind].as_array());
        let all = choices.flatten().chain([self.definition, self.usage]);
        !word.is_empty()
            && all.into_iter().any(|schema| {
                let pattern = Self::new(schema).definition["pattern"].as_str().unwrap_or_default();
                pattern.contains(':') && has_word(pattern, word)
            })
    }

    /// The schema of the value of this name in a mapping of names.
    pub(super) fn value_of(self, name: &str) -> Self {
        match self.definition["properties"].get(name) {
            Some(property) => Self::new(property),
            None => Self::new(&self.definition["additionalProperties"]),
        }
    }

    /// True for a section that may also be written as text.
    pub(super) fn may_be_text(self) -> bool {
        let choices = ["anyOf", "oneOf"].map(|keyword| self.usage[keyword].as_array());
        let mut choices = choices.into_iter().flatten().flatten();
        self.definition["properties"].is_object()
            && choices.any(|choice| Self::new(choice).definition["type"] == "string")
    }

    /// True for a section that cannot be written as text.
    pub(super) fn is_section(self) -> bool {
        self.definition["properties"].is_object() && !self.may_be_text()
    }

    /// An item for a list of such values: `text` if it is valid, or else an example.
    pub(super) fn list_item(self, text: &str) -> Option<&str> {
        let definition = self.definition;
        let examples = self.keyword("examples").unwrap_or(&Value::Null);
        if let Some(example) = examples[0].as_str() {
            // The pattern may be a list of words.
            let words = definition["pattern"].as_str().unwrap_or_default().replace(['(', ')'], "|");
            let is_listed = !text.is_empty() && words.contains(&format!("|{text}|"));
            return Some(if is_listed { text } else { example });
        }
        let bound = |keyword| self.bound(keyword).and_then(serde_json::Number::as_u64);
        let is_valid = match definition["type"].as_str() {
            Some("integer") => text.parse::<u64>().is_ok_and(|number| {
                bound("minimum").is_none_or(|min| number >= min)
                    && bound("maximum").is_none_or(|max| number <= max)
            }),
            Some("string") => definition["enum"].is_null() && definition["pattern"].is_null(),
            _ => false,
        };
        is_valid.then_some(text)
    }

    /// The keys of a section.
    pub(super) fn keys(self) -> impl Iterator<Item = &'static str> {
        let keys = self.definition["properties"].as_object();
        keys.into_iter().flat_map(Map::keys).map(String::as_str)
    }

    /// The keys that a section must have.
    pub(super) fn required(self) -> impl Iterator<Item = &'static str> {
        let keys = self.definition["required"].as_array();
        keys.into_iter().flatten().filter_map(Value::as_str)
    }

    /// True if the value may be a number or a boolean: quotes would turn it into text.
    pub(super) fn accepts_unquoted(self) -> bool {
        let both = [self.usage, self.definition];
        let choices = both.iter().flat_map(|own| [&own["oneOf"], &own["anyOf"]]);
        let choices = choices.filter_map(Value::as_array);
        choices.flatten().chain([self.definition]).any(|schema| {
            let has_type = |wanted: &str| match &schema["type"] {
                Value::Array(types) => types.iter().any(|name| name == wanted),
                name => name == wanted,
            };
            ["integer", "number", "boolean"].into_iter().any(has_type)
        })
    }

    /// A number's bound, `minimum` or `maximum`.
    pub(super) fn bound(self, keyword: &str) -> Option<&'static serde_json::Number> {
        match self.keyword(keyword) {
            Some(Value::Number(bound)) => Some(bound),
            _ => None,
        }
    }

    /// The syntax of a value that is written as text.
    pub(super) fn text_syntax(self) -> &'static str {
        let has_syntax = self.definition["pattern"].is_string();
        self.definition["description"].as_str().filter(|_| has_syntax).unwrap_or("text")
    }

    /// A description of the values that the type accepts.
    pub(super) fn description(self) -> &'static str {
        self.definition["description"].as_str().unwrap_or_default()
    }

    /// The range of a duration or size, as it is written in faults; `None` without bounds.
    pub(super) fn amount_range(self) -> Option<(&'static str, &'static str)> {
        let bound = |keyword| self.keyword(keyword).and_then(Value::as_str);
        Some((bound("x-minimum")?, bound("x-maximum")?))
    }

    /// False if `text` is a duration or size outside of its range.
    pub(super) fn includes_amount(self, text: &str) -> bool {
        let Some((minimum, maximum)) = self.amount_range() else { return true };
        let range = amount(minimum)..=amount(maximum);
        amount(text).is_none_or(|amount| range.contains(&Some(amount)))
    }

    fn keyword(self, name: &str) -> Option<&'static Value> {
        self.usage.get(name).or_else(|| self.definition.get(name))
    }

    /// A valid value that replaces a missing or faulty required one, so that the rest of the file
    /// can be checked.
    pub(super) fn placeholder(self) -> Value {
        if let Some(example) = self.definition["examples"].get(0) {
            return example.clone();
        }
        match self.definition["type"].as_str() {
            Some("integer" | "number") => self.bound("minimum").cloned().into(),
            Some("array") => Value::Array(Vec::new()),
            Some("object") => {
                let key = |key: &str| (key.to_owned(), self.property(key).placeholder());
                Value::Object(self.required().map(key).collect::<Map<_, _>>())
            }
            _ => Value::String("x".to_owned()),
        }
    }
}

/// The definition that `value` refers to; `value` itself without a reference.
fn referred(value: &'static Value) -> &'static Value {
    let name = value["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/"));
    name.map_or(value, |name| &schema()["$defs"][name])
}
