//! The access token of a request.

use std::borrow::Cow;

use http::{HeaderName, header};

use super::{
    credentials::{self, credentials},
    reading::{Ambiguous, cookie, single_header},
    spelling::trim,
};
use crate::framing::Fields;

/// Where an access token may stand.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TokenSource {
    /// In this header.
    Header(HeaderName),
    /// In the cookie of this name.
    Cookie(String),
}

/// An access token in the form that is counted, wherever it stands.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Token<'r> {
    /// Empty, but for `Basic` and for schemes whose credentials are a list of parameters; lower case.
    pub scheme: Cow<'r, [u8]>,
    /// The token itself; of `Basic` decoded.
    pub value: Cow<'r, [u8]>,
}

impl<'r> Token<'r> {
    /// A token whose scheme, if it has one, does not count.
    pub(super) fn plain(value: Cow<'r, [u8]>) -> Self {
        Self { scheme: Cow::Borrowed(b""), value }
    }

    /// Scheme and value as one: no token without a scheme has a space in it.
    pub(super) fn joined(self) -> Cow<'r, [u8]> {
        if self.scheme.is_empty() {
            return self.value;
        }
        Cow::Owned([&*self.scheme, b" ", &*self.value].concat())
    }
}

/// The first token present among `sources`.
pub fn token<'r>(
    sources: &[TokenSource],
    headers: &'r Fields,
) -> Result<Option<Token<'r>>, Ambiguous> {
    for source in sources {
        let found = match source {
            TokenSource::Header(name) => header_token(headers, name)?,
            TokenSource::Cookie(name) => cookie(headers, name)?.map(Token::plain),
        };
        if let Some(token) = found.filter(|token| !token.value.is_empty()) {
            return Ok(Some(token));
        }
    }
    Ok(None)
}

/// The token that the header `name` has, in its one form.
pub(super) fn header_token<'r>(
    headers: &'r Fields,
    name: &HeaderName,
) -> Result<Option<Token<'r>>, Ambiguous> {
    let Some(value) = single_header(headers, name)? else { return Ok(None) };
    if *name != header::AUTHORIZATION {
        return Ok(Some(Token::plain(Cow::Borrowed(trim(value)))));
    }
    let unclear =
        || Ambiguous::Unclear { name: format!("header {name}"), expected: credentials::EXPECTED };
    credentials(value).map(Some).ok_or_else(unclear)
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
            (&[("authorization", "Bearer  abc ")][..], "", "abc"),
            (&[("authorization", "abc")], "", "abc"),
            (&[("authorization", "Basic YTpi")], "basic", "a:b"),
            (&[("authorization", ""), ("cookie", "session=s1")], "", "s1"),
            (&[("authorization", "Bearer"), ("cookie", "session=s1")], "", "s1"),
            (&[("cookie", "a=b; session=\"s1\"; c=d")], "", "s1"),
            (&[("cookie", "a=b; session=%731")], "", "s1"),
            (&[("cookie", "a=b"), ("cookie", "session=s2")], "", "s2"),
            (&[("authorization", "x"), ("cookie", "session=s1")], "", "x"),
        ] {
            let headers = headers(lines);
            let token = token(&sources(), &headers).unwrap().unwrap();
            assert_eq!((&*token.scheme, &*token.value), (scheme.as_bytes(), value.as_bytes()));
        }
        assert_eq!(token(&sources(), &headers(&[("cookie", "xsession=1")])), Ok(None));
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for lines in [
            &[("authorization", "a"), ("authorization", "b")][..],
            &[("authorization", "Bearer a b")],
            &[("cookie", "session=a; session=b")],
            &[("cookie", "session=a; session[]=b")],
            &[("cookie", "session=\"a")],
        ] {
            assert!(token(&sources(), &headers(lines)).is_err(), "{lines:?}");
        }
        for same in ["session=a; session=a", "session=a; session=\"%61\""] {
            let same = headers(&[("cookie", same)]);
            assert_eq!(&*token(&sources(), &same).unwrap().unwrap().value, b"a");
        }
    }
}
