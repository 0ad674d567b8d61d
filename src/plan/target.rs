//! What a request asks for: its host and its path, whichever form the target has. RFC 9112, 3.2.

use std::borrow::Cow;

use http::{HeaderValue, Uri, header, request::Parts, uri::PathAndQuery};

use crate::{error::GatewayError, framing::head::check_host};

/// Brings the target into origin form. An absolute target's host replaces the `Host` header.
pub(super) fn to_origin_form(parts: &mut Parts) -> Result<(), GatewayError> {
    let Some(authority) = parts.uri.authority() else { return Ok(()) };
    let http = parts.uri.scheme_str().is_some_and(|s| matches!(s, "http" | "https"));
    if !http || authority.as_str().contains('@') || authority.host().is_empty() {
        return Err(GatewayError::Target);
    }
    check_host(authority.as_str().as_bytes()).map_err(|_| GatewayError::Target)?;
    let host = HeaderValue::from_str(authority.as_str()).map_err(|_| GatewayError::Target)?;
    parts.headers.insert(header::HOST, host);
    let target = parts.uri.path_and_query().cloned();
    let target = target.unwrap_or_else(|| PathAndQuery::from_static("/"));
    parts.uri = if target.as_str().starts_with('/') {
        Uri::from(target)
    } else {
        // `http://a?b` has no path; an origin form without one is no request line.
        Uri::try_from(format!("/{}", target.as_str())).map_err(|_| GatewayError::Target)?
    };
    Ok(())
}

/// The requested host as routes and keys know it: lower case, without port and final dot. Empty
/// where HTTP/1.0 sent none.
pub fn host(parts: &Parts) -> Cow<'_, str> {
    let value = parts.headers.get(header::HOST).map_or(&b""[..], HeaderValue::as_bytes);
    let (mut end, mut capitals) = (value.len(), false);
    for (place, byte) in value.iter().enumerate() {
        match byte {
            b':' => end = place,
            // The colons before it were an address's own.
            b']' => end = value.len(),
            _ => capitals |= byte.is_ascii_uppercase(),
        }
    }
    let name = &value[..end];
    // The framing has checked it: letters, digits and a few signs.
    let name = std::str::from_utf8(name.strip_suffix(b".").unwrap_or(name)).unwrap_or_default();
    if capitals { Cow::Owned(name.to_ascii_lowercase()) } else { Cow::Borrowed(name) }
}

/// The target that is forwarded, where it is not the one that came: the path in normal form, without
/// the route's prefix, the query unchanged.
pub(super) fn forwarded(
    parts: &Parts,
    path: &str,
    strip_prefix: Option<&str>,
) -> Result<Option<Uri>, GatewayError> {
    let path = match strip_prefix.and_then(|prefix| path.strip_prefix(prefix)) {
        Some("") => "/",
        Some(rest) if rest.starts_with('/') => rest,
        // The prefix ends inside a segment, so it is not this path's.
        Some(_) | None => path,
    };
    if path == parts.uri.path() {
        return Ok(None);
    }
    let target = match parts.uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    Uri::try_from(target).map(Some).map_err(|_| GatewayError::Target)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(uri: &str, host: &str) -> Parts {
        let request = http::Request::builder().uri(uri).header("host", host).body(());
        request.unwrap().into_parts().0
    }

    #[test]
    fn the_host_has_one_spelling() {
        for (sent, wanted) in [
            ("API.example.com:8080", "api.example.com"),
            ("api.example.com.", "api.example.com"),
            ("[2001:DB8::1]:80", "[2001:db8::1]"),
            ("[::1]", "[::1]"),
        ] {
            assert_eq!(host(&parts("/", sent)), wanted);
        }
    }

    #[test]
    fn an_absolute_target_says_the_host() {
        let mut request = parts("http://b.example.com:81/x?y", "a.example.com");
        to_origin_form(&mut request).unwrap();
        assert_eq!(request.headers["host"], "b.example.com:81");
        assert_eq!(request.uri, "/x?y");
        for wrong in ["ftp://a/x", "http://user@a/x", "http://a!b/x"] {
            assert!(to_origin_form(&mut parts(wrong, "a")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_target_in_normal_form_is_left_alone() {
        assert!(forwarded(&parts("/items?q", "a"), "/items", None).unwrap().is_none());
    }

    #[test]
    fn the_prefix_is_whole_segments() {
        for (path, prefix, wanted) in [
            ("/v1/items", Some("/v1"), "/items?q"),
            ("/v1", Some("/v1"), "/?q"),
            ("/v10/items", Some("/v1"), "/v10/items?q"),
            ("/items", None, "/items?q"),
        ] {
            let request = parts("/%69tems?q", "a");
            assert_eq!(forwarded(&request, path, prefix).unwrap().unwrap(), wanted);
        }
    }
}
