//! Header fields as [`Fields`], and as an `http::HeaderMap`, which HTTP/2 libraries take. Pure.

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{self, InvalidHeaderName},
};
use wide::u8x16;

use super::{
    blocks::{filled, lower_case},
    characters::has_control,
    error::FramingError,
    fields::Fields,
    message_kind::MessageKind,
};

/// The map of `fields`, with room for one more. A field that HTTP/2 cannot carry, or that exceeds
/// the map's capacity, is left out. The values share one buffer.
pub fn from_fields(fields: &Fields) -> HeaderMap {
    let bytes = Bytes::copy_from_slice(fields.bytes());
    let mut map = HeaderMap::with_capacity(fields.len() + 1);
    for (name, value) in fields.positions() {
        let (Ok(name), Ok(mut value)) =
            (header_name(name), HeaderValue::from_maybe_shared(bytes.slice(value)))
        else {
            continue;
        };
        value.set_sensitive(changes_often(&name));
        let _ = map.try_append(name, value);
    }
    map
}

/// The length of the longest name that [`frequent_name`] can have; two blocks.
const MAX_FREQUENT: usize = 32;

/// The name as the library has it.
fn header_name(name: &[u8]) -> Result<HeaderName, InvalidHeaderName> {
    if name.len() <= MAX_FREQUENT {
        let blocks: [u8; MAX_FREQUENT] = filled(name, 0);
        let mut lower = [0; MAX_FREQUENT];
        for (block, lower) in blocks.as_chunks().0.iter().zip(lower.as_chunks_mut().0) {
            *lower = lower_case(u8x16::new(*block)).to_array();
        }
        if let Some(frequent) = frequent_name(&lower[..name.len()]) {
            return Ok(frequent);
        }
    }
    HeaderName::from_bytes(name)
}

/// A frequent name in lower case, which is neither searched nor allocated.
fn frequent_name(name: &[u8]) -> Option<HeaderName> {
    Some(match name {
        b"accept" => header::ACCEPT,
        b"accept-encoding" => header::ACCEPT_ENCODING,
        b"accept-language" => header::ACCEPT_LANGUAGE,
        b"accept-ranges" => header::ACCEPT_RANGES,
        b"authorization" => header::AUTHORIZATION,
        b"cache-control" => header::CACHE_CONTROL,
        b"content-encoding" => header::CONTENT_ENCODING,
        b"content-length" => header::CONTENT_LENGTH,
        b"content-type" => header::CONTENT_TYPE,
        b"cookie" => header::COOKIE,
        b"date" => header::DATE,
        b"etag" => header::ETAG,
        b"grpc-accept-encoding" => const { HeaderName::from_static("grpc-accept-encoding") },
        b"grpc-encoding" => const { HeaderName::from_static("grpc-encoding") },
        b"grpc-message" => const { HeaderName::from_static("grpc-message") },
        b"grpc-status" => const { HeaderName::from_static("grpc-status") },
        b"grpc-timeout" => const { HeaderName::from_static("grpc-timeout") },
        b"host" => header::HOST,
        b"last-modified" => header::LAST_MODIFIED,
        b"ratelimit" => const { HeaderName::from_static("ratelimit") },
        b"ratelimit-policy" => const { HeaderName::from_static("ratelimit-policy") },
        b"server" => header::SERVER,
        b"te" => header::TE,
        b"traceparent" => const { HeaderName::from_static("traceparent") },
        b"user-agent" => header::USER_AGENT,
        b"vary" => header::VARY,
        b"via" => header::VIA,
        b"x-forwarded-for" => const { HeaderName::from_static("x-forwarded-for") },
        b"x-forwarded-host" => const { HeaderName::from_static("x-forwarded-host") },
        b"x-forwarded-proto" => const { HeaderName::from_static("x-forwarded-proto") },
        b"x-ratelimit-limit" => const { HeaderName::from_static("x-ratelimit-limit") },
        b"x-ratelimit-remaining" => const { HeaderName::from_static("x-ratelimit-remaining") },
        b"x-ratelimit-reset" => const { HeaderName::from_static("x-ratelimit-reset") },
        b"x-ratelimit-resource" => const { HeaderName::from_static("x-ratelimit-resource") },
        b"x-ratelimit-used" => const { HeaderName::from_static("x-ratelimit-used") },
        b"x-request-id" => const { HeaderName::from_static("x-request-id") },
        _ => return None,
    })
}

/// True if the values of this field seldom repeat. Marked as sensitive, they are not added to the
/// table of a connection's header compression (RFC 7541, 2.3.2): there, the library compares each
/// new value with all earlier ones, and each holds the memory of its message.
fn changes_often(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "date"
            | "expires"
            | "last-modified"
            | "ratelimit"
            | "server-timing"
            | "traceparent"
            | "x-ratelimit-remaining"
            | "x-ratelimit-reset"
            | "x-ratelimit-used"
            | "x-request-id"
    )
}

/// The fields of `map`, without values that HTTP/1 cannot carry unchanged.
pub fn to_fields(map: &HeaderMap) -> Fields {
    let mut fields = Fields::new();
    for (name, value) in map {
        let value = value.as_bytes().trim_ascii();
        if !has_control(value) {
            fields.push(name.as_str(), value);
        }
    }
    fields
}

/// The trailers in `map`, converted like [`to_fields`].
///
/// # Errors
///
/// They are longer than those of such a message may be.
pub fn to_trailers(map: &HeaderMap, kind: MessageKind) -> Result<Fields, FramingError> {
    let line = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + 4;
    if map.iter().map(line).sum::<usize>() > kind.max_trailers() {
        return Err(FramingError::TrailersTooLong(kind));
    }
    Ok(to_fields(map))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_by_the_library() {
        for name in ["x-request-id", "DATE", "Grpc-Accept-Encoding"] {
            for at in 0..name.len() {
                for byte in 0..=u8::MAX {
                    let mut changed = name.as_bytes().to_owned();
                    changed[at] = byte;
                    let expected = HeaderName::from_bytes(&changed).ok();
                    assert_eq!(header_name(&changed).ok(), expected, "{name} {at} {byte}");
                }
            }
        }
    }

    #[test]
    fn trailers_are_bounded_by_their_lines() {
        let value = |length: usize| HeaderValue::from_maybe_shared("x".repeat(length)).unwrap();
        let mut map = HeaderMap::new();
        map.insert("a", value(MessageKind::Request.max_trailers() - 5));
        assert_eq!(to_trailers(&map, MessageKind::Request).unwrap().len(), 1);
        map.insert("b", value(0));
        assert_eq!(
            to_trailers(&map, MessageKind::Request).err(),
            Some(FramingError::TrailersTooLong(MessageKind::Request))
        );
    }

    #[test]
    fn values_that_change_often_are_not_indexed() {
        let fields: Fields =
            [("x-request-id", "1"), ("server", "a"), ("Date", "b")].into_iter().collect();
        let map = from_fields(&fields);
        let is_sensitive = |name: &str| map[name].is_sensitive();
        assert!(is_sensitive("x-request-id") && is_sensitive("date") && !is_sensitive("server"));
    }

    #[test]
    fn names_are_those_of_the_library() {
        let long = format!("x-{}", "a".repeat(MAX_FREQUENT));
        for name in ["accept", "grpc-status", "te", "x-ratelimit-remaining", "x-other", &long] {
            assert_eq!(header_name(name.as_bytes()).unwrap().as_str(), name);
            assert_eq!(header_name(name.to_uppercase().as_bytes()).unwrap().as_str(), name);
        }
        for malformed in ["", "a b", "a\0", &"a".repeat(70_000)] {
            assert!(header_name(malformed.as_bytes()).is_err(), "{malformed}");
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
