//! Compresses response bodies: which encoding a client accepts, and the streaming encoder.
//!
//! | file | content |
//! |---|---|
//! | `accept` | the negotiation by `Accept-Encoding` (RFC 9110, 12.5.3) |
//! | `compressor` | [`Compressor`]: one body's encoder, whose memory is bounded |
//! | `permit` | [`CompressionBudget`]: the memory of all encoders, in total and for each client |

mod accept;
mod compressor;
mod permit;

pub use self::{
    accept::negotiate,
    compressor::Compressor,
    permit::{CompressionBudget, CompressionPermit},
};
pub use tidegate_vocabulary::Encoding;

/// What a route compresses.
#[derive(Debug)]
pub struct CompressRules {
    /// The encodings, the preferred one first; at least one, each once.
    pub encodings: Vec<Encoding>,
    /// Minimum `Content-Length` of a body, in bytes. A body of unknown length is compressed.
    pub min_size: u64,
    /// The media types, in lower case and without parameters; `text/*` is all types of text.
    pub types: Vec<Box<str>>,
    /// Level of gzip, 1 to 9.
    pub gzip_level: u8,
    /// Level of zstd, 1 to 12.
    pub zstd_level: u8,
}

impl CompressRules {
    /// True if bodies with this `Content-Type` are compressed.
    pub fn has_type(&self, content_type: &[u8]) -> bool {
        let end = content_type.iter().position(|byte| *byte == b';').unwrap_or(content_type.len());
        let media_type = content_type[..end].trim_ascii();
        if is_message_stream(media_type) {
            return false;
        }
        self.types.iter().any(|listed| match listed.strip_suffix('*') {
            Some(start) => media_type
                .split_at_checked(start.len())
                .is_some_and(|(first, _)| first.eq_ignore_ascii_case(start.as_bytes())),
            None => media_type.eq_ignore_ascii_case(listed.as_bytes()),
        })
    }

    /// The level of `encoding`.
    pub fn level(&self, encoding: Encoding) -> u8 {
        match encoding {
            Encoding::Gzip => self.gzip_level,
            Encoding::Zstd => self.zstd_level,
        }
    }
}

/// True if bodies of this type are streams of messages, which are never compressed: server-sent
/// events, and gRPC, which compresses each message.
pub fn is_message_stream(media_type: &[u8]) -> bool {
    let starts_with = |start: &[u8]| {
        media_type
            .split_at_checked(start.len())
            .is_some_and(|(first, _)| first.eq_ignore_ascii_case(start))
    };
    media_type.eq_ignore_ascii_case(b"text/event-stream") || starts_with(b"application/grpc")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_match_without_case_and_parameters() {
        let rules = CompressRules {
            encodings: vec![Encoding::Gzip],
            min_size: 0,
            types: vec!["text/*".into(), "application/json".into()],
            gzip_level: 5,
            zstd_level: 3,
        };
        for (content_type, expected) in [
            ("text/html", true),
            ("Text/HTML; charset=utf-8", true),
            ("application/json ;a=b", true),
            ("application/jsonl", false),
            ("application/jso", false),
            ("text", false),
            ("", false),
            ("image/png", false),
            ("text/event-stream", false),
            ("Text/Event-Stream; charset=utf-8", false),
        ] {
            assert_eq!(rules.has_type(content_type.as_bytes()), expected, "{content_type}");
        }
        let all = CompressRules { types: vec!["*".into()], ..rules };
        assert!(all.has_type(b"image/png"));
        assert!(!all.has_type(b"application/grpc+proto"));
        assert!(!all.has_type(b"application/grpc-web"));
    }
}
