//! [`ApiKeySource`]: where a client sends an API key, and how the key is removed before a request
//! is forwarded.

use std::{borrow::Cow, fmt};

use http::{HeaderName, header};
use tidegate_http1::Fields;

use super::{
    canonical::{NameMatch, compare_cookie_names, compare_names, decode_form, trim},
    extract::{AmbiguousValue, single_cookie, single_header, single_query_param},
};

/// Where a client sends an API key.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum ApiKeySource {
    /// In this header; in `Authorization` after `Bearer`.
    Header(HeaderName),
    /// In this query parameter.
    Query(String),
    /// In the cookie of this name.
    Cookie(String),
}

impl fmt::Display for ApiKeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Query(name) => write!(f, "query:{name}"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
        }
    }
}

impl ApiKeySource {
    /// True for the header `Authorization`.
    pub fn is_authorization(&self) -> bool {
        matches!(self, Self::Header(name) if *name == header::AUTHORIZATION)
    }

    /// The key in this place of a request; `None` without one, or with an empty one.
    ///
    /// # Errors
    /// The place can be read in more than one way.
    pub fn read<'r>(
        &self,
        headers: &'r Fields,
        query: Option<&'r str>,
    ) -> Result<Option<Cow<'r, [u8]>>, AmbiguousValue> {
        let key = match self {
            Self::Header(name) => {
                let value = single_header(headers, name)?.map(trim);
                let value = if *name == header::AUTHORIZATION {
                    value.and_then(|value| after_scheme(value, BEARER))
                } else {
                    value
                };
                value.map(Cow::Borrowed)
            }
            Self::Query(name) => single_query_param(query.unwrap_or_default(), name)?,
            Self::Cookie(name) => single_cookie(headers, name)?,
        };
        Ok(key.filter(|key| !key.is_empty()))
    }
}

const BEARER: &[u8] = b"bearer";
const BASIC: &[u8] = b"basic";

/// The credentials in `Authorization` after `scheme`, which is in lower case; `None` under another
/// scheme. Empty if nothing follows.
pub fn after_scheme<'v>(value: &'v [u8], scheme: &[u8]) -> Option<&'v [u8]> {
    let (own, rest) = value.split_at_checked(scheme.len())?;
    let has_scheme = own.eq_ignore_ascii_case(scheme)
        && rest.first().is_none_or(|byte| matches!(byte, b' ' | b'\t'));
    has_scheme.then(|| trim(rest))
}

/// True if a value has the form of a signed token: three parts that dots separate.
pub fn has_token_form(value: &[u8]) -> bool {
    memchr::memchr_iter(b'.', value).count() == 2
}

/// The credentials that are removed from a forwarded request.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RemovedCredentials {
    keys: Box<[ApiKeySource]>,
    password: PasswordRemoval,
    tokens: BearerTokens,
}

/// What becomes of a signed token after `Bearer`, where an API key is removed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum BearerTokens {
    /// It is taken for a key.
    #[default]
    AreKeys,
    /// It stays.
    Stay,
}

/// What becomes of a name and a password after `Basic` in a forwarded request.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum PasswordRemoval {
    /// They are forwarded.
    #[default]
    Keep,
    /// They are removed.
    Remove,
}

impl RemovedCredentials {
    /// Removes the keys in `sources`, and passwords by `password`.
    pub fn new(sources: impl IntoIterator<Item = ApiKeySource>, password: PasswordRemoval) -> Self {
        let keys = sources.into_iter().collect();
        Self { keys, password, tokens: BearerTokens::AreKeys }
    }

    /// The same credentials, but a signed token after `Bearer` stays.
    #[must_use]
    pub fn except_tokens(self) -> Self {
        Self { tokens: BearerTokens::Stay, ..self }
    }

    /// True if nothing is removed.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.password == PasswordRemoval::Keep
    }

    /// The headers whose fields [`Self::drops_field`] may drop.
    pub fn headers(&self) -> impl Iterator<Item = &HeaderName> {
        let of_keys = self.keys.iter().filter_map(|source| match source {
            ApiKeySource::Header(name) => Some(name),
            ApiKeySource::Query(_) | ApiKeySource::Cookie(_) => None,
        });
        let of_password =
            (self.password == PasswordRemoval::Remove).then_some(&header::AUTHORIZATION);
        of_keys.chain(of_password)
    }

    /// True if the field `name` of a request with these `headers` is left out. `Authorization`
    /// stays under another scheme than that of the credentials; of `Cookie`,
    /// [`Self::other_cookies`] gives the rest.
    pub fn drops_field(&self, name: &[u8], headers: &Fields) -> bool {
        let is_header = |header: &HeaderName| name.eq_ignore_ascii_case(header.as_str().as_bytes());
        let has_scheme = |scheme: &[u8]| {
            let value = headers.get(header::AUTHORIZATION);
            value.is_some_and(|value| after_scheme(trim(value), scheme).is_some())
        };
        if self.password == PasswordRemoval::Remove
            && is_header(&header::AUTHORIZATION)
            && has_scheme(BASIC)
        {
            return true;
        }
        self.keys.iter().any(|source| match source {
            ApiKeySource::Header(header) => {
                is_header(header) && (*header != header::AUTHORIZATION || self.is_key(headers))
            }
            ApiKeySource::Query(_) => false,
            ApiKeySource::Cookie(_) => name.eq_ignore_ascii_case(b"cookie"),
        })
    }

    /// True if `Authorization` has an API key.
    fn is_key(&self, headers: &Fields) -> bool {
        let value = headers.get(header::AUTHORIZATION).map(trim);
        let value = value.and_then(|value| after_scheme(value, BEARER));
        value.is_some_and(|value| self.tokens == BearerTokens::AreKeys || !has_token_form(value))
    }

    /// True if a cookie may be removed.
    pub fn has_cookies(&self) -> bool {
        self.keys.iter().any(|source| matches!(source, ApiKeySource::Cookie(_)))
    }

    /// The cookies of `line`, a field `Cookie`, without the removed ones; `None` if no other is
    /// left.
    pub fn other_cookies(&self, line: &[u8]) -> Option<Vec<u8>> {
        let is_kept = |pair: &&[u8]| {
            let end = memchr::memchr(b'=', pair).unwrap_or(pair.len());
            let name = trim(&pair[..end]);
            !name.is_empty()
                && !self.keys.iter().any(|source| match source {
                    ApiKeySource::Cookie(cookie) => {
                        compare_cookie_names(name, cookie.as_bytes()) != NameMatch::Other
                    }
                    ApiKeySource::Header(_) | ApiKeySource::Query(_) => false,
                })
        };
        let mut kept = Vec::with_capacity(line.len());
        for pair in line.split(|byte| *byte == b';').filter(is_kept) {
            if !kept.is_empty() {
                kept.extend_from_slice(b"; ");
            }
            kept.extend_from_slice(pair.trim_ascii());
        }
        (!kept.is_empty()).then_some(kept)
    }

    /// The query without the removed parameters; `None` if no other is left.
    pub fn other_parameters<'q>(&self, query: &'q str) -> Option<Cow<'q, str>> {
        let names = || {
            self.keys.iter().filter_map(|source| match source {
                ApiKeySource::Query(name) => Some(name),
                ApiKeySource::Header(_) | ApiKeySource::Cookie(_) => None,
            })
        };
        if names().next().is_none() {
            return Some(Cow::Borrowed(query));
        }
        let is_kept = |pair: &&str| {
            let name = decode_form(pair.split('=').next().unwrap_or_default());
            !names().any(|removed| compare_names(&name, removed.as_bytes()) != NameMatch::Other)
        };
        let mut pairs = query.split('&');
        if pairs.clone().all(|pair| is_kept(&pair)) {
            return Some(Cow::Borrowed(query));
        }
        let mut kept = String::with_capacity(query.len());
        for pair in pairs.by_ref().filter(is_kept) {
            if !kept.is_empty() {
                kept.push('&');
            }
            kept.push_str(pair);
        }
        (!kept.is_empty()).then_some(Cow::Owned(kept))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(name: &'static str) -> ApiKeySource {
        ApiKeySource::Header(HeaderName::from_static(name))
    }

    fn key(source: &ApiKeySource, lines: &[(&str, &str)], query: &str) -> Option<String> {
        let headers: Fields = lines.iter().copied().collect();
        let key = source.read(&headers, Some(query)).ok()??;
        Some(String::from_utf8(key.into_owned()).unwrap())
    }

    #[test]
    fn a_key_is_read_from_its_place() {
        let query = ApiKeySource::Query("key".to_owned());
        let cookie = ApiKeySource::Cookie("key".to_owned());
        for (source, lines, sent, wanted) in [
            (header("x-api-key"), &[("X-Api-Key", " abc ")][..], "", Some("abc")),
            (header("x-api-key"), &[("X-Api-Key", "")], "", None),
            (header("x-api-key"), &[("x-api-key", "a"), ("x-api-key", "b")], "", None),
            (header("authorization"), &[("authorization", "bearer  abc")], "", Some("abc")),
            (header("authorization"), &[("authorization", "Basic YTpi")], "", None),
            (header("authorization"), &[("authorization", "Bearer")], "", None),
            (header("authorization"), &[("authorization", "Bearerabc")], "", None),
            (query.clone(), &[], "a=1&key=abc", Some("abc")),
            (query.clone(), &[], "key=a&key=b", None),
            (query, &[], "a=1", None),
            (cookie.clone(), &[("cookie", "a=1; key=abc")], "", Some("abc")),
            (cookie, &[("cookie", "a=1")], "", None),
        ] {
            assert_eq!(key(&source, lines, sent).as_deref(), wanted, "{source} {lines:?} {sent}");
        }
    }

    #[test]
    fn keys_are_removed_and_the_rest_stays() {
        let removed = RemovedCredentials::new(
            [
                header("x-api-key"),
                header("authorization"),
                ApiKeySource::Query("key".to_owned()),
                ApiKeySource::Cookie("key".to_owned()),
            ],
            PasswordRemoval::Keep,
        );
        let bearer: Fields = [("authorization", "Bearer a")].into_iter().collect();
        let basic: Fields = [("authorization", "Basic YTpi")].into_iter().collect();
        assert!(removed.drops_field(b"Authorization", &bearer));
        assert!(!removed.drops_field(b"authorization", &basic));
        assert!(removed.drops_field(b"X-API-KEY", &basic) && !removed.drops_field(b"x", &basic));
        for (query, left) in [
            ("key=1", None),
            ("a=1&key=2&b=3", Some("a=1&b=3")),
            ("%6bey=2&b", Some("b")),
            ("a=%6bey&b", Some("a=%6bey&b")),
            ("key", None),
            ("", Some("")),
        ] {
            assert_eq!(removed.other_parameters(query).as_deref(), left, "{query}");
        }
        for (cookies, left) in [
            ("key=1", None),
            ("a=1; key=2;b=3", Some(&b"a=1; b=3"[..])),
            ("a=key; %6bey=1", Some(b"a=key")),
        ] {
            assert_eq!(removed.other_cookies(cookies.as_bytes()).as_deref(), left, "{cookies}");
        }
        let headers_only = RemovedCredentials::new([header("x-api-key")], PasswordRemoval::Keep);
        assert_eq!(headers_only.other_parameters("key=1").as_deref(), Some("key=1"));
        assert!(!headers_only.has_cookies() && removed.has_cookies());
    }

    proptest! {
        #[test]
        fn a_removed_key_cannot_be_read_again(query in "[kK%6b&=;ey1]{0,20}", cookie in "[kK%6b;=ey1 ]{0,20}") {
            let (in_query, in_cookie) =
                (ApiKeySource::Query("key".to_owned()), ApiKeySource::Cookie("key".to_owned()));
            let removed = RemovedCredentials::new([in_query.clone(), in_cookie.clone()], PasswordRemoval::Keep);
            let headers: Fields = [("cookie", cookie.trim())].into_iter().collect();
            if matches!(in_query.read(&headers, Some(&query)), Ok(Some(_))) {
                let left = removed.other_parameters(&query);
                prop_assert_eq!(in_query.read(&headers, left.as_deref()), Ok(None));
            }
            if matches!(in_cookie.read(&headers, None), Ok(Some(_))) {
                let left = removed.other_cookies(cookie.trim().as_bytes()).unwrap_or_default();
                let headers: Fields = [("cookie", left)].into_iter().collect();
                prop_assert_eq!(in_cookie.read(&headers, None), Ok(None));
            }
        }
    }
}
