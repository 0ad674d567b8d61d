//! The access token of a request, from the first source that has one.

use std::{borrow::Cow, fmt};

use http::{HeaderName, header};
use tidegate_http1::Fields;

use super::{
    canonical::trim,
    credentials::{self, canonical_credentials},
    extract::{AmbiguousValue, single_cookie, single_header},
    signed,
};

pub use super::credentials::Token;

/// Where an access token is looked for.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum CredentialSource {
    /// In this header.
    Header(HeaderName),
    /// In the cookie of this name.
    Cookie(String),
    /// This token, read from a log; the request is not searched. No configuration has this source.
    Recorded(String),
}

impl fmt::Display for CredentialSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
            Self::Recorded(_) => f.write_str("recorded"),
        }
    }
}

/// The token in the first of `sources` that has one.
///
/// # Errors
/// A source can be read in more than one way.
pub fn token<'r>(
    sources: &'r [CredentialSource],
    headers: &'r Fields,
) -> Result<Option<Token<'r>>, AmbiguousValue> {
    for source in sources {
        let found = match source {
            CredentialSource::Header(name) => header_token(headers, name)?,
            CredentialSource::Cookie(name) => single_cookie(headers, name)?.map(Token::plain),
            CredentialSource::Recorded(token) => {
                Some(Token::plain(Cow::Borrowed(trim(token.as_bytes()))))
            }
        };
        if let Some(token) = found.filter(|token| !token.value.is_empty()) {
            return Ok(Some(token));
        }
    }
    Ok(None)
}

/// The token in the header `name`, in its canonical form.
pub(super) fn header_token<'r>(
    headers: &'r Fields,
    name: &HeaderName,
) -> Result<Option<Token<'r>>, AmbiguousValue> {
    let Some(value) = single_header(headers, name)? else { return Ok(None) };
    if *name != header::AUTHORIZATION {
        let value = signed::canonical(Cow::Borrowed(trim(value)))
            .ok_or_else(|| AmbiguousValue::not_canonical_token(format!("header {name}")))?;
        return Ok(Some(Token::plain(value)));
    }
    let not_canonical = || AmbiguousValue::NotCanonical {
        name: format!("header {name}"),
        expected: credentials::EXPECTED,
    };
    canonical_credentials(value).map(Some).ok_or_else(not_canonical)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> Fields {
        lines.iter().copied().collect()
    }

    fn sources() -> [CredentialSource; 2] {
        [
            CredentialSource::Header(header::AUTHORIZATION),
            CredentialSource::Cookie("session".into()),
        ]
    }

    #[test]
    fn first_source_with_a_token_is_used() {
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
            let sources = sources();
            let token = token(&sources, &headers).unwrap().unwrap();
            assert_eq!((&*token.scheme, &*token.value), (scheme.as_bytes(), value.as_bytes()));
        }
        assert_eq!(token(&sources(), &headers(&[("cookie", "xsession=1")])), Ok(None));
    }

    #[test]
    fn ambiguous_tokens_are_rejected() {
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
