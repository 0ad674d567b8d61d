//! [`HeaderRules`]: the header fields that a route removes, sets and adds.

use http::HeaderName;

use super::{Template, TemplateValues};
use crate::http1::FieldSink;

/// The header fields that a route removes, sets and adds, on requests or on responses.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HeaderRules {
    /// The names that are removed or set.
    dropped: Box<[HeaderName]>,
    /// The fields that are set or added, in their order.
    written: Box<[(HeaderName, Template)]>,
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
        Self { dropped: dropped.into(), written: set.into_iter().chain(add).collect() }
    }

    /// True without rules.
    pub fn is_empty(&self) -> bool {
        self.dropped.is_empty() && self.written.is_empty()
    }

    /// The names of the fields that are removed or replaced.
    pub fn dropped(&self) -> &[HeaderName] {
        &self.dropped
    }

    /// The fields that are set or added, in their order.
    pub fn written(&self) -> &[(HeaderName, Template)] {
        &self.written
    }

    /// True if the message's own field of this name is removed or replaced. Ignores case.
    pub fn drops(&self, name: &[u8]) -> bool {
        self.dropped.iter().any(|dropped| name.eq_ignore_ascii_case(dropped.as_str().as_bytes()))
    }

    /// Appends the fields that are set and added to `out`. A field whose value is empty is left out.
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

/// True if no rule may change the field, because it frames the message, concerns the connection, or lets the
/// gateway detect loops.
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
