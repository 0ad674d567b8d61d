//! Decides whether a response is compressed, and adapts its head.

use std::sync::Arc;

use tidegate_http1::{Fields, RequestHead, ResponseHead};
use tidegate_transport::compress::{CompressRules, CompressionBudget, Compressor, negotiate};
use tidegate_upstream::{ResponseBody, is_digest};

use super::context::RequestContext;

/// How the responses of a route are compressed.
pub(super) struct ResponseCompression<'a> {
    /// Bounds the memory of all encoders.
    pub(super) budget: &'a Arc<CompressionBudget>,
    /// The rules of the route.
    pub(super) rules: &'a CompressRules,
}

impl ResponseCompression<'_> {
    /// Compresses `body` if the rules, the response and the client allow it. Adds the gateway's
    /// fields to `added`, including `Vary` if the encoding depends on the client. A response to
    /// HEAD, and a 304, gets the fields of the response to GET (RFC 9110, 9.3.2), or of the 200.
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
        let accepted = negotiate(asked.fields.get_all("accept-encoding"), &rules.encodings);
        let Some(encoding) = accepted else { return };
        if head.status == NOT_MODIFIED {
            if holds_unchanged(asked, head) {
                return;
            }
            body.hide_length();
        } else if asked.method == http::Method::HEAD {
            body.hide_length();
            added.push("content-encoding", encoding.name());
        } else {
            let (level, length) = (rules.level(encoding), body.declared_length());
            let memory = Compressor::memory(encoding, level, length);
            let Some(permit) = self.budget.begin(&request.usage, memory) else { return };
            let Ok(compressor) = Compressor::new(encoding, level, length) else { return };
            body.compress(compressor, permit);
            added.push("content-encoding", encoding.name());
        }
        // The tag describes the uncompressed bytes, so weaken it and refuse ranges.
        if let Some(tag) = head.fields.get("etag").filter(|tag| tag.starts_with(b"\"")) {
            let weak = [b"W/", tag].concat();
            head.fields.set("etag", weak);
        }
        head.fields.remove("accept-ranges");
    }
}

const NO_TRANSFORM: &[u8] = b"no-transform";
const NOT_MODIFIED: u16 = 304;

/// True if the response may be compressed for a client that accepts an encoding. For a 304: if that
/// may be so for the 200, whose fields a 304 has (RFC 9110, 15.4.5); many servers leave out its
/// type and its length.
fn is_compressible(rules: &CompressRules, head: &ResponseHead, body: &ResponseBody) -> bool {
    let fields = &head.fields;
    let is_unchanged = head.status == NOT_MODIFIED;
    let has_size = body
        .declared_length()
        .is_none_or(|length| length >= rules.min_size.max(1) || length == 0 && is_unchanged);
    let has_type = fields.get("content-type").map_or(is_unchanged, |value| rules.has_type(value));
    has_size
        && has_type
        && !matches!(head.status, 204..=206)
        && !["content-encoding", "content-range"].iter().any(|name| fields.contains(name))
        && !fields.iter().any(|(name, _)| is_digest(name))
        && !has_member(fields, "cache-control", NO_TRANSFORM)
}

/// True if the client has the body of this 304 as the upstream sent it, without compression. The
/// type may be missing, so only the tag in the request tells.
fn holds_unchanged(asked: &RequestHead, head: &ResponseHead) -> bool {
    !head.fields.contains("content-type")
        && head
            .fields
            .get("etag")
            .is_some_and(|tag| has_member(&asked.fields, "if-none-match", tag))
}

/// True if a field of this name lists `member`. Ignores case.
fn has_member(fields: &Fields, name: &str, member: &[u8]) -> bool {
    let mut members = fields.get_all(name).flat_map(|value| value.split(|byte| *byte == b','));
    members.any(|found| found.trim_ascii().eq_ignore_ascii_case(member))
}
