//! Header fields as [`Fields`], and as the map that the HTTP/2 library takes. Pure.

use std::ops::Range;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{self, InvalidHeaderName},
};

use super::{
    chunked::MAX_TRAILERS,
    error::FramingError,
    fields::{FieldSink, Fields},
};

/// The map of `fields`. A field that HTTP/2 cannot carry, or that exceeds the map's capacity, is left out.
pub fn from_fields(fields: &Fields) -> HeaderMap {
    let mut builder = HeaderMapBuilder::default();
    builder.append(fields, |_| true);
    builder.into_map()
}

/// Collects the fields of a [`HeaderMap`], whose values share one buffer.
pub struct HeaderMapBuilder {
    values: Vec<u8>,
    fields: Vec<BuiltField>,
}

/// One field of a [`HeaderMapBuilder`].
struct BuiltField {
    name: HeaderName,
    /// The position of the value in the buffer.
    value: Range<usize>,
    changes_often: bool,
}

impl Default for HeaderMapBuilder {
    fn default() -> Self {
        // Enough for most heads.
        Self { values: Vec::with_capacity(256), fields: Vec::with_capacity(12) }
    }
}

impl HeaderMapBuilder {
    /// The map. A field that HTTP/2 cannot carry, or that exceeds the map's capacity, is left out.
    pub fn into_map(self) -> HeaderMap {
        let values = Bytes::from(self.values);
        // The caller may insert one more.
        let mut map = HeaderMap::with_capacity(self.fields.len() + 1);
        for BuiltField { name, value, changes_often } in self.fields {
            let value = values.slice_ref(values[value].trim_ascii());
            if let Ok(mut value) = HeaderValue::from_maybe_shared(value) {
                value.set_sensitive(changes_often);
                let _ = map.try_append(name, value);
            }
        }
        map
    }
}

impl FieldSink for HeaderMapBuilder {
    fn append(&mut self, fields: &Fields, mut keep: impl FnMut(&[u8]) -> bool) {
        for (name, value) in fields.iter() {
            if keep(name) {
                self.push_field(name, value);
            }
        }
    }

    fn push_if(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>) -> bool) {
        let start = self.values.len();
        let changes_often = changes_often(name);
        match header_name(name) {
            Ok(name) if write(&mut self.values) => {
                let value = start..self.values.len();
                self.fields.push(BuiltField { name, value, changes_often });
            }
            _ => self.values.truncate(start),
        }
    }
}

/// The name as the library has it. Frequent ones are neither searched nor allocated.
fn header_name(name: &[u8]) -> Result<HeaderName, InvalidHeaderName> {
    Ok(match name {
        b"accept" => header::ACCEPT,
        b"content-length" => header::CONTENT_LENGTH,
        b"content-type" => header::CONTENT_TYPE,
        b"date" => header::DATE,
        b"grpc-message" => const { HeaderName::from_static("grpc-message") },
        b"grpc-status" => const { HeaderName::from_static("grpc-status") },
        b"host" => header::HOST,
        b"server" => header::SERVER,
        b"traceparent" => const { HeaderName::from_static("traceparent") },
        b"user-agent" => header::USER_AGENT,
        b"via" => header::VIA,
        b"x-forwarded-for" => const { HeaderName::from_static("x-forwarded-for") },
        b"x-forwarded-host" => const { HeaderName::from_static("x-forwarded-host") },
        b"x-forwarded-proto" => const { HeaderName::from_static("x-forwarded-proto") },
        b"x-ratelimit-limit" => const { HeaderName::from_static("x-ratelimit-limit") },
        b"x-ratelimit-remaining" => const { HeaderName::from_static("x-ratelimit-remaining") },
        b"x-ratelimit-reset" => const { HeaderName::from_static("x-ratelimit-reset") },
        b"x-request-id" => const { HeaderName::from_static("x-request-id") },
        _ => return HeaderName::from_bytes(name),
    })
}

/// True if the values of this field seldom repeat. Marked as sensitive, they are not added to the table of a connection's
/// header compression (RFC 7541, 2.3.2): there, the library compares each new value with all earlier ones, and each holds
/// the memory of its message.
fn changes_often(name: &[u8]) -> bool {
    matches!(
        name,
        b"date"
            | b"expires"
            | b"last-modified"
            | b"ratelimit"
            | b"server-timing"
            | b"traceparent"
            | b"x-ratelimit-remaining"
            | b"x-ratelimit-reset"
            | b"x-ratelimit-used"
            | b"x-request-id"
    )
}

/// The fields of `map`, without values that HTTP/1 cannot carry unchanged.
pub fn to_fields(map: &HeaderMap) -> Fields {
    let mut fields = Fields::new();
    for (name, value) in map {
        let value = value.as_bytes().trim_ascii();
        if !value.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
            fields.push(name.as_str(), value);
        }
    }
    fields
}

/// The trailers in `map`, converted like [`to_fields`].
///
/// # Errors
///
/// They are longer than HTTP/1 trailers may be.
pub fn to_trailers(map: &HeaderMap) -> Result<Fields, FramingError> {
    let line = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + 4;
    if map.iter().map(line).sum::<usize>() > MAX_TRAILERS {
        return Err(FramingError::TrailersTooLong);
    }
    Ok(to_fields(map))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailers_are_bounded_by_their_lines() {
        let value = |length: usize| HeaderValue::from_maybe_shared("x".repeat(length)).unwrap();
        let mut map = HeaderMap::new();
        map.insert("a", value(MAX_TRAILERS - 5));
        assert_eq!(to_trailers(&map).unwrap().len(), 1);
        map.insert("b", value(0));
        assert_eq!(to_trailers(&map).err(), Some(FramingError::TrailersTooLong));
    }

    #[test]
    fn values_that_change_often_are_not_indexed() {
        let fields: Fields =
            [("x-request-id", "1"), ("server", "a"), ("date", "b")].into_iter().collect();
        let map = from_fields(&fields);
        let is_sensitive = |name: &str| map[name].is_sensitive();
        assert!(is_sensitive("x-request-id") && is_sensitive("date") && !is_sensitive("server"));
    }

    #[test]
    fn frequent_names_are_those_of_the_library() {
        for name in ["accept", "grpc-status", "host", "x-forwarded-for", "x-request-id", "x-other"]
        {
            assert_eq!(header_name(name.as_bytes()).unwrap().as_str(), name);
        }
    }

    #[test]
    fn fields_become_a_map_and_return() {
        let fields: Fields =
            [("X-One", "1 "), ("set-cookie", "a=b: c"), ("set-cookie", "d"), ("bad name", "x")]
                .into_iter()
                .collect();
        let map = from_fields(&fields);
        assert_eq!(map.get("x-one").unwrap(), "1");
        let cookies: Vec<_> = map.get_all("set-cookie").iter().collect();
        assert_eq!(cookies, ["a=b: c", "d"]);
        let fields = to_fields(&map);
        assert_eq!(fields.len(), 3);
        assert_eq!(fields.get_all("set-cookie").collect::<Vec<_>>(), [&b"a=b: c"[..], b"d"]);
    }
}
