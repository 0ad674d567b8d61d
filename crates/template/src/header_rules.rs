//! [`HeaderRules`]: the header fields that a route changes, removes, sets and adds.

use std::sync::Arc;

use http::HeaderName;
use tidegate_http1::{FieldSink, Fields};

use super::{ReplacedValue, Replacement, Template, TemplateValues, replacement::ReplacementBudget};

/// The header fields that a route changes, removes, sets and adds, on requests or on responses.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HeaderRules {
    /// The names that are removed or set.
    dropped: Box<[HeaderName]>,
    /// The fields that are set or added, in their order.
    written: Box<[(HeaderName, Template)]>,
    /// The fields in whose values parts are replaced. Shared: a copy of a pattern has no cache.
    replacements: Arc<[(HeaderName, Replacement)]>,
}

/// The replacements in the fields of one message.
pub struct MessageReplacements<'r> {
    rules: &'r HeaderRules,
    budget: ReplacementBudget,
}

impl HeaderRules {
    /// Rules that remove the fields in `remove`, replace those in `set`, and append those in `add`.
    pub fn new(
        remove: Vec<HeaderName>,
        set: Vec<(HeaderName, Template)>,
        add: Vec<(HeaderName, Template)>,
    ) -> Self {
        let mut dropped = remove;
        dropped.extend(set.iter().map(|(name, _)| name.clone()));
        Self {
            dropped: dropped.into(),
            written: set.into_iter().chain(add).collect(),
            replacements: Arc::default(),
        }
    }

    /// The rules, which also replace parts of the values of these fields.
    #[must_use]
    pub fn with_replacements(self, replacements: Vec<(HeaderName, Replacement)>) -> Self {
        Self { replacements: replacements.into(), ..self }
    }

    /// True without rules.
    pub fn is_empty(&self) -> bool {
        self.dropped.is_empty() && self.written.is_empty() && self.replacements.is_empty()
    }

    /// The names of the fields that are removed or replaced.
    pub fn dropped(&self) -> &[HeaderName] {
        &self.dropped
    }

    /// The fields that are set or added, in their order.
    pub fn written(&self) -> &[(HeaderName, Template)] {
        &self.written
    }

    /// The fields in whose values parts are replaced, each with its replacement.
    pub fn replacements(&self) -> &[(HeaderName, Replacement)] {
        &self.replacements
    }

    /// The replacements in the fields of one message; `None` if the route has none.
    pub fn message_replacements(&self) -> Option<MessageReplacements<'_>> {
        let budget = ReplacementBudget::default();
        (!self.replacements.is_empty()).then_some(MessageReplacements { rules: self, budget })
    }

    /// True if parts of the values of this name are replaced. Ignores case.
    pub fn replaces(&self, name: &[u8]) -> bool {
        self.replacement(name).is_some()
    }

    /// True if a part of a field of this name in `fields` is replaced.
    pub fn replaces_in(&self, name: &str, fields: &Fields) -> bool {
        let replacement = self.replacement(name.as_bytes());
        replacement.is_some_and(|one| fields.get_all(name).any(|value| one.matches(value)))
    }

    fn replacement(&self, name: &[u8]) -> Option<&Replacement> {
        let is_named = |own: &HeaderName| name.eq_ignore_ascii_case(own.as_str().as_bytes());
        self.replacements.iter().find(|(own, _)| is_named(own)).map(|(_, one)| one)
    }

    /// True if the message's own field of this name is removed or replaced as a whole. Ignores
    /// case.
    pub fn drops(&self, name: &[u8]) -> bool {
        self.dropped.iter().any(|dropped| name.eq_ignore_ascii_case(dropped.as_str().as_bytes()))
    }

    /// Appends the fields that are set and added to `out`. A field whose value is empty is left
    /// out.
    pub fn write(&self, values: &TemplateValues<'_>, out: &mut impl FieldSink) {
        for (name, template) in &self.written {
            out.push_if(name.as_str().as_bytes(), |out| {
                let start = out.len();
                template.write_value(values, out);
                !out[start..].trim_ascii().is_empty()
            });
        }
    }
}

impl MessageReplacements<'_> {
    /// Replaces parts of the value of a field.
    pub fn apply(&mut self, name: &[u8], value: &[u8]) -> ReplacedValue {
        match self.rules.replacement(name) {
            Some(replacement) => replacement.apply(value, &mut self.budget),
            None => ReplacedValue::Unchanged,
        }
    }

    /// Writes the fields of `sent` with their new values. `unchanged` appends a value that the
    /// pattern does not match.
    pub fn write(
        &mut self,
        sent: &Fields,
        out: &mut impl FieldSink,
        unchanged: impl Fn(&[u8], &[u8], &mut Vec<u8>),
    ) {
        for (name, value) in sent.iter() {
            let new = self.apply(name, value);
            out.push_if(name, |out| {
                match &new {
                    ReplacedValue::Unchanged => unchanged(name, value, out),
                    ReplacedValue::Changed(new) => out.extend_from_slice(new),
                    ReplacedValue::LeftOut => return false,
                }
                true
            });
        }
    }
}

/// True if no rule may change the field, because it frames the message, concerns the connection, or
/// lets the gateway detect loops.
pub fn is_framing_field(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "content-length"
            | "expect"
            | "host"
            | "http2-settings"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "sec-websocket-accept"
            | "sec-websocket-key"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
            | "via"
    )
}
