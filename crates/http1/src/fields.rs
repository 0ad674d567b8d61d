//! The header fields of a message: spans of one buffer, looked up by name.

#![expect(
    clippy::inline_always,
    reason = "the compiler ignores a hint, and then copies constant names by a call"
)]

use std::{cell::RefCell, num::NonZeroU32, ops::Range};

use super::{
    buffer::{MAX_FREE, MAX_POOLED},
    characters::is_same_name,
};

/// The position of one field in the buffer: offsets and lengths in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct FieldSpan {
    pub(super) name: u32,
    pub(super) value: u32,
    pub(super) value_length: u32,
    /// The offset after the line's CR LF, if the line is exactly `name: value` CR LF.
    pub(super) end: Option<NonZeroU32>,
    pub(super) signature: NameSignature,
}

/// The length of a name and three of its letters, without their case: most names differ in it, so
/// that a lookup compares few names in full.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct NameSignature {
    length: u16,
    letters: [u8; 3],
}

impl NameSignature {
    /// The signature of `name`, which has at most 65,535 bytes.
    #[inline]
    pub(super) fn of(name: &[u8]) -> Self {
        let letter = |index: usize| name.get(index).map_or(0, |byte| byte | 0x20);
        let length = name.len();
        let letters = [letter(0), letter(length / 2), letter(length.wrapping_sub(1))];
        Self { length: length as u16, letters }
    }

    fn length(self) -> usize {
        self.length.into()
    }
}

/// The capacity of the first buffer, in bytes.
const INITIAL_BYTES: usize = 256;
/// The capacity of the first list, in fields: most messages have fewer.
const INITIAL_FIELDS: usize = 16;
/// The largest capacity that is pooled, in fields.
const MAX_POOLED_FIELDS: usize = 128;

thread_local! {
    /// The vectors of dropped [`Fields`]: bytes and spans.
    static FREE: RefCell<Vec<(Vec<u8>, Vec<FieldSpan>)>> = const { RefCell::new(Vec::new()) };
}

/// The header fields of one message, in their order. Names keep their case and are compared
/// without regard to case. Values have no white space at their ends.
///
/// The vectors come from a pool of the thread, and dropping the fields returns them to it.
#[derive(Debug, Default)]
pub struct Fields {
    bytes: Vec<u8>,
    spans: Vec<FieldSpan>,
    /// The index of the first `Host`, if it is known.
    host: Option<u16>,
}

impl Fields {
    /// An empty list with space for a few short fields.
    pub fn new() -> Self {
        // Fails only while the thread ends.
        match FREE.try_with(|free| free.borrow_mut().pop()) {
            Ok(Some((bytes, spans))) => Self { bytes, spans, host: None },
            _ => Self::allocate(),
        }
    }

    #[cold]
    fn allocate() -> Self {
        Self {
            bytes: Vec::with_capacity(INITIAL_BYTES),
            spans: Vec::with_capacity(INITIAL_FIELDS),
            host: None,
        }
    }

    /// The buffer that contains the fields.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The number of fields.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// True if there are no fields.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Removes all fields.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.spans.clear();
        self.host = None;
    }

    /// Appends a field. The name must be a token and the value must have no CR or LF: both are
    /// written unchecked.
    #[inline(always)]
    pub fn push(&mut self, name: &str, value: impl AsRef<[u8]>) {
        self.push_field(name.as_bytes(), value.as_ref());
    }

    /// Appends a field with a decimal number as its value.
    #[inline(always)]
    pub fn push_number(&mut self, name: &str, number: u64) {
        self.push(name, itoa::Buffer::new().format(number));
    }

    /// Replaces the first field of this name, or appends the field.
    pub fn set(&mut self, name: &str, value: impl AsRef<[u8]>) {
        let found = self.position(name);
        self.push(name, value);
        if let Some(found) = found {
            self.host = None;
            self.spans.swap_remove(found);
        }
    }

    /// Appends a field whose bytes [`Self::keep`] adds.
    #[inline]
    pub(super) fn push_span(&mut self, span: FieldSpan) {
        self.spans.push(span);
    }

    /// Appends bytes to the buffer that belong to no field. Returns their offset.
    pub(super) fn keep(&mut self, bytes: &[u8]) -> usize {
        let offset = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        offset
    }

    /// Removes all fields of this name.
    pub fn remove(&mut self, name: &str) {
        while let Some(found) = self.position(name) {
            self.host = None;
            self.spans.remove(found);
        }
    }

    /// The names and values, in their order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> {
        self.spans.iter().map(|span| (self.name(span), self.value(span)))
    }

    /// The names, and the positions of the values in [`Self::bytes`], in their order. The values
    /// have no white space at their ends.
    pub(super) fn positions(&self) -> impl Iterator<Item = (&[u8], Range<usize>)> {
        self.spans.iter().map(|span| {
            let (value, start) = (self.value(span), span.value as usize);
            let start = start + value.len() - value.trim_ascii_start().len();
            (self.name(span), start..start + value.trim_ascii().len())
        })
    }

    /// The values of all fields of this name, in their order.
    pub fn get_all<N: AsRef<str>>(
        &self,
        name: N,
    ) -> impl DoubleEndedIterator<Item = &[u8]> + use<'_, N> {
        let signature = NameSignature::of(name.as_ref().as_bytes());
        let named = self
            .spans
            .iter()
            .filter(move |span| span.signature == signature && self.is_named(span, name.as_ref()));
        named.map(|span| self.value(span))
    }

    /// The value of the first field of this name.
    pub fn get(&self, name: impl AsRef<str>) -> Option<&[u8]> {
        Some(self.value(&self.spans[self.position(name.as_ref())?]))
    }

    /// The value of the first `Host`.
    #[inline]
    pub fn host(&self) -> Option<&[u8]> {
        match self.host {
            Some(index) => Some(self.value(&self.spans[usize::from(index)])),
            None => self.get("host"),
        }
    }

    /// Records that the last field is the first `Host`, so that [`Self::host`] does not search it.
    pub(super) fn mark_host(&mut self) {
        self.host = self.spans.len().checked_sub(1).and_then(|index| index.try_into().ok());
    }

    /// True if there is a field of this name.
    pub fn contains(&self, name: impl AsRef<str>) -> bool {
        self.get(name).is_some()
    }

    /// Writes the fields that `keep` accepts to `out`, each as a line with CR LF. Contiguous lines
    /// are copied at once.
    pub fn write_to(&self, out: &mut Vec<u8>, mut keep: impl FnMut(&[u8]) -> bool) {
        let mut run: Range<usize> = 0..0;
        for span in &self.spans {
            if !keep(self.name(span)) {
                continue;
            }
            let start = span.name as usize;
            if span.end.is_none() || start != run.end {
                out.extend_from_slice(&self.bytes[run]);
                run = start..start;
            }
            if let Some(end) = span.end {
                run.end = end.get() as usize;
            } else {
                out.extend_from_slice(self.name(span));
                out.extend_from_slice(b": ");
                out.extend_from_slice(self.value(span));
                out.extend_from_slice(b"\r\n");
            }
        }
        out.extend_from_slice(&self.bytes[run]);
    }

    #[inline]
    fn name(&self, span: &FieldSpan) -> &[u8] {
        &self.bytes[span.name as usize..][..span.signature.length()]
    }

    fn value(&self, span: &FieldSpan) -> &[u8] {
        &self.bytes[span.value as usize..][..span.value_length as usize]
    }

    /// The index of the first field of this name.
    fn position(&self, name: &str) -> Option<usize> {
        let signature = NameSignature::of(name.as_bytes());
        let is_same = |span: &FieldSpan| span.signature == signature && self.is_named(span, name);
        self.spans.iter().position(is_same)
    }

    fn is_named(&self, span: &FieldSpan, name: &str) -> bool {
        is_same_name(self.name(span), name.as_bytes())
    }
}

/// The destination of a head's fields: HTTP/1 lines (`Vec<u8>`), or [`Fields`] for HTTP/2.
///
/// Names must be tokens, and values must have no CR or LF: both are written unchecked.
pub trait FieldSink {
    /// Appends the fields in `fields` whose names `keep` accepts.
    fn append(&mut self, fields: &Fields, keep: impl FnMut(&[u8]) -> bool);

    /// Appends a field whose value `write` appends; no field if `write` returns false.
    fn push_if(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>) -> bool);

    /// Appends a field.
    // Inline, so that a constant name is copied without a call.
    #[inline(always)]
    fn push_field(&mut self, name: &[u8], value: &[u8]) {
        self.push_if(name, |out| {
            out.extend_from_slice(value);
            true
        });
    }
}

/// Each field is a line with CR LF.
impl FieldSink for Vec<u8> {
    #[inline]
    fn append(&mut self, fields: &Fields, keep: impl FnMut(&[u8]) -> bool) {
        fields.write_to(self, keep);
    }

    #[inline]
    fn push_if(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>) -> bool) {
        let start = self.len();
        self.extend_from_slice(name);
        self.extend_from_slice(b": ");
        if write(self) {
            self.extend_from_slice(b"\r\n");
        } else {
            self.truncate(start);
        }
    }
}

impl FieldSink for Fields {
    fn append(&mut self, fields: &Fields, mut keep: impl FnMut(&[u8]) -> bool) {
        for span in &fields.spans {
            let name = fields.name(span);
            if keep(name) {
                self.push_field(name, fields.value(span));
            }
        }
    }

    // As `push`, inline, so that a constant name is copied without a call, and its signature is a
    // constant.
    #[inline(always)]
    fn push_field(&mut self, name: &[u8], value: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(b": ");
        self.bytes.extend_from_slice(value);
        self.bytes.extend_from_slice(b"\r\n");
        self.spans.push(FieldSpan {
            name: start as u32,
            value: (start + name.len() + 2) as u32,
            value_length: value.len() as u32,
            end: NonZeroU32::new(self.bytes.len() as u32),
            signature: NameSignature::of(name),
        });
    }

    #[inline]
    fn push_if(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>) -> bool) {
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(b": ");
        let value = self.bytes.len() as u32;
        if !write(&mut self.bytes) {
            self.bytes.truncate(start as usize);
            return;
        }
        let value_length = self.bytes.len() as u32 - value;
        self.bytes.extend_from_slice(b"\r\n");
        self.spans.push(FieldSpan {
            name: start,
            value,
            value_length,
            end: NonZeroU32::new(self.bytes.len() as u32),
            signature: NameSignature::of(name),
        });
    }
}

impl Clone for Fields {
    fn clone(&self) -> Self {
        let mut copy = Self::new();
        copy.bytes.extend_from_slice(&self.bytes);
        copy.spans.extend_from_slice(&self.spans);
        copy.host = self.host;
        copy
    }
}

impl Drop for Fields {
    fn drop(&mut self) {
        let is_pooled = (INITIAL_BYTES..=MAX_POOLED).contains(&self.bytes.capacity())
            && (INITIAL_FIELDS..=MAX_POOLED_FIELDS).contains(&self.spans.capacity());
        if !is_pooled {
            return;
        }
        self.clear();
        let freed = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.spans));
        // Fails only while the thread ends.
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < MAX_FREE {
                free.push(freed);
            }
        });
    }
}

impl<N: AsRef<str>, V: AsRef<[u8]>> FromIterator<(N, V)> for Fields {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(fields: I) -> Self {
        let mut all = Self::new();
        for (name, value) in fields {
            all.push(name.as_ref(), value);
        }
        all
    }
}

#[cfg(test)]
mod tests;
