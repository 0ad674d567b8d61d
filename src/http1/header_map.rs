//! Header fields as [`Fields`], and as the map that the HTTP/2 library takes. Pure.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{chunked::MAX_TRAILERS, error::FramingError, fields::Fields};

/// The map of `fields`. A field that HTTP/2 cannot carry, or that exceeds the map's capacity, is left out.
pub fn from_fields(fields: &Fields) -> HeaderMap {
    // The values share one copy of the fields.
    let shared = Bytes::copy_from_slice(fields.bytes());
    let mut map = HeaderMap::with_capacity(24);
    for (name, value) in fields.value_ranges() {
        let name = HeaderName::from_bytes(name);
        let value = HeaderValue::from_maybe_shared(shared.slice_ref(shared[value].trim_ascii()));
        if let (Ok(name), Ok(value)) = (name, value) {
            let _ = map.try_append(name, value);
        }
    }
    map
}

/// The fields of `map`, without values that HTTP/1 cannot carry unchanged.
pub fn to_fields(map: &HeaderMap) -> Fields {
    let is_plain =
        |value: &[u8]| !value.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t');
    let all = map.iter().map(|(name, value)| (name.as_str(), value.as_bytes().trim_ascii()));
    all.filter(|(_, value)| is_plain(value)).collect()
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
