//! The access token of a request.

use http::{HeaderName, header};

use super::key::Ambiguous;
use crate::framing::Fields;

/// Where an access token may stand.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TokenSource {
    /// In this header.
    Header(HeaderName),
    /// In the cookie of this name.
    Cookie(String),
}

/// A token as it stands in the request: an authorization scheme, where there is one, and the rest.
///
/// The scheme is told apart because `Bearer x` and `bearer  x` are one token to every upstream, and
/// must be one caller here.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Token<'r> {
    /// `Bearer`, in whatever case it was sent; empty outside `Authorization`.
    pub scheme: &'r [u8],
    /// The token itself.
    pub value: &'r [u8],
}

/// The first token present among `sources`.
pub fn token<'r>(
    sources: &[TokenSource],
    headers: &'r Fields,
) -> Result<Option<Token<'r>>, Ambiguous> {
    for source in sources {
        let found = match source {
            TokenSource::Header(name) => {
                single_header(headers, name)?.map(|value| split(name, value))
            }
            TokenSource::Cookie(name) => {
                cookie(headers, name)?.map(|value| Token { scheme: b"", value })
            }
        };
        if let Some(token) = found.filter(|token| !token.value.is_empty()) {
            return Ok(Some(token));
        }
    }
    Ok(None)
}

pub(super) fn split<'r>(name: &HeaderName, value: &'r [u8]) -> Token<'r> {
    let value = value.trim_ascii();
    if *name != header::AUTHORIZATION {
        return Token { scheme: b"", value };
    }
    match memchr::memchr2(b' ', b'\t', value) {
        Some(space) => Token { scheme: &value[..space], value: value[space..].trim_ascii() },
        None => Token { scheme: b"", value },
    }
}

/// The only value of a header. Sent twice, the gateway and the upstream could believe different ones.
pub(super) fn single_header<'r>(
    headers: &'r Fields,
    name: &HeaderName,
) -> Result<Option<&'r [u8]>, Ambiguous> {
    let mut values = headers.get_all(name.as_str());
    let first = values.next();
    if values.next().is_some() {
        return Err(Ambiguous(format!("header {name}")));
    }
    Ok(first)
}

/// The only value of a cookie, without quotes.
pub(super) fn cookie<'r>(headers: &'r Fields, name: &str) -> Result<Option<&'r [u8]>, Ambiguous> {
    let mut found = None;
    for line in headers.get_all(header::COOKIE) {
        for pair in line.split(|byte| *byte == b';') {
            let Some(equals) = memchr::memchr(b'=', pair) else { continue };
            if pair[..equals].trim_ascii() != name.as_bytes() {
                continue;
            }
            let value = pair[equals + 1..].trim_ascii();
            let value =
                value.strip_prefix(b"\"").and_then(|v| v.strip_suffix(b"\"")).unwrap_or(value);
            if found.replace(value).is_some_and(|other| other != value) {
                return Err(Ambiguous(format!("cookie {name}")));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> Fields {
        lines.iter().copied().collect()
    }

    fn sources() -> [TokenSource; 2] {
        [TokenSource::Header(header::AUTHORIZATION), TokenSource::Cookie("session".into())]
    }

    #[test]
    fn the_first_source_that_is_present_gives_the_token() {
        for (lines, scheme, value) in [
            (&[("authorization", "Bearer  abc ")][..], "Bearer", "abc"),
            (&[("authorization", "abc")], "", "abc"),
            (&[("authorization", ""), ("cookie", "session=s1")], "", "s1"),
            (&[("cookie", "a=b; session=\"s1\"; c=d")], "", "s1"),
            (&[("cookie", "a=b"), ("cookie", "session=s2")], "", "s2"),
            (&[("authorization", "x"), ("cookie", "session=s1")], "", "x"),
        ] {
            let headers = headers(lines);
            let token = token(&sources(), &headers).unwrap().unwrap();
            assert_eq!((token.scheme, token.value), (scheme.as_bytes(), value.as_bytes()));
        }
        assert_eq!(token(&sources(), &headers(&[("cookie", "xsession=1")])), Ok(None));
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        let twice = headers(&[("authorization", "a"), ("authorization", "b")]);
        assert!(token(&sources(), &twice).is_err());
        let cookies = headers(&[("cookie", "session=a; session=b")]);
        assert!(token(&sources(), &cookies).is_err());
        let same = headers(&[("cookie", "session=a; session=a")]);
        assert_eq!(token(&sources(), &same).unwrap().unwrap().value, b"a");
    }
}
