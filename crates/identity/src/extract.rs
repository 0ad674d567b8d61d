//! Extracts the single value of a header, cookie or query parameter from a request.

use std::borrow::Cow;

use http::{HeaderName, header};
use tidegate_base::escape::escape;
use tidegate_http1::Fields;

use super::{
    canonical::{
        NameMatch, canonical_cookie_value, canonical_query_value, compare_cookie_names,
        compare_names, decode_form, is_cookie_separator, trim,
    },
    signed,
};

/// A part of a key that the gateway and the upstream could read differently.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AmbiguousValue {
    /// A second value was sent.
    #[error("{0} must be sent at most once: requests are counted or routed by it")]
    Repeated(String),
    /// A value was sent under another name that some upstreams read as the same.
    #[error(
        "{kind} `{sent}` can be taken for `{name}`, by which requests are counted or routed; send only `{name}`"
    )]
    Alias {
        /// `cookie` or `query parameter`.
        kind: &'static str,
        /// The name as sent, escaped and truncated.
        sent: String,
        /// The part's name.
        name: String,
    },
    /// The value has no canonical form.
    #[error(
        "{name} can be read in more than one way, and requests are counted or routed by it; expected {expected}"
    )]
    NotCanonical {
        /// The part.
        name: String,
        /// What is expected.
        expected: &'static str,
    },
}

impl AmbiguousValue {
    /// A respelled signed token.
    #[cold]
    pub(super) fn not_canonical_token(name: String) -> Self {
        Self::NotCanonical { name, expected: signed::EXPECTED }
    }
}

/// The maximum number of cookies or parameters that are searched: more than common upstreams
/// accept.
const MAX_PAIRS: usize = 4096;

/// Counts a cookie or parameter. Fails above [`MAX_PAIRS`].
fn count_pair(pairs: &mut usize, name: impl FnOnce() -> String) -> Result<(), AmbiguousValue> {
    *pairs += 1;
    if *pairs > MAX_PAIRS {
        return Err(AmbiguousValue::NotCanonical {
            name: name(),
            expected: "at most 4096 cookies or parameters in the request",
        });
    }
    Ok(())
}

fn alias(kind: &'static str, sent: &[u8], name: &str) -> AmbiguousValue {
    const MAX: usize = 64;
    let sent: String = String::from_utf8_lossy(sent).chars().take(MAX).collect();
    AmbiguousValue::Alias { kind, sent: escape(&sent).into_owned(), name: name.to_owned() }
}

/// The single value of a header, as sent. A repeated header is rejected: the gateway and the
/// upstream could use different values.
///
/// # Errors
///
/// The header is repeated, or has an alias.
pub fn single_header<'r>(
    headers: &'r Fields,
    name: &HeaderName,
) -> Result<Option<&'r [u8]>, AmbiguousValue> {
    let mut values = headers.get_all(name.as_str());
    let first = values.next();
    if values.next().is_some() {
        return Err(AmbiguousValue::Repeated(format!("header {name}")));
    }
    Ok(first)
}

/// The single value of a cookie, in its canonical form.
pub(super) fn single_cookie<'r>(
    headers: &'r Fields,
    name: &str,
) -> Result<Option<Cow<'r, [u8]>>, AmbiguousValue> {
    let (mut found, mut pairs) = (None, 0);
    for line in headers.get_all(header::COOKIE) {
        for pair in line.split(|byte| *byte == b';') {
            count_pair(&mut pairs, || format!("cookie {name}"))?;
            let Some(equals) = memchr::memchr(b'=', pair) else { continue };
            if hides_cookie(&pair[equals + 1..], name) {
                return Err(AmbiguousValue::Repeated(format!("cookie {name}")));
            }
            match compare_cookie_names(trim(&pair[..equals]), name.as_bytes()) {
                NameMatch::Same => {}
                NameMatch::Alias => return Err(alias("cookie", trim(&pair[..equals]), name)),
                NameMatch::Other => continue,
            }
            let value = canonical_cookie_value(&pair[equals + 1..]).ok_or_else(|| {
                AmbiguousValue::NotCanonical {
                    name: format!("cookie {name}"),
                    expected: "a value without spaces, commas, quotes and backslashes; a signed token as it was issued, \
                               without escapes",
                }
            })?;
            insert_single(&mut found, value)
                .ok_or_else(|| AmbiguousValue::Repeated(format!("cookie {name}")))?;
        }
    }
    Ok(found)
}

/// True if some upstreams find a cookie `name` inside the `value` of another cookie.
fn hides_cookie(value: &[u8], name: &str) -> bool {
    let mut pieces = value.split(|byte| is_cookie_separator(*byte)).skip(1).peekable();
    while let Some(piece) = pieces.next() {
        let end = memchr::memchr(b'=', piece);
        // `name = value` has spaces around it.
        let is_name = end.is_some() || pieces.peek().is_some_and(|next| next.starts_with(b"="));
        let found = compare_cookie_names(&piece[..end.unwrap_or(piece.len())], name.as_bytes());
        if is_name && found != NameMatch::Other {
            return true;
        }
    }
    false
}

/// The parameters of a query, with decoded names.
#[derive(Clone, Debug, Default)]
pub struct QueryPairs<'r>(Vec<QueryPair<'r>>);

#[derive(Clone, Debug)]
struct QueryPair<'r> {
    /// Decoded.
    name: Cow<'r, [u8]>,
    /// As sent.
    value: &'r str,
    /// True if a `;` is next to it.
    has_semicolon: bool,
}

impl<'r> QueryPairs<'r> {
    /// The parameters of a query. Keeps one more than may be searched, so that [`Self::value`]
    /// reports the excess.
    pub fn new(query: Option<&'r str>) -> Self {
        Self(query.into_iter().flat_map(query_pairs).take(MAX_PAIRS + 1).collect())
    }

    /// The single value of a parameter, in its canonical form.
    ///
    /// # Errors
    /// It is ambiguous.
    pub fn value(&self, name: &str) -> Result<Option<Cow<'r, [u8]>>, AmbiguousValue> {
        single_value(self.0.iter().map(|pair| (&pair.name, pair.value, pair.has_semicolon)), name)
    }
}

fn query_pairs(query: &str) -> impl Iterator<Item = QueryPair<'_>> {
    query.split('&').flat_map(|pair| {
        // Some upstreams also separate parameters by `;`.
        let has_semicolon = memchr::memchr(b';', pair.as_bytes()).is_some();
        pair.split(';').map(move |piece| {
            let (key, value) = piece.split_once('=').unwrap_or((piece, ""));
            QueryPair { name: decode_form(key), value, has_semicolon }
        })
    })
}

/// The single value of a query parameter, in its canonical form.
pub(super) fn single_query_param<'r>(
    query: &'r str,
    name: &str,
) -> Result<Option<Cow<'r, [u8]>>, AmbiguousValue> {
    single_value(query_pairs(query).map(|pair| (pair.name, pair.value, pair.has_semicolon)), name)
}

/// The single value of `name` in `all`: decoded names and values, and true if a `;` is next to the
/// pair.
fn single_value<'r>(
    all: impl Iterator<Item = (impl AsRef<[u8]>, &'r str, bool)>,
    name: &str,
) -> Result<Option<Cow<'r, [u8]>>, AmbiguousValue> {
    let repeated = || AmbiguousValue::Repeated(format!("query parameter {name}"));
    let (mut found, mut pairs) = (None, 0);
    for (key, value, has_semicolon) in all {
        count_pair(&mut pairs, || format!("query parameter {name}"))?;
        match compare_names(key.as_ref(), name.as_bytes()) {
            NameMatch::Same if has_semicolon => {
                return Err(AmbiguousValue::NotCanonical {
                    name: format!("query parameter {name}"),
                    expected: "no `;` next to it",
                });
            }
            NameMatch::Same => {
                let value = canonical_query_value(value).ok_or_else(|| {
                    AmbiguousValue::not_canonical_token(format!("query parameter {name}"))
                })?;
                insert_single(&mut found, value).ok_or_else(repeated)?;
            }
            NameMatch::Alias => return Err(alias("query parameter", key.as_ref(), name)),
            NameMatch::Other => {}
        }
    }
    Ok(found)
}

/// Stores a value; `None` if a different one is stored.
fn insert_single<'r>(found: &mut Option<Cow<'r, [u8]>>, value: Cow<'r, [u8]>) -> Option<()> {
    if let Some(other) = found {
        return (*other == value).then_some(());
    }
    *found = Some(value);
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn number_of_pairs_is_bounded() {
        let (few, many) = ("q&".repeat(MAX_PAIRS - 1), "q&".repeat(MAX_PAIRS + 1));
        let query = few + "k=1";
        let value = single_query_param(&query, "k").unwrap();
        assert_eq!(value.as_deref(), Some(&b"1"[..]));
        assert!(single_query_param(&many, "k").is_err());
        let cookies = [("cookie", "a=1;".repeat(MAX_PAIRS + 1))].into_iter().collect();
        assert!(single_cookie(&cookies, "k").is_err());
    }

    #[test]
    fn ambiguous_query_parameters_are_rejected() {
        for (text, wanted) in [
            ("k=%61b&x=1", Some(&b"ab"[..])),
            ("x&k", Some(b"")),
            ("%6b=a+b", Some(b"a b")),
            ("k=a&k=%61+", Some(b"a")),
            ("k=%zz", Some(b"%zz")),
            ("k=%3b", Some(b";")),
            ("x=1;y=2&z", None),
            ("kk=1", None),
        ] {
            assert_eq!(single_query_param(text, "k").unwrap().as_deref(), wanted, "{text}");
        }
        for text in [
            "k=1&k=2",
            "k=1;x",
            "x;k=1",
            "k;x=1",
            "k=1&k[]=2",
            "k[a]=1",
            "+k=1",
            "k%00=1",
            "K=1",
            "K=1&k=1",
        ] {
            assert!(single_query_param(text, "k").is_err(), "{text}");
        }
    }

    #[test]
    fn an_alias_is_named_as_sent() {
        for (text, sent) in [("k=1&k[]=2", "k[]"), ("k%1b=1", "k"), ("k%00%1b=1", "k\\0\\u{1b}")] {
            let Err(error) = single_query_param(text, "k") else { continue };
            let expected = format!(
                "query parameter `{sent}` can be taken for `k`, by which requests are counted or routed; send only `k`"
            );
            assert_eq!(error.to_string(), expected);
        }
        for (text, is_ambiguous) in [
            ("k=1 k=2", true),
            ("k=1\tk=2", true),
            ("k=1, k=2", true),
            ("k=1,2", true),
            ("k=1 2", true),
            ("k=\"1 2\"", true),
            ("k=1\"2", true),
            ("x=1 k=2", true),
            ("x=1, k =2", true),
            ("x=1 k[]=2", true),
            ("%6b=1; k=2", true),
            ("K=1; k=2", true),
            ("x=1 2, 3", false),
            ("x=1 kk=2; k=3", false),
            ("x=\"k\"; k=3", false),
        ] {
            let cookies = [("cookie", text)].into_iter().collect();
            assert_eq!(single_cookie(&cookies, "k").is_err(), is_ambiguous, "{text}");
        }
        let cookies = [("cookie", "k[]=1")].into_iter().collect();
        let error = single_cookie(&cookies, "k").unwrap_err().to_string();
        assert!(error.starts_with("cookie `k[]` can be taken for `k`"), "{error}");
    }

    proptest! {
        #[test]
        fn arbitrary_queries_do_not_panic(text in "\\PC{0,40}") {
            let _ = single_query_param(&text, "k");
        }

        #[test]
        fn order_of_parameters_has_no_effect(a in "[a-z+%;\\[=]{0,6}", b in "[a-z+%;\\[=]{0,6}") {
            let found = |text: String| single_query_param(&text, "k").map(|value| value.map(Cow::into_owned)).ok();
            prop_assert_eq!(found(format!("k={a}&x={b}")), found(format!("x={b}&k={a}")));
        }
    }
}
