//! The messages of `envoy.service.ratelimit.v3`, as Envoy 1.40 has them: the fields that are read
//! or written.

use std::collections::BTreeMap;
pub use tidegate_vocabulary::RateLimitUnit;

use bytes::{Buf, BufMut};
use prost::{
    DecodeError, Enumeration, Message, Oneof,
    encoding::{self, DecodeContext, WireType},
};

/// `RateLimitRequest`: which descriptors are asked about.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitRequest {
    /// The domain.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The descriptors, each of which a limit may refuse.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// What each descriptor without hits of its own is charged; 0 is 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// `RateLimitDescriptor`: entries, and how many hits they have.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitDescriptor {
    /// The entries, in their order.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<DescriptorEntryMessage>,
    /// A limit that applies instead of the configured one.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<RateLimitOverride>,
    /// The hits; absent: those of the call.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<UInt64Value>,
    /// True if the hits are given back.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

/// `RateLimitDescriptor.Entry`. Envoy copies the bytes of header fields into it, which need not be
/// UTF-8: an error would let a client choose that its call has no decision. Each invalid sequence
/// is read as U+FFFD instead, so that such values are counted, together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DescriptorEntryMessage {
    /// The name, with the tag 1.
    pub key: String,
    /// The value, with the tag 2.
    pub value: String,
}

impl DescriptorEntryMessage {
    /// The fields by their tags.
    fn fields(&self) -> impl Iterator<Item = (u32, &String)> {
        [(1, &self.key), (2, &self.value)].into_iter().filter(|(_, text)| !text.is_empty())
    }
}

impl Message for DescriptorEntryMessage {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        for (tag, text) in self.fields() {
            encoding::string::encode(tag, text, buf);
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        let text = match tag {
            1 => &mut self.key,
            2 => &mut self.value,
            _ => return encoding::skip_field(wire_type, tag, buf, context),
        };
        let mut bytes = Vec::new();
        encoding::bytes::merge(wire_type, &mut bytes, buf, context)?;
        *text = String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        self.fields().map(|(tag, text)| encoding::string::encoded_len(tag, text)).sum()
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

/// `RateLimitDescriptor.RateLimitOverride`.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct RateLimitOverride {
    /// The quota.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// The unit of the window, of `envoy.type.v3.RateLimitUnit`.
    #[prost(enumeration = "RateLimitUnit", tag = "2")]
    pub unit: i32,
    /// The number of units in the window; absent: one.
    #[prost(message, optional, tag = "3")]
    pub unit_multiplier: Option<UInt32Value>,
}

/// `google.protobuf.UInt64Value`.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct UInt64Value {
    /// The number.
    #[prost(uint64, tag = "1")]
    pub value: u64,
}

/// `google.protobuf.UInt32Value`.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct UInt32Value {
    /// The number.
    #[prost(uint32, tag = "1")]
    pub value: u32,
}

/// `RateLimitResponse`: the decision.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitResponse {
    /// `OVER_LIMIT` if a descriptor is over its limit.
    #[prost(enumeration = "ResponseCode", tag = "1")]
    pub overall_code: i32,
    /// One for each descriptor, in their order.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// Header fields for the response to the client.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// Metadata for other filters of Envoy.
    #[prost(message, optional, tag = "6")]
    pub dynamic_metadata: Option<Metadata>,
}

/// `RateLimitResponse.Code`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Enumeration)]
#[repr(i32)]
pub enum ResponseCode {
    /// No code.
    Unknown = 0,
    /// Admitted.
    Ok = 1,
    /// Refused.
    OverLimit = 2,
}

/// `RateLimitResponse.DescriptorStatus`.
#[derive(Clone, PartialEq, Message)]
pub struct DescriptorStatus {
    /// The decision on the descriptor.
    #[prost(enumeration = "ResponseCode", tag = "1")]
    pub code: i32,
    /// The limit; absent: none applies.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<CurrentLimit>,
    /// What is left of it.
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    /// When it is as new.
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<ProtoDuration>,
}

/// `RateLimitResponse.RateLimit`.
#[derive(Clone, PartialEq, Message)]
pub struct CurrentLimit {
    /// The quota.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// The unit of the window.
    #[prost(enumeration = "RateLimitUnit", tag = "2")]
    pub unit: i32,
    /// The limit's name.
    #[prost(string, tag = "3")]
    pub name: String,
    /// The number of units in the window; absent: one.
    #[prost(message, optional, tag = "4")]
    pub unit_multiplier: Option<UInt32Value>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct ProtoDuration {
    /// Whole seconds.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds beyond them.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// `envoy.config.core.v3.HeaderValue`.
#[derive(Clone, PartialEq, Message)]
pub struct HeaderValue {
    /// The name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// `google.protobuf.Struct`.
#[derive(Clone, PartialEq, Message)]
pub struct Metadata {
    /// The members.
    #[prost(btree_map = "string, message", tag = "1")]
    pub fields: BTreeMap<String, MetadataValue>,
}

/// `google.protobuf.Value`.
#[derive(Clone, PartialEq, Message)]
pub struct MetadataValue {
    /// What it is.
    #[prost(oneof = "MetadataKind", tags = "2, 3, 4, 6")]
    pub kind: Option<MetadataKind>,
}

/// `google.protobuf.Value.kind`.
#[derive(Clone, PartialEq, Oneof)]
pub enum MetadataKind {
    /// A number.
    #[prost(double, tag = "2")]
    Number(f64),
    /// A text.
    #[prost(string, tag = "3")]
    Text(String),
    /// True or false.
    #[prost(bool, tag = "4")]
    Bool(bool),
    /// A list.
    #[prost(message, tag = "6")]
    List(MetadataList),
}

/// `google.protobuf.ListValue`.
#[derive(Clone, PartialEq, Message)]
pub struct MetadataList {
    /// Its items.
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<MetadataValue>,
}

impl From<MetadataKind> for MetadataValue {
    fn from(kind: MetadataKind) -> Self {
        Self { kind: Some(kind) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An entry as protobuf has it.
    #[derive(Clone, PartialEq, Message)]
    struct BytesEntry {
        #[prost(bytes = "vec", tag = "1")]
        key: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        value: Vec<u8>,
        #[prost(uint32, tag = "3")]
        unknown: u32,
    }

    proptest! {
        #[test]
        fn entries_are_read_whatever_their_bytes_are(key: Vec<u8>, value: Vec<u8>, unknown: u32) {
            let sent = BytesEntry { key, value, unknown };
            let read = DescriptorEntryMessage::decode(&*sent.encode_to_vec()).unwrap();
            prop_assert_eq!(&read.key, &String::from_utf8_lossy(&sent.key));
            prop_assert_eq!(&read.value, &String::from_utf8_lossy(&sent.value));
        }

        #[test]
        fn entries_are_written_as_they_are_read(key: String, value: String) {
            let entry = DescriptorEntryMessage { key, value };
            let written = entry.encode_to_vec();
            prop_assert_eq!(written.len(), entry.encoded_len());
            prop_assert_eq!(DescriptorEntryMessage::decode(&*written).unwrap(), entry);
        }
    }
}
