//! Decides whether a response is compressed, and adapts its head.

use std::sync::Arc;

use super::context::RequestContext;
use crate::{
    compress::{CompressRules, CompressionBudget, Compressor, negotiate},
    http1::{Fields, ResponseHead},
    upstream::ResponseBody,
};

/// How the responses of a route are compressed.
pub(super) struct ResponseCompression<'a> {
    /// Bounds the memory of all encoders.
    pub(super) budget: &'a Arc<CompressionBudget>,
    /// The rules of the route.
    pub(super) rules: &'a CompressRules,
}

impl ResponseCompression<'_> {
    /// Compresses `body` if the rules, the response and the client allow it. Adds the gateway's fields to `added`,
    /// including `Vary` if the encoding depends on the client.
    pub(super) fn apply(
        &self,
        request: &RequestContext,
        head: &mut ResponseHead,
        body: &mut ResponseBody,
        added: &mut Fields,
    ) {
        let (rules, asked) = (self.rules, &request.head);
        if !is_compressible(rules, head, body)
            || has_member(&asked.fields, "cache-control", NO_TRANSFORM)
        {
            return;
        }
        // A header rule of the route may remove or replace the upstream's `Vary`.
        let is_replaced = request.drops_response_field(b"vary");
        let varies = |member| has_member(&head.fields, "vary", member) && !is_replaced;
        if !varies(b"accept-encoding") && !varies(b"*") {
            added.push("vary", "accept-encoding");
        }
        if asked.method == http::Method::HEAD {
            return;
        }
        let accepted = negotiate(asked.fields.get_all("accept-encoding"), &rules.encodings);
        let Some(encoding) = accepted else { return };
        let (level, length) = (rules.level(encoding), body.declared_length());
        let memory = Compressor::memory(encoding, level, length);
        let Some(permit) = self.budget.begin(&request.usage, memory) else { return };
        let Ok(compressor) = Compressor::new(encoding, level, length) else { return };
        body.compress(compressor, permit);
        added.push("content-encoding", encoding.name());
        // The tag describes the uncompressed bytes, so weaken it and refuse ranges.
        if let Some(tag) = head.fields.get("etag").filter(|tag| tag.starts_with(b"\"")) {
            let weak = [b"W/", tag].concat();
            head.fields.set("etag", weak);
        }
        head.fields.remove("accept-ranges");
    }
}

const NO_TRANSFORM: &[u8] = b"no-transform";

/// True if the response may be compressed for a client that accepts an encoding.
fn is_compressible(rules: &CompressRules, head: &ResponseHead, body: &ResponseBody) -> bool {
    let fields = &head.fields;
    let has_size =
        body.declared_length().is_none_or(|length| length > 0 && length >= rules.min_size);
    // A digest (RFC 9530) covers the encoded bytes, so compression would invalidate it.
    let excluded = ["content-encoding", "content-range", "content-digest", "repr-digest", "digest"];
    has_size
        && !matches!(head.status, 204..=206 | 304)
        && fields.get("content-type").is_some_and(|value| rules.has_type(value))
        && !excluded.iter().any(|name| fields.contains(name))
        && !has_member(fields, "cache-control", NO_TRANSFORM)
}

/// True if a field of this name lists `member`. Ignores case.
fn has_member(fields: &Fields, name: &str, member: &[u8]) -> bool {
    let mut members = fields.get_all(name).flat_map(|value| value.split(|byte| *byte == b','));
    members.any(|found| found.trim_ascii().eq_ignore_ascii_case(member))
}
